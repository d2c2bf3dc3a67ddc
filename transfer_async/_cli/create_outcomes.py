"""The output of `create`: the outcomes file, the progress, and the summary with its exit code.

The outcomes file contains one JSON object per line, in order of completion::

    {"line": 7, "key": "payment-8731", "outcome": "created", "order_may_exist": true, "order_id": "tx-...",
     "state": "processing", "poster_amount": "155025.00", ...}
    {"line": 8, "key": "payment-8732", "outcome": "refused", "order_may_exist": false,
     "error": "Refused", "status": 422, "fields": ["poster_recipient_username"],
     "reason": "..."}

The fields have the same names as in `OrderOutcome`. The file contains no personal data.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from attrs import define, field, frozen

from transfer_async._cli import process
from transfer_async._cli.output import Say, shown
from transfer_async._converters.messages import ORDER_FIELDS
from transfer_async._converters.wire_format import plain
from transfer_async._models.errors import (
    AlreadyCreated,
    HoldRequired,
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    Outcome,
    Refused,
    Refuted,
    TransferError,
)
from transfer_async._models.responses import Order
from transfer_async._support.clock import Clock, in_two_units
from transfer_async.worker.handler import disposition

if TYPE_CHECKING:
    from rich import progress


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has none: two runs at once are not detected there
    fcntl = None  # type: ignore[assignment] # None stands for Windows

MODE = 0o600
PART, OLD = ".part", ".old"
_ENDINGS = ("", PART, OLD, PART + OLD)
"""The endings of the names of the files that a run writes, and of those that earlier runs left behind."""

KEPT = 512
"""A write is due when this many lines are queued."""

EVERY = 1.0
"""A write is due this many seconds after the last one."""

_encode = msgspec.json.Encoder().encode


def outcome_line(line: int, key: str, result: Order | Exception) -> bytes:
    """Encode the outcome of the order on ``line`` as a line of JSON."""
    fields = {"line": line, "key": key, "outcome": outcome_of(result).value, "order_may_exist": True}
    if isinstance(result, Order):
        fields |= {"order_id": result.id, "state": result.state.value}
        for name in ORDER_FIELDS:
            value = getattr(result, name)
            fields[name] = plain(value) if isinstance(value, Decimal) else value
    elif isinstance(result, AlreadyCreated):
        fields["order_id"] = result.order_id
    else:
        fields |= _error_fields(result)
    return _encode(fields) + b"\n"


def _error_fields(error: Exception) -> dict[str, Any]:
    known = isinstance(error, TransferError)
    fields = {
        "order_may_exist": error.order_may_exist if isinstance(error, TransferError) else True,
        "order_id": getattr(getattr(error, "order", None), "id", None) or getattr(error, "order_id", None),
        "error": type(error).__name__,
        "status": getattr(error, "status", None) if known else None,
        "fields": (error.fields or None) if isinstance(error, Refused) else None,
        "reason": disposition(error).reason,
    }
    return {name: value for name, value in fields.items() if value is not None}


class OutcomeFile:
    """The outcomes file, written as ``.part`` and renamed once it contains a line for every order.

    The file of an earlier run is renamed to ``.old``, because its outcomes may be out of date. The outcomes
    of interrupted runs are kept in ``.part.old`` until a run is complete, because perhaps no other file names
    their orders.

    Args:
        path: the path of the complete file.
        protected: files that must not be overwritten, even through a link.
        clock: for tests.
        option: the option to name at the beginning of error messages.

    Raises:
        ValueError: the file cannot be written, or another run is writing it.
    """

    def __init__(
        self,
        path: Path,
        *,
        protected: tuple[Path, ...] = (),
        clock: Clock | None = None,
        option: str = "--outcomes",
    ) -> None:
        check_place(path, protected=protected, option=option)
        self.path = path
        self.part = path.with_name(path.name + PART)
        self._now = (clock or Clock()).now
        self._kept: list[bytes] = []
        self._written_at = self._now()
        try:
            self._file = _open_locked(self.part, option)
        except OSError as error:
            raise ValueError(f"{option}: cannot write {shown(str(self.part))} ({error.strerror})") from None
        try:
            with contextlib.suppress(FileNotFoundError):
                path.replace(path.with_name(path.name + OLD))
        except OSError as error:
            os.close(self._file)
            raise ValueError(
                f"{option}: cannot rename {shown(str(path))} to .old ({error.strerror})"
            ) from None

    def add(self, line: bytes) -> None:
        """Queue a line for the next `write`."""
        self._kept.append(line)

    @property
    def is_due(self) -> bool:
        """Return whether the queued lines should be written now."""
        return len(self._kept) >= KEPT or self._now() - self._written_at >= EVERY

    def write(self) -> None:
        """Write the queued lines.

        Raises:
            OSError: the disk is full or has failed.
        """
        data, self._kept, self._written_at = memoryview(b"".join(self._kept)), [], self._now()
        while data:
            data = data[os.write(self._file, data) :]

    def finish(self) -> None:
        """Write the queued lines, and durably rename the ``.part`` file.

        Raises:
            OSError: the disk is full or has failed.
        """
        self.write()
        os.fsync(self._file)
        if fcntl is None:
            self.close()  # Windows cannot rename an open file
        self.part.replace(self.path)
        with contextlib.suppress(OSError):  # Some file systems cannot sync a directory; the file is complete.
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        with contextlib.suppress(OSError):  # If FILE has not changed, the new file contains all these orders.
            self.part.with_name(self.part.name + OLD).unlink()

    def close(self) -> None:
        """Close the file. It is safe to call `close` more than once."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class _EarlierLine(msgspec.Struct):
    key: str
    outcome: Outcome
    order_may_exist: bool = False
    error: str | None = None

    @property
    def must_be_in_journal(self) -> bool:
        """Whether the journal must have a record of the key."""
        return (
            self.outcome in (Outcome.CREATED, Outcome.UNKNOWN)
            or (self.outcome is Outcome.REFUSED and self.order_may_exist)
            or self.error in _USED_BY_ANOTHER_CALL
        )


_USED_BY_ANOTHER_CALL = (KeyBusy.__name__, KeyConflict.__name__)
"""The errors that mean that another call's order, which the line did not create, may exist for the key."""


_earlier_line = msgspec.json.Decoder(_EarlierLine)
_LONGEST_LINE = 1 << 20


@frozen(kw_only=True)
class EarlierOrder:
    """An order that exists or may exist, according to the outcomes of an earlier run."""

    key: str
    outcome: Outcome  # not created or unknown if it is the order of another call with this key
    file: Path  # the file that contains the outcome


def orders_of_earlier_runs(path: Path, unreadable: Counter[Path]) -> Iterator[EarlierOrder]:
    """Yield the orders that exist or may exist, according to the outcomes of earlier runs.

    Args:
        path: the path of the complete file.
        unreadable: receives the number of unreadable lines of each file. These lines are skipped.

    Raises:
        ValueError: a file exists and cannot be read.
    """
    for file in (path.with_name(path.name + end) for end in _ENDINGS):
        try:
            with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
                for text in iter(partial(lines.readline, _LONGEST_LINE), b""):
                    try:
                        line = _earlier_line.decode(text)
                    except (msgspec.MsgspecError, UnicodeDecodeError):
                        unreadable[file] += 1
                        continue
                    if line.must_be_in_journal:
                        yield EarlierOrder(key=line.key, outcome=line.outcome, file=file)
        except OSError as error:
            raise ValueError(
                f"--outcomes: cannot read {shown(str(file))} ({error.strerror or error}), which may contain "
                "orders of earlier runs; nothing was sent"
            ) from None


def check_place(path: Path, *, protected: tuple[Path, ...] = (), option: str = "--outcomes") -> None:
    """Check that an `OutcomeFile` can be written to ``path``.

    Raises:
        ValueError: the directory does not exist, or the name is already in use.
    """
    if not path.name:
        raise ValueError(f"{option}: must be the path of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: the directory {shown(str(path.parent))} does not exist")
    for item in (path.with_name(path.name + end) for end in _ENDINGS):
        if item.is_symlink() or (item.exists() and not stat.S_ISREG(item.stat().st_mode)):
            raise ValueError(
                f"{option}: {shown(str(item))} exists and is not a regular file: choose another path"
            )
        if any(_is_same(item, other) for other in protected):
            raise ValueError(f"{option}: {shown(str(item))} is also FILE or the journal: choose another path")


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.absolute() == other.absolute()


def _open_locked(path: Path, option: str) -> int:
    """Open an empty file, and lock it until the file is closed.

    Raises:
        ValueError: another run has locked the file.
    """
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), MODE)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_in_place = _is_at(file, path)
            if is_in_place and not os.fstat(file).st_size:
                path.chmod(MODE)
                return file
            if is_in_place and fcntl is not None:
                _set_aside(path)  # while no other run can write to it
        except BlockingIOError:
            os.close(file)
            raise ValueError(
                f"{option}: another run is writing {shown(str(path))}: wait until that run has "
                "finished, or choose another path"
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # This or another run has renamed this file: open a new one.
        if is_in_place and fcntl is None:
            _set_aside(path)  # Windows cannot rename an open file.


def _set_aside(part: Path) -> None:
    """Move the outcomes of an interrupted run to ``.part.old``, behind those of earlier interrupted runs."""
    old = part.with_name(part.name + OLD)
    if not old.exists():
        part.replace(old)
        return
    with part.open("rb") as outcomes, old.open("r+b") as kept:
        if kept.seek(0, os.SEEK_END):
            kept.seek(-1, os.SEEK_END)
            ends_in_a_line = kept.read() == b"\n"
            kept.write(b"" if ends_in_a_line else b"\n")
        shutil.copyfileobj(outcomes, kept)
        kept.flush()
        os.fsync(kept.fileno())
    part.unlink()


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


# --- progress ----------------------------------------------------------------------------------------

PROGRESS_EVERY = 5.0
"""Seconds between two lines of progress."""

UPDATED_EVERY = 0.1
"""Minimum seconds between two updates, because drawing the bar takes longer than creating an order."""

SPAN = 30.0
"""Seconds over which the rate is measured. It is short, because a repeated run quickly skips the lines that
are already done.
"""


class Pace:
    """Measures the number of lines per second over the last `SPAN` seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> None:
        """Record that ``done`` lines were finished at the time ``now``."""
        while self._seen and now - self._seen[0][0] > SPAN:
            self._seen.popleft()
        if done > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((now, done))

    @property
    def rate(self) -> float | None:
        """The number of lines per second, or None if it is not known yet."""
        if not self._seen:
            return None
        (since, before), (until, done) = self._seen[0], self._seen[-1]
        return (done - before) / (until - since) if until > since else None


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return in_two_units(round(seconds))


@define(eq=False, slots=False)
class Progress:
    """Shows progress as a line every few seconds."""

    say: Say  # writes a line
    _clock: Clock = field(factory=Clock, kw_only=True)
    _what: str | None = field(default=None, init=False)
    _updated: float = field(default=0.0, init=False)
    _shown_at: float = field(default=0.0, init=False)
    _pace: Pace = field(factory=Pace, init=False)

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Update the bar or write a line, if enough time has passed since the last update.

        Args:
            what: the name of the step.
            done: the number of finished lines.
            total: the total number of lines, or None if it is not known yet.
            counts: the number of orders with each outcome, as text.
        """
        now = self._clock.now()
        if what != self._what:
            self._what, self._shown_at, self._pace = what, now, Pace()
            self._begin()
        elif done != total and now - self._updated < UPDATED_EVERY:
            return
        self._updated = now
        self._pace.note(now, done)
        self._draw(_progress_line(what, done, total, counts, rate=self._pace.rate), done, total)

    def _begin(self) -> None:
        pass

    def _draw(self, line: str, _done: int, _total: int | None) -> None:
        if self._updated - self._shown_at >= PROGRESS_EVERY:
            self._shown_at = self._updated
            self.say(line)


class BarProgress(Progress):
    """Shows progress as a bar on a terminal, using rich. Messages appear above the bar."""

    def __init__(self, bars: progress.Progress, say: Say, *, clock: Clock) -> None:
        super().__init__(say, clock=clock)
        self._bars = bars

    def _begin(self) -> None:
        for before in self._bars.task_ids:
            self._bars.remove_task(before)
        self._bars.add_task("", total=None)

    def _draw(self, line: str, done: int, total: int | None) -> None:
        (task,) = self._bars.task_ids
        self._bars.update(task, completed=done, total=total, description=line)


def _progress_line(what: str, done: int, total: int | None, counts: str, *, rate: float | None) -> str:
    pace = f"{rate or 0:,.0f} a second"
    if total is None:
        return f"{what}: {done:,} lines, {pace}"
    pace = f"{pace}, {duration(math.ceil((total - done) / rate))} left" if rate else "no rate yet"
    return f"{what}: {done:,} of {total:,} lines: {counts}; {pace}"


@contextmanager
def shown_progress(say: Say, *, live: bool, quiet: bool, clock: Clock | None = None) -> Iterator[Progress]:
    """Show progress as a bar if ``live``, as lines otherwise, and not at all if ``quiet``."""
    clock = clock or Clock()
    if quiet or not live:
        yield Progress((lambda _: None) if quiet else say, clock=clock)
        return
    from rich import console, progress  # takes 60 ms

    err = console.Console(stderr=True)
    bars = progress.Progress(
        progress.BarColumn(),
        progress.TextColumn("{task.description}", markup=False),
        console=err,
        transient=True,
        refresh_per_second=5,
        redirect_stdout=False,
        get_time=clock.now,
    )
    with bars:
        above = partial(err.print, markup=False, highlight=False)
        yield BarProgress(bars, above, clock=clock)


# --- tally -------------------------------------------------------------------------------------------

_SHOWN_OUTCOMES = (Outcome.CREATED, Outcome.REFUSED, Outcome.NOT_SENT, Outcome.UNKNOWN)  # in this order
NAMED = 3
"""The maximum number of reasons that the summary names; the other reasons are only counted."""


def outcome_of(result: Order | Exception) -> Outcome:
    """Return the outcome of an order. After an unexpected error, the outcome is unknown."""
    if isinstance(result, Order):
        return Outcome.CREATED
    return result.outcome if isinstance(result, TransferError) else Outcome.UNKNOWN


def code_of(result: Order | Exception) -> int:
    """Return the exit code for the result of one order."""
    if isinstance(result, (Order, AlreadyCreated)):
        return process.DONE
    if isinstance(result, JournalFailed) and result.outcome is not Outcome.NOT_SENT:
        # The journal has recorded only that the order was sent, so the key is in doubt.
        return process.UNKNOWN
    if isinstance(result, Refused):
        return process.REFUSED if result.is_final else process.NOT_SENT
    return process.NOT_SENT if outcome_of(result) is Outcome.NOT_SENT else process.UNKNOWN


_LASTING = (KeyConflict, HoldRequired, InvalidOrder)
"""The errors that the same command would meet again.

After any other error, the same command may send the order. For example, a hook may accept an order that it
refused before, and an order that expired because of ``--rate`` may be in time.
"""


@define(eq=False)
class Tally:
    """Counts the outcomes."""

    counts: dict[Outcome, int] = field(factory=lambda: dict.fromkeys(_SHOWN_OUTCOMES, 0))
    done: int = 0  # the number of orders with an outcome
    undos_pending: int = 0  # the number of undos that failed
    made: int = 0  # the number of orders that this run created; other orders existed before
    _reasons: defaultdict[int, Counter[str]] = field(factory=lambda: defaultdict(Counter), init=False)
    _fields: Counter[str] = field(factory=Counter, init=False)
    # How often each of `_LASTING` occurred.
    _lasting: Counter[str] = field(factory=Counter, init=False)

    def add(self, result: Order | Exception) -> None:
        """Count the outcome of one order."""
        self.done += 1
        self.counts[outcome_of(result)] += 1
        self._reasons[code_of(result)][type(result).__name__] += 1
        if isinstance(result, Refused):
            self._fields.update(result.fields)
        if isinstance(result, _LASTING):
            self._lasting[type(result).__name__] += 1

    @property
    def exit_code(self) -> int:
        """The highest exit code that any order requires."""
        return max((code for code, reasons in self._reasons.items() if reasons), default=process.DONE)

    def counted(self) -> str:
        """Return the non-zero counts as one line of text."""
        counts = [f"{count:,} {outcome.value}" for outcome, count in self.counts.items() if count]
        return ", ".join(counts).replace("_", " ") or "none"

    def advice(self) -> Iterator[str]:
        """Yield lines that explain what happened and what to do next."""
        if (before := self.counts[Outcome.CREATED] - self.made) > 0:
            yield (
                f"already created before this run: {before:,}. "
                "To make one of these payments again, use another key"
            )
        if count := self._reasons[process.UNKNOWN].total():
            yield (
                f"in doubt: {count:,}. These orders may exist: keep the holds, do not pay by other means, "
                "and run: transfer-async journal list"
            )
        if self._lasting:
            yield (
                f"not sent, and the same command would not send them: {_counted(self._lasting)}. Read the "
                "reasons in the outcomes before you change these lines"
            )
        if conflicts := self._lasting[KeyConflict.__name__]:
            yield (
                f"{KeyConflict.__name__}: {conflicts:,}. This key already has another order; a new key makes "
                "a second payment"
            )
        if reasons := self._reasons[process.NOT_SENT] - self._lasting:
            yield (
                f"may succeed later: {_counted(reasons)}. The same command may send these orders: run it "
                "again, and do not pay them by other means"
            )
        reasons = self._reasons[process.REFUSED].copy()
        refuted = reasons.pop(Refuted.__name__, 0)
        if reasons:
            named = f" The service named these fields: {_named(self._fields)}." if self._fields else ""
            yield (
                f"would be refused again: {_counted(reasons)}.{named} "
                "Correct these lines, keep their keys, and run the same command again"
            )
        if refuted:
            yield (
                f"refuted: {refuted:,}. These orders were in doubt and do not exist. They are "
                "not sent again: to make the payments, use other keys"
            )
        if self.undos_pending:
            pending = f"failed undos, now pending: {self.undos_pending:,}"
            yield f"{pending}. Run: transfer-async journal recover"


def _counted(reasons: Counter[str]) -> str:
    return f"{reasons.total():,} ({_named(reasons)})"


def _named(counts: Counter[str]) -> str:
    named = dict(counts.most_common(NAMED))
    if others := counts.total() - sum(named.values()):
        named["others"] = others
    return ", ".join(f"{name} {count:,}" for name, count in named.items())
