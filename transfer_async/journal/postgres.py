"""The journal in PostgreSQL: any number of machines.

Everything is said within a transaction, and nothing is kept in a session: it works behind a proxy
that pools transactions. Times are the database's own. What a commit wrote is on the disk, and on the
synchronous standbys, when a move returns; a commit whose reply was lost is looked up afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from transfer_async._models.errors import JournalFailed
from transfer_async._support.addresses import checked_database
from transfer_async._support.clock import Duration
from transfer_async._support.validators import positive_seconds
from transfer_async.journal.entries import Entry, Step
from transfer_async.journal.group_commit import PRUNED, DurableJournal
from transfer_async.journal.postgres_sql import Statements
from transfer_async.journal.rows import VERSION, EntryRow, entries_of, entry_of, step_of, step_values
from transfer_async.journal.seal import Seal
from transfer_async.journal.transaction import PendingMove, Transaction

T = TypeVar("T")

AT_ONCE = 3
"""How many commits are on their way at most: while one waits for the disk, the next is put together."""

CONNECTIONS = AT_ONCE + 2
"""How many are open at most; the others are for whoever reads."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresJournal(DurableJournal):
    """Keys and their states in a PostgreSQL database, durable when a move returns.

    Needs ``pip install 'transfer_async[postgres]'``.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, special characters percent-encoded.
        schema: where the tables are; made if they are not there and the user may.
        prepared: keep prepared statements, which makes orders about a quarter faster. Only where nothing
            pools transactions between here and the server: behind such a proxy they are another's.
        timeout: how long a move waits for the database, lost connections included, in seconds or
            as ``timedelta``.
        seal: for what is stored of persons: a `KeySeal`.

    Raises:
        ValueError: names the argument and the rule.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "transfer_async",
        prepared: bool = False,
        timeout: Duration = 10.0,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(at_once=AT_ONCE, seal=seal)
        if not _NAME.fullmatch(schema):
            raise ValueError("schema: must be a plain lower-case name")
        self._dsn = checked_database(dsn)
        self._prepared = prepared
        self._timeout = positive_seconds("timeout", timeout)
        self._sql = Statements(schema, idle=self._timeout)
        self._schema = schema
        self._pool: Any = None
        self._opening: asyncio.Lock | None = None

    # --- opening --------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._pool is None:
            await self._patiently(self._opened)

    async def _opened(self) -> Any:
        if self._pool is not None:
            return self._pool
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._pool is None:
                self._pool = await self._make_pool()
        return self._pool

    async def _make_pool(self) -> Any:
        pool = await _asyncpg().create_pool(
            self._dsn,
            min_size=1,
            max_size=CONNECTIONS,
            # A proxy may give the next statement to another server connection.
            statement_cache_size=100 if self._prepared else 0,
            init=self._check_server,  # each connection may lead to another server
            reset=_nothing,  # there is no session state to be reset
            timeout=self._timeout,
            command_timeout=self._timeout,
        )
        try:
            async with pool.acquire() as connection:
                await self._make_tables(connection)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _check_server(self, connection: Any) -> None:
        await connection.execute(self._sql.begin_reading)
        fsync, standby = await connection.fetchrow(self._sql.server)
        await connection.execute("COMMIT")
        if fsync != "on":
            raise JournalFailed("the database server runs with fsync=off: what it says it wrote may be lost")
        if standby:
            raise JournalFailed("the database server is a standby, and cannot be written to")

    async def _make_tables(self, connection: Any) -> None:
        if not await connection.fetchval(self._sql.is_there):
            await connection.execute(self._sql.begin)  # what others make is to be seen
            await connection.execute(self._sql.one_maker_at_a_time)
            if not await connection.fetchval(self._sql.is_there):
                try:
                    await connection.execute(self._sql.tables)
                except _asyncpg().InsufficientPrivilegeError as error:
                    why = f"the schema {self._schema} is not there, and the user may not make it"
                    raise JournalFailed(why) from error
            await connection.execute("COMMIT")
        version = await connection.fetchval(self._sql.version)
        if version != VERSION:
            age = "a newer" if version is not None and version > VERSION else "an older"
            raise JournalFailed(
                f"the schema {self._schema} was made by {age} version of transfer_async "
                f"(its format is {version}, this one reads {VERSION})"
            )

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await pool.close()
        except Exception:  # noqa: BLE001 - nothing is under way: a server that is gone loses nothing by it
            pool.terminate()
        except BaseException:
            pool.terminate()
            raise

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` gives; tried again while the database cannot be reached, or says to."""
        patience = _Patience(self._timeout)
        async with asyncio.timeout_at(patience.end):
            while True:
                try:
                    return await work()
                except Exception as error:
                    if not _may_go_again(error) or not patience.has_some_left:
                        raise
                await patience.pause()

    # --- writing --------------------------------------------------------------------------------

    def _is_of_the_store(self, error: BaseException) -> bool:
        asyncpg = _asyncpg()
        if isinstance(error, (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
            return False
        return isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError))

    async def _commit(self, wanted: Sequence[PendingMove]) -> Transaction:
        """See `DurableJournal`."""
        in_question = False

        async def decided() -> Transaction:
            nonlocal in_question
            transaction = Transaction(wanted, self._recent, in_question=in_question, seal=self._seal)
            try:
                await self._try(transaction)
            except Exception:
                in_question = in_question or transaction.is_committing
                raise
            return transaction

        return await self._patiently(decided)

    async def _try(self, transaction: Transaction) -> None:
        async with self._transaction() as connection:
            now = await self._load(connection, transaction)
            committed = await self._look_up(connection, transaction) if transaction.in_question else ()
            transaction.decide(now, committed=committed)
            if transaction.writes:
                await self._store(connection, transaction)
            transaction.is_committing = bool(transaction.writes)
            await connection.execute("COMMIT")

    async def _look_up(self, connection: Any, transaction: Transaction) -> list[str]:
        """The tokens of the moves that an earlier try committed, its reply being lost."""
        # What is found must be as durable as what is written: with a write, this commit waits for both.
        await connection.execute(self._sql.touch)
        scopes, keys = _columns(transaction.places, 2)
        found = await connection.fetch(self._sql.committed, scopes, keys, transaction.tokens)
        committed = [token for (token,) in found]
        if transaction.unseen.intersection(committed):
            raise _Overtaken  # by the very commit in question: it arrived after the rows were looked for
        return committed

    async def _load(self, connection: Any, transaction: Transaction) -> float:
        """Lock and load every place; the time on the journal's clock."""
        places = transaction.places
        known = [transaction.known_token(place) for place in places]
        ids = _columns(transaction.ids, 2)
        found = await connection.fetch(self._sql.load, *_columns(places, 2), known, *ids)
        for scope, key, _now, _bound, is_known, *row in found:
            token = row[1]
            transaction.load((scope, key), token, None if is_known or token is None else EntryRow(*row))
        now, bound = found[0][2:4]
        for scope, order_id, key in zip(*[iter(bound)] * 3, strict=True):
            transaction.bind(scope, order_id, key)
        return self._time(now)

    async def _store(self, connection: Any, transaction: Transaction) -> None:
        new, changed = [], []
        for write in transaction.writes:
            row = (*write.place, *_texts(write.row))
            if write.is_new:
                new.append(row)
            else:
                changed.append((*row, _text(write.intent_changed), _text(write.reply_changed)))
        steps = [(*place, token, *map(_text, step_values(step))) for place, token, step in transaction.steps]
        values = *_columns(new, 10), *_columns(changed, 12), *_columns(steps, 13)
        if await connection.fetchval(self._sql.store, *values) < len(transaction.writes):
            raise _Overtaken

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        """A connection within a transaction; whoever leaves it early has written nothing."""
        pool = await self._opened()
        connection = await pool.acquire(timeout=self._timeout)
        try:
            await connection.execute(self._sql.begin)
            yield connection
        except (_Overtaken, _asyncpg().IntegrityConstraintViolationError):
            await _roll_back(connection)
            raise
        except BaseException:
            # It may be waiting for anything: the server gives up the transaction of a lost connection.
            connection.terminate()
            raise
        finally:
            await pool.release(connection)

    def _time(self, database: float) -> float:
        """The journal's time, given the database's; for tests."""
        return database

    # --- reading --------------------------------------------------------------------------------

    async def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        self._admitted()

        async def answered() -> T:
            async with self._transaction() as connection:
                answer = await question(connection)
                await connection.execute("COMMIT")
                return answer

        return await self._patiently(answered)

    async def _rows(self, sql: str, *values: object) -> list[tuple[str, EntryRow]]:
        found = await self._ask(lambda connection: connection.fetch(sql, *values))
        return [(key, EntryRow(*row)) for key, *row in found]

    async def now(self) -> float:
        """See `Journal.now`: the database's, in seconds since 1970."""
        return self._time(await self._ask(lambda connection: connection.fetchval(self._sql.now)))

    async def read(self, scope: str, key: str) -> Entry | None:
        """See `Journal.read`."""
        row = await self._ask(lambda connection: connection.fetchrow(self._sql.find, scope, key))
        return None if row is None else entry_of(EntryRow(*list(row)[1:]), self._seal)

    async def _page(self, scope: str, *, limit: int, after: str) -> list[tuple[str, EntryRow]]:
        return await self._rows(self._sql.work, scope, after, await self.now(), limit)

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        """See `Journal.in_doubt`."""
        found = entries_of(await self._rows(self._sql.in_doubt, scope), self._seal)
        return sorted(found, key=lambda doubt: doubt[1].sent_until)

    async def count_in_doubt(self, scope: str) -> int:
        """See `Journal.count_in_doubt`."""
        return int(await self._ask(lambda connection: connection.fetchval(self._sql.count_in_doubt, scope)))

    async def orders(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        """See `Journal`."""
        sql = self._sql.orders
        found = await self._ask(lambda connection: connection.fetch(sql, scope, after, limit))
        return [(order_id, key, at) for order_id, key, at in found]

    async def history(self, scope: str, key: str) -> tuple[Step, ...]:
        """See `Journal.history`."""
        found = await self._ask(lambda connection: connection.fetch(self._sql.history, scope, key))
        return tuple(step_of(tuple(row)) for row in found)

    async def _other_scope(self, scope: str) -> str | None:
        sql = self._sql.other_scope
        found: str | None = await self._ask(lambda connection: connection.fetchval(sql, scope))
        return found

    async def _prune_some(self, scope: str, before: float) -> int:
        sql = self._sql.prune
        return int(await self._ask(lambda connection: connection.fetchval(sql, scope, before, PRUNED)))


class _Overtaken(Exception):
    """A key came in between looking and writing: look again."""


class _Patience:
    """How long a move waits for a database that cannot be reached, and how often it looks."""

    def __init__(self, seconds: float) -> None:
        self.end = asyncio.get_running_loop().time() + seconds
        self._pause = 0.02

    @property
    def has_some_left(self) -> bool:
        return asyncio.get_running_loop().time() + self._pause < self.end

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(0.5, self._pause * 2)


def _may_go_again(error: Exception) -> bool:
    """Whether the same may well succeed in a moment: the server is away, or two were in each other's way."""
    asyncpg = _asyncpg()
    return isinstance(
        error,
        (
            _Overtaken,
            OSError,  # TimeoutError among them
            asyncpg.InterfaceError,
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,
            asyncpg.TransactionRollbackError,
            asyncpg.UniqueViolationError,
        ),
    )


def _columns(rows: Any, width: int) -> list[list[Any]]:
    """``rows`` as columns, for ``unnest``."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _text(value: Any) -> str | None:
    """``value`` as text: arrays of it need no look at the server's types, which would be session state."""
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else repr(value)


def _texts(row: EntryRow) -> list[str | None]:
    values = (row.state, row.token, row.order_id, row.due_at, row.ended_at, row.body, row.intent, row.reply)
    return [_text(value) for value in values]


def _asyncpg() -> Any:
    try:
        import asyncpg
    except ImportError as error:
        raise JournalFailed(
            "a PostgresJournal needs asyncpg: pip install 'transfer_async[postgres]'"
        ) from error
    return asyncpg


async def _roll_back(connection: Any) -> None:
    try:
        await connection.execute("ROLLBACK")  # the pool would, too, but says that it is an error
    except BaseException:
        connection.terminate()
        raise


async def _nothing(_connection: Any) -> None:
    pass
