"""A journal in a SQLite file, which any number of processes on one machine can share.

A transition is on disk when `move` returns (write-ahead log, ``synchronous=FULL``). The journal accesses the
file only in its own thread, so the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from transfer_async._models.errors import JournalFailed
from transfer_async._support.clock import Clock, Duration
from transfer_async._support.util import ENDS_THE_PROGRAM, positive_seconds
from transfer_async.journal.audit import Audit, AuditStatements
from transfer_async.journal.durable import PRUNE_BATCH, DurableJournal, PendingMove, Transaction
from transfer_async.journal.encryption import RecordId, Seal
from transfer_async.journal.model import BELIEVED, FOUR_EYES, refuse_similar_scopes
from transfer_async.journal.rows import (
    ENTRY_TABLE,
    PAGE,
    STEP_COLUMNS,
    STOP,
    VERSION,
    EntryRow,
    Upgradable,
    Upgrade,
    checked_counts,
    refuse_another_version,
    statements_from,
)
from transfer_async.journal.sqlite_file import APPLICATION, FileReplaced, Identity, OpenFile, decode_lossless

T = TypeVar("T")

HISTORY_PAGE = 500
"""The maximum number of keys in one page of `refuted` or `resolved`."""

_TABLES = f"""
CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE {ENTRY_TABLE} (
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes (id),
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    token TEXT NOT NULL,
    order_id TEXT,
    due_at REAL,
    ended_at REAL,
    body TEXT NOT NULL,
    intent TEXT,
    UNIQUE (scope, key)
);
CREATE UNIQUE INDEX order_ids ON {ENTRY_TABLE} (scope, order_id) WHERE order_id IS NOT NULL;
CREATE INDEX waiting ON {ENTRY_TABLE} (scope, key) WHERE ended_at IS NULL;
CREATE INDEX ended ON {ENTRY_TABLE} (scope, ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE replies (key_id INTEGER PRIMARY KEY REFERENCES {ENTRY_TABLE} (id), reply BLOB NOT NULL);
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    key_id INTEGER NOT NULL REFERENCES {ENTRY_TABLE} (id),
    at REAL NOT NULL,
    move TEXT NOT NULL,
    state TEXT NOT NULL,
    intent_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    attempt TEXT,
    order_id TEXT,
    ending TEXT,
    by_whom TEXT,
    reason TEXT
);
CREATE INDEX steps ON history (key_id);
PRAGMA application_id={APPLICATION};
PRAGMA user_version={VERSION};
"""

_ROW = "k.state, k.token, k.order_id, k.due_at, k.ended_at, k.body, k.intent, r.reply"
_KEYS = f"{ENTRY_TABLE} k JOIN scopes s ON s.id = k.scope LEFT JOIN replies r ON r.key_id = k.id"
_SELECT = f"SELECT k.key, {_ROW} FROM {_KEYS} WHERE s.name = ?"
_IS_DOUBT = "k.ended_at IS NULL AND k.state = 'in_doubt'"
_WORK = (
    f"{_SELECT} AND k.key > ? AND k.ended_at IS NULL AND NOT (k.due_at > ? AND k.due_at <= ?) "
    "AND (? = '%' OR k.body LIKE ?) ORDER BY k.key LIMIT ?"  # LIKE matches no BLOB and no NULL.
)


class _Queries:
    """See `Queries`."""

    find = f"{_SELECT} AND k.key = ?"
    sent = (
        f"SELECT key FROM {ENTRY_TABLE} WHERE scope = (SELECT id FROM scopes WHERE name = ?) "
        "AND key IN (SELECT value FROM json_each(?)) AND state NOT IN ('free', 'claimed')"
    )
    in_doubt = f"{_SELECT} AND {_IS_DOUBT}"
    count_in_doubt = f"SELECT count(*) FROM {_KEYS} WHERE s.name = ? AND {_IS_DOUBT}"
    orders = (
        f"SELECT order_id, key, ended_at FROM {ENTRY_TABLE} "
        "WHERE scope = (SELECT id FROM scopes WHERE name = ?) AND order_id > ? ORDER BY order_id LIMIT ?"
    )
    history = (
        f"SELECT {', '.join(f'h.{name}' for name in STEP_COLUMNS)} FROM history h "
        f"JOIN {ENTRY_TABLE} k ON k.id = h.key_id JOIN scopes s ON s.id = k.scope "
        "WHERE s.name = ? AND k.key = ? ORDER BY h.id"
    )
    scopes = (
        "SELECT name FROM scopes s "
        f"WHERE EXISTS (SELECT 1 FROM {ENTRY_TABLE} WHERE scope = s.id AND key <> ?) ORDER BY name"
    )


class SQLiteJournal(DurableJournal):
    """A journal in a SQLite file. A transition is durable when `move` returns.

    Args:
        path: the path of the file. The file must be on a local disk, because SQLite's locks do not work on
            network file systems. A missing file is created, readable only by its owner.
        timeout: how long to wait while another process is writing, in seconds or as a ``timedelta``.
        clock: for tests; ``clock.utc`` returns the journal's time.
        seal: encrypts stored personal data, for example a `KeySeal`.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    _sql = _Queries()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: Duration = 5.0,
        clock: Clock | None = None,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(seal=seal)
        if not os.fspath(path) or os.fspath(path) == ":memory:":
            raise ValueError("path: must be the path of a file; for a journal in memory, use MemoryJournal")
        self._path = Path(path).absolute()  # The process may change its directory.
        self._timeout = positive_seconds("timeout", timeout)
        self._clock = clock or Clock()
        self._thread: ThreadPoolExecutor | None = None
        self._file: _File | None = None
        self._identity: Identity | None = None
        self._audit = Audit(self._query, _AUDIT)

    async def _open(self) -> None:
        if self._file is None:
            await self._in_thread(self._opened)

    @asynccontextmanager
    async def _upgradable(self) -> AsyncIterator[Upgradable]:
        open_it = partial(FileOfAnyVersion, self._path, timeout=self._timeout, make=False)
        file = await self._in_thread(open_it)
        try:
            yield UpgradableFile(file, self)
        finally:
            await self._in_thread(file.close)

    async def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        await asyncio.wait([asyncio.get_running_loop().run_in_executor(thread, self._close_file)])
        thread.shutdown(wait=False)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the journal's thread. Even if cancelled, wait until ``work`` has ended."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="transfer_async-journal")
        done = asyncio.get_running_loop().run_in_executor(self._thread, _outcome_of, work)
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError as error:
                cancelled = error
        result, failure = done.result()
        if cancelled is not None:
            raise cancelled
        if failure is not None:
            raise failure
        return cast("T", result)

    @property
    def _name(self) -> str:
        return self._path.name

    def _is_store_error(self, error: BaseException) -> bool:
        return isinstance(error, (sqlite3.Error, OSError, FileReplaced)) and not isinstance(
            error, sqlite3.IntegrityError
        )

    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        transaction = Transaction(wanted, self._cache, seal=self._seal)
        await self._in_thread(lambda: self._with_file(lambda file: file.commit(transaction, self._now)))
        self._settle(transaction)

    def _now(self) -> float:
        return self._clock.utc().timestamp()

    # --- in the thread --------------------------------------------------------------------------

    def _opened(self) -> _File:
        if self._file is None:
            # A file that has disappeared is not created again, because every key would be free in the new
            # file.
            self._file = _File(self._path, timeout=self._timeout, make=self._identity is None)
            self._identity = self._identity or self._file.identity
        if self._file.identity != self._identity:
            raise FileReplaced(f"{self._path.name} was replaced by another file")
        return self._file

    def _with_file(self, work: Callable[[_File], T]) -> T:
        """Run ``work`` on the open file, and check before and afterwards that the files are in place."""
        try:
            file = self._opened()
            file.refuse_if_moved()  # A write to another file would damage it.
            try:
                return work(file)
            finally:
                file.refuse_if_moved()  # A commit to a file that was moved away would be lost.
        except (sqlite3.Error, FileReplaced) as error:
            self._close_file()  # The file's state is unknown, so the next use opens it again.
            if str(error).startswith("no such table"):  # An upgrade renames the table.
                self._opened()
            raise

    async def _ask(self, work: Callable[[_File], T]) -> T:
        self._require_open()
        return await self._in_thread(lambda: self._with_file(work))

    # --- reading --------------------------------------------------------------------------------

    async def now(self) -> float:
        """Return the time in seconds since 1970; see `Journal.now`."""
        return self._now()

    async def _query(self, sql: str, *values: object) -> list[Any]:
        return await self._ask(lambda file: file.query(sql, *values))

    async def _page(
        self, scope: str, body: str, *, limit: int, after: str, at: float | None = None
    ) -> list[tuple[str, EntryRow]]:
        # A lease that ends later than `BELIEVED` allows counts as expired: see `is_waiting`.
        now = self._now() if at is None else at
        return await self._rows(_WORK, scope, after, now, now + BELIEVED, body, body, limit)

    async def _with_move(self, move: str, scope: str, after: str) -> tuple[list[str], str]:
        found = await self._query(_WITH_MOVE, int(after or 0), move, scope, HISTORY_PAGE)
        return [key for _, key in found], str(found[-1][0]) if len(found) == HISTORY_PAGE else ""

    async def _prune_some(self, scope: str, before: float) -> int:
        return await self._ask(lambda file: file.prune(scope, before))


def _outcome_of(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result of ``work``, or the error that it raised.

    The error is returned, because a future that received `StopIteration`, for example, would never be done.
    """
    try:
        return work(), None
    except ENDS_THE_PROGRAM:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again by the waiting caller
        return None, error


class _File(OpenFile):
    """An open journal file in this version's format."""

    def __init__(self, path: Path, *, timeout: float, make: bool = True) -> None:
        super().__init__(path, timeout=timeout, make=make)
        self._scopes: dict[str, int] = {}
        self._stored_scopes: set[str] = set()
        """The scopes that had committed keys when they were last read."""

    def _prepare(self, path: Path) -> None:
        if self._value("SELECT count(*) FROM sqlite_master") == 0:
            self._db.execute("BEGIN IMMEDIATE")  # Only one of several processes may create the tables.
            try:
                if self._value("SELECT count(*) FROM sqlite_master") == 0:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        self._db.execute(statement)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise
        refuse_another_version(path.name, self.version)

    # --- writing --------------------------------------------------------------------------------

    def commit(self, transaction: Transaction, now: Callable[[], float]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._check_new_scopes({scope for scope, _ in transaction.places})
            ids = self._load(transaction)
            transaction.decide(now())
            if transaction.writes:
                self._store(transaction, ids)
                self._db.execute("COMMIT")
            else:
                self._roll_back()
        except BaseException:
            self._roll_back()
            raise

    def _check_new_scopes(self, scopes: set[str]) -> None:
        if new := scopes - self._stored_scopes:
            known = [name for (name,) in self.query(_Queries.scopes, FOUR_EYES)]
            self._stored_scopes.update(known)
            refuse_similar_scopes(new, known)

    def _roll_back(self) -> None:
        self._scopes.clear()  # A cached scope may have been created in this transaction.
        if self._db.in_transaction:
            self._db.rollback()

    def _load(self, transaction: Transaction) -> dict[RecordId, int]:
        """Load the requested entries, and find out which order ids are already bound.

        Return the row numbers of the stored entries.
        """
        found: dict[RecordId, tuple[int, str]] = {}
        for scope, keys in _by_scope(transaction.places):
            rows = self._db.execute(_FIND_TOKENS, (self._scope(scope), keys))
            found.update(((scope, key), (number, token)) for number, key, token in rows)
        for place in transaction.places:
            number, token = found.get(place, (None, None))
            known = number is None or token == transaction.known_token(place)
            row = None if known else EntryRow(*self.query(_FIND_ROW, number)[0])
            transaction.load(place, token, row)
        for scope, order_ids in _by_scope(transaction.ids):
            for order_id, key in self._db.execute(_FIND_ORDERS, (self._scope(scope), order_ids)):
                transaction.bind(scope, order_id, key)
        return {place: number for place, (number, _) in found.items()}

    def _scope(self, name: str) -> int:
        number = self._scopes.get(name)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (name,))
            number = self._value("SELECT id FROM scopes WHERE name = ?", name)
            self._scopes[name] = number
        return number

    def _store(self, transaction: Transaction, ids: dict[RecordId, int]) -> None:
        """Write the results with a single call for each statement, because each call waits for the GIL."""
        if added := [write.place for write in transaction.writes if write.known is None]:
            [(last,)] = self.query(f"SELECT coalesce(max(id), 0) FROM {ENTRY_TABLE}")
            ids.update((place, number) for number, place in enumerate(added, last + 1))
        new: list[tuple[Any, ...]] = []
        changed: list[tuple[Any, ...]] = []
        replies: list[tuple[int, bytes | None]] = []
        for write in transaction.writes:
            (scope, key), row, number = write.place, write.row, ids[write.place]
            values = (row.state, row.token, row.order_id, row.due_at, row.ended_at, row.body)
            if write.known is None:
                new.append((number, self._scope(scope), key, *values, row.intent))
            else:
                changed.append((*values, write.intent_changed, row.intent, number))
            if write.reply_changed:
                replies.append((number, row.reply))
        steps = [(ids[place], *values) for place, _, values in transaction.steps]
        rows: Sequence[Any]
        for sql, rows in ((_ADD, new), (_CHANGE, changed), (_STORE_REPLY, replies), (_ADD_STEP, steps)):
            if self._db.executemany(sql, rows).rowcount < len(rows):
                raise JournalFailed("a trigger in the journal's file ignored a change: remove the trigger")

    def prune(self, scope: str, before: float) -> int:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            old = (self._scope(scope), before, PRUNE_BATCH)
            for table in ("history", "replies"):
                self._db.execute(f"DELETE FROM {table} WHERE key_id IN ({_OLD})", old)
            count = self._db.execute(f"DELETE FROM {ENTRY_TABLE} WHERE id IN ({_OLD})", old).rowcount
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        if count < PRUNE_BATCH:  # This was the last batch; remove the deleted data from the log too.
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    # --- reading --------------------------------------------------------------------------------

    def query(self, sql: str, *values: object) -> list[Any]:
        """Return all rows, even if one contains text that is not valid UTF-8.

        SQLite would instead raise an error that contains the whole text with its personal data.
        """
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        self._db.text_factory = decode_lossless
        try:
            return self._db.execute(sql, values).fetchall()
        finally:
            self._db.text_factory = str


_OLD = f"SELECT id FROM {ENTRY_TABLE} WHERE scope = ? AND ended_at < ? ORDER BY ended_at LIMIT ?"
_FIND_TOKENS = (
    f"SELECT id, key, token FROM {ENTRY_TABLE} WHERE scope = ? AND key IN (SELECT value FROM json_each(?))"
)
_FIND_ROW = f"SELECT {_ROW} FROM {ENTRY_TABLE} k LEFT JOIN replies r ON r.key_id = k.id WHERE k.id = ?"
_FIND_ORDERS = (
    f"SELECT order_id, key FROM {ENTRY_TABLE} "
    "WHERE scope = ? AND order_id IN (SELECT value FROM json_each(?))"
)
# ``CROSS JOIN`` makes SQLite read the history once, in the order of the ids.
_WITH_MOVE = (
    f"SELECT h.id, k.key FROM history h CROSS JOIN {ENTRY_TABLE} k ON k.id = h.key_id "
    "WHERE h.id > ? AND h.move = ? AND k.scope = (SELECT id FROM scopes WHERE name = ?) "
    "ORDER BY h.id LIMIT ?"
)
_AUDIT = AuditStatements(
    f"{ENTRY_TABLE} k JOIN scopes s ON s.id = k.scope",
    "history",
    scope="s.name",
    members="json_each(?1)",
    parameter="?",
)
_ADD = (
    f"INSERT INTO {ENTRY_TABLE} (id, scope, key, state, token, order_id, due_at, ended_at, body, intent) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CHANGE = (
    f"UPDATE {ENTRY_TABLE} SET state = ?, token = ?, order_id = ?, due_at = ?, ended_at = ?, body = ?, "
    "intent = CASE WHEN ? THEN ? ELSE intent END WHERE id = ?"
)
_STORE_REPLY = "INSERT OR REPLACE INTO replies (key_id, reply) VALUES (?, ?)"
_ADD_STEP = (
    f"INSERT INTO history (key_id, {', '.join(STEP_COLUMNS)}) "
    f"VALUES (?, {', '.join('?' for _ in STEP_COLUMNS)})"
)


def _by_scope(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Group keys or order ids into one JSON array per scope, for one statement per scope."""
    grouped: dict[str, list[str]] = {}
    for scope, other in pairs:
        grouped.setdefault(scope, []).append(other)
    return [(scope, msgspec.json.encode(others).decode()) for scope, others in grouped.items()]


# --- sqlite upgrade ----------------------------------------------------------------------------------


_OLD_ROW = "state, token, order_id, due_at, ended_at, body, intent, NULL"


class FileOfAnyVersion(OpenFile):
    """An open journal file of any version, used by a single thread."""

    def _prepare(self, path: Path) -> None:
        self._db.text_factory = decode_lossless
        if self._value("SELECT count(*) FROM sqlite_master") == 0:
            raise JournalFailed(f"there is no journal in {path.name}, so there is nothing to upgrade")

    def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable.page`."""
        sql = f"SELECT id, {_OLD_ROW} FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
        return [(number, EntryRow(*row)) for number, *row in self._db.execute(sql, (after, PAGE))]

    def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable.carry_out`."""
        self.refuse_if_moved()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            why = f"the journal is in use, or cannot be written ({error.sqlite_errorname}): {STOP}"
            raise JournalFailed(why) from error
        try:
            is_ours = self._take_the_steps(upgrade)
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.rollback()
        self.refuse_if_moved()
        return is_ours

    def _take_the_steps(self, upgrade: Upgrade) -> bool:
        if self.version != upgrade.found:
            return False
        for statement in statements_from(upgrade.found, "main"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version={VERSION}")
        checked_counts(upgrade, self._db.execute(f"SELECT state, count(*) FROM {ENTRY_TABLE} GROUP BY state"))
        return True


class UpgradableFile(Upgradable):
    """A journal file of any version, opened for an upgrade. All work runs in the journal's thread."""

    def __init__(self, file: FileOfAnyVersion, journal: SQLiteJournal) -> None:
        self._file = file
        self._in_thread = journal._in_thread

    async def version(self) -> int | None:
        """See `Upgradable`."""
        return await self._in_thread(lambda: self._file.version)

    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable`."""
        return await self._in_thread(lambda: self._file.page(table, after))

    async def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable`."""
        return await self._in_thread(lambda: self._file.carry_out(upgrade))
