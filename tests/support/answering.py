"""A test service that sends prepared responses and records every request."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from attrs import define, field, frozen


@frozen(kw_only=True)
class Came:
    """One request as received."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@frozen(kw_only=True)
class Answer:
    """One prepared response. ``lost`` sends nothing, ``cut`` sends only a part, and ``gate`` delays it."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(factory=dict)
    lost: bool = False
    cut: bool = False
    gate: asyncio.Event | None = None


@define
class Answering:
    """Sends ``answers`` in order. When none is left, returns the request's body, or ``{}`` if it is empty."""

    base_url: str = ""
    came: list[Came] = field(factory=list)
    answers: list[Answer] = field(factory=list)
    arrived: asyncio.Event = field(factory=asyncio.Event)

    def answer(self, status: int = 200, body: bytes = b"{}", *, times: int = 1, **how: Any) -> None:
        self.answers += [Answer(status=status, body=body, **how)] * times

    def lose(self, *, times: int = 1) -> None:
        self.answers += [Answer(lost=True)] * times

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.came.append(
            Came(method=request.method, target=request.raw_path, headers=request.headers, body=body)
        )
        self.arrived.set()
        answer = self.answers.pop(0) if self.answers else Answer(body=body or b"{}")
        if answer.gate is not None:
            await answer.gate.wait()
        assert request.transport is not None
        if answer.lost:
            request.transport.abort()
            return web.Response()
        if not answer.cut:
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_length = len(answer.body) + 10
        await response.prepare(request)
        await response.write(answer.body)
        request.transport.close()
        return response


@asynccontextmanager
async def answering() -> AsyncIterator[Answering]:
    """Serve an `Answering` on loopback."""
    service = Answering()
    runner = web.ServerRunner(web.Server(service.handle), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        service.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()
