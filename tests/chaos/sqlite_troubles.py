"""Real faults of a journal's file, caused by the kernel or SQLite, which a test can start and stop."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from transfer_async.journal import SQLiteJournal, sqlite_file

READ_ONLY = "PRAGMA query_only=ON"

_LOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


class ReadOnlyFile:
    """Make every connection to the file read-only."""

    error = "SQLITE_READONLY"

    def __init__(self, journal: SQLiteJournal, path: Path) -> None:
        self._journal = journal
        self._patch = pytest.MonkeyPatch()

    async def begin(self) -> None:
        self._patch.setattr(sqlite_file, "_SETTINGS", (*sqlite_file._SETTINGS, READ_ONLY))
        await self._journal._in_thread(self._refuse)

    def _refuse(self) -> None:
        self._journal._opened()._db.execute(READ_ONLY)

    async def end(self) -> None:
        self._patch.undo()


class FullDisk:
    """Let the kernel refuse further bytes in files of this process, as if the disk were full."""

    error = "SQLITE_IOERR"

    def __init__(self, journal: SQLiteJournal, path: Path) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def begin(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._limits[1]))

    async def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


class LockedFile:
    """Lock the file in another process that does not end."""

    error = "SQLITE_BUSY"

    def __init__(self, journal: SQLiteJournal, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    async def begin(self) -> None:
        if self._process is None:
            await asyncio.to_thread(self._lock)

    def _lock(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _LOCK, str(self._path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"locked\n"

    async def end(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.communicate)


class CorruptFile:
    """Overwrite everything except the first page, and restore it later."""

    error = "SQLITE_CORRUPT"

    def __init__(self, journal: SQLiteJournal, path: Path) -> None:
        self._path = path
        self._before = b""

    async def begin(self) -> None:
        if not self._before:
            await asyncio.to_thread(self._corrupt)

    def _corrupt(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            db.execute("INSERT INTO scopes (name) VALUES ('nobody')")  # prevents SQLite from using its cache
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._file = os.open(self._path, os.O_RDWR)  # closing it would release SQLite's locks
            (page,) = db.execute("PRAGMA page_size").fetchone()
            self._before = os.pread(self._file, 1 << 30, 0)
            os.pwrite(self._file, b"\xa5" * (len(self._before) - page), page)

    async def end(self) -> None:
        await asyncio.to_thread(self._put_back)

    def _put_back(self) -> None:
        if self._before:
            os.pwrite(self._file, self._before, 0)


TROUBLES: dict[str, Callable[[SQLiteJournal, Path], Any]] = {
    "read-only": ReadOnlyFile,
    "full": FullDisk,
    "locked": LockedFile,
    "corrupt": CorruptFile,
}
