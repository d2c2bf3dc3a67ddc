"""Real faults of a journal's store, each for the duration of a block."""

import asyncio
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.bank import World
from tests.support.loop_time import MUST_RUN_OUT
from tests.support.postgres import PostgresServer
from transfer_async.journal import PostgresJournal, SQLiteJournal, sqlite_file
from transfer_async.journal.postgres import MAX_CONNECTIONS

Trouble = AbstractAsyncContextManager[None]

# --- of a file, caused by the kernel or SQLite ----------------------------------------------------

READ_ONLY = "PRAGMA query_only=ON"


@asynccontextmanager
async def read_only(journal: SQLiteJournal, path: Path) -> AsyncIterator[None]:
    """Make every connection to the file read-only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_file, "_SETTINGS", (*sqlite_file._SETTINGS, READ_ONLY))
        await journal._in_thread(lambda: journal._opened()._db.execute(READ_ONLY))
        yield


@asynccontextmanager
async def full_disk(journal: SQLiteJournal, path: Path) -> AsyncIterator[None]:
    """Let the kernel refuse further bytes in files of this process, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@asynccontextmanager
async def locked_file(journal: SQLiteJournal, path: Path) -> AsyncIterator[None]:
    """Lock the file by a transaction of another connection that does not end."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        await asyncio.to_thread(db.execute, "BEGIN IMMEDIATE")
        yield


@asynccontextmanager
async def corrupt_file(journal: SQLiteJournal, path: Path) -> AsyncIterator[None]:
    """Overwrite everything except the first page, and restore it later."""
    file, content = await asyncio.to_thread(_corrupt, path)
    yield
    os.pwrite(file, content, 0)


def _corrupt(path: Path) -> tuple[int, bytes]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO scopes (name) VALUES ('nobody')")  # prevents SQLite from using its cache
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("PRAGMA page_size").fetchone()
        file = os.open(path, os.O_RDWR)  # closing it would release SQLite's locks
        content = os.pread(file, 1 << 30, 0)
        os.pwrite(file, b"\xa5" * (len(content) - page), page)
    return file, content


OF_A_FILE: dict[str, Callable[[SQLiteJournal, Path], Trouble]] = {
    "read-only": read_only,
    "full": full_disk,
    "locked": locked_file,
    "corrupt": corrupt_file,
}

# --- of a database --------------------------------------------------------------------------------

PATIENT = 60.0
"""A timeout in seconds of a transition without a fault; it expires only if something hangs."""

END_OTHER_SESSIONS = """
    SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class WorldlyJournal(PostgresJournal):
    """A journal with the clock of a `World`."""

    def __init__(self, dsn: str, world: World) -> None:
        super().__init__(dsn, timeout=PATIENT)
        self._world = world

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """Shorten the timeout, which must expire because the database does not respond."""
        self._timeout = MUST_RUN_OUT
        yield
        self._timeout = PATIENT

    def _time(self, _database: float) -> float:
        return self._world.time.utc().timestamp()


async def _say(dsn: str, sql: str) -> None:
    async with _connected(dsn) as connection:
        await connection.execute(sql)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def stopped_server(journal: WorldlyJournal, dsn: str, server: PostgresServer) -> AsyncIterator[None]:
    """Stop the server as a power cut would, and start it again."""
    with journal.impatient():
        await asyncio.to_thread(server.stop_at_once)
        try:
            yield
        finally:
            await asyncio.to_thread(server.restart)


@asynccontextmanager
async def locked_tables(journal: WorldlyJournal, dsn: str, server: PostgresServer) -> AsyncIterator[None]:
    """Lock the tables in another transaction that does not end."""
    async with _connected(dsn) as connection:
        await connection.execute("BEGIN; LOCK TABLE transfer_async.keys_2")
        with journal.impatient():
            yield
        # Statements that the journal abandoned must not run now.
        await connection.execute(END_OTHER_SESSIONS)


@asynccontextmanager
async def taken_connections(journal: WorldlyJournal, dsn: str, server: PostgresServer) -> AsyncIterator[None]:
    """Use every connection that the journal may open."""
    assert journal._sessions is not None
    async with AsyncExitStack() as taken:
        for _ in range(MAX_CONNECTIONS):
            await taken.enter_async_context(journal._sessions.one())
        with journal.impatient():
            yield


@asynccontextmanager
async def changed_tables(journal: WorldlyJournal, dsn: str, server: PostgresServer) -> AsyncIterator[None]:
    """Rename one of the tables."""
    await _say(dsn, "ALTER TABLE transfer_async.history RENAME TO elsewhere")
    yield
    await _say(dsn, "ALTER TABLE transfer_async.elsewhere RENAME TO history")


OF_A_DATABASE: dict[str, Callable[[WorldlyJournal, str, PostgresServer], Trouble]] = {
    "stopped": stopped_server,
    "tables locked": locked_tables,
    "taken": taken_connections,
    "changed": changed_tables,
}
