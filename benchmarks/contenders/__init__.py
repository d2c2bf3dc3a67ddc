"""The contenders: clients with one small interface, each of which imports its own dependencies.

Each runs in a process of its own (`child`); `host` starts its rounds from outside.
"""

from __future__ import annotations

from typing import Protocol, Self

from attrs import frozen


@frozen(kw_only=True)
class ContenderSettings:
    """The settings of a contender; 0 keeps its own default.

    Args:
        base_url: the service's base URL.
        token: the service's token.
        connections: the largest number of connections.
        timeout: the timeout in seconds.
        hooks: the number of hooks; only for our own client.
        caller_keys: whether each order has a caller's key; only for our own client.
        max_keys: the number of keys that the journal keeps; only for our own client.
        stub_transport: whether a stub replaces the transport; only for our own client.
        uvloop: whether it runs on uvloop.
    """

    base_url: str = "http://127.0.0.1:1"
    token: str = "none"  # noqa: S105 - of no service
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
        """Create the order of this number, and read the response as a user of the library would."""


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
"""By name: the module in this package and the class."""
