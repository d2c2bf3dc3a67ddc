"""Modern Treasury's async SDK with its defaults: the closest call creates a payment order."""

from __future__ import annotations

from typing import Self

from modern_treasury import AsyncModernTreasury

from benchmarks.contenders import Terms


class Treasury:
    """The contender of this module; its models read the same order loosely."""

    def __init__(self, terms: Terms) -> None:
        self._client = AsyncModernTreasury(
            base_url=terms.base_url, api_key=terms.token, organization_id="benchmarks"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def create(self, number: int) -> object:
        """See `Contender.create`."""
        return await self._client.payment_orders.create(
            amount=100_000 + number,
            direction="credit",
            originating_account_id="6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b01",
            receiving_account_id="6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b02",
            type="wire",
            currency="USD",
            description="a made-up payment",
            metadata={"poster": "ada.eze@example.com", "exchange_rate": "1550.25"},
        )
