"""How far a run has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from transfer_async._cli.console.output import Say
from transfer_async._support.clock import Clock

EVERY = 5.0
"""Seconds between two lines."""

DRAWN_EVERY = 0.1
"""Seconds between two looks of the bar: an order takes less time than drawing it."""

SPAN = 30.0
"""The rate is that of the last so many seconds: a run that goes on begins with what is done already."""


class Pace:
    """How fast it goes.

    Args:
        now: seconds.
        done: how many are done already.
    """

    def __init__(self, now: Callable[[], float], done: int = 0) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque([(now(), done)])

    def note(self, done: int) -> None:
        """So many are done by now."""
        at = self._now()
        if at - self._seen[-1][0] >= SPAN / 30 or len(self._seen) == 1:
            self._seen.append((at, done))
        else:
            self._seen[-1] = (self._seen[-1][0], done)
        while at - self._seen[1][0] > SPAN:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """How many a second, lately; 0 where nobody can say."""
        (began, before), (_, done) = self._seen[0], self._seen[-1]
        seconds = self._now() - began
        return (done - before) / seconds if seconds > 0 else 0.0

    def told(self, total: int) -> str:
        """The rate, and the time left."""
        rate, left = self.rate, total - self._seen[-1][1]
        if rate <= 0:
            return "no rate yet"
        return f"{rate:,.0f} a second, {duration(left / rate)} left"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


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


class PlainProgress:
    """A line every few seconds.

    Args:
        say: writes it.
        clock: for tests.
    """

    def __init__(self, say: Say, *, clock: Clock | None = None) -> None:
        self._write, self._now = say, (clock or Clock()).now
        self._what: str | None = None
        self._last = self._now()
        self._pace = Pace(self._now)

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Write a line, if it is time."""
        if what != self._what:
            self._what, self._last, self._pace = what, self._now(), Pace(self._now, done)
        self._pace.note(done)
        if self._now() - self._last >= EVERY:
            self._last = self._now()
            self.say(progress_line(what, done, total, counts, self._pace))

    def say(self, line: str) -> None:
        """Write a line."""
        self._write(line)


def progress_line(what: str, done: int, total: int | None, counts: str, pace: Pace) -> str:
    """How far it has come, in a line."""
    if total is None:
        return f"{what}: {done:,} lines, {pace.rate:,.0f} a second"
    return f"{what}: {done:,} of {total:,} lines: {counts}; {pace.told(total)}"


class LiveProgress:
    """A bar, by rich.

    Args:
        live: rich's own.
        clock: for tests.
    """

    def __init__(self, live: Any, *, clock: Clock | None = None) -> None:
        self._live, self._now = live, (clock or Clock()).now
        self._task: Any = None
        self._what: str | None = None
        self._pace = Pace(self._now)
        self._last = 0.0

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Move the bar, if it is time."""
        if what != self._what:
            if self._task is not None:
                self._live.remove_task(self._task)
            self._what, self._pace = what, Pace(self._now, done)
            self._task = self._live.add_task("", total=total)
        self._pace.note(done)
        if done != total and self._now() - self._last < DRAWN_EVERY:
            return
        self._last = self._now()
        line = progress_line(what, done, total, counts, self._pace)
        self._live.update(self._task, completed=done, total=total, description=line)

    def say(self, line: str) -> None:
        """Write a line above the bar."""
        self._live.console.print(line, markup=False, highlight=False)


@contextmanager
def shown_progress(say: Say, *, live: bool, quiet: bool) -> Iterator[Progress]:
    """A bar where that is wanted and rich is installed, lines otherwise; or nothing."""
    if quiet:
        yield Silence()
        return
    try:
        if not live:
            raise ImportError  # noqa: TRY301 - as if there were none
        from rich.console import Console  # an extra's
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield PlainProgress(say)
        return
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, refresh_per_second=5, redirect_stdout=False) as bars:
        yield LiveProgress(bars)
