"""A payment service on aiohttp.

``POST /payments`` creates the order for a payment; ``GET /payments/{key}`` returns its state.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from bank import Bank
from transfer_async import FundsHold, Order, SQLiteJournal, TransferClient, TransferError
from transfer_async.integrations.http import HTTPResponse, response_for_record, response_to

BANK = web.AppKey("bank", Bank)
CLIENT = web.AppKey("client", TransferClient)


def make_app(bank: Bank, *, base_url: str, token: str, journal: Path) -> web.Application:
    """Return the service; its client stays open while the service runs."""

    async def client(app: web.Application) -> AsyncIterator[None]:
        async with (
            SQLiteJournal(journal) as records,
            TransferClient(
                base_url,
                token,
                hooks=[FundsHold(bank.place, bank.release)],
                resolve=bank.resolve,
                journal=records,
                recover_every=30.0,
            ) as app[CLIENT],
        ):
            yield

    app = web.Application()
    app[BANK] = bank
    app.cleanup_ctx.append(client)
    app.add_routes([web.post("/payments", create), web.get("/payments/{key}", show)])
    return app


async def create(request: web.Request) -> web.Response:
    """Create a payment. The caller chooses the key, so that repeating the request does not pay again."""
    key = request.headers.get("Idempotency-Key")
    payment = await _json(request)
    if not key or not isinstance(payment, dict):
        return web.json_response({"error": "send an Idempotency-Key, and a JSON object"}, status=400)
    return _sent(response_to(await _created(request.app, key, payment), key=key))


async def show(request: web.Request) -> web.Response:
    """Return the state of a payment."""
    key = request.match_info["key"]
    try:
        return _sent(response_for_record(await request.app[CLIENT].known(key), key=key))
    except TransferError as error:
        return _sent(response_to(error, key=key))


async def _created(app: web.Application, key: str, payment: dict[str, Any]) -> Order | TransferError:
    wanted = {name: payment.get(name) for name in ("customer", "beneficiary", "amount", "rate")}
    try:
        # once=True: a repeated request is the same payment, so it gets the recorded refusal.
        return await app[CLIENT].create_order(app[BANK].order(**wanted), key=key, once=True)
    except TransferError as error:
        return error


async def _json(request: web.Request) -> Any:
    try:
        return await request.json()
    except (ValueError, LookupError):  # not JSON, or an unknown encoding
        return None


def _sent(response: HTTPResponse) -> web.Response:
    return web.json_response(response.body, status=response.status, headers=response.headers)
