"""What the load test sends, where to, and whether the recorded orders match the outcomes."""

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

from benchmarks.programs.load_driver import CREATED, OrderResult, result_of
from transfer_async import MemoryJournal, NewOrder, TransferClient
from transfer_async._cli.demo import usd_order
from transfer_async._cli.servers import is_loopback
from transfer_async._http import urls
from transfer_async._models import requests
from transfer_async.journal import Journal, journal_at

MAX_ORDERS = 1_000_000
"""The maximum number of orders in one run."""

_CENT = Decimal("0.01")
_MIN_AMOUNT = Decimal("10.00")


class HostNotAllowed(ValueError):
    """The host is not loopback, and ``--i-own-this-host`` was not given."""


def check_host(url: str, *, owned: bool) -> str:
    """Return ``url`` if the load test may use it.

    Raises:
        HostNotAllowed: the host is not loopback, and ``owned`` is false.
        ValueError: the URL is invalid.
    """
    host = URL(url).host or ""
    if not (owned or is_loopback(host)):
        raise HostNotAllowed(
            f"--url: {host or url} is not a loopback address. A load test of a service that you do not own "
            "is an attack. Use --i-own-this-host to confirm that it is yours and that its operators know"
        )
    try:
        urls.normalised(url)
    except ValueError as error:
        raise ValueError(f"--url: {error}") from None
    return url


def order_for(number: int) -> NewOrder:
    """Return an order between two of the sandbox's users. Each order has a unique amount."""
    return usd_order("tunde.bello", "ben.okri", _MIN_AMOUNT + number * _CENT)


def amount_for(number: int) -> Decimal:
    """Return the poster's amount in ``order_for(number)``."""
    return requests.product(_MIN_AMOUNT + number * _CENT, "1550.25", places=2)


def order_from_file(path: Path) -> Callable[[int], NewOrder]:
    """Read the order to send repeatedly from a JSON file.

    Raises:
        ValueError: the file cannot be read or does not contain an order.
    """
    try:
        order = NewOrder.from_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--order: {error.strerror or error}") from None
    return lambda _: order


def journal_for(address: str) -> Journal:
    """Return the journal for ``memory``, a path or a ``postgresql://`` address.

    Raises:
        ValueError: the address is invalid.
    """
    try:
        return MemoryJournal(max_keys=MAX_ORDERS) if address == "memory" else journal_at(address)
    except ValueError as error:
        raise ValueError(f"--journal: {error}") from None


@define
class Sender:
    """Sends orders by number and records their outcomes.

    Args:
        order: returns the order for a number.
        client: the client of the current step.
    """

    order: Callable[[int], NewOrder]
    client: TransferClient | None = None
    outcomes: dict[int, str] = field(factory=dict)
    _run: str = field(init=False, factory=lambda: secrets.token_hex(4))

    async def send(self, number: int) -> OrderResult:
        """Send one order and return its result. Raises only if cancelled."""
        assert self.client is not None  # noqa: S101 - `run_load` sets it
        self.outcomes[number] = "unknown"  # in case the call is cancelled
        try:
            key = f"load-{self._run}-{number}"
            await self.client.create_order(self.order(number), key=key, held=f"hold-{number}")
            result = CREATED
        except Exception as error:  # noqa: BLE001 - counted as a result
            result = result_of(error)
        self.outcomes[number] = result.kind
        return result


@frozen
class Comparison:
    """The reported outcomes compared with the orders that the service recorded.

    Args:
        existing: the number of recorded orders.
        duplicates: additional orders for the same request.
        missing: orders reported as created but not recorded.
        unexpected: orders reported as refused or not sent but recorded.
        doubts: unknown outcomes.
        doubts_existing: unknown outcomes whose order is recorded.
        unrequested: recorded orders that were never requested.
    """

    existing: int
    duplicates: int
    missing: int
    unexpected: int
    doubts: int
    doubts_existing: int
    unrequested: int

    @property
    def agrees(self) -> bool:
        """Whether every outcome is correct and no order is duplicated."""
        return not (self.duplicates or self.missing or self.unexpected or self.unrequested)


def compare_outcomes(outcomes: dict[int, str], amounts: Counter[Decimal]) -> Comparison:
    """Compare the outcomes with the recorded amounts, which identify the orders."""
    requested = {number: amount_for(number) for number in outcomes}
    existing_numbers = {number for number, amount in requested.items() if amount in amounts}
    by_outcome = {
        kind: {number for number, outcome in outcomes.items() if outcome == kind}
        for kind in set(outcomes.values())
    }
    created, unknown = (
        by_outcome.get("created", set()),
        by_outcome.get("unknown", set()) | by_outcome.get("broken", set()),
    )
    return Comparison(
        existing=amounts.total(),
        duplicates=amounts.total() - len(amounts),
        missing=len(created - existing_numbers),
        unexpected=len(existing_numbers - created - unknown),
        doubts=len(unknown),
        doubts_existing=len(unknown & existing_numbers),
        unrequested=len(amounts.keys() - set(requested.values())),
    )


async def fetch_amounts(base_url: str, token: str) -> Counter[Decimal]:
    """Return the amounts of all orders in the sandbox."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as session,
        session.get(f"{base_url}/sandbox/orders") as response,
    ):
        response.raise_for_status()
        orders: list[dict[str, Any]] = json.loads(await response.read(), parse_float=Decimal)["orders"]
    return Counter(Decimal(order["poster_amount"]) for order in orders)


async def wait_until_stable(fetch: Callable[[], Awaitable[Counter[Decimal]]]) -> Counter[Decimal]:
    """Fetch the amounts until they stop changing: a request that timed out may still create an order."""
    before = await fetch()
    for _ in range(20):
        await asyncio.sleep(0.1)
        if (now := await fetch()) == before:
            break
        before = now
    return before
