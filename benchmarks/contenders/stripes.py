"""Stripe's async SDK with its defaults: the closest call creates a transfer."""

from __future__ import annotations

from typing import Self

import httpx  # without it, stripe has no async client of this kind  # noqa: F401
import stripe

from benchmarks.contenders import Terms


class Stripes:
    """The contender of this module; the response is the same order as for all others."""

    def __init__(self, terms: Terms) -> None:
        self._http = stripe.HTTPXClient()
        self._client = stripe.StripeClient(
            terms.token, http_client=self._http, base_addresses={"api": terms.base_url}
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close_async()  # type: ignore[no-untyped-call] # it has no types

    async def create(self, number: int) -> object:
        """See `Contender.create`."""
        return await self._client.v1.transfers.create_async(
            {
                "amount": 100_000 + number,
                "currency": "usd",
                "destination": "acct_made_up",
                "description": "a made-up payment",
                "metadata": {"poster": "ada.eze@example.com", "exchange_rate": "1550.25"},
            }
        )
