"""The contenders: a class each, of one tiny interface, in a module that imports what it needs.

Each runs in a process of its own (`child`), and is asked to have its turns from outside (`host`).
"""

from __future__ import annotations

from typing import Protocol, Self

from attrs import frozen


@frozen(kw_only=True)
class Terms:
    """What a contender is to work with; 0 leaves it its own default.

    Args:
        base_url: of the service.
        token: that it takes.
        connections: how many it may hold at once.
        patience: seconds before it gives up.
        hooks: how many hooks see an order; only our own client has any.
        keys: whether each order has a key of the caller's; the same.
        bound: how many keys the journal keeps; the same.
        stubbed: whether the answers are made up in place of the transport; the same.
        uvloop: whether it runs on uvloop.
    """

    base_url: str = "http://127.0.0.1:1"
    token: str = "none"  # noqa: S105 - of no service
    connections: int = 0
    patience: float = 0.0
    hooks: int = 1
    keys: bool = False
    bound: int = 0
    stubbed: bool = False
    uvloop: bool = False


class Contender(Protocol):
    """Whoever can create orders."""

    def __init__(self, terms: Terms) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def create(self, number: int) -> object:
        """Create the order of this number, and read what comes back as its users would have it."""


OURS, BARE, HANDWRITTEN = "transfer_async", "aiohttp, bare", "aiohttp + tenacity, by hand"
HTTPX, TREASURY, STRIPE = "httpx + pydantic", "modern-treasury", "stripe"

PLACES = {
    OURS: "ours:Ours",
    BARE: "bare:Bare",
    HANDWRITTEN: "handwritten:Handwritten",
    HTTPX: "httpx_pydantic:HttpxPydantic",
    TREASURY: "treasury:Treasury",
    STRIPE: "stripes:Stripes",
}
"""Where each is: its module in this package, and its class."""
