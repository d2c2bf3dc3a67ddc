"""The service without sockets: the sandbox's own answers and faults, handed to the client as evidence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from transfer_async._http.decoder import BoundedBody
from transfer_async._http.transport import Evidence, Timeouts, Transport, TransportClosed
from transfer_async._http.unsolicited import Carrier
from transfer_async._http.write_guard import GuardedBody
from transfer_async.sandbox import RequestRecord, Sandbox
from transfer_async.sandbox.exchange import Exchange
from transfer_async.sandbox.service import Reply


class InProcessExchange(Exchange):
    """An exchange with nothing between: what the sandbox writes is kept for the one who asked.

    Attributes:
        over: done once nothing more of the answer can come.
        status, headers, content: what came; no status if no whole head did.
        whole: whether the answer came to its end.
    """

    def __init__(self, record: RequestRecord, body: bytes, *, enough: int, **parts: Any) -> None:
        super().__init__(request=None, record=record, **parts)  # type: ignore[arg-type] # there is no request of aiohttp's
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.content: bytearray = bytearray()
        self.whole: bool = False
        self._sent, self._enough = body, enough
        self._raw = b""

    async def read_body(self) -> None:
        """Take the request's body; the client's orders are all within the service's limit."""
        self._body = self.record.body = self._sent

    async def send(self, reply: Reply) -> None:
        """Answer."""
        self._begin(reply)
        self._take(reply.body)
        self._end(whole=True)

    async def begin(self, reply: Reply, *, length: int | None) -> web.StreamResponse:  # noqa: ARG002 - nobody counts
        """Begin to answer."""
        self._begin(reply)
        return _Body(self)

    def write(self, data: bytes) -> None:
        """Take bytes as they are, and see whether they have become an answer."""
        if self.over.done():
            return  # what comes behind an answer is found on a connection, and there is none
        self._raw += data
        head, ended, body = self._raw.partition(b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in head:  # written by hand, they are broken: all of it is unreadable
            self._end(whole=False)
        if not ended or self.over.done():
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers.update(line.split(": ", 1) for line in lines)  # type: ignore[misc] # pairs
        self.content[:] = body
        if len(body) == int(self.headers["Content-Length"]):
            self._end(whole=True)

    def close(self) -> None:
        """Answer nothing more."""
        self._end(whole=False)

    def reset(self) -> None:
        """Answer nothing more."""
        self._end(whole=False)

    def _begin(self, reply: Reply) -> None:
        self.status = self.record.status = reply.status
        self.headers.update(reply.headers)

    def _take(self, data: bytes) -> None:
        if self.over.done():
            raise ConnectionResetError("the client has left")
        self.content += data
        if len(self.content) > self._enough:
            self._end(whole=False)

    def _end(self, *, whole: bool) -> None:
        if not self.over.done():
            self.whole = whole
            self.over.set_result(None)


class _Body(web.StreamResponse):
    """As much of aiohttp's answer as the sandbox's faults write to."""

    def __init__(self, exchange: InProcessExchange) -> None:
        super().__init__()
        self._exchange = exchange

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take a part of the body."""
        self._exchange._take(bytes(data))

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:  # noqa: ARG002 - aiohttp's
        """The body is whole."""
        self._exchange._end(whole=True)


class SocketlessSandbox(Sandbox):
    """The sandbox's service, accounts and faults; it listens to nobody and needs not be entered."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._playing: set[asyncio.Task[None]] = set()

    async def answer_to(self, record: RequestRecord, body: bytes, *, enough: int) -> InProcessExchange:
        """Let the service have a request, and wait for its answer; what plays on plays on without us."""
        exchange = InProcessExchange(
            record,
            body,
            enough=enough,
            process=self._process,
            new_id=self._service.new_id,
            stall=self.faults.hold,
            sleep=self._sleep,
        )
        self.requests.append(record)
        task = asyncio.create_task(self._played(exchange), name="sandbox-exchange")
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)
        await exchange.over
        return exchange

    async def _played(self, exchange: InProcessExchange) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await self._play(exchange)
        finally:
            exchange.close()
            self._finish(exchange.record)

    async def close(self) -> None:
        """Give up every request that stalls: what has not been processed never is."""
        self._waiting.close()
        for task in (playing := [*self._playing]):
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


class InProcessTransport(Transport):
    """In the place of connections: the sandbox within this process. What it tells is what sockets would."""

    def __init__(
        self, base_url: str, sandbox: SocketlessSandbox, *, timeouts: Timeouts, max_response_bytes: int
    ) -> None:
        super().__init__(
            base_url,
            session=None,
            ssl=None,
            proxy=None,
            timeouts=timeouts,
            max_response_bytes=max_response_bytes,
            max_connections=1,
        )
        self._sandbox = sandbox
        self._patience = min(timeouts.sock_read, timeouts.total)
        self.out_of_reach = False

    def open(self) -> None:
        """There is nothing to connect to.

        Raises:
            TransportClosed: it was closed.
        """
        if self._closed:
            raise TransportClosed
        self._opened = True

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        await self._sandbox.close()

    def stays_quiet(self, carrier: Carrier) -> bool:  # noqa: ARG002 - as of sockets
        """Nothing comes behind an answer here."""
        return True

    async def post_order(self, body: GuardedBody, *, headers: CIMultiDict[str], left: float) -> Evidence:
        """See `Transport.post_order`."""
        try:
            async with asyncio.timeout(min(self._patience, max(left, 0.001))):
                self._reach()
                wire = _Wire()
                await body.write_with_length(wire, None)  # type: ignore[arg-type] # as much of one as it asks for
                path = self._create_order.path
                return await self._exchange("POST", path, bytes(wire.written), headers)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as of sockets: its type proves nothing
            return Evidence(sent=body.handed_over, error=error)
        finally:
            body.spent = True

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        headers: CIMultiDict[str],
        left: float,
        in_time: Callable[[], bool],  # noqa: ARG002 - nothing has passed since it was asked
    ) -> Evidence:
        """See `Transport.send`."""
        sent = False
        try:
            async with asyncio.timeout(min(self._patience, max(left, 0.001))):
                self._reach()
                sent = True
                return await self._exchange(method, unquote(path.partition("?")[0]), content or b"", headers)
        except Exception as error:  # noqa: BLE001 - likewise
            return Evidence(sent=sent, error=error)

    def _reach(self) -> None:
        self.open()
        if self.out_of_reach:
            raise ConnectionRefusedError

    async def _exchange(self, method: str, path: str, body: bytes, headers: CIMultiDict[str]) -> Evidence:
        record = RequestRecord(
            method=method, path=path, headers=headers.copy(), received_at=datetime.now(UTC)
        )
        got = await self._sandbox.answer_to(record, body, enough=self._max_response_bytes)
        if got.status is None:
            return Evidence(sent=True, error=aiohttp.ServerDisconnectedError())
        read, error = self._heard_of(got, of_head=method == "HEAD")
        return Evidence(
            sent=True, status=got.status, headers=got.headers, body=read, intact=error is None, error=error
        )

    def _heard_of(self, got: InProcessExchange, *, of_head: bool) -> tuple[bytes, Exception | None]:
        body = BoundedBody(self._max_response_bytes, encoding=got.headers.get("Content-Encoding"))
        try:
            if not of_head:
                body.take(bytes(got.content))
            if not got.whole:
                raise aiohttp.ClientPayloadError("the answer was cut")  # noqa: TRY301 - told like any other
            body.end()
        except Exception as error:  # noqa: BLE001 - a cut answer is an answer
            return body.content, error
        return body.content, None


class _Wire:
    """What a guarded body looks at, and writes to."""

    def __init__(self) -> None:
        self.transport = self
        self.written = bytearray()

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None

    async def write(self, content: bytes) -> None:
        self.written += content
