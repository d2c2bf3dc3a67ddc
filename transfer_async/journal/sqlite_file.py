"""The journal's file as its directory has it: how it is made, which one is fit, and whether it is there.

POSIX drops every lock that a process has on a file as soon as the process closes *any* descriptor of it.
SQLite knows, and defers its own closings; so nothing but SQLite may ever open the file here: one that is
there is only looked at, and a new one is made under another name and linked into place. (Two copies of
the SQLite library in one process do not know of each other: nothing here can help that.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from transfer_async._models.errors import JournalFailed

LOG, INDEX = "-wal", "-shm"
"""What SQLite keeps beside the file: the log, and the memory with the locks that all its users share."""

MOUNTS = Path("/proc/self/mountinfo")

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)

Identity = tuple[int, int]


class FileReplaced(JournalFailed):
    """A file is no longer what it was when the journal was opened."""


def identity(path: str) -> Identity | None:
    """Which file it is that ``path`` names now; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before and after each commit: a Path costs as much again
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# --- before it is opened ------------------------------------------------------------------------


def found(path: Path, *, make: bool) -> Path:
    """The real path of a journal's file; made, if it may be and is not there.

    Raises:
        JournalFailed: it is none, or nothing that may be opened.
    """
    try:
        path.stat()
    except FileNotFoundError:
        if not make:
            raise
        _make(path)
    real = Path(os.path.realpath(path))
    _refuse_unfit(real)
    return real


def _make(path: Path) -> None:
    """Make the file, for its owner's eyes alone, its name as durable as its content; others may be faster."""
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    try:
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            why = f"{path.name} cannot be made where there are no links: make an empty file there first"
            raise JournalFailed(why) from error
        raise
    finally:
        fresh.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _refuse_unfit(real: Path) -> None:
    """Refuse what is no file, and a file that others may reach where they do not see its log."""
    there = real.stat()
    if not stat.S_ISREG(there.st_mode):
        raise JournalFailed(f"{real.name} is there, and is not a file")
    if there.st_nlink > 1:
        _remove_temporary_name(real)
        if real.stat().st_nlink > 1:
            raise JournalFailed(
                f"{real.name} has a second name, a hard link, and each name would have a log of its own: "
                "remove one of them; a symbolic link, or the mounted directory, leads to the same journal"
            )
    if there.st_dev != real.parent.stat().st_dev or _is_mounted(real):
        raise JournalFailed(
            f"{real.name} is mounted by itself, and its log would be seen only here: "
            "mount the directory that it is in instead"
        )


def _remove_temporary_name(real: Path) -> None:
    """Take away the name under which somebody is making the file just now, or died making it."""
    this = identity(str(real))
    for other in real.parent.iterdir():
        is_such = other.name.startswith(f".{real.name}.") and other.name.endswith(".new")
        if is_such and identity(str(other)) == this:
            other.unlink(missing_ok=True)


def _is_mounted(real: Path) -> bool:
    """Whether something is mounted at that very path; the device may be its directory's all the same."""
    name = os.fsencode(real)
    for plain in (b"\\", b" ", b"\t", b"\n"):
        name = name.replace(plain, b"\\%03o" % ord(plain))
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except OSError:  # another system
        return False
    return any(mount.split(b" ", 5)[4] == name for mount in mounts)


def restrict_to_owner(real: Path) -> None:
    """Let nobody but their owner read the file and what is beside it."""
    for name in (str(real), f"{real}{LOG}", f"{real}{INDEX}"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # somebody else's, who decides
            if stat.S_IMODE(os.stat(name).st_mode) & 0o077:  # noqa: PTH116 - as above
                os.chmod(name, 0o600)  # noqa: PTH101 - as above


# --- while it is open ---------------------------------------------------------------------------


class Files:
    """The file and what is beside it, as one connection has opened them.

    A log that was deleted or replaced still takes commits, and nobody else will ever see them; with
    another index, others do not see our locks.

    Args:
        path: as it was given.
        real: the same without symbolic links: SQLite keeps the rest beside it.

    Raises:
        JournalFailed: this process must not open it again: see `Files.refuse_if_moved`.
    """

    def __init__(self, path: Path, real: Path) -> None:
        self.path: Path = path
        self.main: Identity | None = identity(str(path))
        self._process, self._is_open = os.getpid(), True
        self._beside = (f"{real}{LOG}", f"{real}{INDEX}")
        self._known: list[tuple[str, Identity | None]] = [(str(path), self.main)]
        for other in filter(None, [item() for item in list(_OPEN)]):
            if other._is_open and other.main == self.main:
                other._refuse_another()
        _OPEN.add(weakref.ref(self, _OPEN.discard))

    def _refuse_another(self) -> None:
        """What SQLite remembers of locks is the whole process's, and its child's after a fork: wrongly."""
        if self._process != os.getpid():
            raise JournalFailed(
                f"{self.path.name} was open when this process was forked, so that its locks would not hold "
                "here: open it after the fork only, or start the process anew (spawn)"
            )
        try:
            self.refuse_if_moved()
        except FileReplaced:
            if self._is_open:  # it was not closed, and its log deleted, just now
                raise

    def remember(self) -> None:
        """Remember what is beside the file: SQLite has opened it by now."""
        self._known += [(name, identity(name)) for name in self._beside]

    def refuse_if_moved(self) -> None:
        """Refuse to go on, or to believe what was done, with files that are no longer those in the directory.

        Raises:
            KeyChanged: one was moved, removed or replaced.
        """
        for name, known in self._known:
            if identity(name) != known:
                raise FileReplaced(self._loss(name))

    def _loss(self, name: str) -> str:
        told = f"{Path(name).name} was moved, removed or replaced while it was in use"
        if name in self._beside:
            told += (
                ": commits may be lost; stop every process that uses the journal, "
                "and compare with the service before keys are used again"
            )
        return told

    def close_safely(self, db: sqlite3.Connection) -> None:
        """Close the connection, if that does no harm.

        The last one to close writes the log into the file, and deletes it. Where others have begun another
        log meanwhile it would do so to theirs: then it stays as it is until the process ends, and no other
        is opened. A log that was only deleted is written into the file: what it holds is not lost.
        """
        if self._is_replaced_by_others():
            _LEFT_OPEN.append(self)
            import ctypes  # of all journals, next to none comes here

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))  # nor is it closed when it is forgotten
            return
        with contextlib.suppress(sqlite3.Error):
            if len(self._known) > 1 and identity(self._beside[0]) is None:
                db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        self._is_open = False
        db.close()

    def _is_replaced_by_others(self) -> bool:
        return any(identity(name) not in (known, None) for name, known in self._known[1:])


_OPEN: set[weakref.ref[Files]] = set()
"""What this process has open, and what it had when it was forked."""

_LEFT_OPEN: list[Files] = []
"""What must never be closed."""


# --- sqlite opening ----------------------------------------------------------------------------------
# The journal's file, opened as every use of it needs: never somebody else's, and with its settings.


APPLICATION = 0x7472616A
"""Marks the file as a journal of ours."""

_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL may lose the last commits with the machine's power
    "PRAGMA fullfsync=ON",  # where a plain sync does not reach the disk (macOS)
    "PRAGMA secure_delete=FAST",  # what is forgotten is overwritten where that costs no more writing
    "PRAGMA cache_size=-65536",
)

_MAX_LOG_BYTES = 32 << 20
"""Bytes of the log after which it is written into the file."""

_PAGES = "PRAGMA page_size=8192"
"""Of an empty file: an order takes half as many in the log as with the 4,096 bytes that are usual."""

_PAUSE = 0.005
"""Seconds between two looks whether others are done."""


def decode_lossless(text: bytes) -> str:
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
            self._refuse_foreign_file(path)
            restrict_to_owner(real)
            self._enable_wal(timeout)
            for setting in _SETTINGS:
                self._db.execute(setting)
            self._db.execute(f"PRAGMA wal_autocheckpoint={_MAX_LOG_BYTES // self._value('PRAGMA page_size')}")
            self._prepare(path)
            self._files.remember()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it, if that does no harm."""
        self._files.close_safely(self._db)

    def _refuse_foreign_file(self, path: Path) -> None:
        """Before any setting changes it: another application's file stays as it is."""
        try:
            is_empty = self._value("SELECT count(*) FROM sqlite_master") == 0
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise JournalFailed(f"{path.name} is not a journal: it is no database at all") from error
            raise
        if not is_empty and self._value("PRAGMA application_id") != APPLICATION:
            raise JournalFailed(f"{path.name} is a database, but not a journal of transfer_async")

    def _enable_wal(self, timeout: float) -> None:
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
