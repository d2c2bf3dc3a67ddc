"""A client by hand: aiohttp, a retry decorator of tenacity, dicts in and dicts out."""

from __future__ import annotations

import itertools
from typing import Any, Self

import aiohttp
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from benchmarks.contenders import Terms
from benchmarks.measuring.workload import CREATE_ORDER_PATH, order_fields


class Handwritten:
    """The contender of this module."""

    def __init__(self, terms: Terms) -> None:
        self._url = terms.base_url + CREATE_ORDER_PATH
        self._headers = {"Authorization": f"Bearer {terms.token}"}
        self._orders = [_plain(fields) for fields in itertools.islice(order_fields(), 500)]

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    @retry(
        stop=stop_after_attempt(3),
        wait=wait_exponential_jitter(initial=0.5, max=8),
        retry=retry_if_exception_type(aiohttp.ClientConnectionError),
        reraise=True,
    )
    async def create(self, number: int) -> Any:
        """See `Contender.create`."""
        order = self._orders[number % len(self._orders)]
        async with self._session.post(self._url, json=order, headers=self._headers) as response:
            response.raise_for_status()
            return await response.json()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fee as a number that the standard library can write."""
    external = fields["external_order"]
    return {**fields, "external_order": {**external, "transaction_fee": float(external["transaction_fee"])}}
