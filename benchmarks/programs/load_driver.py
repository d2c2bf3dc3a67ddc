"""The load driver: an open loop (fixed arrival rate) or a closed loop (fixed concurrency).

In the open loop, each order starts at its scheduled time, regardless of how many are in flight, and its
latency counts from that time. So a slow response also affects the latencies of later orders (no coordinated
omission). In the closed loop, the next order starts when one completes.
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
"""The names of the outcomes."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)

_UNITS = 1_000_000  # histograms count microseconds
_MAX_UNITS = 3_600 * _UNITS


class Histogram:
    """An HDR histogram of durations: three significant digits in constant memory."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _MAX_UNITS, 3)

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._counts.record_value(min(max(round(seconds * _UNITS), 1), _MAX_UNITS))

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds; 0 if the histogram is empty."""
        return float(self._counts.get_value_at_percentile(percent)) / _UNITS if self.count else 0.0

    @property
    def count(self) -> int:
        return int(self._counts.total_count)

    def encoded(self) -> str:
        """Return the histogram in the format of all HDR libraries: base64, in microseconds."""
        encoded: bytes = self._counts.encode()
        return encoded.decode()


@frozen
class OrderResult:
    """The result of one order.

    Args:
        kind: one of `OUTCOME_NAMES`, or ``broken`` after an unexpected exception.
        error: the error's class and HTTP status, if any; None for a created order.
    """

    kind: str
    error: str | None = None


CREATED = OrderResult("created")


def result_of(error: Exception) -> OrderResult:
    """Return the result of an order whose call raised ``error``."""
    if not isinstance(error, TransferError):
        return OrderResult("broken", type(error).__name__)
    status = getattr(error, "status", None)
    name = type(error).__name__
    return OrderResult(OUTCOME_NAMES[error.outcome], name if status is None else f"{name} {status}")


@define
class StepStats:
    """The counts, latencies and cost of one step, while it runs and at its end.

    Args:
        latency: the latency of each order, counted from its scheduled start.
        start_delay: how late the driver started each order.
        kinds: the number of orders by outcome.
        errors: the number of orders by error.
        started: the number of started orders.
        seconds: the duration of the step.
        cpu: the CPU seconds that this process used during the step.
    """

    latency: Histogram = field(factory=Histogram)
    start_delay: Histogram = field(factory=Histogram)
    kinds: Counter[str] = field(factory=Counter)
    errors: Counter[str] = field(factory=Counter)
    started: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, result: OrderResult, *, latency: float) -> None:
        """Add a completed order."""
        self.kinds[result.kind] += 1
        self.latency.add(latency)
        if result.error is not None:
            self.errors[result.error] += 1

    @property
    def completed(self) -> int:
        """The number of completed orders."""
        return self.kinds.total()

    @property
    def rate(self) -> float:
        """Created orders per second."""
        return self.kinds["created"] / self.seconds if self.seconds else 0.0

    @property
    def cpu_per_order(self) -> float:
        """CPU seconds per completed order."""
        return self.cpu / self.completed if self.completed else 0.0


# --- the driver -----------------------------------------------------------------------------------

SendOrder = Callable[[int], Awaitable[OrderResult]]
"""Sends the order with the given number and returns its result."""

POLL_INTERVAL = 0.1
"""Seconds between two checks for a stop request."""


@frozen
class StepLimits:
    """The limits of one step.

    Args:
        seconds: the time after which no order starts.
        orders: the maximum number of orders.
    """

    seconds: float
    orders: int


@define
class Stop:
    """A request to start no more orders. Orders in flight still complete."""

    requested: bool = False


@define
class Driver:
    """Runs one step of a load test.

    Args:
        send: sends an order.
        limits: the limits of the step.
        stats: receives the results.
        stop: can end the step early.
        first: the number of the first order.
        drain_timeout: how long to wait for orders in flight at the end; then they are cancelled.
    """

    send: SendOrder
    limits: StepLimits
    stats: StepStats
    stop: Stop
    first: int = 0
    drain_timeout: float = 60.0

    async def run_open(self, arrivals: Iterator[float]) -> None:
        """Start an order at each arrival time."""
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
        """Keep ``concurrency`` orders in flight."""
        began, cpu = _now(), time.process_time()
        until = began + self.limits.seconds

        async def worker() -> None:
            while _now() < until and not self._is_finished():
                await self._run_order(_now())

        tasks = {asyncio.create_task(worker()) for _ in range(concurrency)}
        await self._drain(tasks, after=self.limits.seconds)
        self._record_totals(began, cpu)

    async def _wait_until(self, arrival: float) -> bool:
        """Wait until ``arrival``. Return False if the step is finished."""
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
        # `send` converts every exception into a result, so these are cancellations only.
        await asyncio.gather(*left, return_exceptions=True)

    def _record_totals(self, began: float, cpu: float) -> None:
        self.stats.seconds, self.stats.cpu = _now() - began, time.process_time() - cpu


def _now() -> float:
    return asyncio.get_running_loop().time()
