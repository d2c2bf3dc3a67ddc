"""The SQL statements, retries and connections of the PostgreSQL journal.

All parameters are numbers, strings or arrays of strings, so asyncpg need not look up types on the server.
Writes are passed as JSON, which is much faster than arrays, both in the client and in the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from transfer_async._models.errors import JournalFailed
from transfer_async.journal.model import BELIEVED
from transfer_async.journal.rows import ENTRY_TABLE, STEP_COLUMNS, VERSION

_ROW = "k.state, k.token, k.order_id, k.due_at, k.ended_at, k.body::text, k.intent::text, k.reply"
_STEP = ", ".join(STEP_COLUMNS)
_TYPES = {"at": "float8", "epoch": "bigint", "due_at": "float8", "ended_at": "float8"}
"""The SQL types of the columns that are not text."""


def _unnest(*names: str, first: int = 1) -> str:
    arrays = ", ".join(f"${number}::text[]" for number in range(first, first + len(names)))
    return f"unnest({arrays}) WITH ORDINALITY AS w({', '.join(names)}, n)"


WRITTEN = (
    "scope",
    "key",
    "known",
    "state",
    "token",
    "order_id",
    "due_at",
    "ended_at",
    "body",
    "intent",
    "reply",
    "new_intent",
    "new_reply",
)
"""The JSON members of an entry to store; ``known`` is the replaced entry's token, or null if it is new."""

STEPPED = ("scope", "key", "token", *STEP_COLUMNS)
"""The JSON members of a history line to store."""

_CLOCK = "extract(epoch FROM clock_timestamp())::float8"


def _records(parameter: int, names: tuple[str, ...]) -> str:
    columns = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in names)
    return f"ROWS FROM (json_to_recordset(${parameter}::json) AS ({columns})) WITH ORDINALITY AS w"


class Statements:
    """All SQL statements for the tables in ``schema``.

    Args:
        schema: the schema's name, a plain identifier because it becomes part of SQL statements.
        idle: how long a transaction of the journal may be idle, in seconds.
        slack: the maximum error of the estimated time in an optimistic decision, in seconds.
    """

    def __init__(self, schema: str, *, idle: float, slack: float) -> None:
        keys, history, meta = f'"{schema}".{ENTRY_TABLE}', f'"{schema}".history', f'"{schema}".meta'
        self.server: str = (
            "SELECT current_setting('fsync') = 'on', pg_is_in_recovery(), pg_backend_pid(), "
            "current_setting('default_transaction_isolation') = 'read committed' "
            f"AND current_setting('default_transaction_read_only') = 'off', {_CLOCK}"
        )
        # `to_regclass` would miss tables that other connections create during this transaction.
        self.is_there: str = (
            f"SELECT EXISTS (SELECT FROM pg_catalog.pg_tables "
            f"WHERE schemaname = '{schema}' AND tablename = 'meta')"
        )
        self.one_maker_at_a_time: str = f"SELECT pg_advisory_xact_lock(hashtext('{schema}'), {VERSION})"
        self.tables: str = _TABLES.format(schema=schema, entries=ENTRY_TABLE, version=VERSION)
        self.version: str = f"SELECT version FROM {meta}"
        # The timeout makes the server release the locks of a connection that was lost unnoticed.
        self.begin: str = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; "
            "SET LOCAL client_min_messages = warning; "  # See `NotReplicated`.
            f"SET LOCAL idle_in_transaction_session_timeout = {max(1, int(1000 * idle))}"
        )
        # A prepared statement keeps its plan, and a plan made for few keys would later scan whole tables.
        self.plan_for_large_tables: str = "SET enable_seqscan = off"
        # A scope or rule that is not stored yet has no row to lock. These locks are always acquired in this
        # order, and before row locks.
        self.lock_new_scopes: str = f"SELECT pg_advisory_xact_lock(hashtext('{schema} scopes'), 0)"
        rule = f"hashtext('{schema} four eyes'), hashtext(s)) FROM unnest($1::text[]) AS s"
        self.share_rules: str = f"SELECT pg_advisory_xact_lock_shared({rule}"
        self.lock_rules: str = f"SELECT pg_advisory_xact_lock({rule}"
        self.now: str = f"SELECT {_CLOCK}"
        self.touch: str = f"UPDATE {meta} SET version = version"
        self.load: str = _load(keys)
        self.committed: str = f"""
            SELECT h.token FROM {_unnest("scope", "key")}
            JOIN {keys} k ON k.scope = w.scope AND k.key = w.key JOIN {history} h ON h.key_id = k.id
            WHERE h.token = ANY($3::text[])"""
        self.store: str = _store(keys, history, slack)
        select = f"SELECT k.key, {_ROW} FROM {keys} k WHERE k.scope = $1"
        self.find: str = f"{select} AND k.key = $2"
        self.sent: str = (
            f"SELECT key FROM {keys} WHERE scope = $1 AND state NOT IN ('free', 'claimed') "
            "AND key = ANY(ARRAY(SELECT json_array_elements_text($2::json)))"
        )
        self.work: str = (
            # A lease that ends later than `BELIEVED` allows counts as expired: see `is_waiting`.
            f"{select} AND k.key > $2 AND k.ended_at IS NULL "
            f"AND NOT (k.due_at > $3 AND k.due_at <= $3 + {BELIEVED}) AND k.body::text LIKE $4 "
            "ORDER BY k.key LIMIT $5"
        )
        self.in_doubt: str = f"{select} AND k.ended_at IS NULL AND k.state = 'in_doubt'"
        self.count_in_doubt: str = (
            f"SELECT count(*) FROM {keys} WHERE scope = $1 AND ended_at IS NULL AND state = 'in_doubt'"
        )
        self.orders: str = (
            f"SELECT order_id, key, ended_at FROM {keys} "
            "WHERE scope = $1 AND order_id > $2 ORDER BY order_id LIMIT $3"
        )
        self.with_move: str = f"""
            WITH lines AS MATERIALIZED (
                SELECT id, key_id, move FROM {history} WHERE id > $2::bigint ORDER BY id LIMIT $3::bigint
            ) SELECT ARRAY(SELECT k.key FROM lines l JOIN {keys} k ON k.id = l.key_id
                WHERE l.move = $4 AND k.scope = $1), (SELECT max(id) FROM lines)"""
        self.history: str = (
            f"SELECT {', '.join('h.' + name for name in STEP_COLUMNS)} FROM {history} h "
            f"JOIN {keys} k ON k.id = h.key_id WHERE k.scope = $1 AND k.key = $2 ORDER BY h.id"
        )
        # The query skips from scope to scope in the index, because a scope may have millions of keys.
        self.scopes: str = f"""
            WITH RECURSIVE found AS (
                (SELECT scope FROM {keys} WHERE key <> $1 ORDER BY scope, key LIMIT 1)
                UNION ALL
                SELECT (SELECT k.scope FROM {keys} k WHERE k.scope > found.scope AND k.key <> $1
                        ORDER BY k.scope, k.key LIMIT 1)
                FROM found WHERE found.scope IS NOT NULL
            ) SELECT scope FROM found WHERE scope IS NOT NULL ORDER BY scope"""
        self.prune: str = _prune(keys, history)


def _load(keys: str) -> str:
    # Keys are always locked in the order of `w.n`, so there is no deadlock. An order id that another
    # transaction binds after this lookup is rejected by the unique index.
    return f"""
        SELECT w.scope, w.key, {_CLOCK},
            ARRAY(SELECT unnest(ARRAY[b.scope, b.order_id, b.key])
                  FROM {_unnest("scope", "order_id", first=4)}
                  JOIN {keys} b ON b.scope = w.scope AND b.order_id = w.order_id),
            k.token = w.known IS TRUE,
            k.state, k.token, k.order_id, k.due_at, k.ended_at,
            CASE WHEN k.token = w.known THEN NULL ELSE k.body::text END,
            CASE WHEN k.token = w.known THEN NULL ELSE k.intent::text END,
            CASE WHEN k.token = w.known THEN NULL ELSE k.reply END
        FROM {_unnest("scope", "key", "known")} LEFT JOIN LATERAL (
            SELECT * FROM {keys} i WHERE i.scope = w.scope AND i.key = w.key FOR UPDATE) k ON true
        ORDER BY w.n"""


def _store(keys: str, history: str, slack: float) -> str:
    # An optimistic decision is not stored if it arrives late, because its caller may have given up. It never
    # replaces another worker's write. The statement may run outside an explicit transaction, so it sets
    # synchronous_commit itself.
    of_step = ", ".join(f"w.{name}{'::json' if name == 'ending' else ''}" for name in STEP_COLUMNS)
    return f"""
        WITH wanted AS MATERIALIZED (
            SELECT * FROM {_records(1, WRITTEN)}
            WHERE $3::float8 IS NULL OR abs({_CLOCK} - $3) < {slack}
        ), added AS (
            INSERT INTO {keys} AS k
                (scope, key, state, token, order_id, due_at, ended_at, body, intent, reply)
            SELECT w.scope, w.key, w.state, w.token, w.order_id, w.due_at, w.ended_at, w.body::json,
                w.intent::json, decode(w.reply, 'hex')
            FROM wanted w WHERE w.known IS NULL ORDER BY w.ordinality
            ON CONFLICT (scope, key) DO NOTHING RETURNING k.id, k.scope, k.key
        ), changed AS (
            UPDATE {keys} k SET (state, token, order_id, due_at, ended_at, body, intent, reply) = ROW (
                w.state, w.token, w.order_id, w.due_at, w.ended_at, w.body::json,
                CASE WHEN w.new_intent = 'true' THEN w.intent::json ELSE k.intent END,
                CASE WHEN w.new_reply = 'true' THEN decode(w.reply, 'hex') ELSE k.reply END)
            FROM wanted w WHERE k.scope = w.scope AND k.key = w.key AND k.token = w.known
            RETURNING k.id, k.scope, k.key
        ), stored AS (SELECT * FROM added UNION ALL SELECT * FROM changed
        ), steps AS (
            INSERT INTO {history} (key_id, token, {_STEP})
            SELECT s.id, w.token, {of_step}
            FROM {_records(2, STEPPED)}
            JOIN stored s ON s.scope = w.scope AND s.key = w.key ORDER BY w.ordinality
        ) SELECT ARRAY(SELECT unnest(ARRAY[scope, key]) FROM stored), {_CLOCK},
            set_config('synchronous_commit', 'on', true),
            set_config('client_min_messages', 'warning', true)"""


def _prune(keys: str, history: str) -> str:
    return f"""
        WITH old AS (
            SELECT id FROM {keys} WHERE scope = $1 AND ended_at < $2
            ORDER BY ended_at LIMIT $3 FOR UPDATE SKIP LOCKED
        ), steps AS (DELETE FROM {history} WHERE key_id IN (SELECT id FROM old)
        ), gone AS (DELETE FROM {keys} WHERE id IN (SELECT id FROM old) RETURNING 1
        ) SELECT count(*) FROM gone"""


_TABLES = """
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE "{schema}".meta (version integer NOT NULL);
INSERT INTO "{schema}".meta VALUES ({version});
CREATE TABLE "{schema}".{entries} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    state text NOT NULL,
    token text NOT NULL,
    order_id text COLLATE "C",
    due_at float8,
    ended_at float8,
    body json NOT NULL,
    intent json,
    reply bytea,
    UNIQUE (scope, key)
) WITH (fillfactor = 70);
ALTER TABLE "{schema}".{entries} ALTER COLUMN reply SET STORAGE EXTERNAL; -- compressing costs more
CREATE UNIQUE INDEX order_ids ON "{schema}".{entries} (scope, order_id) WHERE order_id IS NOT NULL;
CREATE INDEX waiting ON "{schema}".{entries} (scope, key) WHERE ended_at IS NULL;
CREATE INDEX ended ON "{schema}".{entries} (scope, ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE "{schema}".history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_id bigint NOT NULL, -- of keys; without a foreign key, which would look it up for every move
    token text NOT NULL,
    at float8 NOT NULL,
    move text NOT NULL,
    state text NOT NULL,
    intent_id text NOT NULL,
    epoch bigint NOT NULL,
    attempt text,
    order_id text,
    ending json,
    by_whom text,
    reason text
);
CREATE INDEX steps ON "{schema}".history (key_id);
"""


# --- retries -----------------------------------------------------------------------------------------
# Defines which PostgreSQL errors are retried, and for how long.


class Conflict(Exception):
    """Raised if another worker wrote between the read and the write, so that a retry is needed."""


class NotReplicated(Exception):
    """Raised if a commit is only on the primary, because its wait for a synchronous standby was cancelled.

    PostgreSQL reports a commit without the standby as successful, with a warning, although a failover would
    lose the commit.
    """


class Backoff:
    """Waits between attempts to reach the database, within a total time limit."""

    def __init__(self, seconds: float) -> None:
        self.end: float = asyncio.get_running_loop().time() + seconds
        self._pause = 0.02

    @property
    def has_time_left(self) -> bool:
        """Whether there is time for another attempt."""
        return asyncio.get_running_loop().time() + self._pause < self.end

    async def pause(self) -> None:
        """Wait before the next attempt. Each pause is longer than the last."""
        await asyncio.sleep(self._pause)
        self._pause = min(0.5, self._pause * 2)


def is_retryable(error: Exception) -> bool:
    """Return whether a retry may succeed, for example because two transactions conflicted."""
    asyncpg = driver()
    return is_statement_name_error(error) or isinstance(
        error,
        (
            Conflict,
            NotReplicated,
            OSError,  # includes TimeoutError
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,  # The server ended the session between two statements.
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,
            asyncpg.TransactionRollbackError,
            asyncpg.UniqueViolationError,
        ),
    )


def is_statement_name_error(error: Exception) -> bool:
    """Return whether a proxy has switched connections, so that a statement's name is unknown or in use."""
    asyncpg = driver()
    names = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
    return isinstance(error, names)


def driver() -> Any:
    """Return the ``asyncpg`` package, an optional dependency.

    Raises:
        JournalFailed: asyncpg is not installed.
    """
    try:
        import asyncpg
    except ImportError as error:
        raise JournalFailed(
            "a PostgresJournal needs asyncpg: pip install 'transfer_async[postgres]'"
        ) from error
    return asyncpg


# --- connections -------------------------------------------------------------------------------------
# `asyncpg.Pool` is not used, because it takes about six times as much CPU time. After a cancelled statement,
# it also waits for the server's confirmation, while this pool closes the connection at once.


IDLE = 300.0
"""The seconds after which an idle connection is not reused, because a firewall may have dropped it."""


class Session:
    """One connection to the database.

    Args:
        connection: asyncpg's connection.
        prepares: whether to use prepared statements. They work only if the server keeps them for as long as
            the connection is open.
        has_safe_defaults: whether the session's default transaction settings are those that the journal
            needs.
    """

    def __init__(self, connection: Any, *, prepares: bool, has_safe_defaults: bool) -> None:
        self._connection = connection
        self.prepares: bool = prepares
        self.has_safe_defaults: bool = has_safe_defaults
        self._prepared: dict[str, Any] = {}
        self._is_unreplicated = False
        self.used: float = asyncio.get_running_loop().time()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self._connection.is_closed())

    def note(self, _: object, message: Any) -> None:
        """Record a warning from the server, which asyncpg passes to `note` before the statement returns."""
        # The message's text may be in any language.
        if getattr(message, "server_source_function", None) == "SyncRepWaitForLSN":
            self._is_unreplicated = True

    async def execute(self, sql: str) -> None:
        """Run a statement that takes no parameters and returns no rows.

        Raises:
            NotReplicated: the statement committed, but only on the primary.
        """
        await self._connection.execute(sql)
        self._refuse_unreplicated()

    async def fetch(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a query, in one round trip if it is already prepared.

        Raises:
            NotReplicated: the query committed, but only on the primary.
        """
        if self.prepares:
            statement = self._prepared.get(sql)
            if statement is None:
                statement = await self._connection.prepare(sql, name=_name_of(sql))
                self._prepared[sql] = statement
            found = await statement.fetch(*values)
        else:
            found = await self._connection.fetch(sql, *values)
        self._refuse_unreplicated()
        return list(found)

    def _refuse_unreplicated(self) -> None:
        if self._is_unreplicated:
            raise NotReplicated("the wait for a synchronous standby was cancelled")

    async def fetch_value(self, sql: str, *values: object) -> Any:
        """Return the first value of the first row, or None."""
        found = await self.fetch(sql, *values)
        return found[0][0] if found else None

    def terminate(self) -> None:
        """Close the connection immediately."""
        self._connection.terminate()

    async def close(self) -> None:
        """Close the connection gracefully."""
        await self._connection.close()


def _name_of(sql: str) -> str:
    """Return a statement name derived from the statement's text.

    Behind a transaction-pooling proxy, a numbered name might belong to another program's statement.
    """
    return f"transfer_async_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"


class Sessions:
    """A pool of at most ``limit`` connections, opened on demand.

    The most recently used connection is lent first.
    """

    def __init__(self, connect: Callable[[], Awaitable[Session]], *, limit: int) -> None:
        self._connect = connect
        self._free: list[Session] = []
        self._places = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def one(self, *, unharmed_by: tuple[type[Exception], ...] = ()) -> AsyncIterator[Session]:
        """Lend a connection, and close it after any error that is not listed in ``unharmed_by``."""
        async with self._places:
            session = self._idle_session() or await self._connect()
            try:
                yield session
            except unharmed_by:
                self._free.append(session)
                raise
            except BaseException:
                # The connection's state is unknown. When it is closed, the server rolls back its transaction.
                session.terminate()
                raise
            session.used = asyncio.get_running_loop().time()
            self._free.append(session)

    def _idle_session(self) -> Session | None:
        while self._free:
            session = self._free.pop()
            if not session.is_closed and asyncio.get_running_loop().time() - session.used < IDLE:
                return session
            session.terminate()
        return None

    async def close(self) -> None:
        """Close the idle connections. Call `close` only when no connection is in use."""
        while self._free:
            session = self._free.pop()
            try:
                await session.close()
            except Exception:  # noqa: BLE001 - nothing is in progress, so nothing can be lost
                session.terminate()
            except BaseException:
                session.terminate()
                raise


class EstimatedServerClock:
    """Estimates the server's time, with an error of at most one round trip.

    The estimate advances with the event loop's clock. The estimate is changed only when a response proves it
    wrong, because needless corrections could give a later transition an earlier time.
    """

    def __init__(self) -> None:
        self._ahead = -math.inf  # no valid time before the first answer

    def update(self, server_time: float, *, asked: float) -> None:
        """Correct the estimate, given a time that the server has just returned.

        Args:
            server_time: the server's time in seconds since 1970.
            asked: when the request was sent, on the event loop's clock.
        """
        lowest, highest = server_time - asyncio.get_running_loop().time(), server_time - asked
        self._ahead = min(max(self._ahead, lowest), highest)

    @property
    def now(self) -> float:
        """The estimated time on the server, in seconds since 1970."""
        return asyncio.get_running_loop().time() + self._ahead
