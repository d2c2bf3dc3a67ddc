"""A client that shows the raw bytes on the wire and adds nothing to its requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.order_fields import EXTERNAL, ORDER
from transfer_async.sandbox import Fault, Sandbox

CREATE = "/api/api/v1/order/create"
WHO_AM_I = "/api/api/v1/user/who-am-i"


def order_body(**changes: Any) -> dict[str, Any]:
    return {**ORDER, "external_order": dict(EXTERNAL), **changes}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WireClient:
    def __init__(self, sandbox: Sandbox, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sandbox, self.reader, self.writer = sandbox, reader, writer

    def send(
        self,
        body: object = None,
        *,
        method: str = "POST",
        path: str = CREATE,
        headers: Mapping[str, str | None] | None = None,
    ) -> None:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {
            "Host": "sandbox",
            "Authorization": f"Bearer {self.sandbox.token}",
            "Accept": "application/json",
            "Content-Type": "application/json",
            "Content-Length": str(len(raw)),
            **(headers or {}),
        }
        lines = [f"{name}: {value}" for name, value in sent.items() if value is not None]
        self.writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + raw)

    def meets(self, fault: Fault) -> None:
        """Send an order that triggers this fault."""
        self.sandbox.faults.add(fault)
        self.send(order_body())

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in raw[1:] if line)
        return int(raw[0].split()[1]), headers

    async def answer(self) -> Answer:
        status, headers = await self.head()
        body = await self.reader.readexactly(int(headers.get("Content-Length", "0")))
        return Answer(status, headers, body)

    async def ask(self, body: object = None, **options: Any) -> Answer:
        self.send(body, **options)
        return await self.answer()

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask(method="GET", path=path, **options)

    async def rest(self) -> bytes:
        return await self.reader.read()


@asynccontextmanager
async def connected(sandbox: Sandbox) -> AsyncIterator[WireClient]:
    url = urlsplit(sandbox.base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        yield WireClient(sandbox, reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
