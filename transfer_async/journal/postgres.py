"""A journal in a PostgreSQL database, which any number of machines can share.

The journal keeps no session state, so it also works behind a transaction-pooling proxy. All times come from
the database's clock. When `move` returns, the commit is on disk and on the synchronous standbys. If the reply
to a commit is lost, the journal finds out whether the commit succeeded.

Usually, the worker that makes a transition also wrote the stored entry, or the key is new. A transition is
therefore first decided optimistically, from the cached entry and an estimate of the server's time, and needs
one round trip if both are correct. If the entry or the estimate is wrong, the transition is decided again in
a database transaction that reads and locks the stored entry.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from transfer_async._models.errors import JournalFailed, hides_arguments, without_frames
from transfer_async._support.clock import Duration
from transfer_async._support.util import VERSION as RELEASE
from transfer_async._support.util import checked_database, positive_seconds
from transfer_async.journal.audit import Audit, AuditStatements
from transfer_async.journal.durable import PRUNE_BATCH, DurableJournal, PendingMove, Transaction
from transfer_async.journal.encryption import RecordId, Seal
from transfer_async.journal.model import FOUR_EYES, refuse_similar_scopes
from transfer_async.journal.postgres_sql import (
    STEPPED,
    WRITTEN,
    Backoff,
    Conflict,
    EstimatedServerClock,
    NotReplicated,
    Session,
    Sessions,
    Statements,
    driver,
    is_retryable,
    is_statement_name_error,
)
from transfer_async.journal.rows import (
    ENTRY_TABLE,
    PAGE,
    STOP,
    VERSION,
    EntryRow,
    Upgradable,
    Upgrade,
    checked_counts,
    refuse_another_version,
    statements_from,
    table_of,
)

T = TypeVar("T")

CONCURRENT_COMMITS = 3
"""The maximum number of concurrent commits. While one waits for the disk, the next is prepared."""

MAX_CONNECTIONS = CONCURRENT_COMMITS + 2
"""The maximum number of open connections; two of them are left for readers."""

HISTORY_PAGE = 100_000
"""The number of history lines that one statement searches. There is no index on the transition."""

PROGRAM = f"transfer_async {RELEASE} format {VERSION}"
"""The name of the connections in `pg_stat_activity`, unless the DSN sets `application_name`."""

MAX_CLOCK_ERROR = 1.0
"""The maximum error, in seconds, of the estimated server time in an optimistic write."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresJournal(DurableJournal):
    """A journal in a PostgreSQL database. A transition is durable when `move` returns.

    Requires ``pip install 'transfer_async[postgres]'``.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, with special characters percent-encoded.
        schema: the schema of the tables. Missing tables are created if the database user has permission.
        prepared: whether each connection prepares its statements once. By default, statements are prepared
            unless the journal connects through a proxy.
        timeout: the time limit of a transition, including reconnections, in seconds or as a ``timedelta``.
        seal: encrypts stored personal data, for example a `KeySeal`.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    _sql: Statements

    @hides_arguments
    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "transfer_async",
        prepared: bool | None = None,
        timeout: Duration = 10.0,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(concurrent_commits=CONCURRENT_COMMITS, seal=seal)
        if not _NAME.fullmatch(schema):
            raise ValueError("schema: must be a plain lower-case name")
        self._dsn = checked_database(dsn)
        self._prepared = prepared
        self._timeout = positive_seconds("timeout", timeout)
        self._sql = Statements(schema, idle=self._timeout, slack=min(MAX_CLOCK_ERROR, self._timeout / 2))
        audit = AuditStatements(
            f'"{schema}".{ENTRY_TABLE} k',
            f'"{schema}".history',
            scope="k.scope",
            members="json_array_elements_text($1::json)",
        )
        self._audit = Audit(self._query, audit)
        self._server_time = EstimatedServerClock()
        self._schema = schema
        self._sessions: Sessions | None = None
        self._opening: asyncio.Lock | None = None

    # --- opening --------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._sessions is None:
            await self._with_retries(self._opened)

    async def _opened(self) -> Sessions:
        if self._sessions is not None:
            return self._sessions
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._sessions is None:
                sessions = Sessions(self._connect, limit=MAX_CONNECTIONS)
                async with sessions.one() as session:
                    await self._make_tables(session)
                self._sessions = sessions
        return self._sessions

    async def _connect(self, *, one_statement: float | None = None) -> Session:
        named = {} if "application_name=" in self._dsn else {"application_name": PROGRAM}
        try:
            connection = await driver().connect(
                self._dsn,
                server_settings=named,
                statement_cache_size=0,  # Behind a proxy, asyncpg's names could clash with another program's.
                timeout=self._timeout,
                command_timeout=one_statement or self._timeout,
            )
        except BaseException as error:
            without_frames(error)  # The variables of its frames contain the password.
            raise
        try:
            return await self._checked(connection)  # A later connection may lead to another server.
        except BaseException:
            connection.terminate()
            raise

    async def _checked(self, connection: Any) -> Session:
        asked = asyncio.get_running_loop().time()
        is_safe, is_standby, process, has_safe_defaults, now = await connection.fetchrow(self._sql.server)
        if not is_safe:
            raise JournalFailed(
                "the database server runs with fsync=off, so commits may be lost: turn fsync on"
            )
        if is_standby:
            raise JournalFailed(
                "the database server is a standby, which cannot be written to: connect to the primary"
            )
        self._server_time.update(now, asked=asked)
        # Behind a proxy, the process that runs a query is not the one that accepted the connection.
        is_direct = process == connection.get_server_pid()
        prepares = is_direct if self._prepared is None else self._prepared
        if prepares and is_direct:  # Behind a proxy, the setting would affect other programs.
            await connection.execute(self._sql.plan_for_large_tables)
        session = Session(connection, prepares=prepares, has_safe_defaults=has_safe_defaults)
        connection.add_log_listener(session.note)
        return session

    async def _make_tables(self, session: Session) -> None:
        if not await session.fetch_value(self._sql.is_there):
            # In READ COMMITTED, the second `is_there` sees tables that another connection has just created.
            await session.execute(self._sql.begin)
            await session.execute(self._sql.one_maker_at_a_time)
            if not await session.fetch_value(self._sql.is_there):
                try:
                    await session.execute(self._sql.tables)
                except driver().InsufficientPrivilegeError as error:
                    why = f"the schema {self._schema} does not exist, and the user may not create it"
                    raise JournalFailed(why) from error
            await session.execute("COMMIT")
        refuse_another_version(self._name, await session.fetch_value(self._sql.version))

    @property
    def _name(self) -> str:
        return f"the schema {self._schema}"

    @asynccontextmanager
    async def _upgradable(self) -> AsyncIterator[Upgradable]:
        session = await self._connect(one_statement=STATEMENT_TIMEOUT)
        try:
            yield UpgradableTables(session, schema=self._schema, sql=self._sql)
        finally:
            session.terminate()  # This rolls back an unfinished transaction.

    async def _close(self) -> None:
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.close()

    async def _with_retries(self, work: Callable[[], Awaitable[T]], *, backoff: Backoff | None = None) -> T:
        """Run ``work``, and retry after errors for which `is_retryable` is true, until the timeout."""
        backoff = backoff or Backoff(self._timeout)
        async with asyncio.timeout_at(backoff.end):
            while True:
                try:
                    return await work()
                except Exception as error:
                    if not is_retryable(error) or not backoff.has_time_left:
                        raise
                    if is_statement_name_error(error):
                        self._prepared = False
                await backoff.pause()

    # --- writing --------------------------------------------------------------------------------

    def _is_store_error(self, error: BaseException) -> bool:
        asyncpg = driver()
        if isinstance(error, (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
            return False
        errors = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
        return isinstance(error, (*errors, NotReplicated, OSError))

    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        """See `DurableJournal`."""
        backoff = Backoff(self._timeout)
        async with asyncio.timeout_at(backoff.end):
            left: Sequence[PendingMove] = wanted
            if {pending.place[0] for pending in wanted} <= self._stored_scopes:
                left = await self._commit_optimistically(wanted)

        async def decided() -> Transaction:
            transaction = Transaction(left, self._cache, seal=self._seal)
            try:
                await self._commit_once(transaction)
            except Exception:
                if transaction.is_committing:
                    _mark_commit_unknown(left)
                raise
            return transaction

        if left:
            self._settle(await self._with_retries(decided, backoff=backoff))

    async def _commit_optimistically(self, wanted: Sequence[PendingMove]) -> list[PendingMove]:
        """Store the transitions whose cached entries are current, and return all other transitions.

        After any error, return all transitions; the next transaction finds out which of the transitions were
        stored.
        """
        transaction = Transaction(wanted, self._cache, seal=self._seal)
        try:
            async with self._session() as session:
                now = self._server_time.now
                transaction.decide_optimistically(self._time(now))
                if transaction.writes:
                    transaction.restrict_to(await self._store_optimistically(session, transaction, now))
        except Exception:  # noqa: BLE001 - a lasting error is raised again by the next attempt
            _mark_commit_unknown(wanted)
            return list(wanted)
        self._settle(transaction)
        return [pending for pending in wanted if not pending.is_settled]

    async def _store_optimistically(
        self, session: Session, transaction: Transaction, now: float
    ) -> set[RecordId]:
        """Store the writes with one statement, in a transaction only if the session's defaults require it."""
        if session.has_safe_defaults:
            return await self._store(session, transaction, estimated_at=now)
        await session.execute(self._sql.begin)
        stored = await self._store(session, transaction, estimated_at=now)
        await session.execute("COMMIT")
        return stored

    async def _commit_once(self, transaction: Transaction) -> None:
        async with self._transaction() as session:
            await self._check_new_scopes(session, {scope for scope, _ in transaction.places})
            await self._lock_rules(session, transaction.rules)
            now = await self._load(session, transaction)
            committed = (
                await self._committed_tokens(session, transaction) if transaction.commit_unknown else ()
            )
            transaction.decide(now, committed=committed)
            if transaction.writes and len(await self._store(session, transaction)) < len(transaction.writes):
                raise Conflict
            transaction.is_committing = bool(transaction.writes)
            await session.execute("COMMIT")

    async def _committed_tokens(self, session: Session, transaction: Transaction) -> list[str]:
        """Return the tokens of the transitions that an earlier attempt committed."""
        # The commit found must be durable, too. This write makes our own commit wait until it is.
        await session.execute(self._sql.touch)
        scopes, keys = _columns(transaction.places, 2)
        found = await session.fetch(self._sql.committed, scopes, keys, transaction.tokens)
        committed = [token for (token,) in found]
        if transaction.tokens_without_entry.intersection(committed):
            raise Conflict  # The unknown commit arrived after the rows were read.
        return committed

    async def _check_new_scopes(self, session: Session, scopes: set[str]) -> None:
        if new := scopes - self._stored_scopes:
            await session.execute(self._sql.lock_new_scopes)
            known = [scope for (scope,) in await session.fetch(self._sql.scopes, FOUR_EYES)]
            self._stored_scopes.update(known)
            refuse_similar_scopes(new, known)

    async def _lock_rules(self, session: Session, rules: dict[str, bool]) -> None:
        """Lock the scopes' dual-control rules, exclusively if a transition may change the rule."""
        for lock, is_changed in ((self._sql.share_rules, False), (self._sql.lock_rules, True)):
            if scopes := [scope for scope, changes in rules.items() if changes is is_changed]:
                await session.fetch(lock, scopes)

    async def _load(self, session: Session, transaction: Transaction) -> float:
        """Lock and load the requested entries, and return the journal's time."""
        places = transaction.places
        known = [transaction.known_token(place) for place in places]
        ids = _columns(transaction.ids, 2)
        found = await session.fetch(self._sql.load, *_columns(places, 2), known, *ids)
        for scope, key, _now, _bound, is_known, *row in found:
            token = row[1]
            transaction.load((scope, key), token, None if is_known or token is None else EntryRow(*row))
        now, bound = found[0][2:4]
        for scope, order_id, key in zip(*[iter(bound)] * 3, strict=True):
            transaction.bind(scope, order_id, key)
        return self._time(now)

    async def _store(
        self, session: Session, transaction: Transaction, *, estimated_at: float | None = None
    ) -> set[RecordId]:
        """Store each write if the entry that it replaces is still in the store.

        Return the scopes and keys of the stored writes. If ``estimated_at`` is given, the decision used this
        estimated server time.
        """
        asked = asyncio.get_running_loop().time()
        writes, steps = _written(transaction)
        [(stored, now, *_)] = await session.fetch(self._sql.store, writes, steps, estimated_at)
        self._server_time.update(now, asked=asked)
        return set(zip(*[iter(stored)] * 2, strict=True))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        sessions = await self._opened()
        try:
            async with sessions.one(unharmed_by=_refusals()) as session:
                yield session
        except driver().UndefinedTableError:  # An upgrade renames the table.
            async with sessions.one() as session:
                refuse_another_version(self._name, await session.fetch_value(self._sql.version))
            raise

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Session]:
        """Yield a connection with an open transaction, which is rolled back unless the block commits it."""
        async with self._session() as session:
            await session.execute(self._sql.begin)
            try:
                yield session
            except _refusals():
                await session.execute("ROLLBACK")
                raise

    def _time(self, database: float) -> float:
        """Return the journal's time, which is the database's time unless a test overrides this method."""
        return database

    # --- reading --------------------------------------------------------------------------------

    async def _ask(self, question: Callable[[Session], Awaitable[T]]) -> T:
        self._require_open()

        async def answered() -> T:
            async with self._session() as session:
                return await question(session)

        return await self._with_retries(answered)

    async def _query(self, sql: str, *values: object) -> list[Any]:
        return await self._ask(lambda session: session.fetch(sql, *values))

    async def now(self) -> float:
        """Return the database's time in seconds since 1970; see `Journal.now`."""
        [(now,)] = await self._query(self._sql.now)
        return self._time(now)

    async def _page(
        self, scope: str, body: str, *, limit: int, after: str, at: float | None = None
    ) -> list[tuple[str, EntryRow]]:
        now = await self.now() if at is None else at
        return await self._rows(self._sql.work, scope, after, now, body, limit)

    async def _with_move(self, move: str, scope: str, after: str) -> tuple[list[str], str]:
        sql, begin = self._sql.with_move, int(after or 0)
        [(keys, last)] = await self._query(sql, scope, begin, HISTORY_PAGE, move)
        return list(keys), "" if last is None else str(last)

    async def _prune_some(self, scope: str, before: float) -> int:
        async def pruned() -> int:
            async with self._transaction() as session:
                count = int(await session.fetch_value(self._sql.prune, scope, before, PRUNE_BATCH))
                await session.execute("COMMIT")
                return count

        return await self._with_retries(pruned)


def _refusals() -> tuple[type[Exception], ...]:
    """Return the errors after which the session can still be used, once its transaction is rolled back."""
    return Conflict, JournalFailed, driver().IntegrityConstraintViolationError


def _columns(rows: Any, width: int) -> list[list[Any]]:
    """Convert ``rows`` to lists of column values, for ``unnest``."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _written(transaction: Transaction) -> tuple[str, str]:
    """Return the writes and history lines as JSON parameters of `Statements.store`."""
    writes = []
    for write in transaction.writes:
        row = write.row
        reply = None if row.reply is None else row.reply.hex()
        stored = (row.state, row.token, row.order_id, row.due_at, row.ended_at, row.body, row.intent, reply)
        values = (*write.place, write.known, *stored, write.intent_changed, write.reply_changed)
        writes.append(dict(zip(WRITTEN, values, strict=True)))
    steps = [
        dict(zip(STEPPED, (*place, token, *values), strict=True))
        for place, token, values in transaction.steps
    ]
    return msgspec.json.encode(writes).decode(), msgspec.json.encode(steps).decode()


def _mark_commit_unknown(moves: Sequence[PendingMove]) -> None:
    for move in moves:
        move.commit_unknown = True


# --- postgres upgrade --------------------------------------------------------------------------------


LOCK_TIMEOUT = 3.0
"""The maximum time in seconds to wait for the lock on the tables. Other users of the tables wait as long."""

STATEMENT_TIMEOUT = 600.0
"""The maximum time in seconds for one statement of an upgrade. The slowest statement counts all keys."""

_USERS = """
    SELECT count(*) || ' x ' || coalesce(nullif(application_name, ''), 'a program without a name')
        || coalesce(' from ' || host(client_addr), '')
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
    GROUP BY application_name, client_addr ORDER BY 1"""
"""The other connections to the database. Version 0.1.0 did not set a program name."""

_ROW = "state, token, order_id, due_at, ended_at, body::text, intent::text, NULL::bytea"


class UpgradableTables(Upgradable):
    """A PostgreSQL journal of any version, opened for an upgrade.

    The upgrade uses a separate database session.
    """

    def __init__(self, session: Session, *, schema: str, sql: Statements) -> None:
        self._session = session
        self._schema = schema
        self._sql = sql

    async def version(self) -> int | None:
        """See `Upgradable`."""
        if not await self._session.fetch_value(self._sql.is_there):
            raise JournalFailed(
                f"there is no journal in the schema {self._schema}, so there is nothing to upgrade"
            )
        found: int | None = await self._session.fetch_value(self._sql.version)
        return found

    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable`."""
        sql = f'SELECT id, {_ROW} FROM "{self._schema}".{table} WHERE id > $1 ORDER BY id LIMIT {PAGE}'
        return [(number, EntryRow(*row)) for number, *row in await self._session.fetch(sql, after)]

    async def users(self) -> list[str]:
        """See `Upgradable`."""
        return [name for (name,) in await self._session.fetch(_USERS)]

    async def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable`.

        If the upgrade fails, the caller closes the session, which rolls everything back.
        """
        asyncpg = driver()
        try:
            return await self._carried_out(upgrade)
        except asyncpg.LockNotAvailableError as error:
            await self._session.execute("ROLLBACK")
            users = "; ".join(await self.users())
            raise JournalFailed(f"the journal is in use: {STOP}. Connected: {users}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            why = f"only the owner of the tables in the schema {self._schema} may upgrade them"
            raise JournalFailed(why) from error

    async def _carried_out(self, upgrade: Upgrade) -> bool:
        session, entries = self._session, f'"{self._schema}".{table_of(upgrade.found)}'
        await session.execute(self._sql.begin)
        await session.execute(
            f"SET LOCAL lock_timeout = {int(1000 * LOCK_TIMEOUT)}; SET LOCAL enable_seqscan = on"
        )
        await session.execute(self._sql.one_maker_at_a_time)
        if await session.fetch_value(self._sql.version) != upgrade.found:
            return False
        # Lock the entries before `meta`, as writers do, so that there is no deadlock.
        await session.execute(f"LOCK TABLE {entries} IN ACCESS EXCLUSIVE MODE")
        for statement in statements_from(upgrade.found, self._schema):
            await session.execute(statement)
        await session.execute(f'UPDATE "{self._schema}".meta SET version = {VERSION}')
        count = f'SELECT state, count(*) FROM "{self._schema}".{ENTRY_TABLE} GROUP BY state'
        checked_counts(upgrade, await session.fetch(count))
        await session.execute("COMMIT")
        return True
