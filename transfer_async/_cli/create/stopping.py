"""How a run is stopped: the first signal lets what has begun come to its end, the second cuts it off."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from transfer_async._cli.console.signals import on_signals

T = TypeVar("T")


class Stopping:
    """What was asked for by signals.

    Attributes:
        asked: a signal came.
        cut: a second one did.
        by: the first.
    """

    def __init__(self) -> None:
        self.asked, self.cut = asyncio.Event(), asyncio.Event()
        self.by: signal.Signals | None = None

    def ask(self, number: int) -> None:
        """Take a signal."""
        if self.by is None:
            self.by = signal.Signals(number)
            self.asked.set()
        else:
            self.cut.set()

    @property
    def exit_code(self) -> int | None:
        """As shells have it: 128 and the signal's number."""
        return None if self.by is None else 128 + self.by

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """What ``work`` comes to; None, and it is cancelled, if a signal comes first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, asked):
                one.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM for as long as this lasts."""
        if threading.current_thread() is not threading.main_thread():  # signals come to that one alone
            yield
            return
        with on_signals(self.ask):
            yield
