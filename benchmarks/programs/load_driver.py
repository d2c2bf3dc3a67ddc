"""The loops of a load: open (a fixed rate) and closed (a fixed concurrency).

In the open loop an order starts at its planned time, however many are in flight, and its latency counts
from that time. So the effect of a slow response on later orders is measured (no coordinated omission). In
the closed loop the next order starts when one ends. It shows the throughput, and the latencies of a waiting
caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping

from attrs import define, field, frozen
from hdrh.histogram import HdrHistogram

from transfer_async._models.errors import Outcome, TransferError

KINDS: Mapping[Outcome, str] = {
    Outcome.CREATED: "created",
    Outcome.REFUSED: "refused",
    Outcome.NOT_SENT: "not sent",
    Outcome.UNKNOWN: "unknown",
}
"""What an order can end in."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)

_UNITS = 1_000_000  # a histogram counts microseconds
_LONGEST = 3_600 * _UNITS


class Histogram:
    """Seconds, kept to three digits whether they are few or many, in constant memory (HDR)."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LONGEST, 3)

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts.record_value(min(max(round(seconds * _UNITS), 1), _LONGEST))

    def at(self, percent: float) -> float:
        """The seconds that so many percent did not exceed; 0 of none."""
        return float(self._counts.get_value_at_percentile(percent)) / _UNITS if self.count else 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._counts.total_count)

    def packed(self) -> str:
        """All of it, in the form that every HDR histogram library reads: base64, in microseconds."""
        packed: bytes = self._counts.encode()
        return packed.decode()


@frozen
class OrderEnding:
    """How one order ended.

    Args:
        kind: one of `KINDS`; "broken" where something raised that is none of the client's errors.
        error: the name of the error's class, and the status if there was one; None of a created one.
    """

    kind: str
    error: str | None = None


CREATED = OrderEnding("created")


def ending_of(error: Exception) -> OrderEnding:
    """Say how an order ended whose call raised ``error``."""
    if not isinstance(error, TransferError):
        return OrderEnding("broken", type(error).__name__)
    status = getattr(error, "status", None)
    name = type(error).__name__
    return OrderEnding(KINDS[error.outcome], name if status is None else f"{name} {status}")


@define
class LoadTally:
    """The counts of one step, while it runs and at its end.

    Args:
        latency: of each order, from the moment at which it was *meant* to start.
        late: of each order, how long after that moment it did start: the driver's own fault.
        kinds: how many orders ended in what.
        errors: how many in which error.
        begun: how many orders were begun.
        seconds: from the first moment to the last end.
        cpu: seconds of processor time that this process used meanwhile.
    """

    latency: Histogram = field(factory=Histogram)
    late: Histogram = field(factory=Histogram)
    kinds: Counter[str] = field(factory=Counter)
    errors: Counter[str] = field(factory=Counter)
    begun: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, ending: OrderEnding, *, latency: float) -> None:
        """Count one order that ended."""
        self.kinds[ending.kind] += 1
        self.latency.add(latency)
        if ending.error is not None:
            self.errors[ending.error] += 1

    @property
    def done(self) -> int:
        """How many orders ended."""
        return self.kinds.total()

    @property
    def rate(self) -> float:
        """Orders created a second."""
        return self.kinds["created"] / self.seconds if self.seconds else 0.0

    @property
    def cpu_each(self) -> float:
        """Seconds of processor time for each order that ended."""
        return self.cpu / self.done if self.done else 0.0


# --- the driver -----------------------------------------------------------------------------------

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
