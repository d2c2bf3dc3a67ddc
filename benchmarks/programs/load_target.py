"""The target of a load: its host, the orders, and the comparison at the end."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
from attrs import define, field, frozen
from yarl import URL

from benchmarks.programs.load_driver import CREATED, OrderEnding, ending_of
from transfer_async import MemoryJournal, NewOrder, TransferClient
from transfer_async._cli.demo import usd_order
from transfer_async._cli.servers import is_loopback
from transfer_async._http import urls
from transfer_async._models import requests
from transfer_async.journal import Journal, journal_at

MOST_ORDERS = 1_000_000
"""In one run."""

_CENT = Decimal("0.01")
_LEAST = Decimal("10.00")


class Foreign(ValueError):
    """The host is not this machine, and the load is not confirmed."""


def checked_host(url: str, *, owned: bool) -> str:
    """Give ``url`` back, if its host may be put under load.

    Raises:
        Foreign: it is not loopback, and not said to be the caller's own.
        ValueError: no client would take it.
    """
    host = URL(url).host or ""
    if not (owned or is_loopback(host)):
        raise Foreign(
            f"--url: {host or url} is not this machine's loopback. A load on somebody else's service is an "
            "attack; --i-own-this-host confirms that it is yours and that its operators know"
        )
    try:
        urls.normalised(url)
    except ValueError as error:
        raise ValueError(f"--url: {error}") from None
    return url


def made_order(number: int) -> NewOrder:
    """Make an order between two of the sandbox's made-up people; no two have the same amount."""
    return usd_order("tunde.bello", "ben.okri", _LEAST + number * _CENT)


def made_amount(number: int) -> Decimal:
    """Say what amount the poster of `made_order` sends."""
    return requests.product(_LEAST + number * _CENT, "1550.25", places=2)


def order_from(path: Path) -> Callable[[int], NewOrder]:
    """Read the one order that is sent again and again, each time as another wish, from a JSON file.

    Raises:
        ValueError: the file cannot be read, or holds no order.
    """
    try:
        order = NewOrder.from_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--order: {error.strerror or error}") from None
    return lambda _: order


def journal_for(address: str) -> Journal:
    """Make the journal that ``memory``, a path or a ``postgresql://`` address means.

    Raises:
        ValueError: it means none.
    """
    try:
        return MemoryJournal(max_keys=MOST_ORDERS) if address == "memory" else journal_at(address)
    except ValueError as error:
        raise ValueError(f"--journal: {error}") from None


@define
class Sender:
    """Sends orders by number, and remembers how each ended.

    Args:
        order: makes the order of a number.
        client: sends them; another one for each step.
    """

    order: Callable[[int], NewOrder]
    client: TransferClient | None = None
    endings: dict[int, str] = field(factory=dict)
    _run: str = field(init=False, factory=lambda: secrets.token_hex(4))

    async def send(self, number: int) -> OrderEnding:
        """Send one order, and say how it ended; never raises, unless it is cancelled."""
        assert self.client is not None  # noqa: S101 - the driver sets it
        self.endings[number] = "unknown"  # until something better is known
        try:
            key = f"load-{self._run}-{number}"
            await self.client.create_order(self.order(number), key=key, held=f"hold-{number}")
            ending = CREATED
        except Exception as error:  # noqa: BLE001 - it is counted
            ending = ending_of(error)
        self.endings[number] = ending.kind
        return ending


@frozen
class Comparison:
    """The outcomes compared with the service's orders.

    Args:
        existing: the number of orders that the service has.
        duplicates: orders beyond the first of one request.
        missing: orders reported as created that do not exist.
        unexpected: orders reported as not existing that exist.
        doubts: unknown outcomes.
        doubts_there: unknown outcomes whose order exists.
        strange: orders that were never requested.
    """

    existing: int
    duplicates: int
    missing: int
    unexpected: int
    doubts: int
    doubts_there: int
    strange: int

    @property
    def agrees(self) -> bool:
        """Whether every outcome is true."""
        return not (self.duplicates or self.missing or self.unexpected or self.strange)


def compared(endings: dict[int, str], amounts: Counter[Decimal]) -> Comparison:
    """Hold how the orders of `made_order` ended against the amounts that are on record."""
    wished = {number: made_amount(number) for number in endings}
    there = {number for number, amount in wished.items() if amount in amounts}
    said = {
        kind: {number for number, one in endings.items() if one == kind} for kind in set(endings.values())
    }
    created, unknown = said.get("created", set()), said.get("unknown", set()) | said.get("broken", set())
    return Comparison(
        existing=amounts.total(),
        duplicates=amounts.total() - len(amounts),
        missing=len(created - there),
        unexpected=len(there - created - unknown),
        doubts=len(unknown),
        doubts_there=len(unknown & there),
        strange=len(amounts.keys() - set(wished.values())),
    )


async def recorded(base_url: str, token: str) -> Counter[Decimal]:
    """Ask our own sandbox for the amounts of all the orders that it has."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as session,
        session.get(f"{base_url}/sandbox/orders") as answer,
    ):
        answer.raise_for_status()
        orders: list[dict[str, Any]] = json.loads(await answer.read(), parse_float=Decimal)["orders"]
    return Counter(Decimal(order["poster_amount"]) for order in orders)


async def settled(ask: Callable[[], Awaitable[Counter[Decimal]]]) -> Counter[Decimal]:
    """Ask until two answers are the same: a request that was given up may still take effect."""
    before = await ask()
    for _ in range(20):
        await asyncio.sleep(0.1)
        if (now := await ask()) == before:
            break
        before = now
    return before
