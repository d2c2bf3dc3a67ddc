"""Servers that fail on purpose: real sockets on loopback, scripted per connection, and they keep count.

A script is an async function of a `Connection`. It reads as much as it likes, sends any bytes, and
closes or resets; what it leaves open is closed when it returns.
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
    """One request that arrived whole, body and all."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def order(self) -> dict[str, Any]:
        """The order in its body, every amount exact."""
        return json.loads(self.body, parse_float=Decimal)


class Connection:
    """One connection, from the server's side."""

    def __init__(
        self, server: Server, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self.number = number
        self.reader = reader
        self.writer = writer

    async def head(self) -> Received | None:
        """The next request's head; None once the client has closed."""
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
        """The next whole request, which then counts; None if the client closes before its end."""
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
        """Write ``data``; what fits leaves at once."""
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until the client keeps up."""
        await self.writer.drain()

    def close(self) -> None:
        """End the connection in order: FIN, after all that was sent."""
        self.writer.close()

    def reset(self) -> None:
        """Break the connection: RST."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None and sock.fileno() != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def bytes_waiting(self) -> None:
        """Wait until the client has written something, without reading it; reading must be paused."""
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
        """A script: read one whole request, and never answer."""
        await self.request()
        await self.gone()

    async def gone(self) -> None:
        """Wait until the client has closed, reading on and throwing away."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


class Server:
    """A server on a free port of 127.0.0.1.

    Attributes:
        accepted: how many connections it took.
        requests: what arrived whole, body and all.
        heads: whose head arrived.
        open: the connections that are open now.
        got_request: set whenever a whole request has arrived.
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
        """The base address; by name where a certificate must fit."""
        return f"https://localhost:{self.port}" if self._tls else f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> Counter[str]:
        """How many whole requests came from each poster."""
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
            pass  # a client may go whenever it likes
        except Exception as error:  # noqa: BLE001 - a script's own mistake fails its test
            self.failure = error
        finally:
            self.open.remove(connection)
            connection.close()

    async def idle(self) -> None:
        """Wait until every connection has ended, and all that came on it is read."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._idle(), self._loop))

    async def _idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """End every connection, and listen no more."""
        assert self._server is not None
        await stop_serving(self._server, self._tasks)
        await asyncio.sleep(0)  # in which closed transports take their leave
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, reading: bool = True
) -> AsyncIterator[Server]:
    """A `Server` on this loop."""
    server = Server(script, tls=tls, reading=reading)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def serving_beside(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A `Server` on a loop and a thread of its own, for what happens while ours is busy."""
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
    """Wait, turn by turn of the loop, until ``fact`` is true."""
    while not fact():  # noqa: ASYNC110 - whatever it is about, nobody tells of it
        await asyncio.sleep(0)


# --- what they say ------------------------------------------------------------------------------


def http(status: int, body: bytes = b"", *, headers: dict[str, str] | None = None) -> bytes:
    """A whole answer with its length."""
    return head(status, {"Content-Length": str(len(body)), **(headers or {})}) + body


def head(status: int, headers: dict[str, str] | None = None) -> bytes:
    """An answer's head."""
    told = {"Content-Type": "application/json", **(headers or {})}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def long_header(size: int) -> bytes:
    """An answer with a header of that many bytes."""
    return http(200, b"{}", headers={"X-Long": "x" * size})


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    """A body in chunks; without its ``end`` it is cut."""
    pieces = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join([*pieces, b"0\r\n\r\n" if end else b""])


def order_body(request: Received, **changes: Any) -> bytes:
    """The order that ``request`` asks for, as the service would record it: about 8 KB."""
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


def order_reply(request: Received, *, status: int = 200, **headers: str) -> bytes:
    """A whole, good answer to ``request``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http(status, order_body(request), headers=named)


def foreign_reply() -> bytes:
    """An order that somebody else asked for."""
    return http(200, samples.encode(samples.order_json(seed=99, id="tx-FOREIGN")))


async def answers(connection: Connection) -> None:
    """A service that works: an order for each create-order, the account for anything else."""
    while request := await connection.request():
        if request.method == "POST":
            connection.send(order_reply(request))
        else:
            connection.send(http(200, samples.encode(samples.user_json())))


def replies(*sent: bytes) -> Script:
    """Reads one whole request on each connection, and gives the next of these answers to it."""
    left = list(sent)

    async def script(connection: Connection) -> None:
        while await connection.request():
            connection.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def then_closes(*sent: bytes) -> Script:
    """Reads one whole request, sends these bytes, and closes."""

    async def script(connection: Connection) -> None:
        if await connection.request():
            for data in sent:
                connection.send(data)

    return script
