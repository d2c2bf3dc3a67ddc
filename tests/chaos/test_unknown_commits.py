"""Connections that are cut during a commit: the journal reports exactly what the database has stored."""

import asyncio
import random
from collections.abc import Callable, Sequence

import asyncpg
import pytest

from tests.chaos.pg_proxies import Cut, CuttingProxy, Message
from tests.support.journalling import SCOPE, claim, create, doubt, judged, made, mark, release
from tests.support.loop_time import LoopTime
from tests.support.postgres import PostgresServer
from transfer_async import JournalFailed, KeyState, PostgresJournal
from transfer_async.journal import transitions
from transfer_async.journal.durable import PendingMove, Transaction
from transfer_async.journal.model import Rejection

CUTS = [Cut.BEFORE, Cut.AFTER, Cut.LATE]


class RecordedJournal(PostgresJournal):
    """A journal that records its transitions, with their tokens and results."""

    def __init__(self, dsn: str, *, timeout: float = 20.0) -> None:
        super().__init__(dsn, timeout=timeout)
        self.wanted: dict[str, PendingMove] = {}

    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        self.wanted |= {one.token: one for one in wanted}
        await super()._commit(wanted)


class Careful(RecordedJournal):
    """A journal that reads before every write."""

    async def _commit_optimistically(self, wanted: Sequence[PendingMove]) -> list[PendingMove]:
        return list(wanted)


class Credulous(RecordedJournal):
    """A journal that never checks whether a commit was made when its reply was lost."""

    async def _commit_once(self, transaction: Transaction) -> None:
        for one in transaction.wanted:
            one.commit_unknown = False
        await super()._commit_once(transaction)


async def steps_by_token(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [token for (token,) in await connection.fetch("SELECT token FROM transfer_async.history")]
    finally:
        await connection.close()


def granted(one: PendingMove) -> bool | None:
    """Return whether the transition was reported as made; None if the journal does not know."""
    if one.result.exception() is not None:
        return None
    verdict = one.result.result()
    return verdict is not None and verdict.denial is None


async def wrong_beliefs(dsn: str, journals: Sequence[RecordedJournal]) -> list[str]:
    """Return the tokens of transitions that were reported wrongly or made twice."""
    steps = await steps_by_token(dsn)
    wanted = {token: one for journal in journals for token, one in journal.wanted.items()}
    twice = [token for token in steps if steps.count(token) > 1]
    known = {token: is_granted for token, one in wanted.items() if (is_granted := granted(one)) is not None}
    return twice + [token for token, is_granted in known.items() if is_granted != (token in steps)]


class Once:
    """Cuts the first commit after the test has armed it."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.armed = False

    def __call__(self, message: Message) -> Cut:
        if not (self.armed and message.is_commit):
            return Cut.NEVER
        self.armed = False
        return self.cut


WAYS: list[tuple[transitions.Move, ...]] = [
    (claim(),),
    (claim(), mark()),
    (claim(), mark(), create()),
    (claim(), mark(), doubt()),
    (claim(), mark(), release()),
]


@pytest.mark.parametrize("kind", [RecordedJournal, Careful])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way[-1]).__name__)
async def test_a_transition_whose_commit_was_cut_is_applied_exactly_once(
    database: str, cut: Cut, way: tuple[transitions.Move, ...], kind: type[RecordedJournal]
):
    choose = Once(cut)
    async with CuttingProxy(database, choose) as proxy, kind(proxy.dsn) as journal:
        if way[:-1]:
            await made(journal, *way[:-1])
        choose.armed = True
        entry = await made(journal, way[-1])

        assert proxy.cuts == [cut]
        assert await journal.read(SCOPE, "k") == entry
        assert len(await journal.history(SCOPE, "k")) == len(way)
        assert await wrong_beliefs(database, [journal]) == []


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.LATE])
async def test_another_workers_simultaneous_claim_is_not_believed(database: str, cut: Cut):
    choose = Once(cut)
    async with PostgresJournal(database) as other, CuttingProxy(database, choose) as proxy:
        journal = RecordedJournal(proxy.dsn)
        async with journal:
            choose.armed = True
            mine, theirs = await asyncio.gather(judged(journal, claim(1)), judged(other, claim(2)))

        assert sorted([mine.denial is None, theirs.denial is None]) == [False, True]
        assert await wrong_beliefs(database, [journal]) == []


async def test_a_commit_that_lands_while_being_looked_up_counts_as_committed(database: str):
    def looks_for_it(message: Message) -> bool:
        return b'UPDATE "transfer_async".meta' in message.raw

    choose = Once(Cut.LATE)
    async with CuttingProxy(database, choose, arrives=looks_for_it) as proxy:
        async with RecordedJournal(proxy.dsn) as journal:
            await made(journal, claim())  # The next commits do not lock the scope.
            for number in range(10):  # repeated, because the result depends on the server's timing
                choose.armed = True
                await made(journal, claim(), key=f"k-{number}")

        assert proxy.cuts == [Cut.LATE] * 10
        assert await wrong_beliefs(database, [journal]) == []


async def test_a_journal_whose_connection_is_cut_while_opening_still_opens(database: str):
    choose = Once(Cut.BEFORE)
    choose.armed = True
    async with CuttingProxy(database, choose) as proxy:
        journal = RecordedJournal(proxy.dsn)
        await made(journal, claim())
        await journal.close()

    assert proxy.cuts == [Cut.BEFORE]


async def test_a_mark_fails_if_every_commit_is_cut_but_may_be_stored(database: str, loop_time: LoopTime):
    def choose(message: Message) -> Cut:
        if not (cutting and message.is_commit):
            return Cut.NEVER
        if len(proxy.cuts) == 2:
            loop_time.passed += 60.0  # longer than the journal's timeout
        return Cut.AFTER

    cutting = False
    async with CuttingProxy(database, choose) as proxy, PostgresJournal(database) as other:
        async with RecordedJournal(proxy.dsn) as journal:
            await made(journal, claim())
            cutting = True
            with pytest.raises(JournalFailed):
                await judged(journal, mark())
        entry = await other.read(SCOPE, "k")

    assert (entry.state, len(proxy.cuts) > 1) == (KeyState.SENDING, True)


# --- synchronous replication --------------------------------------------------------------------

WAITING = "FROM pg_stat_activity WHERE datname = $1 AND wait_event = 'SyncRep'"


async def set_standbys(server: asyncpg.Connection, names: str) -> None:
    await server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await server.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("kind", [RecordedJournal, Careful])
async def test_a_commit_whose_wait_for_a_standby_was_cancelled_waits_again(
    restartable: PostgresServer, database: str, kind: type[RecordedJournal]
):
    """Only the primary has this commit. After a failover, the key would be free and its order paid again."""
    server, name = await asyncpg.connect(restartable.dsn), database.rpartition("/")[2]

    async def waiting() -> set[int]:
        rows = await server.fetch(f"SELECT pid {WAITING}", name)
        return {pid for (pid,) in rows}

    try:
        await server.execute(f"ALTER DATABASE {name} SET client_min_messages = error")  # hides warnings
        async with kind(database) as journal:
            await set_standbys(server, "missing")
            move = asyncio.create_task(judged(journal, claim()))
            # The server's processes do not all read a new setting at the same moment.
            while not (first := await waiting()):
                if move.done():
                    move = asyncio.create_task(judged(journal, claim(), key=f"k-{len(journal.wanted)}"))
            for pid in first:
                await server.fetch("SELECT pg_cancel_backend($1)", pid)
            while not (move.done() or await waiting() - first):
                pass
            was_believed = move.done()
            await set_standbys(server, "")
            verdict = await move

            assert (was_believed, verdict.denial) == (False, None)
            assert await wrong_beliefs(database, [journal]) == []
    finally:
        await set_standbys(server, "")
        await server.execute(f"ALTER DATABASE {name} RESET client_min_messages")
        await server.close()


# --- many at random -----------------------------------------------------------------------------


def at_random(chance: random.Random, *, often: float, anywhere: float) -> Callable[[Message], Cut]:
    """Cut at commits, and at other messages, with the given probabilities."""

    def choose(message: Message) -> Cut:
        how_often = often if message.is_commit else anywhere
        return chance.choice(CUTS) if chance.random() < how_often else Cut.NEVER

    return choose


async def _work(journal: PostgresJournal, number: int, key: str) -> None:
    """Claim the key as one of two workers. The successful one creates the order."""
    try:
        verdict = await judged(journal, claim(number), key=key)
        if verdict.denial is Rejection.BUSY:
            return
        await judged(journal, mark(f"a-{number}", number=number), key=key)
        await judged(journal, create(f"a-{number}", f"tx-{key}"), key=key)
    except JournalFailed:
        pass  # The journal does not know the result, which is never a wrong report.


async def stormy(database: str, *, seed: int, cuts: int) -> tuple[int, int, int]:
    """Run two workers for each key until enough cuts. Return the numbers of keys, steps and errors."""
    chance = random.Random(seed)
    async with PostgresJournal(database):  # creates the tables
        pass
    choose = at_random(chance, often=0.3, anywhere=0.002)
    async with CuttingProxy(database, choose) as proxy:
        journals = [RecordedJournal(proxy.dsn), RecordedJournal(proxy.dsn)]
        keys = 0
        # Process few keys at a time, because otherwise one commit would contain all.
        while len(proxy.cuts) < cuts:
            names = [f"k-{number}" for number in range(keys, keys + 10)]
            keys += 10
            pairs = [_work(journals[n], n, key) for key in names for n in range(2)]
            await asyncio.gather(*pairs)
        await asyncio.gather(*(journal.close() for journal in journals))
        wrong = await wrong_beliefs(database, journals)
    return keys, len(await steps_by_token(database)), len(wrong)


@pytest.mark.trial(short=4, ci=40, long=1_500)
@pytest.mark.timeout(1800)
async def test_random_cuts_never_repeat_or_misreport_a_transition(database: str, size: int):
    keys, steps, wrong = await stormy(database, seed=7, cuts=size)

    assert (steps, wrong) == (3 * keys, 0)


async def test_a_journal_that_does_not_read_back_is_detected(database: str):
    choose = Once(Cut.AFTER)
    async with CuttingProxy(database, choose) as proxy, Credulous(proxy.dsn) as journal:
        choose.armed = True
        verdict = await judged(journal, claim())

        assert (verdict.denial, proxy.cuts) == (Rejection.BUSY, [Cut.AFTER])
        assert len(await wrong_beliefs(database, [journal])) == 1
