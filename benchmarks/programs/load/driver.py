"""The loops of a load: open (a fixed rate) and closed (a fixed concurrency).

In the open loop an order starts at its planned time, however many are in flight, and its latency counts
from that time. So the effect of a slow response on later orders is measured (no coordinated omission). In
the closed loop the next order starts when one ends. It shows the throughput, and the latencies of a waiting
caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

from attrs import define, frozen

from benchmarks.programs.load.tally import LoadTally, OrderEnding

Work = Callable[[int], Awaitable[OrderEnding]]
"""Sends one order, and says how it ended."""

NAP = 0.1
"""Seconds after which a driver that sleeps looks whether it is to stop."""


@frozen
class StepLimits:
    """When to begin no more orders.

    Args:
        seconds: after the start.
        orders: begun in all.
    """

    seconds: float
    orders: int


@define
class Stop:
    """Whether somebody wants it to end; what is on its way comes to its end all the same."""

    wanted: bool = False


@define
class Driver:
    """One step of a load.

    Args:
        work: sends an order.
        limits: when to begin no more.
        tally: counts.
        stop: may end it earlier.
        first: the number of the first order.
        patience: seconds for what is on its way, once no more are begun; then it is cancelled.
    """

    work: Work
    limits: StepLimits
    tally: LoadTally
    stop: Stop
    first: int = 0
    patience: float = 60.0

    async def open(self, arrivals: Iterator[float]) -> None:
        """Begin an order at each of the moments."""
        began, cpu = _now(), time.process_time()
        tasks: set[asyncio.Task[None]] = set()
        for moment in arrivals:
            if moment >= self.limits.seconds or not await self._due(began + moment):
                break
            task = asyncio.create_task(self._one(began + moment))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await self._rest(tasks)
        self._end(began, cpu)

    async def closed(self, at_once: int) -> None:
        """Keep so many orders on their way."""
        began, cpu = _now(), time.process_time()
        until = began + self.limits.seconds

        async def place() -> None:
            while _now() < until and not self._is_over():
                await self._one(_now())

        tasks = {asyncio.create_task(place()) for _ in range(at_once)}
        await self._rest(tasks, after=self.limits.seconds)
        self._end(began, cpu)

    async def _due(self, moment: float) -> bool:
        """Wait for ``moment``; false if no more are to begin."""
        while not self._is_over():
            left = moment - _now()
            if left <= 0:
                return True
            await asyncio.sleep(min(left, NAP))
        return False

    def _is_over(self) -> bool:
        return self.stop.wanted or self.tally.begun >= self.limits.orders

    async def _one(self, meant: float) -> None:
        number = self.first + self.tally.begun
        self.tally.begun += 1
        self.tally.late.add(_now() - meant)
        ending = await self.work(number)
        self.tally.add(ending, latency=_now() - meant)

    async def _rest(self, tasks: set[asyncio.Task[None]], *, after: float = 0.0) -> None:
        left = set(tasks)
        if left:
            _, left = await asyncio.wait(left, timeout=after + self.patience)
        for task in left:
            task.cancel()
        # A task that raised says so: whatever an order can end in is no exception here.
        await asyncio.gather(*left, return_exceptions=True)

    def _end(self, began: float, cpu: float) -> None:
        self.tally.seconds, self.tally.cpu = _now() - began, time.process_time() - cpu


def _now() -> float:
    return asyncio.get_running_loop().time()
