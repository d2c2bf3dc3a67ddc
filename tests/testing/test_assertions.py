"""The assertions about a key. Each accepts the right state, and lists the differences of a wrong one."""

import pytest

from transfer_async import OutcomeUnknown, PreflightFailed, Refused
from transfer_async.journal import KeyState
from transfer_async.sandbox import CloseAfterProcessing, Status
from transfer_async.testing import (
    FakeClient,
    Holds,
    assert_hold_kept,
    assert_hold_released,
    assert_no_order,
    assert_one_order,
    assert_one_payment,
    make_new_order,
)


@pytest.fixture
async def client(holds):
    async with FakeClient(hooks=[holds.hook]) as made:
        yield made


async def created(client, key="k", **changes):
    return await client.create_order(make_new_order(**changes), key=key)


async def test_the_assertions_accept_a_created_order_with_its_hold(client, holds):
    await created(client)
    await created(client, "another", matcher_amount="5.00")

    await assert_one_order("k", client=client, sandbox=client.sandbox)
    await assert_hold_kept("k", client=client, held=holds.held)
    with pytest.raises(AssertionError, match="'k': expected no order, but found tx-"):
        await assert_no_order("k", client=client, sandbox=client.sandbox)
    with pytest.raises(AssertionError, match="'k': expected no hold, but found hold-"):
        await assert_hold_released("k", client=client, held=holds.held)


async def test_a_doubt_counts_as_one_order_and_a_second_order_is_found(client, holds):
    client.sandbox.faults.add(CloseAfterProcessing())
    with pytest.raises(OutcomeUnknown):
        await created(client)
    await assert_one_order("k", client=client, sandbox=client.sandbox)
    await assert_hold_kept("k", client=client, held=holds.held)

    await created(client, "paid-again")

    with pytest.raises(AssertionError, match="'k': expected one order, but found 2: tx-"):
        await assert_one_order("k", client=client, sandbox=client.sandbox)


async def test_a_payment_under_a_new_key_with_a_new_quote_is_paid_twice(client):
    """A bank pays twice if it retries with a new rate and a new key."""
    client.sandbox.faults.add(CloseAfterProcessing())
    with pytest.raises(OutcomeUnknown):
        await created(client)
    await created(client, "another payment", matcher_amount="7.00")
    payment = {
        "poster_username": "ada.eze@example.com",
        "poster_recipient_username": "ben.okri@example.com",
        "matcher_amount": "100.0",
    }
    assert_one_payment(sandbox=client.sandbox, **payment)
    with pytest.raises(AssertionError, match=r"\{'matcher_amount': 1\}: expected one order, but found 0$"):
        assert_one_payment(sandbox=client.sandbox, matcher_amount=1)

    await created(client, "paid-again", exchange_rate="1501")

    await assert_one_order("k", client=client, sandbox=client.sandbox)
    with pytest.raises(AssertionError, match="expected one order, but found 2") as caught:
        assert_one_payment(sandbox=client.sandbox, **payment)
    assert all(f"100.00 USD at {rate}" in str(caught.value) for rate in (1500, 1501))


def test_a_payment_is_described_by_known_fields_of_an_order():
    for fields, message in (
        ({}, "pass at least one field"),
        ({"amount": 1}, "amount: an order has no such field; choose from poster_username"),
        ({"matcher_amount": 100.0}, "matcher_amount: "),
        ({"matcher_amount": "1,000"}, "matcher_amount: "),
    ):
        with pytest.raises(ValueError, match=message):
            assert_one_payment(sandbox=None, **fields)


async def test_the_assertions_accept_a_refused_order_without_a_hold(client, holds):
    client.sandbox.faults.add(Status(422))
    with pytest.raises(Refused):
        await created(client)

    await assert_no_order("k", client=client, sandbox=client.sandbox)
    await assert_hold_released("k", client=client, held=holds.held)
    with pytest.raises(AssertionError, match="'k': expected one order, but found 0"):
        await assert_one_order("k", client=client, sandbox=client.sandbox)
    with pytest.raises(AssertionError, match="'k': expected one hold, but found 0"):
        await assert_hold_kept("k", client=client, held=holds.held)


async def test_a_hold_of_an_earlier_intent_is_found(client, holds):
    client.sandbox.faults.add(Status(422))
    with pytest.raises(Refused):
        await created(client)
    forgotten = (await client.known("k")).intent_id
    await created(client)
    holds.standing[forgotten] = "hold-forgotten"

    with pytest.raises(AssertionError, match="'k': expected no hold of an earlier intent, but found"):
        await assert_hold_kept("k", client=client, held=holds.held)


async def test_two_holds_for_one_intent_are_found(client):
    async def twice(intent_id):
        return ["hold-1", "hold-2"]

    await created(client)

    with pytest.raises(AssertionError, match="found 2: hold-1, hold-2"):
        await assert_hold_kept("k", client=client, held=twice)


async def test_an_order_with_another_id_than_the_journals_is_found(client):
    order = await created(client)
    other = FakeClient(seed=7, hooks=[Holds().hook])
    async with other:
        await created(other)

    with pytest.raises(AssertionError, match=f"'k': the journal contains order {order.id}, but"):
        await assert_one_order("k", client=client, sandbox=other.sandbox)


async def test_an_unknown_key_fails_the_assertions(client, holds):
    with pytest.raises(AssertionError, match="'k': the journal has no such key"):
        await assert_no_order("k", client=client, sandbox=client.sandbox)
    with pytest.raises(AssertionError, match="'k': the journal has no such key"):
        await assert_hold_released("k", client=client, held=holds.held)


async def test_the_holds_fixture_keeps_the_rules_for_hooks(client, holds):
    async def refuse(intent):
        raise PreflightFailed("no")

    await created(client)
    intent = holds.placed[0]
    assert await holds.place(intent) == holds.held(intent.id)
    await holds.release(intent, None)
    await holds.release(intent, None)

    assert (holds.standing, holds.released) == ({}, [intent.id] * 2)
    assert (await client.known("k")).state is KeyState.CREATED
