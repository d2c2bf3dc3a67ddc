"""What a command must remember of a large file: on the disk, however much it is, and not in memory."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Self

_SETTINGS = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
PRAGMA cache_size=-16384;
"""
# A database without a name lies in a temporary file that nobody else can open, and goes with it.


class TemporaryDatabase:
    """A context manager; what is built on it asks ``database``.

    Args:
        tables: the statements that make them.
    """

    def __init__(self, tables: str) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.executescript(f"{_SETTINGS}{tables}BEGIN;")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.database.close()
