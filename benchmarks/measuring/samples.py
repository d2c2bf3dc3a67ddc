"""Sampling on a noisy machine.

Each round takes one sample of each contender, in a different order each time, so that noise affects all of
them. Ratios are computed within a round. Reports show medians, not means.
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
    """How much to measure.

    Args:
        name: the name of this size.
        rounds: the number of rounds.
        slow_rounds: the number of rounds of slow measurements.
        restarts: how often to restart the contenders whose costs are similar.
        sample_seconds: the duration of one sample.
        in_flight: the number of orders in flight when measuring memory.
        concurrency_levels: the numbers of concurrent orders to compare.
        orders_done: the numbers of orders after which to measure a long-running process.
        max_keys: the maximum number of keys in the journal of that process.
        orders_per_sample: the number of orders in one sample of a journal.
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
    """One sample of a repeated operation.

    Args:
        count: the number of repetitions.
        seconds: the total duration.
        cpu: the CPU seconds of all threads of this process.
    """

    count: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Repetitions per second."""
        return self.count / self.seconds

    @property
    def cost(self) -> float:
        """Seconds per repetition."""
        return self.seconds / self.count

    @property
    def cpu_cost(self) -> float:
        """CPU seconds per repetition."""
        return self.cpu / self.count


async def drive(
    operation: Callable[[int], Awaitable[object]], *, count: int, concurrency: int, seconds: float = math.inf
) -> Sample:
    """Run ``operation(0)``, ``operation(1)``, ... concurrently until all are done or the time is up.

    Args:
        operation: the operation to repeat. The first error ends the sample.
        count: the maximum number of calls; at least ``concurrency``.
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

    gc.collect()  # collect the garbage of earlier samples
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker(began + seconds))
    return Sample(orders_done, time.perf_counter() - began, time.process_time() - cpu)


async def interleave(
    contenders: Mapping[str, Callable[[], Awaitable[T]]], *, rounds: int
) -> dict[str, list[T]]:
    """Sample every contender once per round, and rotate which one is first."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _rotated(list(contenders), rounds):
        results[name].append(await contenders[name]())
    return results


def interleave_blocking(contenders: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """Same as `interleave`, for blocking functions such as calls to other processes."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _rotated(list(contenders), rounds):
        results[name].append(contenders[name]())
    return results


def _rotated(names: list[str], rounds: int) -> Iterator[str]:
    for number in range(rounds):
        first = number % len(names)
        yield from names[first:] + names[:first]


def median_of(samples: Iterable[T], value: Callable[[T], float]) -> float:
    """Return the median of ``value(sample)``."""
    return median(map(value, samples))


def ratio(samples: Sequence[T], base: Sequence[T], value: Callable[[T], float]) -> float:
    """Return the median of the ratios of ``samples`` to ``base``, each within its round."""
    return median(value(a) / value(b) for a, b in zip(samples, base, strict=True))


def percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile, by the nearest-rank method."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
