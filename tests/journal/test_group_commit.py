"""Shared commits and upgrades of durable journals, with a store that the test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.support.bank import NOON, Gate, turns
from tests.support.cases import each
from tests.support.journalling import claim, judged, made, mark
from tests.support.loop_time import LoopTime
from transfer_async import JournalFailed
from transfer_async.journal import rows
from transfer_async.journal.durable import MAX_SHARED, QUIET_TURNS, DurableJournal, PendingMove, Transaction
from transfer_async.journal.encryption import RecordId
from transfer_async.journal.protocol import KEPT
from transfer_async.journal.rows import NOTHING, VERSION, Upgradable, Upgrade


class Store(DurableJournal):
    """A store with its rows in a dictionary, whose commits end as the test decides."""

    def __init__(self, *, concurrent_commits: int = 1) -> None:
        super().__init__(concurrent_commits=concurrent_commits)
        self.rows: dict[RecordId, rows.EntryRow] = {}
        self.commits: list[int] = []
        self.opened = self.closed = 0
        self.old: list[int] = []
        self.pruned: list[float] = []
        self.error: Callable[[Sequence[PendingMove]], BaseException | None] = lambda _: None
        self.gate: Callable[[], Any] | None = None
        self.opening_error: BaseException | None = None

    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        self.commits.append(len(wanted))
        if self.gate is not None:
            await self.gate()
        error = self.error(wanted)
        if error is not None:
            raise error
        transaction = Transaction(wanted, self._cache)
        for place in transaction.places:
            row = self.rows.get(place)
            transaction.load(place, row and row.token, row)
        transaction.decide(0.0)
        self.rows |= {write.place: write.row for write in transaction.writes}
        self._settle(transaction)

    async def _open(self) -> None:
        if self.opening_error is not None:
            raise self.opening_error
        self.opened += 1

    async def _close(self) -> None:
        self.closed += 1

    async def now(self) -> float:
        return NOON.timestamp() + 10 * KEPT

    async def _prune_some(self, scope: str, before: float) -> int:
        self.pruned.append(before)
        return self.old.pop() if self.old else 0

    async def _page(self, scope: str, *, limit: int, after: str) -> list[tuple[str, rows.EntryRow]]:
        found = sorted((key, row) for (at, key), row in self.rows.items() if at == scope and key > after)
        return found[:limit]

    async def _query(self, sql: str, *values: object) -> list[Any]:
        raise NotImplementedError

    async def _with_move(self, move: str, scope: str, after: str) -> tuple[list[str], str]:
        raise NotImplementedError

    async def scopes(self) -> list[str]:
        return sorted({scope for scope, _ in self.rows})

    _name = "the store"

    @asynccontextmanager
    async def _upgradable(self) -> AsyncIterator[Upgradable]:
        assert self.opening_error is not None
        raise self.opening_error
        yield

    def _is_store_error(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


@pytest.fixture
def store() -> Store:
    return Store()


def calls(store: Store, *keys: str) -> list[asyncio.Task[Any]]:
    """Start a call for each key."""
    return [asyncio.create_task(judged(store, claim(), key=key)) for key in keys]


async def waiting(store: Store, count: int) -> list[asyncio.Task[Any]]:
    """Start this number of calls. Return when the first one is committing."""
    tasks = calls(store, *(f"k-{number}" for number in range(count)))
    await turns(5)
    return tasks


async def test_transitions_that_arrive_during_a_commit_share_the_next_one(store: Store):
    gate = store.gate = Gate()
    first = await waiting(store, 1)
    rest = calls(store, *(f"l-{number}" for number in range(20)))
    await turns(5)
    gate.open()
    await asyncio.gather(*first, *rest)

    assert store.commits == [1, 20]


async def returning(
    store: Store, time: LoopTime, pause: Callable[[], Awaitable[None]] | None = None
) -> list[asyncio.Task[Any]]:
    """Start two callers, and run the loop only until the first one's commit, which takes a minute, is done.

    The first caller then awaits ``pause`` and makes another transition.
    """

    async def two_moves() -> None:
        await judged(store, claim(), key="first")
        store.commits.clear()
        if pause is not None:
            await pause()
        await judged(store, mark(), key="first")

    gate = store.gate = Gate()
    first = asyncio.create_task(two_moves())
    await gate.reached.wait()
    time.passed += 60
    tasks = [first, *calls(store, "second")]
    await turns(2)
    gate.open()
    return tasks


async def test_a_caller_that_gets_its_result_joins_the_waiting_group(store: Store, loop_time: LoopTime):
    await asyncio.gather(*await returning(store, loop_time))

    assert store.commits == [2]


async def test_a_transition_waits_for_others_at_most_as_long_as_a_commit_takes(
    store: Store, loop_time: LoopTime
):
    store._commit_seconds = 60.0
    callers = []
    for number in range(10):  # one caller in each loop turn, 25 s apart
        callers += calls(store, f"k-{number}")
        await turns(1)
        loop_time.passed += 25
    await asyncio.gather(*callers)

    assert max(store.commits) < 5


async def test_a_commit_starts_once_no_more_transitions_arrive(store: Store, loop_time: LoopTime):
    pause = partial(turns, QUIET_TURNS + 1)
    await asyncio.gather(*await returning(store, loop_time, pause))

    assert store.commits == [1, 1]


async def test_all_callers_are_served_if_a_gathering_runner_is_cancelled(store: Store, loop_time: LoopTime):
    async def cancel() -> None:
        (runner,) = store._runners
        runner.cancel()

    tasks = await returning(store, loop_time, cancel)
    await turns(10)

    assert [task.done() and task.exception() is None for task in tasks] == [True, True]


async def test_only_one_runner_gathers_if_two_commits_may_be_concurrent(loop_time: LoopTime):
    store = Store(concurrent_commits=2)
    store._commit_seconds = 60.0
    callers = []
    for number in range(4):
        callers += calls(store, f"k-{number}")
        await turns(1)
    runners = len(store._runners)
    await asyncio.gather(*callers)

    assert (runners, store.commits) == (1, [4])


async def test_a_caller_of_a_cancelled_gathering_runner_does_not_wait_for_another_commit(
    loop_time: LoopTime,
):
    store = Store(concurrent_commits=2)
    gate = store.gate = Gate()
    first = await waiting(store, 1)
    store._commit_seconds = 60.0
    second = calls(store, "second")
    await turns(2)
    assert store._gathering is not None
    store._gathering.cancel()
    await turns(6)
    commits = list(store.commits)
    gate.open()
    await asyncio.gather(*first, *second)

    assert commits == [1, 1]


async def test_transitions_beyond_the_maximum_use_a_second_concurrent_commit():
    store = Store(concurrent_commits=2)
    gate = store.gate = Gate()
    tasks = await waiting(store, 2 * MAX_SHARED + 1)
    commits = list(store.commits)
    gate.open()
    await asyncio.gather(*tasks)

    assert commits == [MAX_SHARED, MAX_SHARED]
    assert store.commits == [MAX_SHARED, MAX_SHARED, 1]


async def test_an_error_of_the_store_fails_all_transitions_without_another_attempt(store: Store):
    store.error = lambda _: OSError("a secret")
    found = await asyncio.gather(*await waiting(store, 5), return_exceptions=True)

    assert store.commits == [5]
    assert [type(one) for one in found] == [JournalFailed] * 5
    assert len({id(one) for one in found}) == 5, "each caller sets its own order on its error"
    assert {str(one) for one in found} == {"the journal failed (OSError)"}
    assert all(isinstance(one.__cause__, OSError) for one in found if isinstance(one, JournalFailed))


async def test_a_cancelled_caller_hides_the_error_from_no_other(store: Store):
    gate = store.gate = Gate()
    store.error = lambda _: OSError()
    callers = await waiting(store, 3)
    callers[1].cancel()
    await turns(1)
    gate.open()
    found = await asyncio.gather(*callers, return_exceptions=True)

    failed = (JournalFailed, "the journal failed (OSError)")
    assert [(type(one), str(one)) for one in found] == [failed, (asyncio.CancelledError, ""), failed]


async def test_an_error_about_one_transition_fails_only_that_one(store: Store):
    store.error = lambda wanted: ValueError() if any(one.place[1] == "k-3" for one in wanted) else None
    found = await asyncio.gather(*await waiting(store, 5), return_exceptions=True)

    assert [number for number, one in enumerate(found) if isinstance(one, JournalFailed)] == [3]
    assert store.commits == [5, 1, 1, 1, 1, 1]


async def test_a_settled_transition_is_not_committed_again_after_an_error_about_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """A back end may store some transitions of a commit before another one fails."""
    commit = store._commit

    async def partly(wanted: Sequence[PendingMove]) -> None:
        if len(wanted) > 1:
            await commit(wanted[:-1])
            raise ValueError
        await commit(wanted)

    monkeypatch.setattr(store, "_commit", partly)
    verdicts = await asyncio.gather(*await waiting(store, 3))

    assert [verdict.denial for verdict in verdicts] == [None] * 3
    assert store.commits == [2, 1]


async def test_a_cancelled_commit_fails_its_callers_and_later_ones_are_served(store: Store):
    gate = store.gate = Gate()
    first = await waiting(store, 2)
    (runner,) = store._runners
    (later,) = calls(store, "later")
    await turns(2)
    runner.cancel()
    gate.open()
    found = await asyncio.gather(*first, return_exceptions=True)

    assert [type(one) for one in found] == [JournalFailed] * 2
    assert (await later).denial is None


async def test_a_runner_that_is_cancelled_before_it_begins_is_replaced(store: Store):
    (caller,) = calls(store, "k")
    await asyncio.sleep(0)
    (runner,) = store._runners
    runner.cancel()

    assert (await caller).denial is None


async def test_close_waits_for_begun_transitions_and_refuses_new_ones(store: Store):
    gate = store.gate = Gate()
    callers = await waiting(store, 3)
    closing = asyncio.create_task(store.close())
    await turns(5)
    with pytest.raises(JournalFailed, match="closed"):
        await judged(store, claim())
    early = store.closed
    gate.open()
    await asyncio.gather(closing, *callers)

    assert (early, store.closed, len(store.rows)) == (0, 1, 3)


async def test_pruning_continues_until_no_old_key_is_left(store: Store):
    store.old = [3, 100, 100]
    count = await store.prune("https://service.example", before=NOON)

    assert (count, store.pruned) == (203, [NOON.timestamp()] * 4)


async def test_the_last_written_entry_is_cached(store: Store):
    entry = await made(store, claim(), mark())
    known = store._cache.get(("https://service.example", "k"))

    assert known is not None
    assert known[1] is entry


async def test_a_journal_left_open_by_an_ended_loop_is_refused_in_the_next_until_closed(store: Store):
    async def left_open() -> None:
        store.gate = Gate()
        await waiting(store, 3)

    await asyncio.to_thread(asyncio.run, left_open())
    with pytest.raises(JournalFailed, match="event loop"):
        await judged(store, claim())
    await store.close()
    store.gate = None
    async with store:
        assert (await judged(store, claim(), key="later")).denial is None


async def test_a_journal_that_could_not_be_opened_may_be_opened_in_another_loop(store: Store):
    store.opening_error = OSError("away")
    with pytest.raises(OSError, match="away"):
        await asyncio.to_thread(asyncio.run, store.__aenter__())
    store.opening_error = None
    async with store:
        assert (await judged(store, claim())).denial is None


# --- scopes -------------------------------------------------------------------------------------


async def test_two_concurrent_commits_warn_only_once_of_a_new_scope(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    store, gate = Store(concurrent_commits=2), Gate()
    await store.move("live", "k", claim())

    async def scopes() -> list[str]:
        await gate()
        return ["live"]

    monkeypatch.setattr(store, "scopes", scopes)
    moves = [await gate.catches(store.move("moved", f"k{number}", claim())) for number in range(2)]
    await turns(5)
    gate.open()
    await asyncio.gather(*moves)

    assert [record.args for record in caplog.records] == [("live", "moved", "live")]
    assert max(store.commits) == 1


# --- upgrading ----------------------------------------------------------------------------------


@each(
    ("error", "kind", "why"),
    [
        (OSError("no"), JournalFailed, r"the upgrade failed \(OSError\)"),
        (JournalFailed("own words"), JournalFailed, "own words"),
        (ZeroDivisionError("a mistake"), ZeroDivisionError, "a mistake"),
    ],
)
async def test_an_error_of_the_store_during_an_upgrade_is_a_journal_failed(
    store: Store, error: Exception, kind: type[Exception], why: str
):
    store.opening_error = error
    with pytest.raises(kind, match=why):
        await store.upgrade()


class Table(Upgradable):
    """A store of version 1, whose version is another one when it is read for the second time."""

    def __init__(self, version: int | None, page_error: OSError | None = None) -> None:
        self._versions, self._page_error = [1, version], page_error

    async def version(self) -> int | None:
        return self._versions.pop(0)

    async def page(self, table: str, after: int) -> list[tuple[int, rows.EntryRow]]:
        if self._page_error is not None:
            raise self._page_error
        return []

    async def carry_out(self, upgrade: Upgrade) -> bool:
        return False


GONE = OSError("no such table")


async def test_an_upgrade_that_another_process_completed_has_nothing_to_do():
    assert await rows.upgraded(Table(VERSION), "it", None) == NOTHING
    assert await rows.planned(Table(VERSION, GONE), "it") == NOTHING


async def test_a_read_error_does_not_count_as_an_upgrade_by_another_process():
    with pytest.raises(OSError, match="no such table"):
        await rows.planned(Table(1, GONE), "it")


@each(("version", "why"), [(1, "older version"), (VERSION + 1, "newer version"), (None, "unknown to this")])
async def test_an_upgrade_that_failed_is_not_reported_as_done(version: int | None, why: str):
    with pytest.raises(JournalFailed, match=why):
        await rows.upgraded(Table(version), "it", None)
