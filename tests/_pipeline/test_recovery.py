import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.bank import Gate, World, failure, owed_hooks
from transfer_async import (
    NO_ORDER,
    JournalFailed,
    KeyState,
    Order,
    RecoveryReport,
)
from transfer_async.journal import transitions
from transfer_async.journal.model import Unread

# --- abandoned claims ---------------------------------------------------------------------------


async def test_an_abandoned_claim_is_undone_and_its_key_is_free(world: World):
    hooks = [world.bank.step("check"), world.bank.hold]
    intent_id = await world.abandoned(transitions.MarkSending, hooks=hooks)
    report = await world.recover(hooks=hooks)

    entry = await world.entry()
    assert report == RecoveryReport(taken_over=1, released=2)
    assert (entry.state, entry.pending_undos) == (KeyState.FREE, ())
    assert entry.ending is not None
    assert entry.ending.error == "Abandoned"
    assert world.bank.log == ["check", "place", "release", "undo check"]
    assert world.bank.released[0][0] == intent_id


async def test_an_abandoned_claim_is_undone_with_the_receipts_recorded_last(world: World):
    """The claim's worker may record one more hold and stop after recovery has listed the key."""
    intent_id = await world.abandoned(transitions.MarkSending)

    async def renew() -> None:
        world.time.pass_(-60.0)
        receipts: dict[str, str | None] = {"funds_hold": "H-late"}
        await world.move(transitions.RenewLease(intent_id=intent_id, epoch=1, lease=60.0, receipts=receipts))
        world.time.pass_(60.0)

    world.meanwhile(transitions.TakeOver, renew)

    assert await world.recover() == RecoveryReport(taken_over=1, released=1)
    assert world.bank.released == [(intent_id, "H-late")]


async def test_a_failing_undo_of_an_abandoned_claim_is_tried_once_per_run(world: World):
    """The run must not try it again when it runs an undo of the key's earlier intent."""
    await world.owing()
    world.bank.release_error = RuntimeError()
    await world.abandoned(transitions.MarkSending)
    world.bank.log.clear()

    assert await world.recover() == RecoveryReport(taken_over=1, undos_pending=2)
    assert world.bank.log == ["release", "release"]


async def test_a_live_claim_is_left_alone(world: World):
    await world.crash(transitions.MarkSending)
    world.time.pass_(59.9)

    assert await world.recover() == RecoveryReport()
    assert (await world.entry()).state is KeyState.CLAIMED


async def test_an_abandoned_claim_with_the_banks_own_hold_leaves_the_hold_hook_alone(world: World):
    await world.abandoned(transitions.MarkSending, held="H1")

    assert await world.recover() == RecoveryReport(taken_over=1)
    assert world.bank.log == []


async def test_undos_of_hooks_that_this_client_lacks_stay_pending(world: World):
    await world.abandoned(transitions.MarkSending)
    without = await world.recover(hooks=())
    pending = owed_hooks(await world.entry())
    with_it = await world.recover()

    assert without == RecoveryReport(taken_over=1, undos_pending=1)
    assert pending == ["funds_hold"]
    assert with_it == RecoveryReport(released=1)
    assert not world.bank.open


async def test_a_claim_that_was_resumed_after_a_takeover_is_not_undone(world: World):
    await world.abandoned(transitions.MarkSending)

    async def redelivery() -> None:
        world.time.pass_(60.0)
        await world.create()

    world.meanwhile(transitions.Release, redelivery)

    assert await world.recover() == RecoveryReport()
    assert world.bank.released == []


# --- requests on the way, and doubts ------------------------------------------------------------


async def test_an_abandoned_request_is_resolved_at_once_if_resolve_knows_it(world: World):
    await world.abandoned(transitions.Create)

    async def find(*_: object) -> Order:
        (order,) = world.sandbox.orders.values()
        return Order.from_json(order.to_json())

    assert await world.recover(resolve=find) == RecoveryReport(resolved=1)
    assert (await world.entry()).order_id in world.sandbox.orders


async def test_a_doubt_is_left_unchanged_without_resolve(world: World):
    await world.in_doubt()
    written = len(world.journal.moves)

    assert await world.recover() == RecoveryReport(in_doubt=1)
    assert len(world.journal.moves) == written


async def test_a_doubt_taken_by_another_worker_first_is_left_to_it(world: World):
    await world.in_doubt()
    resolve = Gate()
    world.meanwhile(transitions.AcquireLease, lambda: attended(world))

    assert await world.recover(resolve=resolve) == RecoveryReport(in_doubt=1)
    assert not resolve.reached.is_set()


async def test_a_doubt_is_refuted_only_after_settle_after_and_its_hooks_are_undone(world: World):
    await world.in_doubt()
    first = await world.recover(resolve=sure)
    world.time.pass_(300.0)
    second = await world.recover(resolve=sure)

    assert (first, second) == (RecoveryReport(in_doubt=1), RecoveryReport(refuted=1, released=1))
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


async def sure(*_: object) -> Any:
    return NO_ORDER


# --- what is owed -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError(), asyncio.CancelledError()])
async def test_an_undo_that_fails_again_stays_pending_and_is_tried_once_per_run(
    world: World, error: BaseException
):
    await world.owing()
    world.bank.release_error = error

    assert await world.recover() == RecoveryReport(undos_pending=1)
    assert world.bank.log == ["place", "release", "release"]


async def test_a_corrupt_record_with_pending_undos_is_counted_once_and_left_alone(world: World):
    await world.owing()
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # a journal in memory is never damaged
    unread = Unread(why="DecodeError", kept="{", hooks=(), earlier_hooks=())
    entries[world.scope, "k"] = replace(await world.entry(), unread=unread)

    assert await world.recover() == RecoveryReport(unreadable=1)
    assert world.bank.released == []


async def test_an_undo_that_another_worker_is_running_is_left_to_it(world: World):
    await world.owing()
    gate = world.bank.on_release = Gate()
    async with world.client() as client:
        first = await gate.catches(client.recover())
        second = await client.recover()
        gate.open()

        assert (second, await first) == (RecoveryReport(), RecoveryReport(released=1))


async def in_doubt_with_an_earlier_undo(world: World) -> None:
    """Put a key in doubt that has a pending undo of an earlier intent, which failed twice."""
    await world.owing()
    world.bank.release_error = RuntimeError()
    await world.in_doubt()
    world.bank.release_error = None


async def test_a_doubt_with_a_pending_earlier_undo_is_undone_and_queried(world: World):
    await in_doubt_with_an_earlier_undo(world)
    paid = await world.recover()
    world.time.pass_(300.0)
    refuted = await world.recover(resolve=sure)

    assert paid == RecoveryReport(in_doubt=1, released=1)
    assert refuted == RecoveryReport(refuted=1, released=1)
    assert not world.bank.open


async def test_a_failing_undo_of_a_key_in_doubt_is_tried_once_per_run(world: World):
    """Recovery releases the lease after the undo, so the journal lists the key a second time."""
    await in_doubt_with_an_earlier_undo(world)
    world.bank.release_error = RuntimeError()
    world.bank.log.clear()

    assert await world.recover() == RecoveryReport(in_doubt=1, undos_pending=1)
    assert world.bank.log == ["release"]


async def seen(*_: object) -> str:
    return "tx-seen"


@pytest.mark.parametrize(
    ("answer", "report"),
    [(seen, RecoveryReport(resolved=1, released=1)), (sure, RecoveryReport(refuted=1, released=2))],
)
async def test_an_earlier_intents_undo_runs_in_the_run_that_ends_the_doubt(
    world: World, answer: Any, report: RecoveryReport
):
    await in_doubt_with_an_earlier_undo(world)
    world.time.pass_(300.0)

    assert await world.recover(resolve=answer) == report
    assert (await world.entry()).pending_undos == ()


async def test_a_pending_undo_runs_although_the_doubt_lacks_its_request(world: World):
    await in_doubt_with_an_earlier_undo(world)
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # as in a corrupt record
    entries[world.scope, "k"] = replace(await world.entry(), intent=None)

    assert await world.recover(resolve=seen) == RecoveryReport(in_doubt=1, released=1)
    assert (await world.entry()).pending_undos == ()


async def test_undos_of_several_intents_of_one_key_run_one_intent_at_a_time(world: World):
    await world.owing()
    await world.owing()

    assert await world.recover() == RecoveryReport(released=2)
    assert {intent_id for intent_id, _ in world.bank.released} == set(world.bank.placed)


# --- others who are faster ----------------------------------------------------------------------


async def answered(world: World) -> None:
    await world.move(
        transitions.Create(attempt=(await world.entry()).attempt or "", order_id="tx-1", reply=b"")
    )


async def attended(world: World) -> None:
    await world.move(transitions.AcquireLease(lease=60.0))


Work = Callable[[World], Awaitable[Any]]


@pytest.mark.parametrize(
    ("begun", "at", "others", "last_step"),
    [
        (
            lambda w: w.abandoned(transitions.MarkSending),
            transitions.TakeOver,
            World.create,
            "create: created",
        ),
        (lambda w: w.abandoned(transitions.Create), transitions.Expire, answered, "create: created"),
        (World.owing, transitions.AcquireLease, World.recover, "paid: free"),
        (World.owing, transitions.AcquireLease, attended, "free: free"),
    ],
    ids=["a claim taken up", "a request answered", "an undo that is paid", "an undo that is attended to"],
)
async def test_recovery_leaves_work_that_another_worker_took_meanwhile(
    world: World, begun: Work, at: type, others: Work, last_step: str
):
    await begun(world)
    world.meanwhile(at, lambda: others(world))

    assert await world.recover() == RecoveryReport()
    assert (await world.history())[-1] == last_step
    assert len(world.bank.released) == (others is World.recover)


# --- all of it ----------------------------------------------------------------------------------


async def test_more_keys_than_a_batch_are_all_processed(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transfer_async._pipeline.recovery.BATCH", 3)
    for number in range(8):
        await world.in_doubt(f"doubt-{number}")
        await world.owing(f"owing-{number}")

    assert await world.recover() == RecoveryReport(in_doubt=8, released=8)


@pytest.mark.parametrize("method", ["work", "count_in_doubt"])
async def test_a_journal_that_cannot_be_read_raises_journal_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
):
    async def broken(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(world.journal, method, broken)
    failed = await failure(world.recover(), JournalFailed)

    assert isinstance(failed.__cause__, OSError)


@pytest.mark.parametrize("move", [transitions.TakeOver, transitions.Release])
async def test_a_journal_that_cannot_be_written_raises_and_nothing_is_undone(world: World, move: type):
    await world.abandoned(transitions.MarkSending)
    world.journal.fail_on = move
    await failure(world.recover(), JournalFailed)

    assert world.bank.open


# --- cancelling it ------------------------------------------------------------------------------


async def cut(recovery: asyncio.Future[RecoveryReport]) -> None:
    recovery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recovery


async def test_a_recovery_cancelled_in_an_undo_ends_and_the_undo_stays_pending(world: World):
    await world.owing()
    gate = world.bank.on_release = Gate()
    async with world.client() as client:
        await cut(await gate.catches(client.recover()))
        gate.open()
        world.time.pass_(60.0)

        assert await client.recover() == RecoveryReport(released=1)


async def test_a_recovery_cancelled_in_resolve_ends_and_the_doubt_stays(world: World):
    await world.in_doubt()
    gate = Gate()
    async with world.client(resolve=gate) as client:
        await cut(await gate.catches(client.recover()))

    assert not gate.passed
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open


@pytest.mark.parametrize(
    "at",
    [
        transitions.TakeOver,
        transitions.Release,
        transitions.MarkUndone,
        transitions.Expire,
        transitions.AcquireLease,
        transitions.Refute,
    ],
)
async def test_the_next_recovery_finishes_the_work_of_one_that_died(world: World, at: type):
    await world.crash(transitions.MarkSending, key="claimed")
    await world.crash(transitions.Create, key="sending")
    world.time.pass_(400.0)
    gate = world.journal.after[at] = Gate()
    await cut(await gate.catches(world.recover(resolve=sure, abandoned_settle_after=300.0)))
    world.journal.after.clear()
    world.time.pass_(400.0)
    await world.recover(resolve=sure, abandoned_settle_after=300.0)

    assert not world.bank.open
    for key in ("claimed", "sending"):
        entry = await world.entry(key)
        assert (entry.state, entry.pending_undos) == (KeyState.FREE, ())


async def states_after_failures(
    world: World, count: int, *, failing: Callable[[int], bool]
) -> list[KeyState]:
    """Recover abandoned claims while some take-overs fail. Return the states of the keys."""
    for number in range(count):
        await world.crash(transitions.MarkSending, key=f"k{number}")
    world.time.pass_(60.0)

    async def fail(_: object) -> None:
        if failing(world.journal.kinds.count("TakeOver")):
            raise OSError

    world.journal.before[transitions.TakeOver] = fail
    await failure(world.recover(), JournalFailed)
    return [(await world.entry(f"k{number}")).state for number in range(count)]


async def test_a_key_that_cannot_be_written_does_not_block_the_others(world: World):
    states = await states_after_failures(world, 2, failing=lambda number: number == 1)

    assert states == [KeyState.CLAIMED, KeyState.FREE]


async def test_failures_of_single_keys_do_not_end_a_run(world: World):
    """Only consecutive failures indicate that the journal is down."""
    states = await states_after_failures(world, 8, failing=lambda number: number % 2 == 1)

    assert states == [KeyState.CLAIMED, KeyState.FREE] * 4


async def test_a_journal_that_fails_repeatedly_is_not_tried_for_every_key(world: World):
    await states_after_failures(world, 5, failing=lambda _: True)

    assert world.journal.kinds.count("TakeOver") == 3
