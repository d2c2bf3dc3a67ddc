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
import enum
import math
import os
import stat
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from transfer_async._cli import process
from transfer_async._cli.output import Say, shown
from transfer_async._converters.messages import ORDER_FIELDS
from transfer_async._converters.wire_format import plain
from transfer_async._models.errors import (
    AlreadyCreated,
    JournalFailed,
    Outcome,
    Refused,
    Refuted,
    TransferError,
)
from transfer_async._models.responses import Order
from transfer_async._support.clock import Clock, in_two_units
from transfer_async.worker.disposition import disposition

if TYPE_CHECKING:
    from rich import progress


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
        told |= {"state": result.state.value} | {name: _plain(getattr(result, name)) for name in ORDER_FIELDS}
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
    for item in (path, part_of(path), old_of(path)):
        if item.is_symlink() or (item.exists() and not stat.S_ISREG(item.stat().st_mode)):
            raise ValueError(f"--outcomes: {shown(str(item))} is there, and is not a file")
        if any(_is_same(item, other) for other in protected):
            raise ValueError(f"--outcomes: {shown(str(item))} is in use for something else")


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


# --- progress ----------------------------------------------------------------------------------------
# How far a run has come: a bar on a terminal, a line now and then elsewhere.


PROGRESS_EVERY = 5.0
"""Seconds between two lines."""

LOOKED_AT_EVERY = 0.1
"""Seconds between two looks at how fast it goes: an order takes less time than drawing a bar."""

SPAN = 30.0
"""The rate is that of the last so many seconds: a run that goes on begins with what is done already."""


class Pace:
    """How fast it goes, of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> None:
        """So many are done now."""
        while self._seen and now - self._seen[0][0] > SPAN:
            self._seen.popleft()
        if done > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((now, done))

    @property
    def rate(self) -> float | None:
        """How many a second; None where nobody can say."""
        if not self._seen:
            return None
        (since, before), (until, done) = self._seen[0], self._seen[-1]
        return (done - before) / (until - since) if until > since else None


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return in_two_units(round(seconds))


class Progress(Protocol):
    """Shows how far it has come."""

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """So many are done.

        Args:
            what: is being done.
            done: how many.
            total: of how many; None where nobody knows yet.
            counts: what became of them, in words.
        """
        ...

    def say(self, line: str) -> None:
        """Say something beside it."""
        ...


class Silence:
    """For those who want to hear of the end only."""

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""


class LineProgress:
    """A line now and then.

    Args:
        say: writes a line.
        clock: for tests.
    """

    def __init__(self, say: Say, *, clock: Clock | None = None) -> None:
        self._say = say
        self._now = (clock or Clock()).now
        self._what: str | None = None
        self._looked = self._told = 0.0
        self._pace = Pace()

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Move the bar or write a line, if it is time."""
        now = self._now()
        if what != self._what:
            self._what, self._told, self._pace = what, now, Pace()
            self._begin()
        elif done != total and now - self._looked < LOOKED_AT_EVERY:
            return
        self._looked = now
        self._pace.note(now, done)
        self._draw(progress_line(what, done, total, counts, rate=self._pace.rate), done, total)

    def _begin(self) -> None:
        pass

    def _draw(self, line: str, _done: int, _total: int | None) -> None:
        if self._looked - self._told >= PROGRESS_EVERY:
            self._told = self._looked
            self._say(line)

    def say(self, line: str) -> None:
        """Write a line, above the bar."""
        self._say(line)


class BarProgress(LineProgress):
    """A bar of rich's.

    Args:
        bars: on a terminal.
        say: writes a line above them.
        clock: for tests.
    """

    def __init__(self, bars: progress.Progress, say: Say, *, clock: Clock | None = None) -> None:
        super().__init__(say, clock=clock)
        self._bars = bars

    def _begin(self) -> None:
        for before in self._bars.task_ids:
            self._bars.remove_task(before)
        self._bars.add_task("", total=None)

    def _draw(self, line: str, done: int, total: int | None) -> None:
        (task,) = self._bars.task_ids
        self._bars.update(task, completed=done, total=total, description=line)


def progress_line(what: str, done: int, total: int | None, counts: str, *, rate: float | None) -> str:
    """How far it has come, in a line."""
    told = f"{rate or 0:,.0f} a second"
    if total is None:
        return f"{what}: {done:,} lines, {told}"
    pace = f"{told}, {duration(math.ceil((total - done) / rate))} left" if rate else "no rate yet"
    return f"{what}: {done:,} of {total:,} lines: {counts}; {pace}"


@contextmanager
def shown_progress(say: Say, *, live: bool, quiet: bool, clock: Clock | None = None) -> Iterator[Progress]:
    """A bar where that is wanted, lines otherwise; or nothing."""
    if quiet:
        yield Silence()
        return
    if not live:
        yield LineProgress(say, clock=clock)
        return
    from rich import console, progress  # 60 ms

    err = console.Console(stderr=True)
    bars = progress.Progress(
        progress.BarColumn(),
        progress.TextColumn("{task.description}", markup=False),
        console=err,
        transient=True,
        refresh_per_second=5,
        redirect_stdout=False,
        get_time=(clock or Clock()).now,
    )
    with bars:
        above = partial(err.print, markup=False, highlight=False)
        yield BarProgress(bars, above, clock=clock)


# --- tally -------------------------------------------------------------------------------------------
# What has become of the orders so far: counts, the exit code, and the last words.


NAMED = 3
"""How many reasons are named; the others are counted."""


class Kind(enum.Enum):
    """What an order has come to, as the summary counts it."""

    CREATED = "created"
    REFUSED = "refused"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


def kind_of(result: Order | Exception) -> Kind:
    """What ``result`` counts as."""
    if isinstance(result, Order):
        return Kind.CREATED
    if not isinstance(result, TransferError):
        return Kind.UNKNOWN  # an error of the client's own says nothing for certain
    return {
        Outcome.CREATED: Kind.CREATED,
        Outcome.REFUSED: Kind.REFUSED,
        Outcome.NOT_SENT: Kind.NOT_SENT,
        Outcome.UNKNOWN: Kind.UNKNOWN,
    }[result.outcome]


def code_of(result: Order | Exception) -> int:
    """The exit code if every other order were created."""
    if isinstance(result, (Order, AlreadyCreated)):
        return process.DONE
    if isinstance(result, JournalFailed) and result.outcome is not Outcome.NOT_SENT:
        return process.UNKNOWN  # it is known here, and the journal will only know that it was sent
    if isinstance(result, Refused):
        return process.REFUSED if result.is_final else process.NOT_SENT
    return process.NOT_SENT if kind_of(result) is Kind.NOT_SENT else process.UNKNOWN


class Tally:
    """Counts.

    Attributes:
        counts: how many orders came to what.
        done: how many there are in all.
        owed: how many hooks could not be undone.
        made: how many of the orders came to be while this run went on; the others were there before.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self.done = self.owed = self.made = 0
        self._reasons: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._fields: Counter[str] = Counter()

    def add(self, result: Order | Exception) -> None:
        """Count one more."""
        self.done += 1
        self.counts[kind_of(result)] += 1
        self._reasons[code_of(result)][type(result).__name__] += 1
        if isinstance(result, Refused):
            self._fields.update(result.fields)

    @property
    def exit_code(self) -> int:
        """The highest that any order asks for."""
        return max((code for code, reasons in self._reasons.items() if reasons), default=process.DONE)

    def told(self) -> str:
        """The counts in one line, without those that are nothing."""
        return ", ".join(f"{count:,} {kind.value}" for kind, count in self.counts.items() if count) or "none"

    def advice(self) -> Iterator[str]:
        """What there is to know and to do, a line each."""
        if (before := self.counts[Kind.CREATED] - self.made) > 0:
            yield f"created before this run, and not again: {before:,}. Another payment needs another key"
        if count := self._reasons[process.UNKNOWN].total():
            yield (
                f"in doubt: {count:,}. These orders may exist: keep the holds, do not pay in another way; "
                "see: transfer-async journal list"
            )
        if reasons := self._reasons[process.NOT_SENT]:
            yield f"may end otherwise another time: {_counted(reasons)}. Run the same command again"
        reasons = self._reasons[process.REFUSED].copy()
        refuted = reasons.pop(Refuted.__name__, 0)
        if reasons:
            named = f" The service names: {_named(self._fields)}." if self._fields else ""
            yield (
                f"would be refused again: {_counted(reasons)}.{named} "
                "Correct these lines, under the same keys, and run the same command again"
            )
        if refuted:
            yield (
                f"certainly no order, after a doubt: {refuted:,}. These lines are not sent again: "
                "what is still to be paid needs another key"
            )
        if self.owed:
            yield f"undos that failed and are owed: {self.owed:,}; see: transfer-async journal recover"


def _counted(reasons: Counter[str]) -> str:
    """How many there are, and of which errors most of them."""
    return f"{reasons.total():,} ({_named(reasons)})"


def _named(counts: Counter[str]) -> str:
    named = dict(counts.most_common(NAMED))
    if others := counts.total() - sum(named.values()):
        named["others"] = others
    return ", ".join(f"{name} {count:,}" for name, count in named.items())
