"""The broker: commands that are delivered at least once, each until somebody says how it ended."""

from __future__ import annotations

import heapq
import itertools
import random

from attrs import define, field

_SHARES = {"good": 0.8, "unknown": 0.15, "poor": 0.05}


@define
class Commands:
    """Keys that wait to be delivered, and those that are out.

    Args:
        chance: of the kinds of new keys.
    """

    chance: random.Random
    keys: list[str] = field(factory=list)
    ended: int = 0
    _due: list[tuple[float, int, str]] = field(factory=list)
    _waiting: set[str] = field(factory=set)
    _numbers: itertools.count[int] = field(factory=itertools.count)

    def take(self, now: float, *, new: bool) -> str | None:
        """A key that is due; if there is none, a new one where that is wanted."""
        if self._due and self._due[0][0] <= now:
            key = heapq.heappop(self._due)[2]
            self._waiting.discard(key)
            return key
        if not new:
            return None
        kind = self.chance.choices(list(_SHARES), list(_SHARES.values()))[0]
        self.keys.append(f"{kind}-{len(self.keys)}")
        return self.keys[-1]

    def put_back(self, key: str, *, due: float) -> None:
        """Deliver a key again, at some time; once is enough, however many ask for it."""
        if key not in self._waiting:
            self._waiting.add(key)
            heapq.heappush(self._due, (due, next(self._numbers), key))

    @property
    def are_waiting(self) -> bool:
        """Whether any key is to be delivered."""
        return bool(self._due)
