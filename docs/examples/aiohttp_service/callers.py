"""A caller of the service, and faults that the sandbox simulates."""

from typing import Any

import aiohttp

from bank import Bank
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, Status

PAYMENT = {
    "customer": "ada.eze@example.com",
    "beneficiary": "ben.okri@example.com",
    "amount": "100.00",
    "rate": "1500",
}


class Caller:
    """Request payments from the service and show its responses."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.seen: list[tuple[int, dict[str, Any]]] = []

    async def pays(self, key: str, **changes: str) -> None:
        """Request a payment."""
        headers = {"Idempotency-Key": key}
        async with self._session.post("/payments", json=PAYMENT | changes, headers=headers) as reply:
            await self._shows(f"POST /payments  {key}", reply)

    async def asks(self, key: str) -> None:
        """Request the state of a payment."""
        async with self._session.get(f"/payments/{key}") as reply:
            await self._shows(f"GET /payments/{key}", reply)

    async def _shows(self, asked: str, reply: aiohttp.ClientResponse) -> None:
        body = await reply.json()
        self.seen.append((reply.status, body))
        known = {name: value for name, value in body.items() if name != "key"}
        print(f"{asked:26} {reply.status}  {known}")


async def story(sandbox: Sandbox, bank: Bank, session: aiohttp.ClientSession) -> Caller:
    """Make four payments: one succeeds, one is refused, one is never sent, and one response is lost."""
    caller = Caller(session)
    await caller.pays("payment-1")
    await caller.pays("payment-1")  # repeated: the same order
    await caller.pays("payment-1", amount="999.00")  # the same key for another payment

    await caller.pays("payment-2", beneficiary="nobody@example.com")
    sandbox.faults.add(Status(401))
    await caller.pays("payment-3")  # the service refuses our token
    await caller.pays("payment-3")  # the token works again

    sandbox.faults.add(CloseAfterProcessing())
    await caller.pays("payment-4")  # the order is created, but its response is lost
    await caller.asks("payment-4")
    bank.statement["payment-4"] = list(sandbox.orders)[-1]  # the back office finds the order
    await caller.pays("payment-4")  # repeated: the same order, without a second request
    await caller.asks("payment-4")
    print(f"orders at the service: {len(sandbox.orders)}; holds at the bank: {len(bank.holds)}")
    return caller
