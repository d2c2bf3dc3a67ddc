"""httpx and pydantic 2, as in many recent SDKs: models in, models out, no retries."""

from __future__ import annotations

import itertools
from typing import Self

import httpx
from pydantic import BaseModel

from benchmarks.contenders import Terms
from benchmarks.contenders.pydantic_models import PydanticNewOrder, PydanticOrder
from benchmarks.measuring.workload import CREATE_ORDER_PATH, order_fields


class HttpxPydantic:
    """The contender of this module."""

    def __init__(self, terms: Terms) -> None:
        headers = {"Authorization": f"Bearer {terms.token}", "Content-Type": "application/json"}
        self._client = httpx.AsyncClient(base_url=terms.base_url, headers=headers)
        self._orders = [
            PydanticNewOrder.model_validate(fields) for fields in itertools.islice(order_fields(), 500)
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def create(self, number: int) -> BaseModel:
        """See `Contender.create`."""
        content = self._orders[number % len(self._orders)].model_dump_json(by_alias=True)
        response = await self._client.post(CREATE_ORDER_PATH, content=content)
        response.raise_for_status()
        return PydanticOrder.model_validate_json(response.content)
