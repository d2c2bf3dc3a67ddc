import asyncio
import copy
import pickle
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest

from tests.support import bank as banks
from tests.support.bank import Gate, World, failure, new_order
from tests.support.ids import stable_repr
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import (
    NO_ORDER,
    AlreadyCreated,
    CauseKind,
    DuplicateSuspected,
    JournalFailed,
    KeyState,
    Order,
    Outcome,
    OutcomeUnknown,
    Refuted,
    Resolved,
    Timeouts,
)
from transfer_async.journal import model, transitions
from transfer_async.journal.model import Rejection
from transfer_async.sandbox import CloseAfterProcessing


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with banks.world() as world:
        world.sandbox.faults.add(CloseAfterProcessing())
        yield world


class BackOffice:
    """A ``resolve`` that records its calls."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, OutcomeUnknown]] = []

    async def __call__(self, intent: Any, error: OutcomeUnknown) -> Any:
        self.asked.append((intent, error))
        answer = await self.answer() if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def too_late(world: World) -> BackOffice:
    """Return a ``resolve`` that finds the order just after an operator has refuted it."""

    async def ask() -> str:
        await world.refute()
        return "tx-bank"

    return BackOffice(ask)


FOUND_TOO_LATE = (
    "the client's resolve found tx-bank after the order had been refuted: a duplicate is suspected"
)


async def suspicions(world: World) -> list[str | None]:
    """Return the reasons of the suspicions in the key's history."""
    return [step.reason for step in await world.journal.history(world.scope, "k") if step.move == "suspect"]


def the_order(world: World) -> Order:
    (order,) = world.sandbox.orders.values()
    return Order.from_json(order.to_json())


async def test_resolve_gets_the_intent_and_an_error_with_all_details(world: World):
    office = BackOffice()
    doubt = await world.fails(OutcomeUnknown, resolve=office)

    ((intent, error),) = office.asked
    assert (intent, error) == (world.bank.intents[0], doubt)
    assert (error.key, len(error.attempts)) == ("k", 1)
    assert error.receipts == {"funds_hold": f"hold-{intent.id}"}


async def test_the_call_returns_the_order_that_resolve_found(world: World):
    async def find() -> Order:
        return the_order(world)

    order = await world.create(resolve=BackOffice(find))
    again = await world.create(resolve=BackOffice(find))

    last = (await world.journal.history(world.scope, "k"))[-1]
    assert order == again == the_order(world)
    assert (await world.entry()).state is KeyState.CREATED
    assert (last.move, last.by) == ("resolve", "resolve")
    assert [(event.outcome, event.order_id) for event in world.events_of(Resolved)] == [
        (Outcome.CREATED, order.id)
    ]
    assert len(world.bank.open) == 1


async def test_a_later_call_with_the_key_calls_resolve_instead_of_sending(world: World):
    await world.fails(OutcomeUnknown)
    office = BackOffice("tx-seen")
    await world.fails(AlreadyCreated, resolve=office)

    assert len(world.sandbox.requests) == len(world.bank.placed) == 1
    assert office.asked[0][0] == world.bank.intents[0]
    assert world.events_of(Resolved)[0].intent_id == world.bank.placed[0]


async def test_every_error_of_a_key_carries_the_recorded_hold(world: World):
    first = await world.fails(OutcomeUnknown, held="H1")
    again = await world.fails(OutcomeUnknown)
    resolved = await world.fails(AlreadyCreated, held="H2", resolve=BackOffice("tx-seen"))
    created = await world.fails(AlreadyCreated, held="H3")

    assert first.receipts == again.receipts == resolved.receipts == created.receipts == {"held": "H1"}


async def test_no_order_from_a_query_before_settle_after_is_not_believed(world: World):
    async def take_long() -> object:
        world.time.pass_(10_000.0)
        return NO_ORDER

    await world.fails(OutcomeUnknown, resolve=BackOffice(take_long))

    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open


async def test_no_order_frees_the_key_and_undoes_the_hooks_after_settle_after_and_not_before(world: World):
    hooks = [world.bank.step("check"), world.bank.hold]
    async with world.client(hooks=hooks, resolve=BackOffice(NO_ORDER), settle_after=300.0) as client:
        for seconds in (299.9, 0.1):
            await failure(client.create_order(new_order(), key="k"), OutcomeUnknown)
            assert (await world.entry()).state is KeyState.IN_DOUBT
            assert world.bank.open
            world.time.pass_(seconds)
        refuted = await failure(client.create_order(new_order(), key="k"), Refuted)

    assert (refuted.outcome, refuted.order_may_exist) == (Outcome.REFUSED, False)
    assert isinstance(refuted.__cause__, OutcomeUnknown)
    assert [step.by for step in await world.journal.history(world.scope, "k") if step.move == "refute"] == [
        "resolve"
    ]
    assert world.bank.log == ["check", "place", "release", "undo check"]
    assert (await world.entry()).state is KeyState.FREE
    assert world.events_of(Resolved)[0].outcome is Outcome.REFUSED
    assert len(world.sandbox.requests) == 1  # after a doubt, the SDK never sends the order again by itself


@pytest.mark.parametrize(
    ("settings", "wait"),
    [
        ({}, model.ABANDONED_SETTLE_AFTER),
        ({"abandoned_settle_after": timedelta(hours=2)}, 7_200.0),
        ({"settle_after": 172_800.0}, 172_800.0),
        ({"settle_after": 300.0, "abandoned_settle_after": 300.0}, 300.0),
    ],
    ids=str,
)
async def test_the_hold_of_a_possibly_suspended_sender_is_released_only_after_a_long_wait(
    world: World, settings: dict[str, Any], wait: float
):
    """Without the wait, a sender suspended between its last check and the write sends without a hold."""
    await world.crash(
        transitions.GoInDoubt
    )  # nobody knows when the order was sent, so all of the mark's time counts
    async with world.client(resolve=BackOffice(NO_ORDER), **settings) as client:
        world.time.pass_(29.9 + wait)
        await failure(client.create_order(new_order(), key="k"), OutcomeUnknown)
        await client.recover()
        held = dict(world.bank.open)
        world.time.pass_(0.1)
        await failure(client.create_order(new_order(), key="k"), Refuted)

    assert held
    assert not world.bank.open


async def test_the_long_wait_is_checked_when_the_refutation_is_written(world: World):
    """Without this, other settings of another worker, or an outdated read, would release the hold."""
    await world.abandoned(transitions.GoInDoubt)
    world.time.pass_(400.0)
    attempt = (await world.entry()).attempt or ""
    await world.move(transitions.Expire(attempt=attempt))
    refute = transitions.Refute(
        attempt=attempt,
        settle_after=300.0,
        abandoned_settle_after=86_400.0,
        by="resolve",
        reason="sure",
        pending_undos=(),
        lease=0.0,
    )
    verdict = await world.move(refute)

    assert verdict is not None
    assert verdict.denial is Rejection.TOO_EARLY


async def test_a_person_may_refute_an_abandoned_senders_doubt_and_sees_the_missing_report(world: World):
    await world.abandoned(transitions.GoInDoubt)
    world.time.pass_(330.0)
    async with world.client() as client:
        await client.recover()
        (doubt,) = await client.in_doubt()
        record = await client.refute("k", by="ada", reason="the machine was destroyed")

    assert not doubt.sender_reported
    assert doubt.cause is not None
    assert "never reported a result" in doubt.cause.told
    assert record.state is KeyState.FREE


async def test_a_late_report_of_a_suspended_sender_restarts_the_short_wait(world: World):
    """The sender's request may have been sent just now, even if its send limit passed long ago."""

    async def stopped() -> None:
        world.time.pass_(7_200.0)
        await world.move(transitions.Expire(attempt=(await world.entry()).attempt or ""))

    world.meanwhile(transitions.GoInDoubt, stopped)
    async with world.client(resolve=BackOffice(NO_ORDER), settle_after=300.0) as client:
        await failure(client.create_order(new_order(), key="k"), OutcomeUnknown)
        (doubt,) = await client.in_doubt()
        world.time.pass_(299.9)
        await failure(client.create_order(new_order(), key="k"), OutcomeUnknown)
        world.time.pass_(0.1)
        await failure(client.create_order(new_order(), key="k"), Refuted)

    assert doubt.sender_reported


@pytest.mark.parametrize("reported", [True, False])
async def test_taking_back_an_id_does_not_end_the_long_wait(world: World, reported: bool):
    await (world.fails(OutcomeUnknown) if reported else world.abandoned(transitions.GoInDoubt))
    async with world.client(resolve=BackOffice(NO_ORDER)) as client:
        world.time.pass_(400.0)
        await client.resolve("k", order_id="tx-wrong", by="ada", reason="seen")
        await client.operators.amend("k", order_id=None, by="ada", reason="not ours")
        await failure(client.create_order(new_order(), key="k"), Refuted if reported else OutcomeUnknown)

    assert bool(world.bank.open) is not reported


async def test_after_a_refutation_the_bank_releases_its_own_hold(world: World):
    refuted = await world.fails(Refuted, held="H1", resolve=BackOffice(NO_ORDER), settle_after=0)

    assert (refuted.receipts, refuted.order_may_exist, world.bank.log) == ({"held": "H1"}, False, [])


@pytest.mark.parametrize(
    "answer",
    [
        *(None, "", "  ", 7, True, False, []),
        *(RuntimeError("ada.eze@example.com is unknown"), TimeoutError(), asyncio.CancelledError()),
    ],
    ids=repr,
)
async def test_an_error_or_invalid_answer_of_resolve_leaves_the_doubt(
    world: World, answer: object, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    doubt = await world.fails(OutcomeUnknown, resolve=BackOffice(answer), settle_after=0)

    assert type(doubt) is OutcomeUnknown
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert ("did not return a usable result" in caplog.text) is (answer is not None)
    name = type(answer).__name__ if isinstance(answer, BaseException) else "ValueError"
    assert answer is None or f"({name})" in caplog.text
    assert "ada.eze" not in caplog.text


async def test_a_resolve_that_times_out_leaves_the_doubt(world: World):
    await world.fails(OutcomeUnknown, resolve=BackOffice(Gate()), timeouts=Timeouts(hook=MUST_RUN_OUT))

    assert (await world.entry()).state is KeyState.IN_DOUBT


async def test_an_id_that_is_bound_to_another_key_does_not_resolve_the_doubt(
    world: World, caplog: pytest.LogCaptureFixture
):
    world.sandbox.faults.clear()
    other = await world.create(key="other")
    world.sandbox.faults.add(CloseAfterProcessing())
    await world.fails(OutcomeUnknown, resolve=BackOffice(other.id))
    await world.fails(OutcomeUnknown, resolve=BackOffice(f"tx-{other.id[3:].upper()}"))

    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert caplog.messages == 2 * ["resolve returned the order of another key; the key 'k' stays in doubt"]


async def test_a_doubt_resolved_by_an_operator_while_resolve_runs_returns_the_record(world: World):
    async def ask() -> str:
        await world.resolve("tx-operator")
        return "tx-bank"

    created = await world.fails(AlreadyCreated, resolve=BackOffice(ask))
    entry = await world.entry()

    assert created.order_id == "tx-operator"
    assert (entry.order_id, entry.candidates) == ("tx-operator", ("tx-bank",))
    assert await suspicions(world) == [
        "the journal records order tx-operator, but the client's resolve found tx-bank"
    ]
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == ["tx-bank"]


async def test_a_doubt_refuted_while_resolve_runs_stays_a_doubt_for_its_caller(world: World):
    doubt = await world.fails(OutcomeUnknown, resolve=BackOffice(world.refute))

    assert doubt.order_may_exist


@pytest.mark.parametrize("by", ["the call", "recover"])
async def test_an_order_that_resolve_found_too_late_binds_the_refuted_key_again(world: World, by: str):
    """Without this, the next call pays again, and the hold of an existing order is released."""
    doubt = await world.fails(OutcomeUnknown, resolve=too_late(world) if by == "the call" else None)
    if by == "recover":
        await world.recover(resolve=too_late(world))
    await world.recover()
    await world.fails(OutcomeUnknown)
    (step,) = [step for step in await world.journal.history(world.scope, "k") if step.move == "suspect"]

    assert doubt.order_may_exist
    assert (step.order_id, step.by) == ("tx-bank", "resolve")
    assert await suspicions(world) == [FOUND_TOO_LATE]
    entry = await world.entry()
    assert (entry.candidates, entry.attempt) == (("tx-bank",), doubt.attempt_id)
    assert entry.cause is not None
    assert (entry.cause.kind, entry.cause.candidate) == (CauseKind.SUPERSEDED, "tx-bank")
    assert [attempt.number for attempt in entry.cause.attempts] == [1]
    assert len(world.sandbox.orders) == 1
    assert world.bank.open
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == ["tx-bank"]


@pytest.mark.parametrize(
    ("answer", "suspected"), [("tx-bank", ["tx-bank"]), (None, [])], ids=["its own", "the later order"]
)
async def test_a_refuted_doubt_never_ends_with_the_order_of_another_intent(
    world: World, answer: str | None, suspected: list[str]
):
    async def ask() -> str:
        await world.refute()
        later = await world.create(banks.other_order())
        return answer or later.id

    doubt = await world.fails(OutcomeUnknown, resolve=BackOffice(ask))

    assert doubt.order_may_exist
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == suspected
    assert await suspicions(world) == [FOUND_TOO_LATE] * len(suspected)
    assert not world.events_of(Resolved)


async def test_a_refuted_doubt_ends_with_the_same_order_that_a_later_call_created(world: World):
    async def ask() -> str:
        await world.refute()
        return (await world.create()).id

    order = await world.create(resolve=BackOffice(ask))

    assert order.id == (await world.entry()).order_id
    assert not world.events_of(DuplicateSuspected)


async def test_an_order_that_resolve_found_too_late_is_recorded_after_the_journal_works_again(world: World):
    world.journal.fail_on = transitions.Suspect
    async with world.client(resolve=too_late(world)) as client:
        failed = await failure(client.create_order(new_order(), key="k"), JournalFailed)
        world.journal.fail_on = None
        await client.recover()

    assert failed.order_may_exist
    assert (await world.entry()).candidates == ("tx-bank",)
    assert world.bank.open


@pytest.mark.parametrize(
    ("answer", "move", "outcome"),
    [("tx-seen", transitions.Resolve, Outcome.CREATED), (NO_ORDER, transitions.Refute, Outcome.REFUSED)],
)
async def test_a_journal_failure_at_the_end_of_a_doubt_keeps_the_key_bound(
    world: World, answer: object, move: type, outcome: Outcome
):
    world.journal.fail_on = move
    failed = await world.fails(JournalFailed, resolve=BackOffice(answer), settle_after=0)

    assert (failed.outcome, failed.order_may_exist, failed.key) == (outcome, True, "k")
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open


async def test_a_journal_failure_after_resolve_found_the_order_has_the_order(world: World):
    async def find() -> Order:
        return the_order(world)

    world.journal.fail_on = transitions.Resolve
    failed = await world.fails(JournalFailed, resolve=BackOffice(find))

    assert failed.order == the_order(world)


async def test_an_undo_that_is_cancelled_after_a_refutation_does_not_hide_the_refutation(world: World):
    world.bank.release_error = asyncio.CancelledError()
    refuted = await world.fails(Refuted, resolve=BackOffice(NO_ORDER), settle_after=0)

    assert not refuted.order_may_exist
    assert banks.owed_hooks(await world.entry()) == ["funds_hold"]


def test_no_order_is_a_singleton_with_a_clear_repr():
    assert repr(NO_ORDER) == "NO_ORDER"
    assert copy.copy(NO_ORDER) is copy.deepcopy(NO_ORDER) is NO_ORDER
    assert pickle.loads(pickle.dumps(NO_ORDER)) is NO_ORDER


@pytest.mark.parametrize(
    "changes",
    [
        {"poster_amount": Decimal("1.00")},
        {"matcher_currency": "EUR"},
        {"id": 7},
        {"poster_fee": None},
        {"extra_order_details": (object(),)},
    ],
    ids=stable_repr,
)
async def test_a_wrong_or_invalid_order_from_resolve_is_not_believed(world: World, changes: dict[str, Any]):
    async def found() -> Order:
        return attrs.evolve(the_order(world), **changes)

    await world.fails(OutcomeUnknown, resolve=BackOffice(found))

    assert (await world.recover(resolve=BackOffice(found))).in_doubt == 1
    assert (await world.entry()).state is KeyState.IN_DOUBT
