"""`transfer_async` with its defaults: a hold that does nothing, a journal in memory, retries."""

from __future__ import annotations

import itertools
import json
from typing import Any, Self

from attrs import define

from benchmarks.contenders import Terms
from benchmarks.measuring.workload import Answers, new_orders
from transfer_async import (
    FundsHold,
    MemoryJournal,
    NewOrder,
    Order,
    OrderIntent,
    PreflightHook,
    RetryPolicy,
    Timeouts,
    TransferClient,
)
from transfer_async._http.transport import ExchangeResult
from transfer_async._http.write_guard import GuardedBody


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


# --- without a network ----------------------------------------------------------------------------


def answer_to(order: NewOrder) -> bytes:
    """The service's response."""
    return Answers().answer(json.loads(order.to_json(), parse_float=str))


_numbers = itertools.count()


class StubbedTransport:
    """A transport that responds at once, with a new order id each time.

    Args:
        order: the only order that the client sends.
    """

    def __init__(self, order: NewOrder) -> None:
        answer = answer_to(order)
        self._pieces = answer.split(Order.from_json(answer).id.encode())

    def take_the_place(self, client: TransferClient) -> None:
        """Replace the transport of ``client``."""
        client._context.transport.post_order = self.post_order  # type: ignore[method-assign] # a stand-in

    async def post_order(self, body: GuardedBody, **_: Any) -> ExchangeResult:
        """See `transfer_async._http.transport.Transport.post_order`."""
        body.spent = body.handed_over = True
        order_id = b"tx-%020d" % next(_numbers)
        return ExchangeResult(sent=True, status=200, body=order_id.join(self._pieces), intact=True)
