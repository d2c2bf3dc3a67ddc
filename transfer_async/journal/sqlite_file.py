"""Creates and opens the journal's file, and checks that the file is still in place.

When a process closes *any* descriptor of a file, POSIX drops all of the process's locks on that file. SQLite
therefore delays closing its own descriptors, and no other code in this process may open the file. This module
examines an existing file only with ``stat``. A new file is created under another name and linked into place.
If a process loads two copies of the SQLite library, each copy ignores the other's descriptors, and this
module cannot prevent the loss of locks.
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
"""The suffixes of SQLite's log and of the log's index, which contains the locks that its users share."""

MOUNTS = Path("/proc/self/mountinfo")

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)

Identity = tuple[int, int]


class FileReplaced(JournalFailed):
    """Raised if a file of the journal was moved, removed or replaced after the journal was opened."""


def identity(path: str) -> Identity | None:
    """Return the device and inode number of the file at ``path``, or None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called around each commit; a Path doubles the cost
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# --- before it is opened ------------------------------------------------------------------------


def prepared_path(path: Path, *, make: bool) -> Path:
    """Return the real path of a journal's file. If ``make`` is true, create a missing file.

    Raises:
        JournalFailed: the path is not a regular file, or the file must not be opened.
    """
    try:
        path.stat()
    except FileNotFoundError:
        if not make:
            raise
        _refuse_leftovers(path)
        _create(path)
    real = Path(os.path.realpath(path))
    _refuse_unfit(real)
    return real


def _refuse_leftovers(path: Path) -> None:
    """Do not replace a journal that was moved away while a process was using it.

    The log and the index exist only while the journal is in use, or after a crash. In a new file, every key
    would be free.
    """
    file = os.path.realpath(path)
    name, log, index = (f"{Path(file).name}{suffix}" for suffix in ("", LOG, INDEX))
    for left in (log, index):
        # Another process creates the file before its log, so the file may exist by now.
        if identity(str(Path(file).with_name(left))) is not None and identity(file) is None:
            raise JournalFailed(
                f"{name} is missing, but {left} exists, so the journal was moved or removed while it was in "
                "use: stop every process that uses the journal, and put that same file back, not a copy or a "
                f"backup of it. If you removed it on purpose, also remove {log} and {index}"
            )


def _create(path: Path) -> None:
    """Create the file durably, accessible only to its owner, unless another process creates it first."""
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    try:
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            why = f"{path.name} cannot be created without hard links: create an empty file there first"
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
    """Reject a path that is not a regular file, and a file that another process may open without its log."""
    there = real.stat()
    if not stat.S_ISREG(there.st_mode):
        raise JournalFailed(f"{real.name} exists, but is not a regular file")
    if there.st_nlink > 1:
        _remove_temporary_name(real)
        if real.stat().st_nlink > 1:
            raise JournalFailed(
                f"{real.name} has a second name (a hard link), and each name would have its own log: remove "
                "one name, and use a symbolic link or mount the directory instead"
            )
    if there.st_dev != real.parent.stat().st_dev or _is_mounted(real):
        raise JournalFailed(
            f"{real.name} is itself a mount point, so other processes do not see its log: mount its directory"
        )


def _remove_temporary_name(real: Path) -> None:
    """Remove the temporary name under which a process created the file."""
    this = identity(str(real))
    for other in real.parent.iterdir():
        is_such = other.name.startswith(f".{real.name}.") and other.name.endswith(".new")
        if is_such and identity(str(other)) == this:
            other.unlink(missing_ok=True)


def _is_mounted(real: Path) -> bool:
    """Return whether the file itself is a mount point, even on the same device as its directory."""
    name = os.fsencode(real)
    for plain in (b"\\", b" ", b"\t", b"\n"):
        name = name.replace(plain, b"\\%03o" % ord(plain))
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except OSError:  # not Linux
        return False
    return any(mount.split(b" ", 5)[4] == name for mount in mounts)


def restrict_to_owner(real: Path) -> None:
    """Make the file, its log and its index accessible only to their owner."""
    for name in (str(real), f"{real}{LOG}", f"{real}{INDEX}"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # If another user owns it, leave it.
            if stat.S_IMODE(os.stat(name).st_mode) & 0o077:  # noqa: PTH116 - as above
                os.chmod(name, 0o600)  # noqa: PTH101 - as above


# --- while it is open ---------------------------------------------------------------------------


class Files:
    """The identities of the file, its log and its index when a connection opened them.

    If the log is deleted or replaced, SQLite continues to commit to the old log, and these commits are lost.
    If the index is replaced, other processes do not see this process's locks.

    Args:
        path: the path as the caller passed it.
        real: the path without symbolic links. SQLite stores the log and the index beside the real path.

    Raises:
        JournalFailed: this process must not open the file again; see `Files.refuse_if_moved`.
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
        """Refuse to open the file again if its locks, which SQLite tracks per process, would not work."""
        if self._process != os.getpid():
            raise JournalFailed(
                f"{self.path.name} was open when this process was forked, so its locks would not hold here: "
                "open it only after the fork, or start the process with spawn"
            )
        try:
            self.refuse_if_moved()
        except FileReplaced:
            if self._is_open:  # Otherwise another thread has just closed it, which deleted its log.
                raise

    def remember(self) -> None:
        """Record the identities of the log and the index.

        Call `remember` after SQLite has opened the log and the index.
        """
        self._known += [(name, identity(name)) for name in self._beside]

    def refuse_if_moved(self) -> None:
        """Raise an error if the files are no longer in place.

        Raises:
            FileReplaced: a file was moved, removed or replaced.
        """
        for name, known in self._known:
            if identity(name) != known:
                loss = f"{Path(name).name} was moved, removed or replaced while it was in use"
                if name in self._beside:
                    loss += (
                        ": commits may be lost; stop every process that uses the journal, "
                        "and compare it with the service before keys are used again"
                    )
                raise FileReplaced(loss)

    def close_safely(self, db: sqlite3.Connection) -> None:
        """Close the connection, unless that would damage files that other processes use.

        When the last connection closes, SQLite writes the log into the file and deletes the log, even a new
        log that other processes have started. If such a new log exists, the connection stays open until this
        process ends, and this process opens no other connection. If the log was deleted and no new log
        exists, its contents are first written into the file.
        """
        if any(identity(name) not in (known, None) for name, known in self._known[1:]):
            _LEFT_OPEN.append(self)
            import ctypes  # imported here because this is rarely needed

            # Keep a reference, so that the garbage collector does not close the connection either.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
            return
        with contextlib.suppress(sqlite3.Error):
            if len(self._known) > 1 and identity(self._beside[0]) is None:
                db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        self._is_open = False
        db.close()


_OPEN: set[weakref.ref[Files]] = set()
"""The files that this process has open, including those opened before a fork."""

_LEFT_OPEN: list[Files] = []
"""The files that must never be closed."""


# --- sqlite opening ----------------------------------------------------------------------------------
# Rejects another application's file, and applies the same settings to every connection.


APPLICATION = 0x7472616A
"""The ``application_id`` that marks a file as a journal."""

_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL may lose the last commits in a power cut.
    "PRAGMA fullfsync=ON",  # On macOS a plain sync does not reach the disk.
    "PRAGMA secure_delete=FAST",  # Overwrite deleted data where that needs no extra write.
    "PRAGMA cache_size=-65536",
)

_MAX_LOG_BYTES = 32 << 20
"""The size, in bytes, at which the log is written into the file."""

_PAGES = "PRAGMA page_size=8192"
"""The page size of a new file. An order needs half as many pages in the log as with the default of 4,096
bytes."""

_PAUSE = 0.005
"""The seconds between attempts while another process has locked the file."""


def decode_lossless(text: bytes) -> str:
    """Decode text and preserve bytes that are not valid UTF-8."""
    return text.decode(errors="surrogateescape")


class OpenFile:
    """An open journal file, used by a single thread. If ``make`` is true, a missing file is created.

    Raises:
        JournalFailed: the file is not a journal.
    """

    def __init__(self, path: Path, *, timeout: float, make: bool = True) -> None:
        real = prepared_path(path, make=make)
        self._files = Files(path, real)
        self.identity: Identity | None = self._files.main
        self.refuse_if_moved: Callable[[], None] = self._files.refuse_if_moved
        self._db = sqlite3.connect(
            f"{real.as_uri()}?mode=rw",  # Never create a file here.
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
        """Close the file; see `Files.close_safely`."""
        self._files.close_safely(self._db)

    def _refuse_foreign_file(self, path: Path) -> None:
        """Reject a file that belongs to another application, before changing any of its settings."""
        try:
            is_empty = self._value("SELECT count(*) FROM sqlite_master") == 0
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise JournalFailed(f"{path.name} is not a journal: it is not a database") from error
            raise
        if not is_empty and self._value("PRAGMA application_id") != APPLICATION:
            raise JournalFailed(f"{path.name} is a database, but not a journal of transfer_async")

    def _enable_wal(self, timeout: float) -> None:
        """Switch to a write-ahead log.

        SQLite does not wait for other processes when it switches the log, so this method retries.
        """
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
                    raise JournalFailed(
                        f"SQLite cannot create a log beside {self._files.path.name}: use a local disk"
                    )
                return
            time.sleep(_PAUSE)

    def _prepare(self, path: Path) -> None:
        """Check or create the file's contents."""

    @property
    def version(self) -> int:
        """The version of the journal's format."""
        return self._value("PRAGMA user_version")

    def _value(self, sql: str, *values: object) -> int:
        found: int = self._db.execute(sql, values).fetchone()[0]
        return found
