"""The random choices of a seed: the setting of its story, and the events in it."""

import random
from typing import Any, TypeVar

from attrs import frozen

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


@frozen(kw_only=True)
class Setting:
    """The settings of a story, which do not change during it.

    Args:
        workers: the number of workers.
        keys: the keys that are delivered; None stands for a key that the client generates.
        checks: whether there is a hook before the hold.
        screens: whether there is a plain function, too.
        releases: whether some workers run a release of the bank's software that lacks the check.
        named: the beneficiaries that the deliveries name, mostly the same one.
        resolve: what ``resolve`` can return: "order", "id", "ignorant", or "none" if there is no ``resolve``.
        stubborn: the hook whose undo always fails, if any.
        token: whether the token is a callable.
        journal: how often a write fails; so for each of the following.
        slow: how often a write is slow.
        crash: how often a process crashes.
        freeze: how often a process freezes.
    """

    workers: int
    keys: tuple[str | None, ...]
    checks: bool
    screens: bool
    releases: bool
    named: tuple[PersonName | None, ...]
    resolve: str
    stubborn: str | None
    token: bool
    journal: float
    slow: float
    hook: float
    undo: float
    service: float
    ask: float
    crash: float
    freeze: float


def setting(chance: Chance) -> Setting:
    """Draw a setting. Most stories have only some kinds of failures, so that the effect of each is clear."""
    rate = (0.0, 0.0, 0.05, 0.2, 0.4)
    checks = chance.once_in(0.5)
    words = Chance(chance.random())
    return Setting(
        workers=chance.one_of((1, 2, 2, 3, 4)),
        keys=chance.one_of((("k",), ("k",), ("k", "l"), ("k", None))),
        checks=checks,
        screens=words.once_in(0.5),
        releases=words.once_in(0.3),
        named=words.one_of(((BEN,), (BEN,), (None,), (BEN, MALLORY), (BEN, None), (BEN, MALLORY, None))),
        resolve=chance.one_of(("order", "order", "id", "ignorant", "none")),
        stubborn=chance.one_of(("hold", "check")) if chance.once_in(0.05) else None,
        token=chance.once_in(0.1),
        journal=chance.one_of(rate),
        slow=chance.one_of((0.0, 0.0, 0.0, 0.1)),
        hook=chance.one_of(rate),
        undo=chance.one_of(rate),
        service=chance.one_of((0.0, 0.3, 0.6, 0.9)),
        ask=chance.one_of(rate),
        crash=chance.one_of((0.0, 0.3, 0.6)),
        freeze=chance.one_of((0.0, 0.3, 0.6)),
    )
