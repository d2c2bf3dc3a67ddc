"""`transfer_async` with its defaults: a no-op hold, a journal in memory, and retries."""

from __future__ import annotations

import itertools
import json
from typing import Any, Self

from attrs import define

from benchmarks.contenders import ContenderSettings
from benchmarks.measuring.workload import Responses, new_orders
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
    """Place a hold without doing anything."""
    return "held"


async def release(_intent: OrderIntent, _receipt: str | None) -> None:
    """Release a hold without doing anything."""


@define
class Check:
    """A no-op hook that can be undone."""

    name: str

    async def before(self, _intent: OrderIntent) -> str:
        return "passed"

    async def undo(self, _intent: OrderIntent, _receipt: str | None) -> None:
        pass


class Ours:
    def __init__(self, settings: ContenderSettings) -> None:
        self._settings = settings
        self._keys = itertools.count()
        self._orders = new_orders(1 if settings.stub_transport else 500)
        hooks: list[PreflightHook] = [
            *(Check(f"check-{number}") for number in range(1, settings.hooks)),
            FundsHold(place, release),
        ]
        self.client = TransferClient(
            settings.base_url, settings.token, hooks=hooks, **_client_options(settings)
        )
        if settings.stub_transport:
            StubTransport(self._orders[0]).install(self.client)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()

    async def create(self, number: int) -> Order:
        order = self._orders[number % len(self._orders)]
        key = f"payment-{next(self._keys)}" if self._settings.caller_keys else None
        return await self.client.create_order(order, key=key)


def _client_options(settings: ContenderSettings) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if settings.connections:
        options["max_connections"] = settings.connections
    if settings.max_keys:
        options["journal"] = MemoryJournal(max_keys=settings.max_keys)
    if settings.timeout:
        names = ("connect", "sock_connect", "sock_read", "total")
        options["timeouts"] = Timeouts(**dict.fromkeys(names, settings.timeout))
        options |= {"retry": RetryPolicy(deadline=settings.timeout), "lease": 2 * settings.timeout}
    return options


# --- without a network ----------------------------------------------------------------------------


def response_to(order: NewOrder) -> bytes:
    """Return the service's response to an order."""
    return Responses().respond(json.loads(order.to_json(), parse_float=str))


_numbers = itertools.count()


class StubTransport:
    """A transport that responds immediately, with a new order id each time.

    What remains to be measured is the client's own work.

    Args:
        order: the only order that the client will send.
    """

    def __init__(self, order: NewOrder) -> None:
        answer = response_to(order)
        self._pieces = answer.split(Order.from_json(answer).id.encode())

    def install(self, client: TransferClient) -> None:
        """Install this transport in ``client``."""
        client._context.transport.post_order = self.post_order  # type: ignore[method-assign] # a stub

    async def post_order(self, body: GuardedBody, **_: Any) -> ExchangeResult:
        body.spent = body.handed_over = True
        order_id = b"tx-%020d" % next(_numbers)
        return ExchangeResult(sent=True, status=200, body=order_id.join(self._pieces), intact=True)
