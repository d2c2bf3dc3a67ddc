"""One request on its connection: what was received, and the means to answer it, well or badly."""

import abc
import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, cast

from aiohttp import web
from attrs import define, field, frozen

from transfer_async.sandbox import exact_json
from transfer_async.sandbox.service import MAX_BODY_BYTES, Call, Reply


@frozen
class Fault(abc.ABC):
    """A thing that goes wrong.

    `name` is its name under `/sandbox/faults`. A `before_body` fault plays before the body is read, so
    it cannot be restricted to a poster or an amount.
    """

    name: ClassVar[str]
    before_body: ClassVar[bool] = False

    @abc.abstractmethod
    async def __call__(self, exchange: "Exchange") -> None:
        """Play it on ``exchange``."""


@define(kw_only=True, eq=False)
class RequestRecord:
    """One request, and what became of it.

    Attributes:
        method, path, headers: as received; `headers` ignores case and holds the token.
        body: what was read of the body, at most the service's limit; empty until it has been read.
        received_at: when the head was read.
        fault: the fault that was played on it, if any.
        processed: whether the service itself looked at the request, whatever was answered.
        status: the status that was sent, `None` if no whole head was.
        order_id: the order that it created, if it did.
        finished: whether the sandbox is done with it.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    received_at: datetime
    body: bytes = field(default=b"", repr=False)
    fault: "Fault | None" = None
    processed: bool = False
    status: int | None = None
    order_id: str | None = None
    finished: bool = False

    def field_of_body(self, name: str) -> object:
        """Look up one field of the JSON body; `None` when there is none, or no JSON."""
        try:
            document = exact_json.read(self.body)
        except exact_json.BadJson:
            return None
        return document.get(name) if isinstance(document, dict) else None

    def is_for(self, *, username: str | None, amount: Decimal | None) -> bool:
        """Tell whether the body names this poster and this amount sent; `None` matches everything."""
        if username is not None and self.field_of_body("poster_username") != username:
            return False
        return amount is None or _as_decimal(self.field_of_body("poster_amount")) == amount


def _as_decimal(value: object) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str | Decimal) else None
    except ArithmeticError:
        return None
    return number if number is not None and number.is_finite() else None


# SO_LINGER on, for zero seconds: the next close is a reset.
_RESET = struct.pack("ii", 1, 0)


class NoAnswer(web.StreamResponse):
    """Stands for whatever a fault has already written, or not written: aiohttp adds nothing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write no head."""

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:
        """Write no end."""


class Exchange:
    """A request, its record, and everything that a fault may do to the connection.

    `answer` is what the handler hands to aiohttp in the end; `new_id` draws an id that no order has.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        record: RequestRecord,
        *,
        process: Callable[[Call], Reply],
        new_id: Callable[[], str],
        stall: Callable[[RequestRecord], Awaitable[object]],
        sleep: Callable[[float], Awaitable[object]],
        is_last: bool = False,
    ) -> None:
        self.record = record
        self.new_id = new_id
        self.sleep = sleep
        self.answer: web.StreamResponse = NoAnswer()
        self._request = request
        self._process = process
        self._stall = stall
        self._is_last = is_last
        self._body: bytes | None = b""

    async def read_body(self) -> None:
        """Read the request's body, up to the service's limit.

        Raises:
            ConnectionError: the client left first.
            web.RequestPayloadError: the body breaks HTTP's own rules.
        """
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        while len(body) <= MAX_BODY_BYTES and (chunk := await self._request.content.readany()):
            body += chunk
        self.record.body = bytes(body[:MAX_BODY_BYTES])
        self._body = bytes(body) if len(body) <= MAX_BODY_BYTES else None

    def process(self) -> Reply:
        """Let the service process the request; from here on the order exists, if the request was good."""
        record = self.record
        call = Call(method=record.method, path=record.path, headers=record.headers, body=self._body)
        reply = self._process(call)
        record.processed = True
        record.order_id = reply.order.id if reply.order else None
        return reply

    async def send(self, reply: Reply) -> None:
        """Send a whole answer; the connection stays open, unless this was the last that it is kept for.

        Raises:
            ConnectionError: the client has left.
        """
        if reply.seconds:
            await self.sleep(reply.seconds)
        if reply.is_lost:
            self.close()
            return
        response = web.Response(status=reply.status, body=reply.body)
        await self._prepare(response, reply)
        await response.write_eof()

    async def begin(self, reply: Reply, *, length: int | None) -> web.StreamResponse:
        """Send the head of an answer; `length` is its Content-Length, `None` means chunked."""
        response = web.StreamResponse(status=reply.status)
        if length is None:
            response.enable_chunked_encoding()
        else:
            response.content_length = length
        await self._prepare(response, reply)
        return response

    async def stream(self, reply: Reply, parts: Iterable[bytes]) -> None:
        """Send an answer whose body is these parts instead of its own; the connection stays open."""
        response = await self.begin(reply, length=None)
        for part in parts:
            # An empty chunk would end the body; a turn of the loop keeps the others alive.
            await (response.write(part) if part else asyncio.sleep(0))
        await response.write_eof()

    def write(self, data: bytes) -> None:
        """Put bytes on the connection as they are.

        Raises:
            ConnectionError: the client has left.
        """
        self._transport().write(data)

    async def stall(self, seconds: float | None = None) -> None:
        """Do nothing for so many seconds; `None`: until released, or until the sandbox closes."""
        await (self._stall(self.record) if seconds is None else self.sleep(seconds))

    def close(self) -> None:
        """Close the connection (FIN) after what has been written; nothing more is answered."""
        self.answer = NoAnswer()
        self._request.protocol.force_close()

    def reset(self) -> None:
        """Break the connection (RST); what has not left yet is lost."""
        transport = self._transport()
        connection = cast("socket.socket", transport.get_extra_info("socket"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()
        self.close()

    async def _prepare(self, response: web.StreamResponse, reply: Reply) -> None:
        response.content_type = "application/json"
        response.headers.update(reply.headers)
        if self._is_last or response.headers.get("Connection", "").lower() == "close":
            response.force_close()
        await response.prepare(self._request)
        self.record.status = reply.status
        self.answer = response

    def _transport(self) -> asyncio.Transport:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        return transport
