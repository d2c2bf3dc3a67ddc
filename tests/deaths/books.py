"""What must survive a worker: lines in files that are only ever appended to, one system call each.

A line that was written survives the death of its writer. Only a power cut could take it back, and
nobody cuts the power here, so nothing is flushed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.deaths.fate import Fate
from tests.deaths.trial import Point
from transfer_async import HoldFailed
from transfer_async.models import OrderIntent


class Book:
    """One file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: Any) -> None:
        """Append a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def lines(path: Path) -> Iterator[list[str]]:
    """The words of every line of a book."""
    return (line.split(" ") for line in path.read_text().splitlines()) if path.exists() else iter(())


class Bank:
    """The bank's side of the hold: idempotent by intent, not always well.

    Args:
        book: where holds are placed and released.
        fate: what becomes of the worker; None where nobody dies.
        chance: of the bank's own faults; None for a bank without any.
    """

    def __init__(self, book: Book, fate: Fate | None, chance: random.Random | None) -> None:
        self._book = book
        self._fate = fate
        self._chance = chance

    async def place(self, intent: OrderIntent) -> str:
        """Place a hold."""
        await self._meet(Point.BETWEEN_HOOKS)
        if intent.key.startswith("poor"):
            raise HoldFailed("no funds", refused=True)
        self._book.write("place", intent.key, intent.id)
        await self._meet(Point.HELD)
        self._break_down(0.02)
        return f"hold-{intent.id}"

    async def release(self, intent: OrderIntent, receipt: str | None) -> None:
        """Release it, if there is one."""
        assert receipt in (None, f"hold-{intent.id}")
        self._break_down(0.1)
        self._book.write("release", intent.key, intent.id)
        await self._meet(Point.UNDONE)

    async def _meet(self, point: Point) -> None:
        if self._fate is not None:
            await self._fate.meet(point)

    def _break_down(self, share: float) -> None:
        if self._chance is not None and self._chance.random() < share:
            raise RuntimeError("the bank is out of order")


class Check:
    """A first hook, so that there is something between two; it must be undone, too."""

    name = "check"

    async def before(self, intent: OrderIntent) -> str:
        return f"checked-{intent.id}"

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        assert receipt in (None, f"checked-{intent.id}")
