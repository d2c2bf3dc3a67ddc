"""The journal's file, opened as every use of it needs: never somebody else's, and with its settings."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from transfer_async._models.errors import JournalFailed
from transfer_async.journal.sqlite_file import Files, Identity, found, keep_private

APPLICATION = 0x7472616A
"""Marks the file as a journal of ours."""

_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL may lose the last commits with the machine's power
    "PRAGMA fullfsync=ON",  # where a plain sync does not reach the disk (macOS)
    "PRAGMA secure_delete=FAST",  # what is forgotten is overwritten where that costs no more writing
    "PRAGMA cache_size=-65536",
)

_LONGEST_LOG = 32 << 20
"""Bytes of the log after which it is written into the file."""

_PAGES = "PRAGMA page_size=8192"
"""Of an empty file: an order takes half as many in the log as with the 4,096 bytes that are usual."""

_PAUSE = 0.005
"""Seconds between two looks whether others are done."""


def as_it_is(text: bytes) -> str:
    """A text that is none any more, for a disk made something else of it."""
    return text.decode(errors="surrogateescape")


class OpenFile:
    """The open file; all of it within one thread.

    Args:
        path: where it is.
        timeout: seconds to wait for other processes that write.
        make: whether it is made where it is not there.

    Raises:
        JournalFailed: it is no journal.
    """

    def __init__(self, path: Path, *, timeout: float, make: bool = True) -> None:
        real = found(path, make=make)
        self._files = Files(path, real)
        self.identity: Identity | None = self._files.main
        self.refuse_if_moved: Callable[[], None] = self._files.refuse_if_moved
        self._db = sqlite3.connect(
            f"{real.as_uri()}?mode=rw",  # whatever has become of it meanwhile: no other is made here
            uri=True,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._refuse_others_file(path)
            keep_private(real)
            self._keep_a_log(timeout)
            for setting in _SETTINGS:
                self._db.execute(setting)
            self._db.execute(f"PRAGMA wal_autocheckpoint={_LONGEST_LOG // self._value('PRAGMA page_size')}")
            self._prepare(path)
            self._files.remember()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it, if that does no harm."""
        self._files.let_go(self._db)

    def _refuse_others_file(self, path: Path) -> None:
        """Before any setting changes it: another application's file stays as it is."""
        try:
            is_empty = self._value("SELECT count(*) FROM sqlite_master") == 0
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise JournalFailed(f"{path.name} is not a journal: it is no database at all") from error
            raise
        if not is_empty and self._value("PRAGMA application_id") != APPLICATION:
            raise JournalFailed(f"{path.name} is a database, but not a journal of transfer_async")

    def _keep_a_log(self, timeout: float) -> None:
        """Go over to a write-ahead log: of all there is, this alone does not wait for other processes."""
        self._db.execute(_PAGES)
        end = time.monotonic() + timeout
        while True:
            try:
                mode = self._db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            else:
                if mode != "wal":
                    raise JournalFailed(f"a write-ahead log cannot be kept beside {self._files.path.name}")
                return
            time.sleep(_PAUSE)

    def _prepare(self, path: Path) -> None:
        """What else must be so before it is used."""

    @property
    def version(self) -> int:
        """Of its format."""
        return self._value("PRAGMA user_version")

    def _value(self, sql: str, *values: object) -> int:
        found: int = self._db.execute(sql, values).fetchone()[0]
        return found
