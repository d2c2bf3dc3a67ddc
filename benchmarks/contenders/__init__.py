"""The clients under comparison, behind one small interface.

`process` runs each of them in its own process.
"""

from __future__ import annotations

from typing import Protocol, Self

from attrs import frozen


@frozen(kw_only=True)
class ContenderSettings:
    """Settings of a contender. 0 selects the contender's own default.

    Args:
        base_url: the base URL of the service.
        token: the bearer token.
        connections: the maximum number of connections.
        timeout: the timeout of a call, in seconds.
        hooks: the number of hooks; `transfer_async` only.
        caller_keys: whether the caller supplies an idempotency key with each order; `transfer_async` only.
        max_keys: the maximum number of keys in the journal; `transfer_async` only.
        stub_transport: whether to replace the transport with a stub; `transfer_async` only.
        uvloop: whether to use uvloop.
    """

    base_url: str = "http://127.0.0.1:1"
    token: str = "none"  # noqa: S105 - a placeholder
    connections: int = 0
    timeout: float = 0.0
    hooks: int = 1
    caller_keys: bool = False
    max_keys: int = 0
    stub_transport: bool = False
    uvloop: bool = False


class Contender(Protocol):
    """A client that can create orders."""

    def __init__(self, settings: ContenderSettings) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def create(self, number: int) -> object:
        """Create an order and parse the response as a user of the library would.

        Args:
            number: selects one of the prepared orders.
        """


OURS, BARE, HANDWRITTEN = "transfer_async", "aiohttp, bare", "aiohttp + tenacity, by hand"
HTTPX, TREASURY, STRIPE = "httpx + pydantic", "modern-treasury", "stripe"

CONTENDERS = {
    OURS: "ours:Ours",
    BARE: "clients:Bare",
    HANDWRITTEN: "clients:Handwritten",
    HTTPX: "clients:HttpxPydantic",
    TREASURY: "clients:ModernTreasury",
    STRIPE: "clients:Stripe",
}
"""For each name, the module in this package and the class."""
