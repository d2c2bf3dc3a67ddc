"""What the durable journals share, on a store that does as it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.support.bank import NOON, Gate, turns
from tests.support.journalling import claim, judged, made, mark
from tests.support.loop_time import LoopTime
from transfer_async import JournalFailed
from transfer_async.journal import rows
from transfer_async.journal.durable import MAX_SHARED, QUIET_TURNS, DurableJournal, PendingMove, Transaction
from transfer_async.journal.encryption import RecordId
from transfer_async.journal.protocol import KEPT
from transfer_async.journal.rows import NOTHING, VERSION, Upgradable, Upgrade


class Store(DurableJournal):
    """Rows in a dictionary; what befalls a commit is the test's to say."""

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
        self.page_error: OSError | None = None
        self.versions: list[int | None] = [1, 1]

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

    async def scopes(self) -> list[str]:
        return sorted({scope for scope, _ in self.rows})

    async def _prune_some(self, scope: str, before: float) -> int:
        self.pruned.append(before)
        return self.old.pop() if self.old else 0

    async def _page(self, scope: str, *, limit: int, after: str) -> list[tuple[str, rows.EntryRow]]:
        found = sorted((key, row) for (at, key), row in self.rows.items() if at == scope and key > after)
        return found[:limit]

    _name = "the store"

    @asynccontextmanager
    async def _upgradable(self) -> AsyncIterator[Upgradable]:
        if self.opening_error is not None:
            raise self.opening_error
        yield Table(self)

    def _is_store_error(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


class Table(Upgradable):
    """A store of version 1, in which somebody else has done something by the time that it is looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def version(self) -> int | None:
        return self._store.versions.pop(0)

    async def page(self, table: str, after: int) -> list[tuple[int, rows.EntryRow]]:
        if self._store.page_error is not None:
            raise self._store.page_error
        return []

    async def carry_out(self, upgrade: Upgrade) -> bool:
        return False


@pytest.fixture
def store() -> Store:
    return Store()


async def waiting(store: Store, count: int) -> list[asyncio.Task[Any]]:
    """That many callers, of which the first is on its way."""
    tasks = [asyncio.create_task(judged(store, claim(), key=f"k-{number}")) for number in range(count)]
    await turns(5)
    return tasks


async def test_what_comes_during_a_commit_shares_the_next(store: Store):
    gate = store.gate = Gate()
    first = await waiting(store, 1)
    rest = [asyncio.create_task(judged(store, claim(), key=f"l-{number}")) for number in range(20)]
    await turns(5)
    gate.open()
    await asyncio.gather(*first, *rest)

    assert store.commits == [1, 20]


class Returning:
    """One whose first commit has taken a minute, and who comes back with the next move; and one who waits.

    Args:
        store: to which both come.
        time: in which the minute passes.
        pause: what is done before it comes back.
    """

    def __init__(
        self, store: Store, time: LoopTime, pause: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._store, self._time = store, time
        self._pause = pause or partial(turns, 0)

    async def _two_moves(self) -> None:
        await judged(self._store, claim(), key="first")
        self._store.commits.clear()
        await self._pause()
        await judged(self._store, mark(), key="first")

    async def until_told(self) -> list[asyncio.Task[Any]]:
        """Until the first one's commit is made, and nothing more."""
        gate = self._store.gate = Gate()
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._two_moves())]
        await gate.reached.wait()
        self._time.passed += 60
        tasks.append(asyncio.create_task(judged(self._store, claim(), key="second")))
        await turns(2)
        gate.open()
        return tasks


async def test_who_is_told_joins_the_group_that_waited_meanwhile(store: Store, loop_time: LoopTime):
    await asyncio.gather(*await Returning(store, loop_time).until_told())

    assert store.commits == [2]


async def test_nobody_waits_for_more_than_a_commit_takes(store: Store, loop_time: LoopTime):
    store._commit_seconds = 60.0
    callers = []
    for number in range(10):  # one in each turn, and none of them is quick
        callers.append(asyncio.create_task(judged(store, claim(), key=f"k-{number}")))
        await turns(1)
        loop_time.passed += 25
    await asyncio.gather(*callers)

    assert max(store.commits) < 5


async def test_a_commit_waits_for_nobody_once_nobody_comes(store: Store, loop_time: LoopTime):
    pause = partial(turns, QUIET_TURNS + 1)
    await asyncio.gather(*await Returning(store, loop_time, pause).until_told())

    assert store.commits == [1, 1]


async def test_a_runner_that_is_cancelled_while_others_join_leaves_nobody_alone(
    store: Store, loop_time: LoopTime
):
    async def cancel() -> None:
        (runner,) = store._runners
        runner.cancel()

    tasks = await Returning(store, loop_time, cancel).until_told()
    await turns(10)

    assert [task.done() and task.exception() is None for task in tasks] == [True, True]


async def test_where_two_commits_can_be_on_their_way_one_gathers_for_both(loop_time: LoopTime):
    store = Store(concurrent_commits=2)
    store._commit_seconds = 60.0
    callers = []
    for number in range(4):
        callers.append(asyncio.create_task(judged(store, claim(), key=f"k-{number}")))
        await turns(1)
    runners = len(store._runners)
    await asyncio.gather(*callers)

    assert (runners, store.commits) == (1, [4])


async def test_a_cancelled_runner_that_gathers_leaves_nobody_to_wait_for_another_that_commits(
    loop_time: LoopTime,
):
    store = Store(concurrent_commits=2)
    gate = store.gate = Gate()
    first = await waiting(store, 1)
    store._commit_seconds = 60.0
    second = asyncio.create_task(judged(store, claim(), key="second"))
    await turns(2)
    assert store._gathering is not None
    store._gathering.cancel()
    await turns(6)
    commits = list(store.commits)
    gate.open()
    await asyncio.gather(*first, second)

    assert commits == [1, 1]


async def test_no_commit_carries_more_than_its_share(store: Store):
    await asyncio.gather(*await waiting(store, 2 * MAX_SHARED + 1))

    assert store.commits == [MAX_SHARED, MAX_SHARED, 1]


async def test_what_is_too_much_for_one_commit_is_on_its_way_in_two():
    store = Store(concurrent_commits=2)
    gate = store.gate = Gate()
    tasks = await waiting(store, 2 * MAX_SHARED + 1)
    commits = list(store.commits)
    gate.open()
    await asyncio.gather(*tasks)

    assert commits == [MAX_SHARED, MAX_SHARED]


async def test_two_commits_are_on_their_way_at_once_where_the_store_can():
    store = Store(concurrent_commits=2)
    gate = store.gate = Gate()
    tasks = await waiting(store, 1) + await waiting(store, 1)
    commits = list(store.commits)
    gate.open()
    await asyncio.gather(*tasks)

    assert commits == [1, 1]


async def test_an_error_of_the_store_fails_all_without_another_try(store: Store):
    store.error = lambda _: OSError("gone")
    found = await asyncio.gather(*await waiting(store, 5), return_exceptions=True)

    assert store.commits == [5]
    assert [type(one) for one in found] == [JournalFailed] * 5
    assert len({id(one) for one in found}) == 5
    assert all(isinstance(one.__cause__, OSError) for one in found if isinstance(one, JournalFailed))


async def test_an_error_about_one_move_fails_that_one_alone(store: Store):
    store.error = lambda wanted: ValueError() if any(one.place[1] == "k-3" for one in wanted) else None
    found = await asyncio.gather(*await waiting(store, 5), return_exceptions=True)

    assert [number for number, one in enumerate(found) if isinstance(one, JournalFailed)] == [3]
    assert store.commits == [5, 1, 1, 1, 1, 1]


async def test_an_error_names_its_type_and_shows_nothing_else(store: Store):
    store.error = lambda _: OSError("secret")
    with pytest.raises(JournalFailed) as failed:
        await judged(store, claim())

    assert str(failed.value) == "the journal failed (OSError)"


async def test_what_is_certain_is_each_callers_own(store: Store):
    store.error = lambda _: OSError()
    first, second = await asyncio.gather(*await waiting(store, 2), return_exceptions=True)
    first.order = "changed"  # type: ignore[union-attr] # both are errors

    assert second.order is None  # type: ignore[union-attr] # both are errors


async def test_a_cancelled_callers_move_is_made(store: Store):
    gate = store.gate = Gate()
    (caller,) = await waiting(store, 1)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    gate.open()
    await store.close()

    assert list(store.rows) == [("https://service.example", "k-0")]


async def test_a_cancelled_commit_fails_its_callers_and_the_next_are_served(store: Store):
    gate = store.gate = Gate()
    first = await waiting(store, 2)
    (runner,) = store._runners
    later = asyncio.create_task(judged(store, claim(), key="later"))
    await turns(2)
    runner.cancel()
    gate.open()
    found = await asyncio.gather(*first, return_exceptions=True)

    assert [type(one) for one in found] == [JournalFailed] * 2
    assert (await later).denial is None


async def test_a_runner_that_is_cancelled_before_it_begins_is_replaced(store: Store):
    caller = asyncio.create_task(judged(store, claim()))
    await asyncio.sleep(0)
    (runner,) = store._runners
    runner.cancel()

    assert (await caller).denial is None


async def test_close_waits_for_what_has_begun_and_refuses_the_rest(store: Store):
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


async def test_pruning_goes_on_until_there_is_nothing_left_to_forget(store: Store):
    store.old = [3, 100, 100]
    count = await store.prune("https://service.example", before=NOON)

    assert (count, store.pruned) == (203, [NOON.timestamp()] * 4)


async def test_what_was_written_last_is_remembered_for_the_next_move(store: Store):
    entry = await made(store, claim(), mark())
    known = store._cache.get(("https://service.example", "k"))

    assert known is not None
    assert known[1] is entry


async def test_what_a_loop_left_open_when_it_ended_is_told_to_the_next_which_may_close_it(store: Store):

    async def left_open() -> None:
        store.gate = Gate()
        await waiting(store, 3)

    await asyncio.to_thread(lambda: asyncio.run(left_open()))
    with pytest.raises(JournalFailed, match="event loop"):
        await judged(store, claim())
    await store.close()
    store.gate = None
    async with store:
        assert (await judged(store, claim(), key="later")).denial is None


async def test_a_journal_that_could_not_be_opened_may_be_opened_in_another_loop(store: Store):
    store.opening_error = OSError("away")
    with pytest.raises(OSError, match="away"):
        await asyncio.to_thread(lambda: asyncio.run(store.__aenter__()))
    store.opening_error = None
    async with store:
        assert (await judged(store, claim())).denial is None


# --- upgrading ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (OSError("no"), JournalFailed, r"the upgrade failed \(OSError\)"),
        (JournalFailed("own words"), JournalFailed, "own words"),
        (ZeroDivisionError("a mistake"), ZeroDivisionError, "a mistake"),
    ],
)
async def test_an_error_of_the_store_ends_an_upgrade_in_the_journals_own(
    store: Store, error: Exception, kind: type[Exception], why: str
):
    store.opening_error = error
    with pytest.raises(kind, match=why):
        await store.upgrade()


async def test_an_upgrade_that_somebody_else_has_made_meanwhile_has_nothing_to_do(store: Store):
    store.versions = [1, VERSION]
    assert await store.upgrade() == NOTHING

    store.versions, store.page_error = [1, VERSION], OSError("no such table")
    assert await store.planned_upgrade() == NOTHING


async def test_what_cannot_be_read_is_no_reason_to_believe_that_somebody_else_has_made_it(store: Store):
    store.page_error = OSError("no such table")
    with pytest.raises(JournalFailed, match="the upgrade failed"):
        await store.planned_upgrade()


@pytest.mark.parametrize(
    ("version", "why"), [(1, "older version"), (VERSION + 1, "newer version"), (None, "no")]
)
async def test_an_upgrade_that_was_not_made_is_not_said_to_have_been(
    store: Store, version: int | None, why: str
):
    store.versions = [1, version]
    with pytest.raises(JournalFailed, match=why):
        await store.upgrade()
