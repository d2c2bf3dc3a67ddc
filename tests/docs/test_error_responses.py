"""The middleware and the exception handler on the page about outcomes return the right responses."""

from __future__ import annotations

import json
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.docs.story import ROOT, module_of, python_block
from transfer_async import OutcomeUnknown, Refused, TransferError

DOUBT = OutcomeUnknown("a text that no caller sees", key="payment-1")
NO = Refused(status=422, order_may_exist=False, key="payment-1", fields=["matcher_amount"])


@pytest.fixture
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a file of the page as a module."""
    name = request.param
    return module_of(name, python_block(ROOT / "docs/outcomes.md", f"{name}.py"), monkeypatch)


def check(error: TransferError, status: int, body: dict[str, Any]) -> None:
    assert status == {DOUBT: 202, NO: 422}[error]
    assert (body["key"], body["order_may_exist"]) == ("payment-1", error.order_may_exist)
    assert "a text that no caller sees" not in json.dumps(body)


@pytest.mark.parametrize("page", ["with_aiohttp"], indirect=True)
@pytest.mark.parametrize("error", [DOUBT, NO])
async def test_the_aiohttp_middleware_responds_to_an_error(page: ModuleType, error: TransferError) -> None:
    async def pay(_: web.Request) -> web.Response:
        raise error

    app: web.Application = page.app
    app.router.add_post("/payments", pay)
    async with TestClient(TestServer(app)) as client, client.post("/payments") as reply:
        check(error, reply.status, await reply.json())


@pytest.mark.skipif(find_spec("fastapi") is None, reason="FastAPI is not installed")
@pytest.mark.parametrize("page", ["with_fastapi"], indirect=True)
@pytest.mark.parametrize("error", [DOUBT, NO])
async def test_the_fastapi_exception_handler_responds_to_an_error(
    page: ModuleType, error: TransferError
) -> None:
    async def pay() -> None:
        raise error

    page.app.post("/payments")(pay)
    receive = AsyncMock(return_value={"type": "http.request", "body": b"", "more_body": False})
    send = AsyncMock()
    request = {"type": "http", "method": "POST", "path": "/payments", "query_string": b"", "headers": []}
    await page.app(request, receive, send)

    start, body = (call.args[0] for call in send.await_args_list)
    check(error, start["status"], json.loads(body["body"]))
