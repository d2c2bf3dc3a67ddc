"""The bank's side of the trial, as ``--hooks tests.bulk.bank:make`` finds it: holds, and who knows of doubts.

What it did is in a file that is only appended to, one system call a line, so that it survives a kill.
"""

import asyncio
import json
import os
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bulk.files import poster_of
from transfer_async import NO_ORDER, FundsHold, OrderIntent, OutcomeUnknown

BOOK = "BULK_TRIAL_BOOK"


class Ledger:
    """Holds, by intent; each placed and released as often as it is asked for."""

    def __init__(self, path: str) -> None:
        self._book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def place(self, intent: OrderIntent) -> str:
        self._write("place", intent)
        return f"hold-{intent.id}"

    async def release(self, intent: OrderIntent, receipt: str | None) -> None:
        self._write("release", intent)

    def _write(self, what: str, intent: OrderIntent) -> None:
        os.write(self._book, f"{what} {intent.key} {intent.id}\n".encode())


def open_holds(path: Path) -> Counter[str]:
    """How many holds are open, by key."""
    open_ones: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        what, key, intent_id = line.split(" ")
        if what == "place":
            open_ones[intent_id] = key
        else:
            open_ones.pop(intent_id, None)
    return Counter(open_ones.values())


def orders_there(base_url: str, token: str) -> list[dict[str, Any]]:
    """The sandbox's orders, a few fields of each."""
    with _asked(base_url, token) as answer:
        return json.load(answer)["orders"]


def _asked(base_url: str, token: str) -> Any:
    asked = urllib.request.Request(f"{base_url}/sandbox/orders", headers={"Authorization": f"Bearer {token}"})
    return urllib.request.urlopen(asked, timeout=120)


_ORDER = re.compile(rb'"id":"([^"]+)","poster_username":"([^"]+)"')


class BackOffice:
    """Finds out what became of orders, by looking through the sandbox's, and keeps none of them in memory."""

    def __init__(self, base_url: str, token: str) -> None:
        self._where = base_url, token
        self._wanted: set[str] = set()
        self._found: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def resolve(self, intent: OrderIntent, _: OutcomeUnknown) -> Any:
        """The order's id, or that there is none."""
        poster = poster_of(intent.key)
        self._wanted.add(poster)
        async with self._one_at_a_time:
            if poster in self._wanted:  # one look is for all who wait
                wanted, self._wanted = self._wanted, set()
                self._found |= await asyncio.to_thread(self._look_for, wanted)
        return self._found.pop(poster, NO_ORDER)

    def _look_for(self, posters: set[str]) -> dict[str, str]:
        found, rest = {}, b""
        with _asked(*self._where) as answer:
            while piece := answer.read(1 << 16):
                *orders, rest = (rest + piece).split(b"}")
                for order in orders:
                    seen = _ORDER.search(order)
                    if seen and seen[2].decode() in posters:
                        found[seen[2].decode()] = seen[1].decode()
        return found


def make() -> dict[str, Any]:
    """What the command asks for."""
    ledger = Ledger(os.environ[BOOK])
    office = BackOffice(os.environ["TRANSFER_BASE_URL"], os.environ["TRANSFER_API_TOKEN"])
    return {"hooks": [FundsHold(ledger.place, ledger.release)], "resolve": office.resolve}
