"""The clients that `transfer_async` is compared with.

Each process runs only one client. Therefore a client's dependencies are imported in its constructor.
"""

from __future__ import annotations

import itertools
from typing import Any, Self

import aiohttp

from benchmarks.contenders import ContenderSettings
from benchmarks.measuring.workload import CREATE_ORDER_PATH, new_orders, order_fields


class Bare:
    """aiohttp alone: posts bytes and reads bytes, the minimum that any client on aiohttp must do."""

    def __init__(self, settings: ContenderSettings) -> None:
        self._settings = settings
        self._url = settings.base_url + CREATE_ORDER_PATH
        self._headers = {"Authorization": f"Bearer {settings.token}", "Content-Type": "application/json"}
        self._bodies = [order.to_json() for order in new_orders(500)]

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self._settings.connections or 100)
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout or 300)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def create(self, number: int) -> bytes:
        body = self._bodies[number % len(self._bodies)]
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            return await response.read()


class Handwritten:
    """A typical handwritten client: aiohttp, a retry decorator of tenacity, dicts in and dicts out."""

    def __init__(self, settings: ContenderSettings) -> None:
        from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

        self._url = settings.base_url + CREATE_ORDER_PATH
        self._headers = {"Authorization": f"Bearer {settings.token}"}
        self._orders = [_with_float_fee(fields) for fields in itertools.islice(order_fields(), 500)]
        self.create = retry(
            stop=stop_after_attempt(3),
            wait=wait_exponential_jitter(initial=0.5, max=8),
            retry=retry_if_exception_type(aiohttp.ClientConnectionError),
            reraise=True,
        )(self._create)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def _create(self, number: int) -> Any:
        order = self._orders[number % len(self._orders)]
        async with self._session.post(self._url, json=order, headers=self._headers) as response:
            response.raise_for_status()
            return await response.json()


def _with_float_fee(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the fee to a float, because ``json.dumps`` cannot write a `Decimal`."""
    external = fields["external_order"]
    return {**fields, "external_order": {**external, "transaction_fee": float(external["transaction_fee"])}}


class HttpxPydantic:
    """httpx and pydantic 2, as in many recent SDKs: models in, models out, no retries."""

    def __init__(self, settings: ContenderSettings) -> None:
        import httpx

        from benchmarks.contenders.pydantic_models import PydanticNewOrder, PydanticOrder

        headers = {"Authorization": f"Bearer {settings.token}", "Content-Type": "application/json"}
        self._client = httpx.AsyncClient(base_url=settings.base_url, headers=headers)
        self._response_model = PydanticOrder
        self._orders = [
            PydanticNewOrder.model_validate(fields) for fields in itertools.islice(order_fields(), 500)
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def create(self, number: int) -> object:
        content = self._orders[number % len(self._orders)].model_dump_json(by_alias=True)
        response = await self._client.post(CREATE_ORDER_PATH, content=content)
        response.raise_for_status()
        return self._response_model.model_validate_json(response.content)


class ModernTreasury:
    """Modern Treasury's async SDK with its defaults.

    Its closest call creates a payment order. Its models read our order without validating it.
    """

    def __init__(self, settings: ContenderSettings) -> None:
        from modern_treasury import AsyncModernTreasury

        self._client = AsyncModernTreasury(
            base_url=settings.base_url, api_key=settings.token, organization_id="benchmarks"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def create(self, number: int) -> object:
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


class Stripe:
    """Stripe's async SDK with its defaults. Its closest call creates a transfer."""

    def __init__(self, settings: ContenderSettings) -> None:
        import httpx  # stripe needs it for this HTTP client  # noqa: F401
        import stripe

        self._http = stripe.HTTPXClient()
        self._client = stripe.StripeClient(
            settings.token, http_client=self._http, base_addresses={"api": settings.base_url}
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close_async()

    async def create(self, number: int) -> object:
        return await self._client.v1.transfers.create_async(
            {
                "amount": 100_000 + number,
                "currency": "usd",
                "destination": "acct_made_up",
                "description": "a made-up payment",
                "metadata": {"poster": "ada.eze@example.com", "exchange_rate": "1550.25"},
            }
        )
