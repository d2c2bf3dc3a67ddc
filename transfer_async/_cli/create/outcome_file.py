"""What became of every line, in a file that is there whole or not at all.

One JSON object a line, in the order in which the orders ended::

    {"line": 7, "key": "payment-8731", "outcome": "created", "order_may_exist": true, "order_id": "tx-...",
     "state": "processing", "poster_amount": "155025.00", ...}
    {"line": 8, "key": "payment-8732", "outcome": "refused", "order_may_exist": false,
     "error": "Refused", "status": 422, "fields": ["poster_recipient_username"],
     "reason": "the service said no, and would again"}

The names are those of `OrderOutcome`. Nothing in it is about a person.
"""

from __future__ import annotations

import contextlib
import os
import stat
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from transfer_async._cli.console.output import shown
from transfer_async._converters.messages import RECORDED
from transfer_async._converters.wire_format import plain
from transfer_async._models.errors import AlreadyCreated, Outcome, Refused, TransferError
from transfer_async._models.responses import Order
from transfer_async._support.clock import Clock
from transfer_async.worker.disposition import disposition

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has none: nobody watches there over two runs at once
    fcntl = None  # type: ignore[assignment] # there is none on Windows

MODE = 0o600
KEPT = 512
"""How many lines are kept in memory before they are written."""

EVERY = 1.0
"""Seconds after which they are written in any case."""

_encode = msgspec.json.Encoder().encode


def outcome_line(line: int, key: str, result: Order | Exception) -> bytes:
    """What ``result`` says of the order on ``line``, as a line of JSON."""
    told: dict[str, Any] = {"line": line, "key": key}
    if isinstance(result, Order):
        told |= _created(result.id)
        told |= {"state": result.state.value} | {name: _plain(getattr(result, name)) for name in RECORDED}
    elif isinstance(result, AlreadyCreated):
        told |= _created(result.order_id)
    else:
        told |= _of_error(result)
    return _encode(told) + b"\n"


def _created(order_id: str) -> dict[str, Any]:
    return {"outcome": Outcome.CREATED.value, "order_may_exist": True, "order_id": order_id}


def _of_error(error: Exception) -> dict[str, Any]:
    known = isinstance(error, TransferError)
    outcome: Outcome = error.outcome if isinstance(error, TransferError) else Outcome.UNKNOWN
    told = {
        "outcome": outcome.value,
        "order_may_exist": error.order_may_exist if isinstance(error, TransferError) else True,
        "order_id": getattr(getattr(error, "order", None), "id", None) or getattr(error, "order_id", None),
        "error": type(error).__name__,
        "status": getattr(error, "status", None) if known else None,
        "fields": (error.fields or None) if isinstance(error, Refused) else None,
        "reason": disposition(error).reason,
    }
    return {name: value for name, value in told.items() if value is not None}


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, Decimal) else value


class OutcomeFile:
    """TextLines go to a file beside it, ``.part``, which takes its place once there is one for every order.

    One that an earlier run has left there is renamed to ``.old``: what it says of a key may be true no more.

    Args:
        path: of the file.
        protected: files that must not be written over, whatever they are called by.
        clock: for tests.

    Raises:
        ValueError: it cannot be written there, or another run writes it.
    """

    def __init__(self, path: Path, *, protected: tuple[Path, ...] = (), clock: Clock | None = None) -> None:
        self.path = path
        self.part = part_of(path)
        self._now = (clock or Clock()).now
        self._kept: list[bytes] = []
        self._written_at = self._now()
        check_place(path, protected=protected)
        try:
            self._file = _open_alone(self.part)
        except OSError as error:
            raise ValueError(f"--outcomes: cannot write {shown(str(self.part))} ({error.strerror})") from None
        try:
            self._set_aside()
        except BaseException:
            os.close(self._file)
            raise

    def _set_aside(self) -> None:
        try:
            self.path.replace(old_of(self.path))
        except FileNotFoundError:
            pass
        except OSError as error:
            told = shown(str(self.path))
            raise ValueError(f"--outcomes: cannot set aside {told} ({error.strerror})") from None

    def add(self, line: bytes) -> None:
        """Take a line; it is written with others, by `write`."""
        self._kept.append(line)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return len(self._kept) >= KEPT or self._now() - self._written_at >= EVERY

    def write(self) -> None:
        """Write what was added.

        Raises:
            OSError: the disk is full, or gone.
        """
        data, self._kept, self._written_at = memoryview(b"".join(self._kept)), [], self._now()
        while data:
            data = data[os.write(self._file, data) :]

    def finish(self) -> None:
        """There is a line for every order: put the file in its place.

        Raises:
            OSError: the disk is full, or gone.
        """
        self.write()
        os.fsync(self._file)
        if fcntl is None:
            self.close()  # Windows renames nothing that is open
        self.part.replace(self.path)
        with contextlib.suppress(OSError):  # some file systems cannot: the file is whole in any case
            _sync_directory(self.path.parent)

    def close(self) -> None:
        """Let go of it."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def part_of(path: Path) -> Path:
    """Where the lines are until the file is whole."""
    return path.with_name(path.name + ".part")


def old_of(path: Path) -> Path:
    """Where an earlier run's outcomes are then."""
    return path.with_name(path.name + ".old")


def check_place(path: Path, *, protected: tuple[Path, ...] = ()) -> None:
    """Check that an outcome file may be written at ``path``; see `OutcomeFile`.

    Raises:
        ValueError: it may not.
    """
    if not path.parent.is_dir():
        raise ValueError(f"--outcomes: there is no directory {shown(str(path.parent))}")
    for one in (path, part_of(path), old_of(path)):
        if one.is_symlink() or (one.exists() and not stat.S_ISREG(one.stat().st_mode)):
            raise ValueError(f"--outcomes: {shown(str(one))} is there, and is not a file")
        if any(_is_same(one, other) for other in protected):
            raise ValueError(f"--outcomes: {shown(str(one))} is in use for something else")


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.absolute() == other.absolute()


def _open_alone(path: Path) -> int:
    """The file, empty, and locked until this process ends.

    Raises:
        BlockingIOError: another run has it.
    """
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), MODE)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                os.ftruncate(file, 0)
                path.chmod(MODE)
                return file
        except BlockingIOError:
            os.close(file)
            raise ValueError(f"--outcomes: another run is writing {shown(str(path))}") from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had it has put it in its place meanwhile


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
