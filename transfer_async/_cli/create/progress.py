"""How far a run has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

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


class RichProgress:
    """A task of rich's, which knows how fast it goes and how long that will take.

    Args:
        bars: rich's own, drawn or not.
        say: writes a line.
        told_every: seconds between two lines of how far it has come; None where bars are drawn.
        clock: for tests.
    """

    def __init__(
        self, bars: progress.Progress, say: Say, *, told_every: float | None, clock: Clock | None = None
    ) -> None:
        self._bars, self._say, self._told_every = bars, say, told_every
        self._now = (clock or Clock()).now
        self._what: str | None = None
        self._looked = self._told = 0.0

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        """Move the bar or write a line, if it is time."""
        now = self._now()
        if what != self._what:
            self._begin(what)
        elif done != total and now - self._looked < LOOKED_AT_EVERY:
            return
        self._looked = now
        (task,) = self._bars.tasks
        self._bars.update(task.id, completed=done, total=total)
        line = progress_line(what, task, counts)
        self._bars.update(task.id, description=line)
        if self._told_every is not None and now - self._told >= self._told_every:
            self._told = now
            self._say(line)

    def _begin(self, what: str) -> None:
        self._what, self._told = what, self._now()
        for before in self._bars.task_ids:
            self._bars.remove_task(before)
        self._bars.add_task("", total=None)

    def say(self, line: str) -> None:
        """Write a line, above the bar."""
        self._say(line)


def progress_line(what: str, task: progress.Task, counts: str) -> str:
    """How far it has come, in a line."""
    rate, done = f"{task.speed or 0:,.0f} a second", f"{task.completed:,.0f}"
    if task.total is None:
        return f"{what}: {done} lines, {rate}"
    left = task.time_remaining
    pace = "no rate yet" if left is None or not task.speed else f"{rate}, {duration(left)} left"
    return f"{what}: {done} of {task.total:,.0f} lines: {counts}; {pace}"


@contextmanager
def shown_progress(say: Say, *, live: bool, quiet: bool, clock: Clock | None = None) -> Iterator[Progress]:
    """A bar where that is wanted, lines otherwise; or nothing."""
    if quiet:
        yield Silence()
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
        speed_estimate_period=SPAN,
        get_time=(clock or Clock()).now,
    )
    if not live:  # never begun, they are never drawn
        yield RichProgress(bars, say, told_every=EVERY, clock=clock)
        return
    with bars:
        above = partial(err.print, markup=False, highlight=False)
        yield RichProgress(bars, above, told_every=None, clock=clock)
