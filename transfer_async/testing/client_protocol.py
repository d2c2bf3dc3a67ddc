"""What a client can do, as a type: for code that should take the client, a fake, or a stub of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Protocol, Self, runtime_checkable

from transfer_async._models.requests import NewOrder, PersonName
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.batch import OrderResult, Requests
from transfer_async._pipeline.key_views import Doubt
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.clock import Duration
from transfer_async.journal.entries import Step
from transfer_async.journal.protocol import KeyRecord


@runtime_checkable
class AnyClient(Protocol):
    """Whatever creates orders as `TransferClient` does; each method is told there.

    Annotate your own code with it (``if TYPE_CHECKING: from transfer_async.testing import AnyClient``), and
    it takes a `FakeClient` or a stub of your own as well.
    """

    async def create_order(
        self,
        order: NewOrder,
        *,
        key: str | None = None,
        beneficiary: PersonName | None = None,
        held: str | None = None,
        send_before: datetime | None = None,
        deadline: datetime | None = None,
        once: bool = False,
    ) -> Order:
        """See `TransferClient.create_order`."""
        ...

    def create_orders(
        self, requests: Requests, *, concurrency: int = 16, once: bool = False
    ) -> AsyncGenerator[OrderResult, None]:
        """See `TransferClient.create_orders`."""
        ...

    async def known(self, key: str) -> KeyRecord | None:
        """See `TransferClient.known`."""
        ...

    async def recover(self) -> RecoveryReport:
        """See `TransferClient.recover`."""
        ...

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """See `TransferClient.in_doubt`."""
        ...

    async def resolve(
        self, key: str, *, order_id: str, by: str, reason: str, undone: bool = False
    ) -> KeyRecord:
        """See `TransferClient.resolve`."""
        ...

    async def refute(self, key: str, *, by: str, reason: str, undone: bool = False) -> KeyRecord:
        """See `TransferClient.refute`."""
        ...

    async def history(self, key: str) -> tuple[Step, ...]:
        """See `TransferClient.history`."""
        ...

    async def prune(self, *, before: datetime) -> int:
        """See `TransferClient.prune`."""
        ...

    async def who_am_i(self, *, deadline: datetime | None = None) -> User:
        """See `TransferClient.who_am_i`."""
        ...

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        into: Any = None,
        safe: bool = False,
        deadline: datetime | None = None,
    ) -> Any:
        """See `TransferClient.request`."""
        ...

    async def close(self, timeout: Duration = 35.0) -> None:  # noqa: ASYNC109 - the client's own
        """See `TransferClient.close`."""
        ...

    async def __aenter__(self) -> Self:
        """Open it."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        ...
