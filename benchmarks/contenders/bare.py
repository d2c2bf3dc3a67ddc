"""aiohttp alone: post bytes, read bytes. This is the least that aiohttp can do."""

from __future__ import annotations

from typing import Self

import aiohttp

from benchmarks.contenders import Terms
from benchmarks.measuring.workload import CREATE_ORDER_PATH, new_orders


class Bare:
    """The contender of this module."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._url = terms.base_url + CREATE_ORDER_PATH
        self._headers = {"Authorization": f"Bearer {terms.token}", "Content-Type": "application/json"}
        self._bodies = [order.to_json() for order in new_orders(500)]

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self._terms.connections or 100)
        timeout = aiohttp.ClientTimeout(total=self._terms.patience or 300)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def create(self, number: int) -> bytes:
        """See `Contender.create`."""
        body = self._bodies[number % len(self._bodies)]
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            return await response.read()
