"""The journals to measure, each on a real disk, and facts about that disk."""

from __future__ import annotations

import itertools
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks.measuring.samples import percentile
from tests.support import postgres
from transfer_async import MemoryJournal
from transfer_async.journal import Journal, PostgresJournal, SQLiteJournal
from transfer_async.journal.model import TransitionResult
from transfer_async.journal.transitions import Move

MEMORY, SQLITE, POSTGRES = "MemoryJournal", "SQLiteJournal", "PostgresJournal"
JOURNALS = (MEMORY, SQLITE, POSTGRES)

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")
"""File systems in memory, on which a commit costs nothing and protects nothing."""

POSTGRES_SETTINGS = {"shared_buffers": "128MB"}
"""PostgreSQL's own defaults; the tests use a smaller server."""


class JournalFactory:
    """Creates journals in a directory on a real disk and, if there is one, on a PostgreSQL server.

    Args:
        directory: a directory on that disk.
        server: a running server, or None.
        requested: the names of the journals.
    """

    def __init__(
        self, directory: Path, server: postgres.PostgresServer | None, requested: Collection[str] = JOURNALS
    ) -> None:
        self.directory = directory
        self._requested = requested
        self.server = server
        self._numbers = itertools.count()

    @property
    def names(self) -> list[str]:
        """The requested journals that are available; always the one in memory, to compare with."""
        available = [SQLITE, *([POSTGRES] if self.server is not None else [])]
        return [MEMORY, *(name for name in available if name in self._requested)]

    def journal(self, name: str) -> Journal:
        """Create a new, empty journal; the caller closes it."""
        if name == MEMORY:
            return MemoryJournal(max_keys=1_000_000)
        if name == SQLITE:
            return SQLiteJournal(self.path())
        return PostgresJournal(self.dsn, schema=self.schema())

    def path(self) -> Path:
        """Return a new path for a file."""
        return self.directory / f"journal-{next(self._numbers)}.sqlite"

    @property
    def dsn(self) -> str:
        """Return the address of the server's database."""
        assert self.server is not None  # noqa: S101 - see `names`
        return self.server.dsn

    def schema(self) -> str:
        """Return the name of a new schema: each journal has its own."""
        return f"journal_{next(self._numbers)}"

    def about(self) -> dict[str, Any]:
        """Return the conditions of the measurement."""
        version = "none" if self.server is None else _postgres_version(self.server.log)
        return {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "postgresql": version,
            "file_system": file_system(self.directory),
            "fsync_ms": round(fsync_time(self.directory) * 1e3, 3),
        }


@contextmanager
def journal_factory(requested: Collection[str] = JOURNALS) -> Iterator[JournalFactory]:
    """Open a workshop; remove everything in it at the end."""
    with ExitStack() as stack:
        base = disk_directory()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="journals-", dir=base)))
        if POSTGRES not in requested or not postgres.is_installed():
            yield JournalFactory(directory, None, requested)
            return
        previous, tempfile.tempdir = tempfile.tempdir, str(base)  # the server's files are made there too
        stack.callback(setattr, tempfile, "tempdir", previous)
        server = stack.enter_context(postgres.postgres_server(extra=POSTGRES_SETTINGS))
        yield JournalFactory(directory, server, requested)


def disk_directory() -> Path:
    """Return a directory for temporary files that is not in memory.

    Raises:
        RuntimeError: there is no such directory.
    """
    for place in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):  # noqa: S108 - only looked at
        if place.is_dir() and os.access(place, os.W_OK) and file_system(place) not in MEMORY_FILE_SYSTEMS:
            return place
    raise RuntimeError("every place for temporary files is in memory: run this from a directory on a disk")


def file_system(path: Path) -> str:
    """Return the type of the file system of ``path``, if the system reports it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    resolved, found = path.resolve(), ("", "unknown")
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split(" ")
        if resolved.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def fsync_time(directory: Path, *, repetitions: int = 50) -> float:
    """Return the median seconds to write a page to the disk; no commit can be faster."""
    durations = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(repetitions):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - began)
    return median(durations)


def _postgres_version(log: str) -> str:
    """Return the version from a server's first log line: ``... starting PostgreSQL 16.2 on ...``."""
    return log.partition("starting PostgreSQL ")[2].partition(" ")[0] or "unknown"


class TimedJournal:
    """A journal that delegates to another and adds up the waiting time of each key."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seconds: dict[str, float] = {}

    def percentiles(self, *percents: float) -> list[float]:
        """Return the percentiles of the seconds of all keys since the last call."""
        seconds, self._seconds = self._seconds, {}
        return [percentile(seconds.values(), percent) for percent in percents]

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """See `Journal.move`."""
        began = time.perf_counter()
        try:
            return await self._journal.move(scope, key, move)
        finally:
            self._seconds[key] = self._seconds.get(key, 0.0) + time.perf_counter() - began

    async def __aenter__(self) -> Self:
        await self._journal.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._journal.close()

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else."""
        return getattr(self._journal, name)
