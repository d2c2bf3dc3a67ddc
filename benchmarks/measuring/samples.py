"""Measurements on a noisy machine.

Contenders alternate within each round, in another order each time, so that noise affects all of them.
Comparisons are made within a round. Reports show medians, not means.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class RunSize:
    """The extent of the measurements.

    Args:
        name: the name of this extent.
        rounds: the number of rounds.
        slow_rounds: the number of rounds if one takes long.
        restarts: how often contenders with similar costs are restarted.
        sample_seconds: the seconds of each contender in a round.
        in_flight: the number of orders in flight when memory is measured.
        concurrency_levels: the numbers of concurrent orders when the load grows.
        orders_done: the numbers of orders after which a long-running process is measured.
        max_keys: the number of keys that its journal keeps.
        orders_per_sample: the number of orders for each journal in a round.
    """

    name: str
    rounds: int
    slow_rounds: int
    restarts: int
    sample_seconds: float
    in_flight: int
    concurrency_levels: tuple[int, ...]
    orders_done: tuple[int, ...]
    max_keys: int
    orders_per_sample: int


QUICK = RunSize(
    name="quick",
    rounds=3,
    slow_rounds=2,
    restarts=1,
    sample_seconds=0.25,
    in_flight=2_000,
    concurrency_levels=(1, 8, 64, 512),
    orders_done=(1_000, 3_000, 10_000, 20_000),
    max_keys=1_000,
    orders_per_sample=600,
)
FULL = RunSize(
    name="full",
    rounds=9,
    slow_rounds=5,
    restarts=6,
    sample_seconds=0.8,
    in_flight=10_000,
    concurrency_levels=(1, 8, 64, 512, 4_096),
    orders_done=(1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    max_keys=10_000,
    orders_per_sample=2_000,
)


@frozen
class Sample:
    """One measurement of a repeated operation.

    Args:
        count: the number of repetitions.
        seconds: the total duration.
        cpu: the CPU seconds of this process, all threads together.
    """

    count: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """How often a second."""
        return self.count / self.seconds

    @property
    def cost(self) -> float:
        """Seconds each."""
        return self.seconds / self.count

    @property
    def cpu_cost(self) -> float:
        """Seconds of this process's processor time each."""
        return self.cpu / self.count


async def drive(
    operation: Callable[[int], Awaitable[object]], *, count: int, concurrency: int, seconds: float = math.inf
) -> Sample:
    """Run ``work(0)``, ``work(1)``, ... concurrently until all are done or the time is up.

    Args:
        operation: the operation; the first error ends the measurement.
        count: the largest number of calls; at least ``concurrency``.
        concurrency: the number of concurrent calls.
        seconds: the time after which no call starts.
    """
    numbers = iter(range(count))
    orders_done = 0

    async def worker(end: float) -> None:
        nonlocal orders_done
        for number in numbers:
            await operation(number)
            orders_done += 1
            if time.perf_counter() > end:
                return

    gc.collect()  # garbage of earlier runs
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker(began + seconds))
    return Sample(orders_done, time.perf_counter() - began, time.process_time() - cpu)


async def interleave(
    contenders: Mapping[str, Callable[[], Awaitable[T]]], *, rounds: int
) -> dict[str, list[T]]:
    """Run every contender once in each round; each is first equally often."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _rotated(list(contenders), rounds):
        results[name].append(await contenders[name]())
    return results


def interleave_blocking(contenders: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """As `interleave`, for blocking functions, such as other processes."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _rotated(list(contenders), rounds):
        results[name].append(contenders[name]())
    return results


def _rotated(names: list[str], rounds: int) -> Iterator[str]:
    for number in range(rounds):
        first = number % len(names)
        yield from names[first:] + names[:first]


def median_of(samples: Iterable[T], value: Callable[[T], float]) -> float:
    """Return the median of a value of the samples."""
    return median(map(value, samples))


def ratio(samples: Sequence[T], base: Sequence[T], value: Callable[[T], float]) -> float:
    """Return the median over the rounds of the ratio of ``samples`` to ``base``."""
    return median(value(a) / value(b) for a, b in zip(samples, base, strict=True))


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
