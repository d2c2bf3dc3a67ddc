"""The limits of the journal in memory. What it shares with other journals is in the contract tests."""

import asyncio
import os
import threading
import warnings
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import bank as banks
from tests.support import journalling as j
from tests.support.bank import Time, World, new_order
from tests.support.cases import each
from tests.support.journalling import judged, made
from transfer_async import JournalFailed, MemoryJournal
from transfer_async._models.errors import Cause, CauseKind, Outcome
from transfer_async.journal import state_machine, transitions
from transfer_async.journal.model import Entry, HistoryEvent, KeyState, Rejection
from transfer_async.journal.operator_transitions import latest
from transfer_async.journal.transitions import Move

DAY = 86_400.0


@pytest.fixture
def time() -> Time:
    return Time()


def journal_of(time: Time, **bounds: Any) -> MemoryJournal:
    return MemoryJournal(clock=time.clock, **bounds)


async def created(journal: MemoryJournal, key: str, **changes: Any) -> None:
    await made(journal, j.claim(**changes), j.mark(), j.create(order_id=f"tx-{key}"), key=key)


async def has(journal: MemoryJournal, key: str) -> bool:
    return await journal.read(j.SCOPE, key) is not None


def test_the_memory_journal_is_not_durable():
    assert not MemoryJournal().durable


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("is_used", "written"), [(True, b"the journal was used"), (False, b"done")])
def test_a_forked_process_writes_nothing_to_its_copy(is_used: bool, written: bytes):
    """A process that is forked during a call cancels its own copy of the call when it exits.

    In the copy, the order was never sent, so without this the hold of the parent's order is released.
    """
    journal = MemoryJournal()
    if is_used:
        asyncio.run(journal.move(j.SCOPE, "k", j.claim()))
    from_child, in_child = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn about threads
        child = os.fork()
    if not child:
        try:
            asyncio.run(journal.move(j.SCOPE, "k", j.release(None) if is_used else j.claim()))
            os.write(in_child, b"done")
        except JournalFailed as error:
            os.write(in_child, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(in_child)
    with os.fdopen(from_child, "rb") as pipe:
        assert pipe.read().startswith(written)


@each("max_keys", [0, -1, 1.5, True, "7"])
def test_max_keys_must_be_a_whole_number(max_keys: Any):
    with pytest.raises(ValueError, match="max_keys: must be a whole number, 1 or more"):
        MemoryJournal(max_keys=max_keys)


CLAIM = j.claim(client_made=True)
DOUBT = (CLAIM, j.mark(), j.doubt())
RELEASED = (CLAIM, j.release(None, pending_undos=j.undos("hold")))
REFUTED = (*DOUBT, j.SETTLE_AFTER, j.refute(pending_undos=j.undos("hold")))
PUBLISHED = (
    *DOUBT[:2],
    j.doubt(cause=Cause(kind=CauseKind.CUT_ANSWER)),
    j.request_notification(),
    j.resolve(),
)


def end_published(entry: Entry) -> Move:
    return transitions.MarkNotified(notification=entry.pending_notifications[0])


def undo_done(entry: Entry) -> Move:
    return j.mark_undone("hold", lease_until=entry.pending_undos[0].lease_until)


ENDS: dict[str, tuple[tuple[Any, ...], bool]] = {
    "created": ((CLAIM, j.mark(), j.create()), False),
    "in doubt": (DOUBT, True),
    "an undo is pending": (RELEASED, True),
    "its undo is done": ((*RELEASED, undo_done), False),
    "resolved, then suspected": ((*DOUBT, j.resolve(), j.suspect()), True),
    "created over a doubt": ((*DOUBT, j.create()), True),
    "refuted, and its undo is done": ((*REFUTED, undo_done), True),
    "refuted, then suspected": ((*REFUTED, j.suspect()), True),
    "resolved, and its end is published": ((*PUBLISHED, end_published), True),
    "ended by another worker": ((CLAIM, j.LEASE, j.take_over(), j.release(None, epoch=2)), True),
    "recorded by a retry, then noted": ((*DOUBT[:2], replace(j.create(), retried=True), j.note()), True),
}
"""Transitions of a key that the client generated, pauses in seconds, and whether the key is kept."""


@pytest.mark.parametrize(("way", "is_kept"), ENDS.values(), ids=ENDS)
async def test_a_generated_key_is_kept_only_if_it_may_be_used_again(
    time: Time, way: tuple[Any, ...], is_kept: bool
):
    journal = journal_of(time)
    for step in way:
        if isinstance(step, float):
            time.pass_(step)
        else:
            await made(journal, step(await journal.read(j.SCOPE, "k")) if callable(step) else step)

    assert await has(journal, "k") is is_kept
    assert bool(await journal.history(j.SCOPE, "k")) is is_kept


async def test_the_order_id_of_a_forgotten_key_stays_bound(time: Time):
    journal = journal_of(time)
    await created(journal, "made", client_made=True)
    await made(journal, j.claim(), j.mark())
    verdict = await judged(journal, j.create(order_id="tx-made"))

    assert verdict.denial is Rejection.FOREIGN


async def test_a_callers_key_is_kept_for_the_configured_time(time: Time):
    journal = journal_of(time, keep=timedelta(days=1))
    await created(journal, "k")
    is_kept = []
    for seconds in (DAY - 1, 1):
        time.pass_(seconds)
        await made(journal, j.claim(), key=f"after {seconds}")
        is_kept.append(await has(journal, "k"))

    assert is_kept == [True, False]


async def test_a_key_that_is_used_again_is_not_forgotten_first(time: Time):
    journal = journal_of(time, max_keys=2)
    await made(journal, j.claim(), j.release(None), key="a")
    await created(journal, "b")
    await made(journal, j.claim(2), key="a")
    await created(journal, "c")

    assert [await has(journal, key) for key in "abc"] == [True, False, True]


@each(
    "way",
    {
        "claimed": (j.claim(),),
        "sending": (j.claim(), j.mark()),
        "in doubt": DOUBT,
        "an undo is pending": RELEASED,
    },
)
async def test_a_key_in_use_in_doubt_or_with_a_pending_undo_is_never_forgotten(
    time: Time, way: tuple[Any, ...]
):
    journal = journal_of(time, max_keys=1, keep=0.0)
    await made(journal, *way)
    time.pass_(10 * DAY)
    with pytest.raises(JournalFailed, match="holds 1 keys, and none of them may be deleted") as failed:
        await judged(journal, j.claim(), key="another")

    assert failed.value.outcome is Outcome.NOT_SENT
    assert await journal.prune(j.SCOPE, before=time.utc()) == 0
    assert await has(journal, "k")


async def test_prune_deletes_only_keys_whose_work_ended_before_the_given_time(time: Time):
    """Like the SQL back ends, which keep a key whose work ended exactly at that time."""
    journal = journal_of(time, keep=10 * DAY)
    await made(journal, j.claim(), j.release(None))
    ended = time.utc()
    time.pass_(2 * DAY)
    counts = [await journal.prune(j.SCOPE, before=before) for before in (ended, ended + timedelta(seconds=1))]

    assert counts == [0, 1]


async def test_a_generated_key_that_an_error_returned_with_an_order_never_pays_twice(world: World):
    """The order was recorded late, after the error had given the key to the caller."""
    world.journal = banks.SpiedJournal(MemoryJournal(clock=world.time.clock))
    world.journal.fail_on = transitions.Create
    async with world.client() as client:
        failed = await banks.failure(client.create_order(new_order()), JournalFailed)
        world.journal.fail_on = None
        await client.recover()
        again = await client.create_order(new_order(), key=failed.key)

    assert again == failed.order
    assert len(world.sandbox.requests) == 1


@pytest.mark.parametrize(("client_made", "kept"), [(True, 0), (False, 100)])
async def test_memory_is_bounded(time: Time, client_made: bool, kept: int):
    journal = journal_of(time, max_keys=100)
    for number in range(1_000):
        await created(journal, f"{number}", client_made=client_made)

    assert {len(held) for held in (journal._entries, journal._steps, journal._ended)} == {kept}
    assert len(journal._ids) == 100


# --- threads --------------------------------------------------------------------------------------


def test_two_threads_cannot_claim_the_same_key(time: Time, monkeypatch: pytest.MonkeyPatch):
    """Without this, a web server with one loop per thread creates an order twice."""
    journal, decide = journal_of(time), state_machine.decide
    denials: list[Rejection | None] = []

    def claim(number: int) -> None:
        with pytest.raises(StopIteration) as done:  # A journal in memory never waits.
            judged(journal, j.claim(number)).send(None)
        denials.append(done.value.value.denial)

    first, second = (threading.Thread(target=claim, args=[number]) for number in (1, 2))

    def decide_slowly(*args: Any, **options: Any) -> Any:
        """Let the second thread claim the key between the first thread's read and its write."""
        verdict = decide(*args, **options)
        if threading.current_thread() is first:
            second.start()
            second.join(0.05)  # Expires if the lock works; without the lock, the second thread ends earlier.
        return verdict

    monkeypatch.setattr(state_machine, "decide", decide_slowly)
    first.start()
    first.join()
    second.join()

    assert sorted(denials, key=str) == [None, Rejection.BUSY]


def test_a_long_history_drops_lines_without_a_decision_first():
    """Without this, look-ups displace decisions from the journal in memory and from the page."""

    def step(move: str, at: int) -> HistoryEvent:
        return HistoryEvent(at=float(at), move=move, state=KeyState.IN_DOUBT, intent_id="i", epoch=1)

    names = ["claim", "keep", "look", "resolve", "look", "takeback", "look"]
    steps = [step(move, at) for at, move in enumerate(names)]

    assert latest(steps, 7) == steps
    assert latest(steps, 6) == [steps[0], *steps[2:]]
    assert latest([steps[0], steps[2], steps[4]], 2) == [steps[0], steps[4]]
    assert [one.move for one in latest(steps, 5)] == ["claim", "resolve", "look", "takeback", "look"]
    assert [one.move for one in latest(steps, 3)] == ["resolve", "takeback", "look"]
