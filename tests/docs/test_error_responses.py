"""The middleware and the exception handler on the page about outcomes return the right responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.docs.story import ROOT, module_of, python_block
from transfer_async import OutcomeUnknown, Refused, TransferError

DOUBT = OutcomeUnknown("a text that no caller sees", key="payment-1")
NO = Refused(status=422, order_may_exist=False, key="payment-1", fields=["matcher_amount"])


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a file of the page as a module."""
    blocks = partial(python_block, ROOT / "docs/outcomes.md")
    return lambda name: module_of(name, blocks(f"{name}.py"), monkeypatch)


@pytest.fixture
def with_aiohttp(page: Callable[[str], ModuleType]) -> ModuleType:
    return page("with_aiohttp")


@pytest.fixture
def with_fastapi(page: Callable[[str], ModuleType]) -> ModuleType:
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    return page("with_fastapi")


def check(error: TransferError, status: int, body: dict[str, Any]) -> None:
    assert status == {DOUBT: 202, NO: 422}[error]
    assert (body["key"], body["order_may_exist"]) == ("payment-1", error.order_may_exist)
    assert "a text that no caller sees" not in json.dumps(body)


@pytest.mark.parametrize("error", [DOUBT, NO])
async def test_the_aiohttp_middleware_responds_to_an_error(
    with_aiohttp: ModuleType, error: TransferError
) -> None:
    async def pay(_: web.Request) -> web.Response:
        raise error

    app: web.Application = with_aiohttp.app
    app.router.add_post("/payments", pay)
    async with TestClient(TestServer(app)) as client, client.post("/payments") as reply:
        check(error, reply.status, await reply.json())


@pytest.mark.parametrize("error", [DOUBT, NO])
async def test_the_fastapi_exception_handler_responds_to_an_error(
    with_fastapi: ModuleType, error: TransferError
) -> None:
    async def pay() -> None:
        raise error

    with_fastapi.app.post("/payments")(pay)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/payments",
        "raw_path": b"/payments",
        "scheme": "http",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "server": ("bank", 80),
        "root_path": "",
    }
    await with_fastapi.app(scope, receive, send)

    check(error, sent[0]["status"], json.loads(sent[1]["body"]))
