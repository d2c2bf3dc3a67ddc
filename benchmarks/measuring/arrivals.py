"""The times at which orders start, independent of the responses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator


def even(rate: float, *, seed: int = 0) -> Iterator[float]:  # noqa: ARG001 - as the others
    """Yield equally spaced times in seconds from the start, without end."""
    return (number / rate for number in itertools.count())


def poisson(rate: float, *, seed: int = 0) -> Iterator[float]:
    """Yield the times of a Poisson process, as of many independent customers; the same for a seed."""
    draw, moment = random.Random(f"arrivals:{seed}"), 0.0
    while True:
        moment += draw.expovariate(rate)
        yield moment


SCHEDULES: dict[str, Callable[..., Iterator[float]]] = {"poisson": poisson, "even": even}
