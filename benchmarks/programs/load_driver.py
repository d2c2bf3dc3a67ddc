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

OUTCOME_NAMES: Mapping[Outcome, str] = {
    Outcome.CREATED: "created",
    Outcome.REFUSED: "refused",
    Outcome.NOT_SENT: "not sent",
    Outcome.UNKNOWN: "unknown",
}
"""What an order can end in."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)

_UNITS = 1_000_000  # a histogram counts microseconds
_MAX_UNITS = 3_600 * _UNITS


class Histogram:
    """Seconds, kept to three digits whether they are few or many, in constant memory (HDR)."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _MAX_UNITS, 3)

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts.record_value(min(max(round(seconds * _UNITS), 1), _MAX_UNITS))

    def percentile(self, percent: float) -> float:
        """The seconds that so many percent did not exceed; 0 of none."""
        return float(self._counts.get_value_at_percentile(percent)) / _UNITS if self.count else 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._counts.total_count)

    def encoded(self) -> str:
        """All of it, in the form that every HDR histogram library reads: base64, in microseconds."""
        encoded: bytes = self._counts.encode()
        return encoded.decode()


@frozen
class OrderResult:
    """How one order ended.

    Args:
        kind: one of `OUTCOME_NAMES`; "broken" where something raised that is none of the client's errors.
        error: the name of the error's class, and the status if there was one; None of a created one.
    """

    kind: str
    error: str | None = None


CREATED = OrderResult("created")


def result_of(error: Exception) -> OrderResult:
    """Say how an order ended whose call raised ``error``."""
    if not isinstance(error, TransferError):
        return OrderResult("broken", type(error).__name__)
    status = getattr(error, "status", None)
    name = type(error).__name__
    return OrderResult(OUTCOME_NAMES[error.outcome], name if status is None else f"{name} {status}")


@define
class StepStats:
    """The counts of one step, while it runs and at its end.

    Args:
        latency: of each order, from the moment at which it was *meant* to start.
        start_delay: of each order, how long after that moment it did start: the driver's own fault.
        kinds: how many orders ended in what.
        errors: how many in which error.
        started: how many orders were begun.
        seconds: from the first moment to the last end.
        cpu: seconds of processor time that this process used meanwhile.
    """

    latency: Histogram = field(factory=Histogram)
    start_delay: Histogram = field(factory=Histogram)
    kinds: Counter[str] = field(factory=Counter)
    errors: Counter[str] = field(factory=Counter)
    started: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, result: OrderResult, *, latency: float) -> None:
        """Count one order that ended."""
        self.kinds[result.kind] += 1
        self.latency.add(latency)
        if result.error is not None:
            self.errors[result.error] += 1

    @property
    def completed(self) -> int:
        """How many orders ended."""
        return self.kinds.total()

    @property
    def rate(self) -> float:
        """Orders created a second."""
        return self.kinds["created"] / self.seconds if self.seconds else 0.0

    @property
    def cpu_per_order(self) -> float:
        """Seconds of processor time for each order that ended."""
        return self.cpu / self.completed if self.completed else 0.0


# --- the driver -----------------------------------------------------------------------------------

SendOrder = Callable[[int], Awaitable[OrderResult]]
"""Sends one order, and says how it ended."""

POLL_INTERVAL = 0.1
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

    requested: bool = False


@define
class Driver:
    """One step of a load.

    Args:
        send: sends an order.
        limits: when to begin no more.
        stats: counts.
        stop: may end it earlier.
        first: the number of the first order.
        drain_timeout: seconds for what is on its way, once no more are begun; then it is cancelled.
    """

    send: SendOrder
    limits: StepLimits
    stats: StepStats
    stop: Stop
    first: int = 0
    drain_timeout: float = 60.0

    async def run_open(self, arrivals: Iterator[float]) -> None:
        """Begin an order at each of the moments."""
        began, cpu = _now(), time.process_time()
        tasks: set[asyncio.Task[None]] = set()
        for arrival in arrivals:
            if arrival >= self.limits.seconds or not await self._wait_until(began + arrival):
                break
            task = asyncio.create_task(self._run_order(began + arrival))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await self._drain(tasks)
        self._record_totals(began, cpu)

    async def run_closed(self, concurrency: int) -> None:
        """Keep so many orders on their way."""
        began, cpu = _now(), time.process_time()
        until = began + self.limits.seconds

        async def worker() -> None:
            while _now() < until and not self._is_finished():
                await self._run_order(_now())

        tasks = {asyncio.create_task(worker()) for _ in range(concurrency)}
        await self._drain(tasks, after=self.limits.seconds)
        self._record_totals(began, cpu)

    async def _wait_until(self, arrival: float) -> bool:
        """Wait for ``arrival``; false if no more are to begin."""
        while not self._is_finished():
            left = arrival - _now()
            if left <= 0:
                return True
            await asyncio.sleep(min(left, POLL_INTERVAL))
        return False

    def _is_finished(self) -> bool:
        return self.stop.requested or self.stats.started >= self.limits.orders

    async def _run_order(self, planned: float) -> None:
        number = self.first + self.stats.started
        self.stats.started += 1
        self.stats.start_delay.add(_now() - planned)
        result = await self.send(number)
        self.stats.add(result, latency=_now() - planned)

    async def _drain(self, tasks: set[asyncio.Task[None]], *, after: float = 0.0) -> None:
        left = set(tasks)
        if left:
            _, left = await asyncio.wait(left, timeout=after + self.drain_timeout)
        for task in left:
            task.cancel()
        # A task that raised says so: whatever an order can end in is no exception here.
        await asyncio.gather(*left, return_exceptions=True)

    def _record_totals(self, began: float, cpu: float) -> None:
        self.stats.seconds, self.stats.cpu = _now() - began, time.process_time() - cpu


def _now() -> float:
    return asyncio.get_running_loop().time()
