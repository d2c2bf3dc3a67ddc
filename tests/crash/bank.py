"""The bank: its holds, its files, and its way to find out whether an order exists.

Data that must survive a process are appended to files, with one system call for each line. A line survives
the death of its writer. Only a power cut could remove it, and these trials have none, so nothing is flushed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import urllib.request
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.crash.setting import POLICY, Place, Point, key_of
from transfer_async import NO_ORDER, FundsHold, HoldFailed
from transfer_async._models.errors import OutcomeUnknown
from transfer_async._models.requests import OrderIntent


class Book:
    """A file that is only appended to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *values: Any) -> None:
        """Append a line."""
        os.write(self._file, (" ".join(map(str, values)) + "\n").encode())


def lines(path: Path) -> Iterator[list[str]]:
    """Yield the values of each line; none if the file does not exist."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield line.split(" ")


def open_holds(path: Path) -> dict[str, frozenset[str]]:
    """Return the ids of the intents with open holds, by key."""
    holds: dict[str, set[str]] = {}
    for done, key, intent_id in lines(path):
        of_key = holds.setdefault(key, set())
        if done == "place":
            of_key.add(intent_id)
        else:
            of_key.discard(intent_id)
    return {key: frozenset(open_) for key, open_ in holds.items()}


async def _pass_by(_: Point) -> None:
    """Do nothing."""


class Bank:
    """The bank's hold hook, idempotent by intent.

    Args:
        path: the file that records each hold and each release.
        chance: draws the bank's own failures; None for none.
        come_by: called at points at which the process may be killed.
    """

    def __init__(
        self,
        path: Path,
        *,
        chance: random.Random | None = None,
        come_by: Callable[[Point], Awaitable[None]] = _pass_by,
    ) -> None:
        self._book = Book(path)
        self._chance = chance
        self._come_by = come_by

    @property
    def hooks(self) -> list[Any]:
        """The hooks of a client."""
        return [Check(), FundsHold(self.place, self.release)]

    async def place(self, intent: OrderIntent) -> str:
        """Place a hold."""
        await self._come_by(Point.BETWEEN_HOOKS)
        if intent.key.startswith("poor"):
            raise HoldFailed("no funds", refused=True)
        self._book.write("place", intent.key, intent.id)
        await self._come_by(Point.HELD)
        self._break_down(0.02)
        return f"hold-{intent.id}"

    async def release(self, intent: OrderIntent, receipt: str | None) -> None:
        """Release the hold, if there is one."""
        assert receipt in (None, f"hold-{intent.id}")
        self._break_down(0.1)
        self._book.write("release", intent.key, intent.id)
        await self._come_by(Point.UNDONE)

    def _break_down(self, share: float) -> None:
        if self._chance is not None and self._chance.random() < share:
            raise RuntimeError("the bank is out of order")


class Check:
    """A hook that runs before the hold and must be undone, too."""

    name = "check"

    async def before(self, intent: OrderIntent) -> str:
        return f"checked-{intent.id}"

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        assert receipt in (None, f"checked-{intent.id}")


class BackOffice:
    """Finds the orders of keys in the service's list, which is too long to keep in memory."""

    _ORDER = re.compile(rb'"id":"([^"]+)","poster_username":"([^"]+)"')

    def __init__(self, place: Place) -> None:
        self._request = urllib.request.Request(
            f"{place.base_url}/sandbox/orders", headers={"Authorization": f"Bearer {place.token}"}
        )
        self._wanted: set[str] = set()
        self._found: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def resolve(self, intent: OrderIntent, _: OutcomeUnknown) -> Any:
        """Return the order's id, or `NO_ORDER`."""
        self._wanted.add(intent.key)
        async with self._one_at_a_time:
            if intent.key in self._wanted:  # all waiting calls share one read
                wanted, self._wanted = self._wanted, set()
                self._found |= await asyncio.to_thread(self._look_for, wanted)
        return self._found.get(intent.key, NO_ORDER)

    async def resolve_some(self, intent: OrderIntent, error: OutcomeUnknown) -> Any:
        """Call `resolve` for half of the keys; return None for the others."""
        return await self.resolve(intent, error) if is_known(intent.key) else None

    def _look_for(self, keys: set[str]) -> dict[str, str]:
        found, rest = {}, b""
        with urllib.request.urlopen(self._request, timeout=120) as answer:
            while piece := answer.read(1 << 16):
                *orders, rest = (rest + piece).split(b"}")
                for order in orders:
                    seen = self._ORDER.search(order)
                    if seen and (key := key_of(seen[2].decode())) in keys:
                        found[key] = seen[1].decode()
        return found


def is_known(key: str) -> bool:
    """Return whether `resolve_some` can resolve a doubt about the key."""
    return zlib.crc32(key.encode()) % 2 == 0


# --- factories for the commands: ``--hooks tests.crash.bank:well`` ------------------------------------


def well() -> dict[str, Any]:
    """Return the settings of a bank that never fails and can end every doubt."""
    place = Place.here()
    return {"hooks": Bank(place.path("bank")).hooks, "resolve": BackOffice(place).resolve}


def unwell() -> dict[str, Any]:
    """Return the settings of a bank that fails sometimes and can end half of all doubts."""
    place = Place.here()
    hooks = Bank(place.path("bank"), chance=random.Random()).hooks
    return {"hooks": hooks, "resolve": BackOffice(place).resolve_some, "retry": POLICY}
