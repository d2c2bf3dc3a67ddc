"""The random choices of a seed: the setting of its story, and the events in it."""

import random
from typing import Any, TypeVar

from transfer_async import PersonName

T = TypeVar("T")

BEN, MALLORY = PersonName("Ben", "Okri"), PersonName("Mallory", "Eze")
GAPS = (0.0, 0.0, 0.02, 0.3, 3.0, 20.0, 65.0, 130.0, 400.0, 1000.0)
"""Seconds between callers' actions: none, within a request, beyond a lease, a doubt, a claim's age limit."""


class Chance(random.Random):
    """The random choices of one story, from a single seed."""

    def once_in(self, rate: float) -> bool:
        return rate > 0.0 and self.random() < rate

    def one_of(self, things: "tuple[T, ...] | list[T]") -> T:
        return things[int(self.random() * len(things))]

    def latency(self) -> float:
        """Return 0.001 to 0.3 seconds. Each order of magnitude is equally likely."""
        return 0.001 * 10.0 ** (2.5 * self.random())


class Weighted:
    """A table of weighted choices. Each row begins with its weight."""

    def __init__(self, *rows: tuple[int, Any]) -> None:
        self._drawn = [thing for weight, thing in rows for _ in range(weight)]

    def draw(self, chance: Chance) -> Any:
        return chance.one_of(self._drawn)


RATES = (0.0, 0.0, 0.05, 0.2, 0.4)


class Setting:
    """The settings of a story, which do not change during it.

    Most stories have only some kinds of failures, so that the effect of each is clear.
    """

    def __init__(self, chance: Chance) -> None:
        self.checks = chance.once_in(0.5)  # whether there is a hook before the hold
        others = Chance(chance.random())
        self.workers = chance.one_of((1, 2, 2, 3, 4))
        # The keys that are delivered; None stands for a key that the client generates.
        self.keys: tuple[str | None, ...] = chance.one_of((("k",), ("k",), ("k", "l"), ("k", None)))
        self.screens = others.once_in(0.5)  # whether there is a hook that is a plain function
        # Whether some workers run a release of the bank's software that lacks the check.
        self.releases = others.once_in(0.3)
        # The beneficiaries that the deliveries name, mostly the same one.
        self.named: tuple[PersonName | None, ...] = others.one_of(
            ((BEN,), (BEN,), (None,), (BEN, MALLORY), (BEN, None), (BEN, MALLORY, None))
        )
        # What ``resolve`` can return; none if there is no ``resolve``.
        self.resolve = chance.one_of(("order", "order", "id", "ignorant", "none"))
        # The hook whose undo always fails, if any.
        self.stubborn = chance.one_of(("hold", "check")) if chance.once_in(0.05) else None
        self.token = chance.once_in(0.1)  # whether the token is a callable
        # How often a write to the journal fails or is slow, and so for the other kinds of failures.
        self.journal = chance.one_of(RATES)
        self.slow = chance.one_of((0.0, 0.0, 0.0, 0.1))
        self.hook = chance.one_of(RATES)
        self.undo = chance.one_of(RATES)
        self.service = chance.one_of((0.0, 0.3, 0.6, 0.9))
        self.ask = chance.one_of(RATES)
        self.crash = chance.one_of((0.0, 0.3, 0.6))
        self.freeze = chance.one_of((0.0, 0.3, 0.6))
