"""`transfer_async` with its defaults: a hold that does nothing, a journal in memory, retries."""

from __future__ import annotations

import itertools
from typing import Any, Self

from attrs import define

from benchmarks.contenders import Terms
from benchmarks.contenders.stub import StubbedTransport
from benchmarks.measuring.workload import new_orders
from transfer_async import (
    FundsHold,
    MemoryJournal,
    Order,
    OrderIntent,
    PreflightHook,
    RetryPolicy,
    Timeouts,
    TransferClient,
)


async def place(_intent: OrderIntent) -> str:
    """Place a hold that costs nothing."""
    return "held"


async def release(_intent: OrderIntent, _receipt: str | None) -> None:
    """Release the hold."""


@define
class Check:
    """A hook before the hold that does nothing and can be undone."""

    name: str

    async def before(self, _intent: OrderIntent) -> str:
        """Pass."""
        return "passed"

    async def undo(self, _intent: OrderIntent, _receipt: str | None) -> None:
        """Nothing."""


class Ours:
    """The contender of this module."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._keys = itertools.count()
        self._orders = new_orders(1 if terms.stubbed else 500)
        hooks: list[PreflightHook] = [
            *(Check(f"check-{number}") for number in range(1, terms.hooks)),
            FundsHold(place, release),
        ]
        self.client = TransferClient(terms.base_url, terms.token, hooks=hooks, **_options(terms))
        if terms.stubbed:
            StubbedTransport(self._orders[0]).take_the_place(self.client)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()

    async def create(self, number: int) -> Order:
        """See `Contender.create`."""
        order = self._orders[number % len(self._orders)]
        key = f"payment-{next(self._keys)}" if self._terms.keys else None
        return await self.client.create_order(order, key=key)


def _options(terms: Terms) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if terms.connections:
        options["max_connections"] = terms.connections
    if terms.bound:
        options["journal"] = MemoryJournal(max_keys=terms.bound)
    if terms.patience:
        names = ("connect", "sock_connect", "sock_read", "total")
        options["timeouts"] = Timeouts(**dict.fromkeys(names, terms.patience))
        options |= {"retry": RetryPolicy(deadline=terms.patience), "lease": 2 * terms.patience}
    return options
