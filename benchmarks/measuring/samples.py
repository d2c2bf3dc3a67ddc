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
class Effort:
    """The extent of the measurements.

    Args:
        name: the name of this extent.
        rounds: the number of rounds.
        few: the number of rounds if one takes long.
        starts: how often contenders with similar costs are restarted.
        turn: the seconds of each contender in a round.
        crowd: the number of orders in flight when memory is measured.
        levels: the numbers of concurrent orders when the load grows.
        done: the numbers of orders after which a long-running process is measured.
        bound: the number of keys that its journal keeps.
        orders: the number of orders for each journal in a round.
    """

    name: str
    rounds: int
    few: int
    starts: int
    turn: float
    crowd: int
    levels: tuple[int, ...]
    done: tuple[int, ...]
    bound: int
    orders: int


QUICK = Effort(
    name="quick",
    rounds=3,
    few=2,
    starts=1,
    turn=0.25,
    crowd=2_000,
    levels=(1, 8, 64, 512),
    done=(1_000, 3_000, 10_000, 20_000),
    bound=1_000,
    orders=600,
)
FULL = Effort(
    name="full",
    rounds=9,
    few=5,
    starts=6,
    turn=0.8,
    crowd=10_000,
    levels=(1, 8, 64, 512, 4_096),
    done=(1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    bound=10_000,
    orders=2_000,
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
    work: Callable[[int], Awaitable[object]], *, count: int, at_once: int, seconds: float = math.inf
) -> Sample:
    """Run ``work(0)``, ``work(1)``, ... concurrently until all are done or the time is up.

    Args:
        work: the operation; the first error ends the measurement.
        count: the largest number of calls; at least ``at_once``.
        at_once: the number of concurrent calls.
        seconds: the time after which no call starts.
    """
    numbers = iter(range(count))
    done = 0

    async def worker(end: float) -> None:
        nonlocal done
        for number in numbers:
            await work(number)
            done += 1
            if time.perf_counter() > end:
                return

    gc.collect()  # garbage of earlier runs
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker(began + seconds))
    return Sample(done, time.perf_counter() - began, time.process_time() - cpu)


async def interleaved(
    contenders: Mapping[str, Callable[[], Awaitable[T]]], *, rounds: int
) -> dict[str, list[T]]:
    """Run every contender once in each round; each is first equally often."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _in_turn(list(contenders), rounds):
        found[name].append(await contenders[name]())
    return found


def taken_in_turn(contenders: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """As `interleaved`, for blocking functions, such as other processes."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for name in _in_turn(list(contenders), rounds):
        found[name].append(contenders[name]())
    return found


def _in_turn(names: list[str], rounds: int) -> Iterator[str]:
    for number in range(rounds):
        first = number % len(names)
        yield from names[first:] + names[:first]


def median_of(samples: Iterable[T], value: Callable[[T], float]) -> float:
    """Return the median of a value of the samples."""
    return median(map(value, samples))


def ratio(samples: Sequence[T], base: Sequence[T], value: Callable[[T], float]) -> float:
    """Return the median over the rounds of the ratio of ``samples`` to ``base``."""
    return median(value(one) / value(other) for one, other in zip(samples, base, strict=True))


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
