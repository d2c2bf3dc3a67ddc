"""The fake client gives the same results as the real client with a sandbox over sockets."""

import asyncio
import contextlib

import pytest

from transfer_async import (
    AlreadyCreated,
    BeneficiaryNotVerified,
    BeneficiaryVerification,
    ClientClosed,
    ConnectionFailed,
    KeyBusy,
    KeyConflict,
    Outcome,
    OutcomeUnknown,
    PersonName,
    Refused,
    RetryPolicy,
    ServiceFailed,
    Timeouts,
    TransferClient,
    TransferError,
    UnreadableOrder,
    UserLookup,
)
from transfer_async.sandbox import (
    BrokenChunk,
    CloseAfterProcessing,
    Fault,
    SlowBytes,
    StallBeforeProcessing,
    Status,
)
from transfer_async.testing import (
    EACH_FAULT,
    FakeClient,
    Holds,
    assert_hold_kept,
    assert_hold_released,
    assert_no_order,
    assert_one_order,
    make_new_order,
)


class Real:
    """The real client, with a sandbox over sockets."""

    def __init__(self, sandbox):
        self.sandbox = sandbox

    def client(self, **settings):
        return TransferClient(self.sandbox.base_url, self.sandbox.token, **settings)

    def out_of_reach(self, **settings):
        return TransferClient("http://127.0.0.1:1", "token", **settings)


class Fake:
    """The fake client. Its sandbox belongs to the only client of the test."""

    def client(self, **settings):
        made = FakeClient(**settings)
        self.sandbox = made.sandbox
        return made

    def out_of_reach(self, **settings):
        made = self.client(**settings)
        made.out_of_reach()
        return made


@pytest.fixture(params=[Real, Fake])
def kind(request):
    return Fake() if request.param is Fake else Real(request.getfixturevalue("beside"))


@pytest.fixture
def opened(kind, holds, hands):
    """Return a function that opens a client with the test's holds, clock and settings."""

    @contextlib.asynccontextmanager
    async def client(**settings):
        async with kind.client(**{"hooks": [holds.hook], "clock": hands, **settings}) as made:
            yield made

    return client


async def create(client, order=None, **arguments):
    return await client.create_order(order or make_new_order(), key="k", **arguments)


async def fails(error, client, order=None, **arguments):
    with pytest.raises(error) as caught:
        await create(client, order, **arguments)
    return caught.value


async def test_a_key_creates_one_order_and_returns_it_again(opened, kind, holds):
    async with opened() as client:
        order = await create(client)
        again = await create(client)

        assert again == order
        await assert_one_order("k", client=client, sandbox=kind.sandbox)
        await assert_hold_kept("k", client=client, held=holds.held)
        await fails(KeyConflict, client, make_new_order(matcher_amount="7.00"))
    assert len(kind.sandbox.requests) == 1


async def test_a_refusal_releases_the_hold_and_names_the_fields(opened, kind, holds):
    async with opened() as client:
        error = await fails(Refused, client, make_new_order(poster_recipient_username="nobody@example.com"))

        assert (error.status, error.outcome, error.order_may_exist) == (422, Outcome.REFUSED, False)
        assert "poster_recipient_username" in error.fields
        await assert_no_order("k", client=client, sandbox=kind.sandbox)
        await assert_hold_released("k", client=client, held=holds.held)
        await create(client)


async def test_a_doubt_remains_until_it_is_resolved(opened, kind, holds):
    seen = []

    async def resolve(intent, doubt):
        return seen[0] if seen else None

    async with opened(resolve=resolve) as client:
        kind.sandbox.faults.add(CloseAfterProcessing())
        for _ in range(2):
            error = await fails(OutcomeUnknown, client)
            assert error.order_may_exist
        assert [doubt.key for doubt in await client.in_doubt()] == ["k"]
        await assert_hold_kept("k", client=client, held=holds.held)
        seen.extend(kind.sandbox.orders)
        error = await fails(AlreadyCreated, client)

    assert [error.order_id] == [*kind.sandbox.orders]
    assert len(kind.sandbox.requests) == 1


@pytest.mark.parametrize("fault", EACH_FAULT)
async def test_each_fault_has_the_same_outcome_in_both_clients(fault, beside, hands):
    ends = []
    for kind in (Real(beside), Fake()):
        holds = Holds()
        async with kind.client(hooks=[holds.hook], clock=hands) as client:
            kind.sandbox.faults.add(EACH_FAULT[fault])
            ends.append(await end_of(client, kind, holds))

    assert ends[0] == ends[1]
    assert ends[0]["orders"] <= 1


async def end_of(client, kind, holds):
    """Return the result of a call, and the final state of the key, the service and the bank."""
    error = order = None
    try:
        order = await create(client)
    except TransferError as raised:
        error = raised
    return {
        "error": type(error),
        "outcome": None if error is None else error.outcome,
        "may exist": None if error is None else error.order_may_exist,
        "status": getattr(error, "status", None),
        "raw": bool(getattr(error, "raw", None)),
        "read": None if order is None else order.poster_amount,
        "state": (await client.known("k")).state,
        "orders": len(kind.sandbox.orders),
        "requests": len(kind.sandbox.requests),
        "holds": len(holds.standing),
    }


async def in_doubt_in_the_end(fault, client, kind, loop_time):
    """Make a call whose response stalls, and let all timeouts expire."""
    kind.sandbox.faults.add(fault)
    call = asyncio.create_task(fails(OutcomeUnknown, client))
    await kind.sandbox.stalled()
    await loop_time.pass_(600.0)
    await call


async def test_a_broken_response_leads_to_doubt(opened, kind, loop_time):
    """The details depend on how the bytes are split into packets, so they are not compared."""
    async with opened() as client:
        await in_doubt_in_the_end(BrokenChunk(), client, kind, loop_time)


class StallsAmidTheBody(Fault):
    """Creates the order, sends the first part of the response, and stalls."""

    name = "stalls-amid-the-body"

    async def __call__(self, exchange):
        reply = exchange.process()
        body = await exchange.begin(reply, length=len(reply.body))
        await body.write(reply.body[:-10])
        await exchange.stall()


async def test_a_response_that_outlasts_the_timeout_is_unreadable(kind):
    """A bank may handle this error in a special way, so the fake client must raise it, too."""
    async with kind.client(timeouts=Timeouts(sock_read=0.5), retry=RetryPolicy(attempts=1)) as client:
        kind.sandbox.faults.add(StallsAmidTheBody())
        error = await fails(OutcomeUnknown, client, held="ours")

    assert (type(error), error.status, bool(error.raw)) == (UnreadableOrder, 200, True)


async def test_a_slow_response_that_keeps_sending_is_read(kind):
    """The timeout applies to each part, not to the whole response."""
    async with kind.client(timeouts=Timeouts(sock_read=1.0), retry=RetryPolicy(attempts=1)) as client:
        kind.sandbox.faults.add(SlowBytes(delay=0.4, size=2000))
        await create(client, held="ours")


async def test_a_stall_leads_to_doubt_and_the_order_may_appear_later(opened, kind, loop_time):
    async with opened() as client:
        await in_doubt_in_the_end(StallBeforeProcessing(), client, kind, loop_time)
        assert not kind.sandbox.orders

        kind.sandbox.faults.release()
        await kind.sandbox.created()
        await fails(OutcomeUnknown, client)


async def test_an_unreachable_service_means_not_sent(kind, holds, hands):
    async with kind.out_of_reach(hooks=[holds.hook], clock=hands) as client:
        error = await fails(ConnectionFailed, client)

        assert not error.order_may_exist
        await assert_hold_released("k", client=client, held=holds.held)
        with pytest.raises(ConnectionFailed):
            await client.who_am_i()


async def test_a_key_is_busy_during_a_call_and_close_waits_for_it(opened, kind):
    async with opened() as client:
        kind.sandbox.faults.add(StallBeforeProcessing())
        paying = asyncio.create_task(create(client))
        await kind.sandbox.stalled()
        await fails(KeyBusy, client)
        kind.sandbox.faults.release()
        await paying
    await fails(ClientClosed, client)


async def test_a_cancelled_call_leaves_a_correct_record(opened, kind):
    async with opened() as client:
        kind.sandbox.faults.add(StallBeforeProcessing())
        paying = asyncio.create_task(create(client))
        await kind.sandbox.stalled()
        paying.cancel()
        await asyncio.gather(paying, return_exceptions=True)
        kind.sandbox.faults.release()
        await kind.sandbox.finished()
        sandbox = kind.sandbox
    async with opened(journal=client._context.journal.store) as later:
        assert (await create(later)).id in sandbox.orders


async def test_beneficiaries_are_looked_up_and_names_compared(opened, kind, holds):
    check = BeneficiaryVerification(UserLookup("/sandbox/users/{username}"))
    async with opened(hooks=[check, holds.hook]) as client:
        await fails(BeneficiaryNotVerified, client, beneficiary=PersonName("Somebody", "Else"))
        await create(client, beneficiary=PersonName("Ben", "Okri"))

        assert (await client.who_am_i()).username == "lagoon-bank"


async def test_reads_are_retried_and_finally_fail(opened, kind):
    async with opened() as client:
        kind.sandbox.faults.add(Status(500), path="*")
        assert (await client.who_am_i()).id
        kind.sandbox.faults.add(Status(500), path="*", times=None)
        with pytest.raises(ServiceFailed):
            await client.request("HEAD", "/anything?at=all", safe=True)


def test_a_fake_client_rejects_connection_settings():
    with pytest.raises(ValueError, match="proxy: a FakeClient has no connections"):
        FakeClient(proxy="http://127.0.0.1:3128")


async def test_closing_a_fake_client_closes_its_service(hands):
    """Therefore, a stalled request is never processed."""
    client = FakeClient(clock=hands)
    client.sandbox.faults.add(StallBeforeProcessing())
    paying = asyncio.create_task(create(client, held="ours"))
    await client.sandbox.stalled()

    await client.close(timeout=0)

    assert isinstance((await asyncio.gather(paying, return_exceptions=True))[0], OutcomeUnknown)
    assert not client.sandbox.orders


async def test_a_fake_client_can_be_made_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRANSFER_BASE_URL", "https://api.example.com")
    monkeypatch.setenv("TRANSFER_API_TOKEN", "secret")
    async with FakeClient.from_env() as client:
        assert (await create(client, held="ours")).id in client.sandbox.orders
