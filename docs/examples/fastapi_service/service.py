"""A payment service on FastAPI.

``POST /payments`` creates the order for a payment; ``GET /payments/{key}`` returns its state.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from bank import Bank
from transfer_async import FundsHold, SQLiteJournal, TransferClient, TransferError
from transfer_async.integrations.http import HTTPResponse, response_for_record, response_to


class Payment(BaseModel):
    """The body of a request. Amounts are strings, because FastAPI would convert JSON numbers to ``float``."""

    customer: str
    beneficiary: str
    amount: str
    rate: str


def make_app(bank: Bank, *, base_url: str, token: str, journal: Path) -> FastAPI:
    """Return the service; its client stays open while the service runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            SQLiteJournal(journal) as records,
            TransferClient(
                base_url,
                token,
                hooks=[FundsHold(bank.place, bank.release)],
                resolve=bank.resolve,
                journal=records,
                recover_every=30.0,
            ) as client,
        ):
            app.state.bank, app.state.client = bank, client
            yield

    app = FastAPI(lifespan=lifespan)
    app.post("/payments")(create)
    app.get("/payments/{key:path}")(show)
    return app


def bank_of(request: Request) -> Bank:
    """The bank behind the service."""
    bank: Bank = request.app.state.bank
    return bank


def client_of(request: Request) -> TransferClient:
    """The one client that all requests share."""
    client: TransferClient = request.app.state.client
    return client


Key = Annotated[str, Header(alias="Idempotency-Key")]
TheBank = Annotated[Bank, Depends(bank_of)]
TheClient = Annotated[TransferClient, Depends(client_of)]


async def create(payment: Payment, key: Key, bank: TheBank, client: TheClient) -> JSONResponse:
    """Create a payment. The caller chooses the key, so that repeating the request does not pay again."""
    try:
        # once=True: a repeated request is the same payment, so it gets the recorded refusal.
        order = await client.create_order(bank.order(**payment.model_dump()), key=key, once=True)
    except TransferError as error:
        return _sent(response_to(error, key=key))
    return _sent(response_to(order, key=key))


async def show(key: str, client: TheClient) -> JSONResponse:
    """Return the state of a payment."""
    try:
        return _sent(response_for_record(await client.known(key), key=key))
    except TransferError as error:
        return _sent(response_to(error, key=key))


def _sent(response: HTTPResponse) -> JSONResponse:
    return JSONResponse(response.body, status_code=response.status, headers=response.headers)
