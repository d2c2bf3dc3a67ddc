"""How a worker meets its fate: at the point that was set for the command it is at, and nowhere else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attrs import define

from tests.crash.processes import Channel
from tests.crash.setting import Point


@define(eq=False)
class Delivery:
    """A command as one worker got it; ``attempt`` is the token of its mark, once it has one."""

    number: int
    key: str
    point: Point | None = None
    signal: int = signal.SIGKILL
    attempt: str | None = None


at_work: ContextVar[Delivery] = ContextVar("at_work")
"""The delivery that the current task works at; every task that comes of it inherits it."""


class Fate:
    """Ends or stops this process where the harness said."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._writing = 0
        self._nobody_writes = asyncio.Event()

    def awaits(self, point: Point) -> bool:
        """Whether this is the point for the delivery at work."""
        delivery = at_work.get(None)
        return delivery is not None and delivery.point is point

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say that a move is on its way to the journal while the block runs."""
        self._writing += 1
        self._nobody_writes.clear()
        try:
            yield
        finally:
            self._writing -= 1
            if not self._writing:
                self._nobody_writes.set()

    async def meet(self, point: Point) -> None:
        """Come by a point."""
        if self.awaits(point):
            # Whoever sleeps with the journal's lock stops everybody.
            while at_work.get().signal == signal.SIGSTOP and self._writing:
                await self._nobody_writes.wait()
            self.meet_now(point)

    def meet_now(self, point: Point) -> None:
        """Come by a point, whatever else this process is doing."""
        if self.awaits(point):
            delivery = at_work.get()
            delivery.point = None  # whoever was only stopped goes on from here
            self._channel.tell(met=point, signal=delivery.signal, delivery=delivery.number)
            os.kill(os.getpid(), delivery.signal)
