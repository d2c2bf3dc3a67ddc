"""Servers that fail on purpose: real loopback sockets that follow a script, and record what they receive.

A script is an async function that takes a `Connection`. It reads and sends any bytes, and may close or reset
the connection. When the script returns, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

from attrs import frozen

from tests.support import samples
from tests.support.listening import stop_serving

Script = Callable[["Connection"], Awaitable[None]]

_order_numbers = itertools.count(1)


@frozen(kw_only=True)
class Received:
    """One request that arrived completely, with its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def order(self) -> dict[str, Any]:
        """The order in the body, with exact amounts."""
        return json.loads(self.body, parse_float=Decimal)


class Connection:
    """The server's side of one connection."""

    def __init__(
        self, server: Server, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self.number = number
        self.reader = reader
        self.writer = writer

    async def head(self) -> Received | None:
        """Return the head of the next request; None if the client has closed."""
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        head = Received(method=method, path=path, headers=headers, body=b"", connection=self.number)
        self.server.heads.append(head)
        return head

    async def request(self) -> Received | None:
        """Read and record the next complete request. Return None if the client closes before its end."""
        head = await self.head()
        if head is None:
            return None
        try:
            body = await self.reader.readexactly(int(head.headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        whole = Received(
            method=head.method, path=head.path, headers=head.headers, body=body, connection=self.number
        )
        self.server.requests.append(whole)
        self.server.got_request.set()
        return whole

    def send(self, data: bytes) -> None:
        """Write ``data``. If there is room in the buffers, it is sent at once."""
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        await self.writer.drain()

    def close(self) -> None:
        """Close the connection normally (FIN), after all data were sent."""
        self.writer.close()

    def reset(self) -> None:
        """Abort the connection (RST)."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None and sock.fileno() != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def bytes_waiting(self) -> None:
        """Wait until the client has sent something, without reading it. Reading must be paused."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        twin = self.writer.get_extra_info("socket").dup()
        loop.add_reader(twin, lambda: waiting.done() or waiting.set_result(None))
        try:
            await waiting
        finally:
            loop.remove_reader(twin)
            twin.close()

    async def gone_after_request(self) -> None:
        """A script that reads one complete request and never responds."""
        await self.request()
        await self.gone()

    async def gone(self) -> None:
        """Read and discard data until the client has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


class Server:
    """A server on a free port of 127.0.0.1.

    Attributes:
        accepted: the number of accepted connections.
        requests: the requests that arrived completely.
        heads: the requests whose head arrived.
        open: the connections that are open now.
        got_request: set whenever a complete request has arrived.
    """

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None, reading: bool = True) -> None:
        self._script = script
        self._tls = tls
        self._reading = reading
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.accepted = 0
        self.requests: list[Received] = []
        self.heads: list[Received] = []
        self.open: list[Connection] = []
        self.got_request = asyncio.Event()
        self.port = 0
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The base URL, with a host name if the server uses TLS."""
        return f"https://localhost:{self.port}" if self._tls else f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> Counter[str]:
        """The number of complete requests from each poster."""
        return Counter(request.order["poster_username"] for request in self.requests)

    async def start(self) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, ssl=self._tls, limit=1 << 22, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._reading:
            writer.transport.pause_reading()
        self.accepted += 1
        connection = Connection(self, self.accepted, reader, writer)
        self.open.append(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._script(connection)
        except ConnectionError:
            pass  # a client may close the connection at any time
        except Exception as error:  # noqa: BLE001 - a script's own mistake fails its test
            self.failure = error
        finally:
            self.open.remove(connection)
            connection.close()

    async def idle(self) -> None:
        """Wait until every connection has ended and all data have been read."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._idle(), self._loop))

    async def _idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        assert self._server is not None
        await stop_serving(self._server, self._tasks)
        await asyncio.sleep(0)  # closed transports need two turns of the loop
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, reading: bool = True
) -> AsyncIterator[Server]:
    """Run a `Server` on the current loop."""
    server = Server(script, tls=tls, reading=reading)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def serving_beside(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a `Server` on its own loop in a thread, for tests that block the current loop."""
    loop = asyncio.new_event_loop()
    server = Server(script, tls=tls)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.start(), loop))
        try:
            yield server
        finally:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.stop(), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def until(fact: Callable[[], object]) -> None:
    """Poll once per loop turn until ``fact`` is true."""
    while not fact():  # noqa: ASYNC110 - whatever it is about, nobody tells of it
        await asyncio.sleep(0)


# --- what they say ------------------------------------------------------------------------------


def http(status: int, body: bytes = b"", *, headers: dict[str, str] | None = None) -> bytes:
    """Return a complete response with its length."""
    return head(status, {"Content-Length": str(len(body)), **(headers or {})}) + body


def head(status: int, headers: dict[str, str] | None = None) -> bytes:
    """Return the head of a response."""
    fields = {"Content-Type": "application/json", **(headers or {})}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    """Return a chunked body. Without ``end``, it is truncated."""
    pieces = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join([*pieces, b"0\r\n\r\n" if end else b""])


def order_body(request: Received, **changes: Any) -> bytes:
    """Return the order that ``request`` asks for, as the service would record it: about 8 KB."""
    sent = request.order
    number = next(_order_numbers)
    answer = samples.order_json(id=f"tx-{number:012d}", poster_payment_purpose="p" * 500)
    for name in ("poster_currency", "poster_country", "matcher_currency", "matcher_country"):
        answer[name] = sent[name]
    for name in ("poster_amount", "matcher_amount", "exchange_rate"):
        answer[name] = Decimal(sent[name])
    answer["user"]["username"] = sent["poster_username"]
    answer["postersBeneficiary"]["username"] = sent["poster_recipient_username"]
    return samples.encode({**answer, **changes})


def order_reply(request: Received, **headers: str) -> bytes:
    """Return a complete, correct response to ``request``."""
    return http(200, order_body(request), headers=headers)


def foreign_reply() -> bytes:
    """Return a response with an order that another client requested."""
    return http(200, samples.encode(samples.order_json(seed=99, id="tx-FOREIGN")))


async def answers(connection: Connection) -> None:
    """A script that works: it returns an order for each create-order request, else the account."""
    while request := await connection.request():
        if request.method == "POST":
            connection.send(order_reply(request))
        else:
            connection.send(http(200, samples.encode(samples.user_json())))


def replies(*sent: bytes) -> Script:
    """Return a script that answers each request with the next response, and repeats the last one."""
    left = list(sent)

    async def script(connection: Connection) -> None:
        while await connection.request():
            connection.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def then_closes(*sent: bytes) -> Script:
    """Return a script that reads one complete request, sends these bytes, and closes."""

    async def script(connection: Connection) -> None:
        if await connection.request():
            for data in sent:
                connection.send(data)

    return script
