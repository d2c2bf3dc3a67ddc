"""The journal in PostgreSQL: what it requires of the server, and several journals at once."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.support.bank import Gate
from tests.support.cases import each
from tests.support.journalling import (
    LEASE,
    SCOPE,
    amend,
    claim,
    create,
    demand,
    doubt,
    judged,
    made,
    mark,
    release,
    resolve,
)
from tests.support.loop_time import LoopTime
from tests.support.postgres import PostgresServer, is_installed
from transfer_async import JournalFailed, PostgresJournal
from transfer_async.journal.durable import PendingMove, Transaction
from transfer_async.journal.model import FOUR_EYES, Rejection
from transfer_async.journal.postgres_sql import Conflict, Session
from transfer_async.journal.transitions import Move


async def say(dsn: str, *statements: str) -> Any:
    """Run statements as the owner of the database. Return the value of the last statement."""
    connection = await asyncpg.connect(dsn)
    try:
        for sql in statements[:-1]:
            await connection.execute(sql)
        return await connection.fetchval(statements[-1])
    finally:
        await connection.close()


async def refusal(dsn: str) -> str:
    """Return the error message of a claim."""
    journal = PostgresJournal(dsn, timeout=5.0)
    with pytest.raises(JournalFailed) as failed:
        await judged(journal, claim())
    await journal.close()
    return str(failed.value)


async def test_a_schema_name_may_be_an_sql_keyword(database: str):
    async with PostgresJournal(database, schema="select") as journal:
        await made(journal, claim(), mark(), create())
        steps = await journal.history(SCOPE, "k")
        waiting = await journal.work(SCOPE, limit=1)
        forgotten = await journal.prune(SCOPE, before=datetime.now(UTC) - timedelta(days=2))

    assert [step.move for step in steps] == ["claim", "mark", "create"]
    assert (waiting, forgotten) == ([], 0)


# --- the server ---------------------------------------------------------------------------------


# The package has no PostgreSQL program for this platform.
@pytest.mark.skipif(not is_installed(), reason="there is no PostgreSQL")
async def test_a_server_with_fsync_off_is_refused():
    server = await asyncio.to_thread(PostgresServer, extra={"fsync": "off"})
    try:
        await asyncio.to_thread(server.start)
        assert "fsync=off" in await refusal(server.dsn)
    finally:
        await asyncio.to_thread(server.close)


class FromStandby(PostgresJournal):
    """A journal whose server reports that it is in recovery, as a standby does."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._sql.server = self._sql.server.replace("pg_is_in_recovery()", "true")


async def test_a_standby_is_refused(database: str):
    with pytest.raises(JournalFailed, match="standby"):
        await judged(FromStandby(database), claim())


# --- the rule of dual control -------------------------------------------------------------------


class Pausing(PostgresJournal):
    """A journal that, with a gate, pauses in its transaction after it has locked new scopes and the rules."""

    gate: Gate | None = None

    async def _load(self, session: Session, transaction: Transaction) -> float:
        if self.gate is not None:
            await self.gate()
        return await super()._load(session, transaction)


async def can_lock(dsn: str, sql: str, *values: object) -> bool:
    """Return whether another transaction can take the lock of ``sql`` without waiting."""
    connection = await asyncpg.connect(dsn)
    try:
        tried = sql.replace("pg_advisory", "pg_try_advisory")
        return bool(await connection.fetchval(tried, *values))
    finally:
        await connection.close()


async def test_a_first_demand_and_a_decision_exclude_each_other(database: str):
    """The rule has no row to lock yet. Without this, one person's decision could commit after the demand."""
    async with Pausing(database) as journal, Pausing(database) as beside:
        await made(journal, claim(), mark(), doubt())
        journal.gate, beside.gate = Gate(), Gate()
        decision = await journal.gate.catches(judged(journal, resolve()))
        can_demand = await can_lock(database, journal._sql.lock_rules, [SCOPE])
        journal.gate.open()
        decided = await decision
        demanded = await beside.gate.catches(judged(beside, demand(), key=FOUR_EYES))
        can_decide = await can_lock(database, journal._sql.share_rules, [SCOPE])
        beside.gate.open()
        await demanded

        assert (can_demand, can_decide, decided.denial) == (False, False, None)
        assert await can_lock(database, journal._sql.lock_rules, [SCOPE])
        assert (await judged(journal, amend())).denial is Rejection.ALONE


async def test_only_one_worker_at_a_time_uses_a_new_scope(database: str):
    """A new scope has no row to lock. Without this, two that look the same could both be accepted."""
    async with Pausing(database) as journal, Pausing(database) as beside:
        can_use_another = []
        for one in (journal, beside):
            one.gate = Gate()
            move = await one.gate.catches(judged(one, claim()))  # The second has no cached entry of the key.
            can_use_another.append(await can_lock(database, journal._sql.lock_new_scopes))
            one.gate.open()
            await move

        assert can_use_another == [False, True]


# --- rights -------------------------------------------------------------------------------------


@asynccontextmanager
async def clerk(dsn: str) -> Any:
    """Yield the name and address of a user without any privileges."""
    name = "clerk_" + dsn.rpartition("/")[2]
    database = dsn.rpartition("/")[2]
    await say(
        dsn, f"REVOKE CREATE ON DATABASE {database} FROM PUBLIC", f"CREATE ROLE {name} LOGIN", "SELECT 1"
    )
    yield name, dsn.replace("postgres@", f"{name}@")


async def test_a_user_without_the_right_to_create_tables_gets_an_error(database: str):
    async with clerk(database) as (_, dsn):
        assert "may not create it" in await refusal(dsn)


async def test_a_user_with_only_read_and_write_rights_can_use_existing_tables(database: str):
    async with PostgresJournal(database):
        pass
    async with clerk(database) as (name, dsn):
        await say(
            database,
            f"GRANT USAGE ON SCHEMA transfer_async TO {name}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA transfer_async TO {name}",
            "SELECT 1",
        )
        async with PostgresJournal(dsn) as journal:
            entry = await made(journal, claim(), mark(), create())
            assert await journal.read(SCOPE, "k") == entry


# --- settings -----------------------------------------------------------------------------------


_WATCH = """
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO found VALUES (concat_ws(' ', current_setting('synchronous_commit'),
        current_setting('transaction_read_only'), current_setting('transaction_isolation')));
    RETURN NULL;
END $$;
CREATE TABLE found (settings text);
CREATE CONSTRAINT TRIGGER watch AFTER INSERT OR UPDATE ON transfer_async.keys_2
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION watch();
"""
"""A deferred trigger, which runs at the commit and so sees the settings that the commit uses."""


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'read committed'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
    ],
    ids=["read committed", "serializable", "read only"],
)
async def test_settings_of_the_database_do_not_weaken_a_commit(database: str, setting: str):
    name = database.rpartition("/")[2]
    async with PostgresJournal(database):
        pass
    await say(
        database,
        _WATCH,
        f"ALTER DATABASE {name} SET synchronous_commit = off",
        f"ALTER DATABASE {name} SET {setting}",
        "SELECT 1",
    )
    async with PostgresJournal(database) as journal:
        await made(journal, claim(), mark(), create())
        await judged(journal, claim(), key="another")
        async with journal._transaction() as session:  # like a session that checks whether a commit was lost
            assert await session.fetch_value("SHOW synchronous_commit") == "on"
            await session.execute("ROLLBACK")

    assert await say(database, "SHOW synchronous_commit") == "off"
    assert await say(database, "SELECT array_agg(settings) FROM found") == ["on off read committed"] * 4


# --- optimistic writes --------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-600.0, 600.0])
async def test_a_wrong_server_time_estimate_is_corrected_before_a_write(database: str, off: float):
    async with PostgresJournal(database) as journal:
        await made(journal, claim())
        journal._stored_scopes.add(SCOPE)  # The next write is optimistic.
        reckoned = journal._server_time
        reckoned._ahead += off
        entry = await made(journal, mark())
        now = await journal.now()

    assert abs(entry.lease_until - LEASE - now) < 300
    assert abs(reckoned.now - now) < 300


# --- concurrency --------------------------------------------------------------------------------


async def test_only_one_of_many_new_journals_creates_the_tables(
    database: str, caplog: pytest.LogCaptureFixture
):
    journals = [PostgresJournal(database) for _ in range(8)]
    verdicts = await asyncio.gather(
        *(judged(journal, claim(), key=f"k-{number}") for number, journal in enumerate(journals))
    )
    await asyncio.gather(*(journal.close() for journal in journals))

    assert [verdict.denial for verdict in verdicts] == [None] * 8
    assert await say(database, "SELECT count(*) FROM transfer_async.meta") == 1
    assert caplog.records == []


async def test_a_journal_holds_its_lock_while_it_creates_the_tables(database: str):
    """Without the lock, one of two new workers fails, because the other has just created a table."""
    journal = PostgresJournal(database)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    journal._sql.tables = f"CREATE TABLE held AS {locks}; {journal._sql.tables}"
    async with journal:
        assert await say(database, "SELECT count FROM held") == 1


def pending(key: str, move: Move) -> PendingMove:
    return PendingMove((SCOPE, key), move, f"{key}-{move.name}", asyncio.get_running_loop().create_future())


class Careful(PostgresJournal):
    """A journal that does not use optimistic writes."""

    async def _commit_optimistically(self, wanted: Sequence[PendingMove]) -> list[PendingMove]:
        return list(wanted)


@pytest.mark.parametrize("kind", [PostgresJournal, Careful])
@pytest.mark.parametrize("before", [(), (claim(9), release(number=9))], ids=["new", "free again"])
async def test_many_journals_claim_each_key_only_once(
    database: str, caplog: pytest.LogCaptureFixture, before: Sequence[Move], kind: type[PostgresJournal]
):
    journals = [kind(database) for _ in range(8)]
    await asyncio.gather(*(journal._open() for journal in journals))
    await made(journals[0], claim(), key="first")  # Claims in a new scope are serialized.
    keys = [f"k-{number}" for number in range(20)]
    await asyncio.gather(*(made(journals[0], *before, key=key) for key in keys if before))
    wanted = [
        judged(journal, claim(number), key=key)
        for number, journal in enumerate(journals)
        for key in (keys if number % 2 else reversed(keys))
    ]
    verdicts = await asyncio.gather(*wanted)
    await asyncio.gather(*(journal.close() for journal in journals))

    assert Counter(verdict.denial for verdict in verdicts) == {None: 20, Rejection.BUSY: 140}
    assert await say(database, "SELECT count(DISTINCT key_id) FROM transfer_async.history") == 21
    assert caplog.records == []


async def test_concurrent_first_reads_open_the_journal_once(database: str):
    journal = PostgresJournal(database)
    found = await asyncio.gather(*(journal.read(SCOPE, "k") for _ in range(3)))
    await journal.close()

    assert found == [None, None, None]


async def test_a_transition_with_invalid_data_does_not_fail_others(database: str):
    async with PostgresJournal(database) as journal:
        keys = ["k-1", "with a \0", "k-2"]
        wanted = [judged(journal, claim(), key=key) for key in keys]
        one, refused, other = await asyncio.gather(*wanted, return_exceptions=True)
        steps = [len(await journal.history(SCOPE, key)) for key in ("k-1", "k-2")]

    assert isinstance(refused, JournalFailed)
    assert [getattr(verdict, "denial", "failed") for verdict in (one, other)] == [None, None]
    assert steps == [1, 1]


async def test_a_connection_is_used_again_without_the_transaction_that_conflicted(database: str):
    """Without this, the next transition is reported as stored, but is not committed."""
    async with PostgresJournal(database) as journal:
        with pytest.raises(Conflict):
            async with journal._transaction():
                raise Conflict
        await made(journal, claim())

        assert await say(database, "SELECT count(*) FROM transfer_async.history") == 1


async def test_no_query_plan_scans_a_whole_table(database: str):
    reads = (
        "SELECT sum(seq_scan)::int FROM pg_stat_xact_user_tables "
        "WHERE schemaname = 'transfer_async' AND relname IN ('keys_2', 'history')"
    )
    async with PostgresJournal(database) as journal, journal._transaction() as session:
        before = await session.fetch_value(reads)
        for number in range(8):
            for move in (claim(), mark()):
                transaction = Transaction([pending(f"k-{number}", move)], journal._cache)
                transaction.decide_optimistically(0.0)
                await journal._store(session, transaction)
                journal._settle(transaction)
        after = await session.fetch_value(reads)

    assert after == before


async def test_a_permanent_error_is_not_retried():
    tries = []

    async def fails() -> None:
        tries.append(1)
        raise asyncpg.DataError

    with pytest.raises(asyncpg.DataError):
        await PostgresJournal("postgresql://nobody@localhost/nothing", timeout=1.0)._with_retries(fails)

    assert len(tries) == 1


@each("first_took", [0.0, 6.0])
async def test_attempts_wait_longer_each_time_and_end_before_the_timeout(
    loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch, first_took: float
):
    """Without the pauses, each waiting order of each worker keeps a restarting server busy."""
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        loop_time.passed += seconds

    async def fails_slowly(wanted: list[PendingMove]) -> list[PendingMove]:
        loop_time.passed += first_took
        return wanted

    async def fails(_: Transaction) -> None:
        raise ConnectionRefusedError

    journal = PostgresJournal("postgresql://nobody@localhost/nothing", timeout=10.0)
    journal._stored_scopes.add(SCOPE)  # Otherwise, the first attempt is left out.
    monkeypatch.setattr(journal, "_commit_optimistically", fails_slowly)
    monkeypatch.setattr(journal, "_commit_once", fails)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(ConnectionRefusedError):
        await journal._commit([pending("k", claim())])

    assert pauses[:7] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert 9.0 < first_took + sum(pauses) < 10.0


class KilledWhileConnecting(PostgresJournal):
    """A server that ends two new sessions. asyncpg then raises an error class of its own."""

    killed = 0

    async def _checked(self, connection: Any) -> Session:
        if self.killed < 2:
            self.killed += 1
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation is in progress")
        return await super()._checked(connection)


async def test_a_session_that_the_server_ends_while_it_is_opened_is_opened_again(database: str):
    """Without this, every order of a worker fails while a server restarts."""
    async with KilledWhileConnecting(database) as journal:
        entry = await made(journal, claim())

        assert await journal.read(SCOPE, "k") == entry
        assert journal.killed == 2
