"""The fault classes, and the queue that selects the fault for each request.

If a fault creates the order of a valid request, the first sentence of its docstring says so. A fault is
called with an `Exchange`. If the client closes the connection, the fault raises `ConnectionError`. `FAULTS`
lists all faults by name.
"""

# ruff: noqa: D102 - the class docstring describes the call
import asyncio
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from attrs import define, evolve, field, frozen

from transfer_async.sandbox import wire
from transfer_async.sandbox.accounts import Account, Chance
from transfer_async.sandbox.service import CREATE_ORDER_PATH, Exchange, Fault, Reply, RequestRecord
from transfer_async.sandbox.wire import Order

_BLOCK = b"x" * (1 << 16)


def http_response(reply: Reply, *, keep_alive: bool = False) -> bytes:
    """Return a complete HTTP/1.1 response, head and body."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + reply.body


def padded(document: bytes, size: int) -> Iterator[bytes]:
    """Yield the parts of a JSON object, with a field that pads it to about `size` bytes."""
    yield document[:-1] + b',"padding":"'
    for _ in range(size // len(_BLOCK)):
        yield _BLOCK
    yield b'"}'


def compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Compress the parts with gzip. While the compressor buffers its input, yield empty parts."""
    # MAX_WBITS + 16 makes zlib write gzip's head and tail.
    compressor = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | 16)
    for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()


_REDIRECTS = (301, 302, 303, 307, 308)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@frozen
class CloseBeforeReading(Fault):
    """Create no order. Close the connection after the request's head, without reading the body."""

    name: ClassVar[str] = "close-before-reading"
    before_body: ClassVar[bool] = True

    async def __call__(self, exchange: Exchange) -> None:
        exchange.close()


@frozen
class CloseAfterProcessing(Fault):
    """Create the order, then close the connection (FIN) without a response."""

    name: ClassVar[str] = "close-after-processing"

    async def __call__(self, exchange: Exchange) -> None:
        exchange.process()
        exchange.close()


@frozen
class ResetAfterProcessing(Fault):
    """Create the order, then reset the connection (RST) without a response."""

    name: ClassVar[str] = "reset-after-processing"

    async def __call__(self, exchange: Exchange) -> None:
        exchange.process()
        exchange.reset()


@frozen
class StallBeforeProcessing(Fault):
    """Wait, then create the order and respond, even if the client has closed the connection.

    The stall lasts `seconds` or, if that is None, until `Faults.release`. If the sandbox closes during the
    stall, no order is created.
    """

    name: ClassVar[str] = "stall-before-processing"
    seconds: float | None = None

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.stall(self.seconds)
        await exchange.send(exchange.process())


@frozen
class StallAfterProcessing(Fault):
    """Create the order, then respond after `seconds` or, if that is None, after `Faults.release`."""

    name: ClassVar[str] = "stall-after-processing"
    seconds: float | None = None

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        await exchange.stall(self.seconds)
        await exchange.send(reply)


@frozen
class Status(Fault):
    """Create no order. Respond with the given status.

    `body` is sent as UTF-8; a surrogate escape (`"\\udcff"`) is sent as one byte.
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
        """Build the response."""
        return Reply(status=self.status, headers=self.headers, body=_encode(self.body))

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.send(self.reply())


@frozen
class StatusAfterProcessing(Status):
    """Create the order, then respond with the given status, for example 408, 500 or 503."""

    name: ClassVar[str] = "status-after-processing"

    async def __call__(self, exchange: Exchange) -> None:
        exchange.process()
        await exchange.send(self.reply())


@frozen
class Redirect(Fault):
    """Create no order. Redirect to `location` with `status` 301, 302, 303, 307 or 308."""

    name: ClassVar[str] = "redirect"
    location: str = "/elsewhere"
    status: int = field(default=307, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.status not in _REDIRECTS:
            raise ValueError(f"status must be one of {_REDIRECTS}, not {self.status}")
        _check_header("Location", self.location)

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.send(Reply(status=self.status, headers={"Location": self.location}, body=b"{}"))


@frozen
class TruncatedHead(Fault):
    """Create the order, then end the response (FIN) in the middle of its head."""

    name: ClassVar[str] = "truncated-head"

    async def __call__(self, exchange: Exchange) -> None:
        exchange.process()
        exchange.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
        exchange.close()


@frozen
class TruncatedBody(Fault):
    """Create the order, then end the response (FIN) after `keep` bytes of its body.

    The `Content-Length` header specifies a longer body. If `chunked` is true, the body is sent in chunks
    instead, and the last chunk is missing.
    """

    name: ClassVar[str] = "truncated-body"
    keep: int = 100
    chunked: bool = field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be 1 byte or more, not {self.keep}")

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        part = reply.body[: self.keep]
        # One byte more than the body has, so that the response is cut even if `keep` exceeds it.
        response = await exchange.begin(reply, length=None if self.chunked else len(reply.body) + 1)
        await response.write(part)
        exchange.close()


@frozen
class BrokenChunk(Fault):
    """Create the order, then send a first chunk with an invalid size and leave the connection open.

    The connection is closed when `Faults.release` is called.
    """

    name: ClassVar[str] = "broken-chunk"

    async def __call__(self, exchange: Exchange) -> None:
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
    """Create the order, then respond with 200 and a body that is not JSON.

    `body` is encoded as in `Status`.
    """

    name: ClassVar[str] = "garbage-body"
    body: str = "<html><body>It works!</body></html>\udcff"

    async def __call__(self, exchange: Exchange) -> None:
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
    """Create the order, then respond with an order in which some fields are replaced by `changes`."""

    name: ClassVar[str] = "wrong-types"
    changes: Mapping[str, Any] = field(factory=lambda: dict(_WRONG), hash=False)

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        if reply.order is not None:
            reply = evolve(reply, body=wire.write(reply.order.to_object() | dict(self.changes)))
        await exchange.send(reply)


@frozen
class AnotherOrder(Fault):
    """Create the order, then respond with an invented order that has another id, poster and amount."""

    name: ClassVar[str] = "another-order"

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        if reply.order is not None:
            reply = evolve(reply, body=_foreign_order(reply.order, exchange.new_id()).to_json())
        await exchange.send(reply)


@frozen
class SlowBytes(Fault):
    """Create the order, then send the response `size` bytes at a time, `delay` seconds apart."""

    name: ClassVar[str] = "slow-bytes"
    delay: float = 0.01
    size: int = field(default=64, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be 1 byte or more, not {self.size}")

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        exchange.record.status = reply.status
        response = http_response(reply)
        for start in range(0, len(response), self.size):
            exchange.write(response[start : start + self.size])
            await exchange.sleep(self.delay)
        exchange.close()


@frozen
class HugeBody(Fault):
    """Create the order, then respond with the order and padding, about `size` bytes in total."""

    name: ClassVar[str] = "huge-body"
    size: int = 300_000_000

    async def __call__(self, exchange: Exchange) -> None:
        reply = exchange.process()
        await exchange.stream(reply, padded(reply.body, self.size))


@frozen
class CompressedHugeBody(Fault):
    """Create the order, then respond like `HugeBody`, but compressed to about a thousandth of `size`."""

    name: ClassVar[str] = "compressed-huge-body"
    size: int = 300_000_000

    async def __call__(self, exchange: Exchange) -> None:
        reply = evolve(exchange.process(), headers={"Content-Encoding": "gzip"})
        await exchange.stream(reply, compressed(padded(reply.body, self.size)))


@frozen
class UnsolicitedReply(Fault):
    """Create the order, then respond and send a second, unrequested response on the same connection.

    The second response is `200` with `body`. The second response is sent after `delay` seconds or, if `delay`
    is None, after `Faults.release`.
    """

    name: ClassVar[str] = "unsolicited-reply"
    delay: float | None = 0.01
    body: str = field(default='{"id": "FOREIGN"}', kw_only=True)

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.send(exchange.process())
        await exchange.stall(self.delay)
        exchange.write(http_response(Reply(status=200, body=_encode(self.body)), keep_alive=True))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"header {name!r}: contains characters not allowed in HTTP; use printable ASCII")


def _foreign_order(order: Order, order_id: str) -> Order:
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
"""Every fault, by its name on the command line and under `/sandbox/faults`."""


# --- fault script ------------------------------------------------------------------------------------
# A queue of rules and a seeded mix select the fault for each request.


class Waiting:
    """Lets tasks wait until a condition is true. The conditions are checked after every change."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._closed = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true.

        Raises:
            RuntimeError: the sandbox was closed before the condition was true.
        """
        if condition():
            return
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        await future

    def changed(self) -> None:
        """Wake the tasks whose condition is now true."""
        remaining = []
        for condition, future in self._waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                remaining.append((condition, future))
        self._waiters = remaining

    def close(self) -> None:
        """Raise an error in every task that is still waiting."""
        self._closed = True
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(RuntimeError("the sandbox was closed before the awaited event"))
        self._waiters = []


EVERY_PATH = "*"
"""A rule with this path applies to every path."""


@define(kw_only=True, eq=False)
class Rule:
    """A fault in the queue, and the requests to which it applies.

    The rule applies to the next `times` matching requests; `None` means no limit.
    """

    fault: Fault
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None

    @property
    def needs_body(self) -> bool:
        """Return whether the rule checks the poster or the amount, which are in the request's body."""
        return self.username is not None or self.amount is not None

    def applies_to(self, record: RequestRecord) -> bool:
        """Return whether the rule applies to a request."""
        if self.path not in (EVERY_PATH, record.path):
            return False
        return record.is_for(username=self.username, amount=self.amount)


class Mix:
    """A set of faults. Each fault in the mix affects a share of the requests to a path.

    On arrival, each request is assigned its fault at random, independently of the queue. With the same seed,
    the nth request always gets the same fault.
    """

    def __init__(self, shares: Mapping[Fault, float], *, path: str, seed: int) -> None:
        _check_shares(shares)
        self.shares: Mapping[Fault, float] = MappingProxyType(dict(shares))
        self._path = path
        self._random = Chance(f"mix:{seed}")
        self._drawn: WeakKeyDictionary[RequestRecord, Fault | None] = WeakKeyDictionary()

    def fault_for(self, record: RequestRecord) -> Fault | None:
        """Return a fault drawn at random for a request, or None. Further calls return the same result."""
        if not self.shares or self._path not in (EVERY_PATH, record.path):
            return None
        if record not in self._drawn:
            rest = self._random.random()
            self._drawn[record] = None
            for fault, share in self.shares.items():
                rest -= share
                if rest < 0:
                    self._drawn[record] = fault
                    break
        return self._drawn[record]


class Faults:
    """The queue of faults, the mix of faults, and the stalled requests.

    A request gets the fault of the first rule in the queue that applies to it. A rule with a `probability`
    may be skipped at random. If no rule applies, the request gets the fault that the mix assigned to it, if
    any.
    """

    def __init__(self, *, seed: int, waiting: Waiting) -> None:
        self._seed = seed
        self._mix = Mix({}, path=CREATE_ORDER_PATH, seed=seed)
        self._random = Chance(f"faults:{seed}")
        self._waiting = waiting
        self._rules: list[Rule] = []
        self._held: dict[asyncio.Future[None], RequestRecord] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The remaining rules of the queue, in order."""
        return tuple(self._rules)

    def add(
        self,
        fault: Fault,
        *,
        times: int | None = 1,
        probability: float = 1.0,
        path: str = CREATE_ORDER_PATH,
        username: str | None = None,
        amount: Decimal | int | str | None = None,
    ) -> None:
        """Add a fault to the end of the queue.

        Args:
            times: the number of requests that get the fault; `None` for all requests until `clear`.
            probability: the probability that a request gets the fault, 0 to 1. The sandbox's seed determines
                which requests get the fault.
            path: the path to which the fault applies; by default, the path that creates orders. `"*"` means
                every path except the sandbox's control paths.
            username: apply the fault only to requests whose poster has the given username.
            amount: apply the fault only to requests with the given `poster_amount`, compared as a number.

        Raises:
            ValueError: an argument is out of range, or `username` or `amount` is passed for a fault that acts
                before the body is read.
        """
        wanted = None if amount is None else Decimal(amount)
        rule = Rule(
            fault=fault, times=times, probability=probability, path=path, username=username, amount=wanted
        )
        _check(rule)
        self._rules.append(rule)

    @property
    def shares(self) -> Mapping[Fault, float]:
        """The mix: each fault's share of the requests."""
        return self._mix.shares

    def mix(self, shares: Mapping[Fault, float], *, path: str = CREATE_ORDER_PATH) -> None:
        """Replace the mix. Apply each given fault to its share of all further requests.

        For example, `{CloseAfterProcessing(): 0.05, Status(429): 0.1}` affects 15 of 100 requests, each with
        one fault. With the same seed, the nth request after the call to `mix` always gets the same fault, so
        sequential requests are reproducible. For concurrent requests, the result depends on the order of
        arrival.

        Args:
            shares: each fault's share, from 0 to 1; the total is at most 1.
            path: the path to which the faults apply, as in `add`.

        Raises:
            ValueError: a share or the total is out of range.
        """
        self._mix = Mix(shares, path=path, seed=self._seed)

    def clear(self) -> None:
        """Remove every rule and the mix. Stalled requests stay stalled."""
        self._rules.clear()
        self.mix({})

    def release(self) -> int:
        """Release all stalled requests and return their number. `release` may be called from any thread."""
        held = [future for future in self._held if not future.done()]
        for future in held:
            _release(future)
        return len(held)

    @property
    def stalled(self) -> tuple[RequestRecord, ...]:
        """The records of the stalled requests."""
        return tuple(record for future, record in self._held.items() if not future.done())

    async def hold(self, record: RequestRecord) -> None:
        """Stall a request until `release` is called."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[future] = record
        self._waiting.changed()
        try:
            await future
        finally:
            del self._held[future]

    def take(self, record: RequestRecord, *, before_body: bool) -> Fault | None:
        """Return the fault for a request, or None, and count its use.

        Call `take` before the request's body is read, to get a fault that acts at this point, and again
        afterwards.
        """
        drawn = self._mix.fault_for(record)
        for rule in self._rules:
            if (rule.needs_body and before_body) or not rule.applies_to(record):
                continue
            if before_body and not rule.fault.before_body:
                return None
            if rule.probability < 1 and self._random.random() >= rule.probability:
                continue
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
            return rule.fault
        return None if drawn is not None and before_body and not drawn.before_body else drawn


def _release(future: asyncio.Future[None]) -> None:
    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        future.set_result(None)
    else:  # Only call_soon_threadsafe wakes the event loop of another thread.
        loop.call_soon_threadsafe(_set_result, future)


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check_shares(shares: Mapping[Fault, float]) -> None:
    for fault, share in shares.items():
        if not isinstance(fault, Fault):
            raise ValueError(f"{fault!r} is not a fault: create one, as in CloseAfterProcessing()")  # noqa: TRY004
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {fault.name} must be from 0 to 1, not {share}")
    if (total := math.fsum(shares.values())) > 1 + 1e-9:  # Rounding: 0.1 has no exact binary form.
        raise ValueError(f"the shares of all faults must be at most 1 in total, not {total:g}")


def _check(rule: Rule) -> None:
    if rule.times is not None and rule.times < 1:
        raise ValueError(f"times must be 1 or more, or None, not {rule.times}")
    if not 0 <= rule.probability <= 1:
        raise ValueError(f"probability must be from 0 to 1, not {rule.probability}")
    if rule.fault.before_body and rule.needs_body:
        raise ValueError(f"{rule.fault.name} acts before the body is read: remove username and amount")
    if rule.amount is not None and not rule.amount.is_finite():
        raise ValueError(f"amount must be finite, not {rule.amount}")
