"""Everything that can go wrong between the service and its client, one class for each.

The first words of each say whether the order exists afterwards ("if the request was good" is
understood). A fault is called with the `Exchange` it spoils; it raises `ConnectionError` if the client
leaves first. `FAULTS`, at the end, is the table of them all.
"""

# ruff: noqa: D102 - what calling a fault does is what its class says
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from http import HTTPStatus
from typing import Any, ClassVar

from attrs import evolve, field, frozen

from transfer_async.sandbox import exact_json
from transfer_async.sandbox.accounts import Account
from transfer_async.sandbox.exchange import Exchange, Fault
from transfer_async.sandbox.rendering import Order
from transfer_async.sandbox.service import Reply

_BLOCK = b"x" * (1 << 16)


def whole_answer(reply: Reply, *, keep_alive: bool = False) -> bytes:
    """Write a whole HTTP/1.1 answer, head and body."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + reply.body


def padded(document: bytes, size: int) -> Iterator[bytes]:
    """Stretch a JSON object to about `size` bytes with one more field, made piece by piece."""
    yield document[:-1] + b',"padding":"'
    for _ in range(size // len(_BLOCK)):
        yield _BLOCK
    yield b'"}'


def compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Compress (gzip) piece by piece; while the compressor keeps what it was given, a piece is empty."""
    # 16 more than the window's size asks zlib for gzip's own head and tail.
    machine = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | 16)
    for part in parts:
        yield machine.compress(part)
    yield machine.flush()


_REDIRECTS = (301, 302, 303, 307, 308)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@frozen
class CloseBeforeReading(Fault):
    """No order exists: the connection is closed once the head has been read, the body unread."""

    name: ClassVar[str] = "close-before-reading"
    before_body: ClassVar[bool] = True

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.close()


@frozen
class CloseAfterProcessing(Fault):
    """The order exists: the connection is closed (FIN) without an answer."""

    name: ClassVar[str] = "close-after-processing"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        exchange.close()


@frozen
class ResetAfterProcessing(Fault):
    """The order exists: the connection is reset (RST) without an answer."""

    name: ClassVar[str] = "reset-after-processing"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        exchange.reset()


@frozen
class StallBeforeProcessing(Fault):
    """The order exists only once the stall has ended, even if the client has left by then.

    It lasts `seconds`, or until released; if the sandbox closes first, no order ever exists.
    """

    name: ClassVar[str] = "stall-before-processing"
    seconds: float | None = None

    async def __call__(self, exchange: "Exchange") -> None:
        await exchange.stall(self.seconds)
        await exchange.send(exchange.process())


@frozen
class StallAfterProcessing(Fault):
    """The order exists: its answer comes after `seconds`, or once released, or never."""

    name: ClassVar[str] = "stall-after-processing"
    seconds: float | None = None

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        await exchange.stall(self.seconds)
        await exchange.send(reply)


@frozen
class Status(Fault):
    """No order exists: this status is answered in the service's place.

    `body` is text, sent as UTF-8; surrogate escapes (`"\\udcff"`) stand for single bytes.
    """

    name: ClassVar[str] = "status"
    status: int = field()
    headers: Mapping[str, str] = field(factory=dict, kw_only=True, hash=False)
    body: str = field(default='{"message": "A scripted fault."}', kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise ValueError(f"status must be from 200 to 599, not {self.status}")
        for name, value in self.headers.items():
            _check_header(name, value)

    def reply(self) -> Reply:
        """Build the answer."""
        return Reply(status=self.status, headers=self.headers, body=_encode(self.body))

    async def __call__(self, exchange: "Exchange") -> None:
        await exchange.send(self.reply())


@frozen
class StatusAfterProcessing(Status):
    """The order exists: yet this status (503, 408, 500, ...) is answered."""

    name: ClassVar[str] = "status-after-processing"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        await exchange.send(self.reply())


@frozen
class Redirect(Fault):
    """No order exists: the client is sent to another address, with `status` 301, 302, 303, 307 or 308."""

    name: ClassVar[str] = "redirect"
    location: str = "/elsewhere"
    status: int = field(default=307, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.status not in _REDIRECTS:
            raise ValueError(f"status must be one of {_REDIRECTS}, not {self.status}")
        _check_header("Location", self.location)

    async def __call__(self, exchange: "Exchange") -> None:
        await exchange.send(Reply(status=self.status, headers={"Location": self.location}, body=b"{}"))


@frozen
class TruncatedHead(Fault):
    """The order exists: the answer ends (FIN) in the middle of its head."""

    name: ClassVar[str] = "truncated-head"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        exchange.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
        exchange.close()


@frozen
class TruncatedBody(Fault):
    """The order exists: the answer ends (FIN) after `keep` bytes of its body.

    The head has announced the whole length, or, if `chunked`, an end that never comes.
    """

    name: ClassVar[str] = "truncated-body"
    keep: int = 100
    chunked: bool = field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be 1 byte or more, not {self.keep}")

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        part = reply.body[: self.keep]
        # One byte more than there is: the body is cut even where `keep` is longer than it.
        response = await exchange.begin(reply, length=None if self.chunked else len(reply.body) + 1)
        await response.write(part)
        exchange.close()


@frozen
class BrokenChunk(Fault):
    """The order exists: its answer's first chunk has no readable size, and the connection stays open.

    It is closed once released.
    """

    name: ClassVar[str] = "broken-chunk"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        exchange.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        exchange.write(b"zz\r\n{}\r\n")
        exchange.record.status = 200
        await exchange.stall()
        exchange.close()


@frozen
class GarbageBody(Fault):
    """The order exists: the 200 answer's body is not JSON (`body` as in `Status`)."""

    name: ClassVar[str] = "garbage-body"
    body: str = "<html><body>It works!</body></html>\udcff"

    async def __call__(self, exchange: "Exchange") -> None:
        exchange.process()
        await exchange.send(Reply(status=200, body=_encode(self.body)))


_WRONG: Mapping[str, object] = {
    "id": 12345,
    "poster_amount": "a lot",
    "poster_currency": ["NGN"],
    "is_matched": "perhaps",
    "posted_at": 17,
    "user": "somebody",
}


@frozen
class WrongTypes(Fault):
    """The order exists: in the answer, `changes` stand in the place of its fields."""

    name: ClassVar[str] = "wrong-types"
    changes: Mapping[str, Any] = field(factory=lambda: dict(_WRONG), hash=False)

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        if reply.order is not None:
            reply = evolve(reply, body=exact_json.write(reply.order.to_object() | dict(self.changes)))
        await exchange.send(reply)


@frozen
class AnotherOrder(Fault):
    """The order exists: the answer shows another, with another id, poster and amount, which does not."""

    name: ClassVar[str] = "another-order"

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        if reply.order is not None:
            reply = evolve(reply, body=_stranger(reply.order, exchange.new_id()).to_json())
        await exchange.send(reply)


@frozen
class SlowBytes(Fault):
    """The order exists: the answer, head and all, comes `size` bytes at a time, `delay` seconds apart."""

    name: ClassVar[str] = "slow-bytes"
    delay: float = 0.01
    size: int = field(default=64, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be 1 byte or more, not {self.size}")

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        exchange.record.status = reply.status
        answer = whole_answer(reply)
        for start in range(0, len(answer), self.size):
            exchange.write(answer[start : start + self.size])
            await exchange.sleep(self.delay)
        exchange.close()


@frozen
class HugeBody(Fault):
    """The order exists: the answer holds it, and padding up to `size` bytes, made while it is sent."""

    name: ClassVar[str] = "huge-body"
    size: int = 300_000_000

    async def __call__(self, exchange: "Exchange") -> None:
        reply = exchange.process()
        await exchange.stream(reply, padded(reply.body, self.size))


@frozen
class CompressedHugeBody(Fault):
    """The order exists: the answer is a `HugeBody` of `size` bytes, a thousandth of that once compressed."""

    name: ClassVar[str] = "compressed-huge-body"
    size: int = 300_000_000

    async def __call__(self, exchange: "Exchange") -> None:
        reply = evolve(exchange.process(), headers={"Content-Encoding": "gzip"})
        await exchange.stream(reply, compressed(padded(reply.body, self.size)))


@frozen
class UnsolicitedReply(Fault):
    """The order exists and is answered; `delay` seconds later the same connection brings one answer more.

    Nobody asked for that second one, `200` with `body`. With `delay=None` it comes once released.
    """

    name: ClassVar[str] = "unsolicited-reply"
    delay: float | None = 0.01
    body: str = field(default='{"id": "FOREIGN"}', kw_only=True)

    async def __call__(self, exchange: "Exchange") -> None:
        await exchange.send(exchange.process())
        await exchange.stall(self.delay)
        exchange.write(whole_answer(Reply(status=200, body=_encode(self.body)), keep_alive=True))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"header {name!r} holds characters that HTTP does not allow")


def _stranger(order: Order, order_id: str) -> Order:
    poster = Account(username="a.stranger@example.com", firstname="A", lastname="Stranger")
    request = evolve(
        order.request,
        poster_username=poster.username,
        poster_amount=order.request.poster_amount + Decimal(1000),
        matcher_amount=order.request.matcher_amount + Decimal(1),
    )
    return evolve(order, id=order_id, number=order.number + 1, poster=poster, request=request)


FAULTS: Mapping[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        CloseBeforeReading,
        CloseAfterProcessing,
        ResetAfterProcessing,
        StallBeforeProcessing,
        StallAfterProcessing,
        Status,
        StatusAfterProcessing,
        Redirect,
        TruncatedHead,
        TruncatedBody,
        BrokenChunk,
        GarbageBody,
        WrongTypes,
        AnotherOrder,
        SlowBytes,
        HugeBody,
        CompressedHugeBody,
        UnsolicitedReply,
    )
}
