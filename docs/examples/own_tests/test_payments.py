"""The bank's tests for its own code, against the sandbox: ``pytest docs/examples/own_tests``.

The fixture ``transfer_sandbox``, which the package provides, is a real HTTP server. It fails in the same ways
as a service in production: it closes connections, loses responses, and returns unexpected statuses.
"""

import pytest

from payments import Answer, Ledger, client_for, pay
from transfer_async import FundsHold
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, Status
from transfer_async.testing import (
    FakeClient,
    ManualClock,
    assert_hold_kept,
    assert_hold_released,
    assert_one_order,
)

pytestmark = pytest.mark.asyncio

BEN, NOBODY = "ben.okri@example.com", "nobody@example.com"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


async def test_a_payment_is_paid_and_its_hold_stays(transfer_sandbox: Sandbox, ledger: Ledger) -> None:
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        answer = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")

        assert answer is Answer.PAID
        await assert_one_order("payment-1", client=client, sandbox=transfer_sandbox)
        await assert_hold_kept("payment-1", client=client, held=ledger.held)


async def test_a_refusal_gives_the_money_back(transfer_sandbox: Sandbox, ledger: Ledger) -> None:
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        answer = await pay(client, "payment-1", beneficiary=NOBODY, dollars="100.00")

    assert answer is Answer.REFUSED
    assert not transfer_sandbox.orders
    assert not ledger.holds


async def test_a_lost_answer_keeps_the_hold_and_is_never_paid_twice(
    transfer_sandbox: Sandbox, ledger: Ledger
) -> None:
    transfer_sandbox.faults.add(CloseAfterProcessing())  # the next order is created, but its response is lost
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        answer = [await pay(client, "payment-1", beneficiary=BEN, dollars="100.00") for _ in range(3)]

    assert answer == [Answer.WAIT] * 3
    assert len(transfer_sandbox.requests) == len(transfer_sandbox.orders) == len(ledger.holds) == 1


async def test_a_lost_answer_is_found_on_the_statement(transfer_sandbox: Sandbox, ledger: Ledger) -> None:
    transfer_sandbox.faults.add(CloseAfterProcessing())
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        before = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")
        (ledger.seen["payment-1"],) = transfer_sandbox.orders
        after = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")

    assert (before, after) == (Answer.WAIT, Answer.PAID)
    assert len(transfer_sandbox.requests) == 1


@pytest.mark.transfer_faults  # runs once for each fault of the sandbox; the fault affects the first order
async def test_whatever_goes_wrong_nobody_is_paid_twice(
    transfer_sandbox: Sandbox, transfer_clock: ManualClock, ledger: Ledger
) -> None:
    url, token = transfer_sandbox.base_url, transfer_sandbox.token
    async with client_for(ledger, url, token, clock=transfer_clock) as client:
        answer = [await pay(client, "payment-1", beneficiary=BEN, dollars="100.00") for _ in range(3)]

    assert len(transfer_sandbox.orders) <= 1
    assert len(ledger.holds) == (0 if answer[-1] is Answer.REFUSED else 1)


async def test_the_desk_alone_without_sockets(ledger: Ledger) -> None:
    async with FakeClient(hooks=[FundsHold(ledger.place, ledger.release)]) as client:
        client.sandbox.faults.add(Status(422))
        answer = [await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")]
        await assert_hold_released("payment-1", client=client, held=ledger.held)
        answer.append(await pay(client, "payment-1", beneficiary=BEN, dollars="100.00"))

        assert answer == [Answer.REFUSED, Answer.PAID]
        await assert_one_order("payment-1", client=client, sandbox=client.sandbox)


@pytest.mark.parametrize("status", [500, 503])
async def test_an_odd_status_is_not_taken_for_a_no(
    transfer_sandbox: Sandbox, ledger: Ledger, status: int
) -> None:
    transfer_sandbox.faults.add(Status(status))
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        answer = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")

    assert answer is Answer.WAIT
    assert len(ledger.holds) == 1


async def test_a_token_that_is_not_good_is_not_the_customers_fault(
    transfer_sandbox: Sandbox, ledger: Ledger
) -> None:
    transfer_sandbox.faults.add(Status(401))
    async with client_for(ledger, transfer_sandbox.base_url, transfer_sandbox.token) as client:
        answer = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")

    assert answer is Answer.LATER
    assert not ledger.holds


async def test_a_service_out_of_reach_gives_the_money_back(ledger: Ledger) -> None:
    nobody_listens = "http://127.0.0.1:1"
    async with client_for(ledger, nobody_listens, "token") as client:
        answer = await pay(client, "payment-1", beneficiary=BEN, dollars="100.00")

    assert answer is Answer.LATER
    assert not ledger.holds
