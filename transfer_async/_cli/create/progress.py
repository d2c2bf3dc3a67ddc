"""How far a run has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from transfer_async._cli.console.output import Say
from transfer_async._support.clock import Clock

if TYPE_CHECKING:
    from rich import progress

EVERY = 5.0
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
        if self._looked - self._told >= EVERY:
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
