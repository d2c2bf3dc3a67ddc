"""Which fate is next: an even mix of all points, as far as the commands at hand pass by them."""

from __future__ import annotations

import random
import signal
from collections import Counter

from attrs import define, field

from tests.crash.setting import Point

KINDS = {
    "good": tuple(point for point in Point if point not in (Point.UNDONE, Point.RECOVERING)),
    "unknown": (Point.UNDONE, Point.SETTLED, Point.COMMITTING, Point.ANYWHERE),
    "poor": (Point.BEFORE_CLAIM, Point.CLAIMED, Point.COMMITTING, Point.ANYWHERE),
}
"""The kinds of orders, each with the points that its call passes: most are good, some have a
beneficiary whom nobody knows, some a customer without funds."""


@define
class Fates:
    """The deaths, or the pauses, that are still to come.

    Args:
        signal: what the worker gets.
        wanted: how many are wanted.
        chance: decides between equals.
        points: where they may come.
        at_once: how many are planned at the same time.
        met: how many came, by point.
    """

    signal: signal.Signals
    wanted: int
    chance: random.Random
    points: tuple[Point, ...] = tuple(Point)
    at_once: int = 3
    met: Counter[Point] = field(factory=Counter)
    planned: Counter[Point] = field(factory=Counter)

    @property
    def done(self) -> bool:
        """Whether all have come."""
        return self.met.total() >= self.wanted

    def plan(self, kind: str) -> Point | None:
        """A fate for a command of that kind, or None for a quiet life."""
        return self._plan(tuple(point for point in KINDS[kind] if point in self.points))

    def plan_recovery(self) -> Point | None:
        """A fate for a run of recover, if it is its turn."""
        return self._plan((Point.RECOVERING,)) if not self.planned[Point.RECOVERING] else None

    def _plan(self, points: tuple[Point, ...]) -> Point | None:
        # What waits for something to recover may wait for long, and must not keep others waiting.
        elsewhere = self.planned.total() - self.planned[Point.RECOVERING]
        limit = self.at_once + (points == (Point.RECOVERING,))
        if not points or elsewhere >= limit or self.met.total() + elsewhere >= self.wanted:
            return None
        count = {point: self.met[point] + self.planned[point] for point in self.points}
        least = min(points, key=lambda point: (count[point], self.chance.random()))
        if count[least] > min(count.values()) + 2:
            return None  # others lag behind, and wait for a command that passes by them
        self.planned[least] += 1
        return least

    def forget(self, point: Point) -> None:
        """A planned fate was not met: its command took another way."""
        self.planned[point] -= 1

    def come(self, point: Point) -> None:
        """A planned fate was met."""
        self.planned[point] -= 1
        self.met[point] += 1
