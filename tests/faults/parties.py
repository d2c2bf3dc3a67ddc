"""The parties in a failure test: a bank with its customer's funds, certificates, and a transport."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import trustme
from attrs import define, field

from tests.support import samples
from transfer_async import Clock, FundsHold, MemoryJournal, Timeouts, TransferClient
from transfer_async._http.transport import Transport
from transfer_async._models.errors import TransferError
from transfer_async._models.events import Event
from transfer_async._models.responses import Order

KEY = "payment-8731"


@define(kw_only=True)
class Certificates:
    """TLS settings that fit together, and some that do not.

    Attributes:
        client: trusts the authority.
        server: has a valid certificate.
        other_server: has a certificate for another host.
        old_server: has an expired certificate.
        strict_server: requires a certificate of the client.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext
    other_server: ssl.SSLContext
    old_server: ssl.SSLContext
    strict_server: ssl.SSLContext


def make_certificates() -> Certificates:
    """Create all settings. Reads and writes files, so it must not run in an event loop."""
    authority = trustme.CA()

    client = ssl.create_default_context()
    authority.configure_trust(client)

    def server(name: str = "localhost", **terms: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name, **terms).configure_cert(context)
        return context

    made = Certificates(
        client=client,
        server=server(),
        other_server=server("other.example"),
        old_server=server(not_after=datetime(2001, 1, 1, tzinfo=UTC)),
        strict_server=server(),
    )
    authority.configure_trust(made.strict_server)
    made.strict_server.verify_mode = ssl.CERT_REQUIRED
    return made


@define
class Funds:
    """The bank's holds: which were placed and released, and how often."""

    placed: list[str] = field(factory=list)
    released: list[tuple[str, str | None]] = field(factory=list)

    async def place(self, intent: Any) -> str:
        """Place a hold for the intent."""
        self.placed.append(intent.id)
        return f"hold-{len(self.placed)}"

    async def release(self, intent: Any, receipt: str | None) -> None:
        """Release the hold."""
        self.released.append((intent.id, receipt))

    @property
    def state(self) -> str:
        """``kept``, ``released`` (exactly once, with its receipt), or a description of the mistake."""
        if len(self.placed) != 1:
            return f"placed {len(self.placed)} times"
        if not self.released:
            return "kept"
        if self.released == [(self.placed[0], "hold-1")]:
            return "released"
        return f"released wrongly: {self.released}"


@define
class Bank:
    """A bank with one client, which records the requests, the events and its customer's funds."""

    funds: Funds = field(factory=Funds)
    pauses: list[float] = field(factory=list)
    events: list[Event] = field(factory=list)
    journal: MemoryJournal = field(factory=MemoryJournal)

    async def sleep(self, seconds: float) -> None:
        """Record a pause between attempts, without waiting."""
        self.pauses.append(seconds)

    def client(self, url: str, **settings: Any) -> TransferClient:
        """Return a client with a hold hook."""
        settings.setdefault("token", "secret-token")
        settings.setdefault("clock", Clock(sleep=self.sleep, chance=lambda: 0.0))
        return TransferClient(
            url,
            hooks=[FundsHold(self.funds.place, self.funds.release)],
            journal=self.journal,
            observers=[self.events.append],
            **settings,
        )

    async def try_order(self, url: str, **settings: Any) -> TransferError:
        """Send one order with a new client. Return the resulting error."""
        with pytest.raises(TransferError) as caught:
            await self.send_order(url, **settings)
        return caught.value

    async def send_order(self, url: str, *, deadline: datetime | None = None, **settings: Any) -> Order:
        """Send one order with a new client. Return the created order."""
        async with self.client(url, **settings) as client:
            return await client.create_order(samples.new_order(), key=KEY, deadline=deadline)

    async def state(self, url: str) -> str:
        """Return the state of the key in the journal."""
        entry = await self.journal.read(url, KEY)
        return "unheard of" if entry is None else entry.state.value


@asynccontextmanager
async def transport_to(
    url: str, kind: type[Transport] = Transport, **settings: Any
) -> AsyncIterator[Transport]:
    """Yield a transport with its own sessions."""
    usual = {"session": None, "ssl": None, "proxy": None, "timeouts": Timeouts()}
    limits = {"max_response_bytes": 1 << 20, "max_connections": 10}
    made = kind(url, **{**usual, **limits, **settings})
    try:
        yield made
    finally:
        await made.close()
