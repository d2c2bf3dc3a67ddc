"""The bank's side of a worker, by name: ``--hooks tests.chaos.bank:make``."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.trial import Place
from tests.deaths.books import Bank, Book, Check
from tests.deaths.trial import POLICY, poster_of
from transfer_async import NO_ORDER, FundsHold
from transfer_async.errors import OutcomeUnknown
from transfer_async.models import OrderIntent


def make() -> dict[str, Any]:
    """Hooks that write down what they do, and somebody who knows what became of half of all doubts."""
    bank = Bank(Book(Path(Place.here().directory) / "bank"), None, random.Random())
    return {"hooks": [Check(), FundsHold(bank.place, bank.release)], "resolve": resolve, "retry": POLICY}


def is_known(key: str) -> bool:
    """Whether the bank has the means to end a doubt about ``key``."""
    return zlib.crc32(key.encode()) % 2 == 0


async def resolve(intent: OrderIntent, _: OutcomeUnknown) -> Any:
    """What the service has, for half of the keys."""
    if not is_known(intent.key):
        return None
    place = Place.here()
    headers = {"Authorization": f"Bearer {place.token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{place.base_url}/sandbox/orders") as answer,
    ):
        orders = (await answer.json())["orders"]
    poster = poster_of(intent.key)
    return next((order["id"] for order in orders if order["poster_username"] == poster), NO_ORDER)
