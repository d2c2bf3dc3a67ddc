"""The progress of a load: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from benchmarks.programs.load.driver import StepLimits
from benchmarks.programs.load.tally import KINDS, LoadTally
from transfer_async._cli.output import Say


class Board(Protocol):
    """Shows how far a step has come.

    Attributes:
        every: seconds between two looks at it.
    """

    every: float

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Show the state of things."""
        ...


class PlainBoard:
    """A line now and then."""

    every = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Write a line."""
        del limits
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(tally.kinds.items()))
        self._say(
            f"{title}: {seconds:5.1f} s, {tally.begun} begun, {tally.begun - tally.done} on their way; "
            f"{kinds or 'none ended yet'}; median {_ms(tally.latency.at(50))}, "
            f"99 % {_ms(tally.latency.at(99))}"
        )


class LiveBoard:
    """A table that changes while orders end, by rich."""

    every = 0.25

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Redraw: a bar, the outcomes, and the latencies so far."""
        from rich.console import Group  # with the extra, and only on a terminal
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        part = max(seconds / limits.seconds, tally.begun / limits.orders)
        table = Table(
            "so far", "", title=f"{title}, {seconds:.1f} s", title_justify="left", show_header=False
        )
        for kind in (*KINDS.values(), "broken"):
            if kind in tally.kinds or kind == "created":
                table.add_row(kind, str(tally.kinds[kind]))
        table.add_row("on their way", str(tally.begun - tally.done))
        for percent in (50, 99, 100):
            name = "slowest" if percent == 100 else f"{percent} % within"
            table.add_row(name, _ms(tally.latency.at(percent)))
        self._live.update(Group(ProgressBar(total=1.0, completed=min(part, 1.0), width=40), table))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@contextmanager
def live_or_plain(say: Say, *, live: bool) -> Iterator[Board]:
    """Give a live view where that is wanted; plain lines otherwise."""
    if not live:
        yield PlainBoard(say)
        return
    from rich.live import Live  # with the extra, and only on a terminal

    with Live(refresh_per_second=8, transient=True) as view:
        yield LiveBoard(view)


@asynccontextmanager
async def shown(board: Board, title: str, limits: StepLimits, tally: LoadTally) -> AsyncIterator[None]:
    """Show a step on the board while the block runs."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def show() -> None:
        while True:
            board.show(title, loop.time() - began, limits, tally)
            await asyncio.sleep(board.every)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
