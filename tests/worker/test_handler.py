"""Redelivered messages: at most one order, an outcome each time, and a notification when a doubt ends."""

import asyncio
from datetime import timedelta
from unittest.mock import Mock

import attrs
import pytest

from tests.support import bank as banks
from tests.support.bank import Gate, new_order, refused_order
from transfer_async import MemoryJournal, Rate, RetryPolicy, TransferClient
from transfer_async._converters.messages import EndOfDoubt, OrderCommand, OrderOutcome
from transfer_async._models.errors import (
    AlreadyCreated,
    BeneficiaryNotVerified,
    HoldFailed,
    JournalFailed,
    MatchResult,
    Outcome,
    PreflightFailed,
    UnreadableOrder,
)
from transfer_async._models.responses import Order
from transfer_async.journal import transitions
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, Status
from transfer_async.worker.handler import Action, Handler

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
async def world():
    async with banks.world() as world:
        world.journal.durable = True
        yield world


@pytest.fixture
async def handler(world):
    async with world.client() as client:
        yield Handler(client)


def command(order=None, **changes):
    return OrderCommand(**{"key": "k", "order": order or new_order(), **changes}).to_json()


async def untold(handler):
    return [outcome async for outcome in handler.untold()]


def action_and_outcome(handled):
    return handled.disposition.action, handled.outcome.outcome if handled.outcome else None


# --- redeliveries -------------------------------------------------------------------------------


async def test_a_redelivered_command_returns_the_same_order(world, handler):
    first = await handler.handle(command())
    again = await handler.handle(command(), deliveries=2)

    (order_id,) = world.sandbox.orders
    for handled in (first, again):
        assert action_and_outcome(handled) == (Action.ACK, Outcome.CREATED)
        assert (handled.outcome.order_id, handled.outcome.key, handled.key) == (order_id, "k", "k")
        assert handled.outcome.intent_id == world.bank.placed[0]
        assert handled.outcome.receipts == {"funds_hold": f"hold-{world.bank.placed[0]}"}
    assert (first.asked, again.asked) == (True, False)  # a replay does not show that the service works
    assert len(world.sandbox.requests) == 1


async def test_a_redelivered_refusal_is_answered_from_the_record(world, handler):
    first = await handler.handle(command(refused_order()))
    again = await handler.handle(command(refused_order()), deliveries=2)

    assert action_and_outcome(first) == action_and_outcome(again) == (Action.ACK, Outcome.REFUSED)
    assert first.outcome == again.outcome
    assert (first.outcome.order_may_exist, first.outcome.status) == (False, 422)
    assert len(world.sandbox.requests) == 1
    assert len(world.bank.placed) == len(world.bank.released) == 1


@pytest.mark.parametrize("limit", ["send_before", "deadline"])
async def test_expiry_that_a_rate_limit_predicts_is_published_only_when_the_time_has_passed(world, limit):
    """Without this, the sender of the command releases its hold, and a redelivery still creates the order."""
    at_limit = world.time.clock.utc() + timedelta(seconds=30)
    late = command(held="bank-1", **{limit: at_limit})
    async with world.client(rate=Rate(0.01)) as client:
        handler = Handler(client)
        await handler.handle(command(key="first", held="bank-0"))
        early = await handler.handle(late)
        again = await handler.handle(late, deliveries=3)
        world.time.pass_(30.0)
        last = await handler.handle(late, deliveries=4)

    assert action_and_outcome(early) == action_and_outcome(again) == (Action.RETRY, None)
    assert (early.disposition.after, again.disposition.after) == (1.0, 4.0)
    assert early.disposition.counts is again.disposition.counts is False
    assert action_and_outcome(last) == (Action.ACK, Outcome.NOT_SENT)
    assert len(world.sandbox.orders) == 1


@pytest.mark.parametrize("no", ["hook", "late"])
async def test_not_sent_is_never_published_after_another_worker_published_created(world, monkeypatch, no):
    """The message was delivered twice: one worker failed, and the other worker created the order."""
    published = []
    check, moment = world.bank.step("check"), None
    world.bank.place_error = HoldFailed("too little on the account")
    if no == "late":
        world.bank.place_error, moment = None, world.time.clock.utc() + timedelta(seconds=1)
        world.bank.on_placed = world.passing(2.0)

    async def work(deliveries):
        async with world.client(hooks=[check, world.bank.hold]) as client:
            at_limit = None if deliveries > 1 else moment
            handled = await Handler(client).handle(command(send_before=at_limit), deliveries=deliveries)
        if handled.outcome is not None:
            published.append((handled.outcome.outcome, handled.outcome.order_may_exist))
        return handled

    async def undo(*_):
        monkeypatch.undo()
        world.bank.place_error = world.bank.on_placed = None
        await work(2)

    monkeypatch.setattr(check, "undo", undo)
    late = await work(1)
    again = await work(3)

    assert published == [(Outcome.CREATED, True)] * 2
    assert action_and_outcome(late) == (Action.RETRY, None)
    assert action_and_outcome(again) == (Action.ACK, Outcome.CREATED)
    assert len(world.sandbox.requests) == 1


async def test_a_different_order_under_a_created_key_is_dead_lettered(handler):
    await handler.handle(command())
    other = await handler.handle(command(banks.other_order()))

    assert action_and_outcome(other) == (Action.DEAD_LETTER, None)


@pytest.mark.parametrize("status", [401, 404, 429])
async def test_a_refusal_that_is_not_about_the_order_is_retried(world, status):
    # After a 401, the client sends the order again with a new token.
    world.sandbox.faults.add(Status(status), times=2)
    async with world.client(retry=ONCE) as client:
        handler = Handler(client)
        first = await handler.handle(command())
        assert action_and_outcome(first) == (Action.RETRY, None)
        while (again := await handler.handle(command())).disposition.action is Action.RETRY:
            pass

    assert action_and_outcome(again) == (Action.ACK, Outcome.CREATED)
    assert first.disposition.ready is (status == 429)


async def test_an_order_that_was_never_sent_is_sent_on_redelivery(world, handler):
    world.bank.place_error = HoldFailed("no funds")
    first = await handler.handle(command())
    world.bank.place_error = None
    again = await handler.handle(command())

    assert action_and_outcome(first) == (Action.ACK, Outcome.NOT_SENT)
    assert action_and_outcome(again) == (Action.ACK, Outcome.CREATED)
    assert first.outcome.intent_id != again.outcome.intent_id


async def test_an_invalid_message_is_dead_lettered(handler):
    handled = await handler.handle(b'{"version": 1, "key": "k"}')
    garbage = await handler.handle(b"\x00")

    assert action_and_outcome(handled) == action_and_outcome(garbage) == (Action.DEAD_LETTER, None)
    assert (handled.key, garbage.key) == ("k", None)
    assert "order: is missing" in handled.disposition.reason


async def test_a_command_with_a_busy_key_is_retried_when_the_lease_ends(world, handler):
    await world.crash(transitions.MarkSending)
    world.time.pass_(20.0)
    handled = await handler.handle(command())

    assert action_and_outcome(handled) == (Action.RETRY, None)
    assert handled.disposition.after == 40.0


async def test_a_failure_of_a_call_that_lost_its_claim_is_retried_not_published(world, handler):
    """Another worker has taken over the intent and may be sending the order now."""

    async def slept(_):
        world.time.pass_(70.0)
        world.journal.before.clear()
        world.bank.on_place = None
        await world.crash(transitions.Create)
        raise HoldFailed("no funds")

    world.bank.on_place = slept
    handled = await handler.handle(command())
    world.time.pass_(70.0)
    again = await handler.handle(command())

    assert action_and_outcome(handled) == (Action.RETRY, None)
    assert action_and_outcome(again) == (Action.ACK, Outcome.UNKNOWN)
    assert len(world.sandbox.requests) == 1


async def test_a_hooks_refusal_is_replayed_while_the_command_names_the_same_hold(world):
    """The bank may have released its hold after the refusal."""
    refusals = [PreflightFailed("over the limit")]

    async def check(_):
        if refusals:
            raise refusals.pop()

    async with world.client(hooks=[check]) as client:
        handler = Handler(client)
        first = await handler.handle(command(held="h-1"))
        again = await handler.handle(command(held="h-1"))
        anew = await handler.handle(command(held="h-2"))

    assert action_and_outcome(first) == action_and_outcome(again) == (Action.ACK, Outcome.NOT_SENT)
    assert first.outcome == again.outcome
    assert action_and_outcome(anew) == (Action.ACK, Outcome.CREATED)
    assert (first.outcome.receipts["held"], anew.outcome.receipts["held"]) == ("h-1", "h-2")


# --- more than enough ---------------------------------------------------------------------------


class _LimitsDown(PreflightFailed):
    """A bank's own error: its limits service does not respond."""


class _NobodyToAsk(HoldFailed):
    """A bank's own hold error, which says that nothing was placed."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("down"),
        PreflightFailed(refused=False),
        _LimitsDown(refused=False),
        _NobodyToAsk(refused=False),
        BeneficiaryNotVerified(result=MatchResult.NOT_POSSIBLE),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_command_that_a_hook_keeps_from_being_sent_is_dead_lettered_after_max_deliveries(
    world, error
):
    """The class of the error counts, not its name.

    Without this, a bank's own subclass is retried forever, with a hold placed and released each time.
    """
    hook = world.bank.step("check", error=error)
    async with world.client(hooks=[hook, world.bank.hold]) as client:
        handler = Handler(client, max_deliveries=2)
        handled = [await handler.handle(command()) for _ in range(4)]
        hook.error = None
        again = await handler.handle(command())

    assert [one.disposition.action for one in handled] == [Action.RETRY] * 2 + [Action.DEAD_LETTER] * 2
    assert handled[2].disposition.reason.endswith("; 3 deliveries ended without sending the order")
    assert action_and_outcome(again) == (Action.ACK, Outcome.CREATED)  # the dead letter was sent again


async def test_only_failures_that_the_order_may_cause_are_counted(world):
    """Without this, one short failure of a hook after some refusals dead-letters a customer's retry."""
    hook = world.bank.step("check")
    async with world.client(hooks=[hook, world.bank.hold], retry=ONCE) as client:
        handler = Handler(client, max_deliveries=1)

        async def actions(deliveries):
            handled = [await handler.handle(command(), deliveries=99) for _ in range(deliveries)]
            return [one.disposition.action for one in handled]

        world.sandbox.faults.add(Status(401), times=10)
        assert await actions(3) == [Action.RETRY] * 3
        world.sandbox.faults.clear()
        world.journal.fail_on = Claim
        assert await actions(2) == [Action.RETRY] * 2
        world.journal.fail_on = None
        hook.error = PreflightFailed("over the limit")
        assert await actions(3) == [Action.ACK] * 3
        hook.error = _LimitsDown(refused=False)
        assert await actions(2) == [Action.RETRY, Action.DEAD_LETTER]


# --- the journal --------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [transitions.Create, transitions.GoInDoubt])
async def test_a_journal_failure_after_sending_leaves_the_message_unacknowledged(world, handler, move):
    if move is transitions.GoInDoubt:
        world.sandbox.faults.add(CloseAfterProcessing())
    world.journal.fail_on = move
    handled = await handler.handle(command())
    world.journal.fail_on = None
    world.time.pass_(60.0)
    async with world.client() as another:  # the first client remembers the order that it could not record
        again = await Handler(another).handle(command())

    assert action_and_outcome(handled) == (Action.LEAVE, None)
    assert action_and_outcome(again) == (Action.ACK, Outcome.UNKNOWN)
    assert len(world.sandbox.requests) == 1


async def test_an_error_inside_the_worker_leaves_the_message_and_is_logged_without_its_text(
    handler, caplog, monkeypatch
):
    broken = Mock(side_effect=RuntimeError("ada.okafor@example.org"))
    monkeypatch.setattr(handler.client._calls, "run", broken)
    handled = await handler.handle(command())

    assert action_and_outcome(handled) == (Action.LEAVE, None)
    assert "a command could not be carried out (RuntimeError)" in caplog.messages
    assert "ada" not in caplog.text


async def test_a_cancelled_call_returns_no_disposition(world, handler):
    """Without this, a worker that is stopping goes on with its next message."""
    gate = world.bank.on_place = Gate()
    handling = await gate.catches(handler.handle(command()))
    handling.cancel()
    await asyncio.wait([handling])

    assert handling.cancelled()


def test_a_handler_requires_a_durable_journal():
    client = TransferClient("http://127.0.0.1:1", "t", journal=MemoryJournal())

    with pytest.raises(ValueError, match="durable"):
        Handler(client)


async def test_max_deliveries_must_be_a_positive_whole_number(handler):
    with pytest.raises(ValueError, match="max_deliveries"):
        Handler(handler.client, max_deliveries=0)


# --- doubts -------------------------------------------------------------------------------------


async def in_doubt(world, handler, key="k"):
    world.sandbox.faults.add(CloseAfterProcessing())
    handled = await handler.handle(command(key=key))
    assert action_and_outcome(handled) == (Action.ACK, Outcome.UNKNOWN)
    return handled.outcome


@pytest.fixture
async def finder(world):
    """Yield a handler whose client finds the only order of a doubt."""

    async def find(*_):
        (order,) = world.sandbox.orders.values()
        return Order.from_json(order.to_json())

    async with world.client(resolve=find) as client:
        yield Handler(client)


async def test_the_end_of_a_published_doubt_is_pending_until_it_is_notified(world, handler):
    doubt = await in_doubt(world, handler)
    (order_id,) = world.sandbox.orders
    assert await untold(handler) == []
    await world.resolve(order_id)

    (end,) = await untold(handler)
    assert await untold(handler) == [end]
    await handler.told(end)
    assert await untold(handler) == []

    assert (doubt.outcome, doubt.error, doubt.order_may_exist) == (Outcome.UNKNOWN, "OutcomeUnknown", True)
    assert end == attrs.evolve(doubt, outcome=Outcome.CREATED, order_id=order_id, error=None)


async def test_the_time_when_a_doubt_ended_is_neither_serialized_nor_compared(world, handler):
    """Brokers use it only to detect duplicates; readers receive an ordinary outcome."""
    await in_doubt(world, handler)
    await world.resolve("tx-1")
    (end,) = await untold(handler)
    read = OrderOutcome.from_json(end.to_json())

    assert isinstance(end, EndOfDoubt)
    assert (end.ended_at, end.order_id) == (await world.journal.now(), "tx-1")
    assert (end, read) == (read, end)
    assert end not in (attrs.evolve(end, order_id="tx-2"), "tx-1")


async def test_the_end_that_a_resolve_callback_found_includes_the_amounts(world, handler, finder):
    doubt = await in_doubt(world, handler)
    await finder.client.recover()
    (end,) = await untold(finder)

    assert (end.key, end.intent_id, end.receipts) == ("k", doubt.intent_id, doubt.receipts)
    assert end.ended_at == await world.journal.now()
    assert end.poster_amount == new_order().poster_amount
    assert end.state is not None


async def test_an_order_is_published_although_its_stored_response_is_unreadable(
    world, handler, finder, monkeypatch
):
    """An older version may have accepted this response, so the order exists although it cannot be read."""
    await in_doubt(world, handler)
    await finder.client.recover()
    (order_id,) = world.sandbox.orders
    monkeypatch.setattr(Order, "from_json", Mock(side_effect=UnreadableOrder()))
    (end,) = await untold(finder)
    again = await finder.handle(command())

    assert (end.outcome, end.order_id, end.poster_amount) == (Outcome.CREATED, order_id, None)
    assert isinstance(again.result, AlreadyCreated)
    assert (again.result.order_id, action_and_outcome(again)) == (order_id, (Action.ACK, Outcome.CREATED))


async def test_a_refutation_is_published_as_refused_for_the_same_intent(world, handler):
    doubt = await in_doubt(world, handler)
    await world.refute()
    (end,) = await untold(handler)
    await handler.told(end)

    assert end == attrs.evolve(doubt, outcome=Outcome.REFUSED, error="Refuted", order_may_exist=False)
    assert await untold(handler) == []


@pytest.mark.parametrize("taken_again", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("outcome", [Outcome.CREATED, Outcome.UNKNOWN])
async def test_a_suspected_duplicate_is_published_even_if_its_worker_stops(
    world, handler, outcome, cancelled, taken_again
):
    """Without this, no reader of the outcomes learns that two orders may exist for one payment."""
    at = transitions.Create if outcome is Outcome.CREATED else transitions.GoInDoubt
    if outcome is Outcome.UNKNOWN:
        world.sandbox.faults.add(CloseAfterProcessing())

    async def superseded():
        if cancelled:
            call.cancel()
        await world.refute()
        if taken_again:
            await world.create()

    world.meanwhile(at, superseded)
    async with world.client() as client:
        call = asyncio.create_task(Handler(client).handle(command()))
        await asyncio.wait([call])
    first = next(iter(world.sandbox.orders))
    suspected = [one for one in await untold(handler) if one.error == "DuplicateSuspected"]
    for one in suspected:
        await handler.told(one)
    assert await untold(handler) == []

    (one,) = suspected
    assert (one.outcome, one.order_may_exist) == (outcome, True)
    assert one.order_id == (first if outcome is Outcome.CREATED else None)
    assert one.intent_id == world.bank.intents[0].id
    assert OrderOutcome.from_json(one.to_json()) == one


async def test_a_suspected_duplicate_may_exist_although_a_person_has_refuted_its_doubt(world, handler):
    world.sandbox.faults.add(CloseAfterProcessing())
    world.meanwhile(transitions.GoInDoubt, world.refute)
    await handler.handle(command())
    await world.refute()
    ends = []
    async for end in handler.untold():
        ends.append((end.error, end.order_may_exist))
        await handler.told(end)

    assert ends == [("DuplicateSuspected", True), ("Refuted", False)]


async def test_a_direct_call_of_create_order_leaves_no_notification_pending(world):
    """Without this, the key waits for a worker forever."""
    world.meanwhile(transitions.GoInDoubt, world.refute)
    await world.in_doubt()

    assert (await world.entry()).pending_notifications == ()


async def test_a_late_notified_mark_for_an_earlier_end_does_not_cover_the_last(world, handler):
    """An id was amended and amended back. The slower of two sweepers marks the first end as published."""
    await in_doubt(world, handler)
    await world.resolve("tx-1")
    (first,) = await untold(handler)
    for order_id in ("tx-2", "tx-1"):
        world.time.pass_(1.0)
        await handler.client.operators.amend("k", order_id=order_id, by="op", reason="sure")
    await handler.told(first)
    (last,) = await untold(handler)
    await handler.told(last)
    assert await untold(handler) == []

    assert (last, last.order_id) == (first, "tx-1")


async def test_a_redelivered_command_in_doubt_gets_the_same_unknown_outcome(world, handler):
    doubt = await in_doubt(world, handler)
    again = await handler.handle(command())

    assert again.outcome == doubt
    assert len(world.sandbox.requests) == 1


async def test_a_doubt_whose_notification_cannot_be_recorded_leaves_the_message(world, handler, caplog):
    world.sandbox.faults.add(CloseAfterProcessing())
    world.journal.fail_on = transitions.RequestNotification
    handled = await handler.handle(command())

    assert action_and_outcome(handled) == (Action.LEAVE, None)
    assert isinstance(handled.result, JournalFailed)
    assert "could not be carried out" not in caplog.text  # that is for errors inside the worker


async def test_a_doubt_that_ends_before_its_notification_is_recorded_is_published_on_redelivery(
    world, handler
):
    world.sandbox.faults.add(CloseAfterProcessing())
    world.meanwhile(transitions.RequestNotification, lambda: world.resolve("tx-seen"))
    handled = await handler.handle(command())
    again = await handler.handle(command())

    assert await untold(handler) == []
    assert (action_and_outcome(handled), handled.result.key) == ((Action.LEAVE, None), "k")
    assert action_and_outcome(again) == (Action.ACK, Outcome.CREATED)


async def test_the_sweeper_does_not_publish_a_doubt_of_a_direct_call(world, handler):
    """The program that called create_order has already received the doubt as an error."""
    await world.in_doubt()
    await world.resolve("tx-seen")

    assert await untold(handler) == []


async def test_pending_notifications_are_read_page_by_page(world, handler, monkeypatch):
    monkeypatch.setattr("transfer_async.worker.handler.BATCH", 2)
    for number in range(5):
        await in_doubt(world, handler, f"k{number}")
        await world.resolve(f"tx-{number}", f"k{number}")
    ends = await untold(handler)
    for end in ends:
        await handler.told(end)

    assert [end.order_id for end in ends] == [f"tx-{number}" for number in range(5)]
    assert await untold(handler) == []


async def test_an_outcome_that_another_worker_published_meanwhile_is_skipped(world, handler):
    for key in ("a", "b"):
        await in_doubt(world, handler, key)
        await world.resolve(f"tx-{key}", key)
    other = {one.key: one for one in await untold(handler)}
    published = []
    async for one in handler.untold():
        published.append(one.key)
        await handler.told(other["b"])

    assert published == ["a"]


async def test_an_old_refusal_says_that_an_order_may_exist_if_the_key_has_another_in_progress(world, handler):
    await in_doubt(world, handler)
    await world.refute()
    await world.crash(transitions.Create)
    (end,) = await untold(handler)

    assert (end.outcome, end.order_may_exist) == (Outcome.REFUSED, True)
    assert end.receipts == {}  # The recorded receipts belong to the other order.
