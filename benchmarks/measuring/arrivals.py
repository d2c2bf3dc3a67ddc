"""When orders are wanted: moments that nobody's answers can put off."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator


def even(rate: float, *, seed: int = 0) -> Iterator[float]:  # noqa: ARG001 - as the others
    """Give moments as far apart as each other, in seconds from the start, without end."""
    return (number / rate for number in itertools.count())


def poisson(rate: float, *, seed: int = 0) -> Iterator[float]:
    """Give moments that know nothing of each other, as of many customers: the same ones for a seed."""
    draw, moment = random.Random(f"arrivals:{seed}"), 0.0
    while True:
        moment += draw.expovariate(rate)
        yield moment


SCHEDULES: dict[str, Callable[..., Iterator[float]]] = {"poisson": poisson, "even": even}
