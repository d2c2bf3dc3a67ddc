"""The keys of a file, and where each stood first: on the disk, however many there are."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Self

_SETTINGS = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
PRAGMA cache_size=-16384;
CREATE TABLE keys (key TEXT PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID;
BEGIN;
"""
# A database without a name lies in a temporary file that nobody else can open, and goes with it.
# Keys in the order of the file are mostly near each other, so digests would be slower.


class Keys:
    """Every key so far; a context manager."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(_SETTINGS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._db.close()

    def seen(self, key: str, line: int) -> int | None:
        """The line on which ``key`` stood before; None if this is the first."""
        if self._db.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key, line)).rowcount:
            return None
        found: tuple[int] = self._db.execute("SELECT line FROM keys WHERE key = ?", (key,)).fetchone()
        return found[0]
