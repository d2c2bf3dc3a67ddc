"""Create journals on a real disk, and describe that disk."""

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
"""File systems in memory, where a commit costs nothing."""

POSTGRES_SETTINGS = {"shared_buffers": "128MB"}
"""PostgreSQL's default. The server of the tests has a smaller cache."""


class JournalFactory:
    """Creates journals in a directory on a real disk and, if possible, on a PostgreSQL server.

    Args:
        directory: a directory on a real disk.
        server: a running server, or None.
        requested: the names of the journals to measure.
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
        """The requested journals that are available, and `MemoryJournal` as the baseline."""
        available = [SQLITE, *([POSTGRES] if self.server is not None else [])]
        return [MEMORY, *(name for name in available if name in self._requested)]

    def journal(self, name: str) -> Journal:
        """Create an empty journal. The caller must close it."""
        if name == MEMORY:
            return MemoryJournal(max_keys=1_000_000)
        if name == SQLITE:
            return SQLiteJournal(self.path())
        return PostgresJournal(self.dsn, schema=self.schema())

    def path(self) -> Path:
        """Return an unused path for a journal file."""
        return self.directory / f"journal-{next(self._numbers)}.sqlite"

    @property
    def dsn(self) -> str:
        """The address of the PostgreSQL database."""
        assert self.server is not None  # noqa: S101 - see `names`
        return self.server.dsn

    def schema(self) -> str:
        """Return an unused schema name."""
        return f"journal_{next(self._numbers)}"

    def about(self) -> dict[str, Any]:
        """Describe the conditions of the measurement."""
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
    """Yield a factory; remove its journals at the end."""
    with ExitStack() as stack:
        base = disk_directory()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="journals-", dir=base)))
        if POSTGRES not in requested or not postgres.is_installed():
            yield JournalFactory(directory, None, requested)
            return
        server = stack.enter_context(postgres.PostgresServer(extra=POSTGRES_SETTINGS, within=base))
        yield JournalFactory(directory, server, requested)


def disk_directory() -> Path:
    """Return a directory for temporary files that is on a disk.

    Raises:
        RuntimeError: all of them are in memory.
    """
    for place in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):  # noqa: S108 - nothing is created here
        if place.is_dir() and os.access(place, os.W_OK) and file_system(place) not in MEMORY_FILE_SYSTEMS:
            return place
    raise RuntimeError(
        "all directories for temporary files are in memory: run this from a directory on a disk"
    )


def file_system(path: Path) -> str:
    """Return the type of the file system that contains ``path``, or ``unknown``."""
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
    """Return the median time to write and fsync a page, in seconds. No commit can be faster."""
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
    """Extract the version from the server's log: ``... starting PostgreSQL 16.2 on ...``."""
    return log.partition("starting PostgreSQL ")[2].partition(" ")[0] or "unknown"


class TimedJournal:
    """Delegates to another journal and measures how long each key waits for it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seconds: dict[str, float] = {}

    def percentiles(self, *percents: float) -> list[float]:
        """Return percentiles of the waiting time per key, in seconds, and reset the times."""
        seconds, self._seconds = self._seconds, {}
        return [percentile(seconds.values(), percent) for percent in percents]

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
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
        return getattr(self._journal, name)
