"""Everything that can go wrong between the service and its client, one class for each.

The first words of each say whether the order exists afterwards ("if the request was good" is
understood). A fault is called with the `Exchange` it spoils; it raises `ConnectionError` if the client
leaves first. `FAULTS`, at the end, is the table of them all.
"""

# ruff: noqa: D102 - what calling a fault does is what its class says
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

from transfer_async.sandbox import validation
from transfer_async.sandbox.accounts import Account, Chance
from transfer_async.sandbox.rendering import Order
from transfer_async.sandbox.service import CREATE_ORDER_PATH, Exchange, Fault, Reply, RequestRecord

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
            reply = evolve(reply, body=validation.write(reply.order.to_object() | dict(self.changes)))
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
"""Every fault, by the name that the command line and profiles give it."""


# --- fault script ------------------------------------------------------------------------------------
# Which request gets which fault: rules in a queue, and a mix that is drawn from a seed.


class Waiting:
    """Waiters, each for a condition of its own, looked at whenever something has changed."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._closed = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true.

        Raises:
            RuntimeError: the sandbox closed before it was.
        """
        if condition():
            return
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        await future

    def changed(self) -> None:
        """Wake those whose condition has become true."""
        still = []
        for condition, future in self._waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiters = still

    def close(self) -> None:
        """Fail everyone who still waits."""
        self._closed = True
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(RuntimeError("the sandbox closed before it happened"))
        self._waiters = []


EVERY_PATH = "*"
"""As the path of a fault: whatever the request's path is."""


@define(kw_only=True, eq=False)
class Rule:
    """One entry of the queue; `times` counts down, `None` never ends."""

    fault: Fault
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None

    @property
    def needs_body(self) -> bool:
        """Whether the rule looks at the poster or the amount."""
        return self.username is not None or self.amount is not None

    def fits(self, record: RequestRecord) -> bool:
        """Tell whether a request is one that the rule speaks of."""
        if self.path not in (EVERY_PATH, record.path):
            return False
        return record.is_for(username=self.username, amount=self.amount)


class Mix:
    """Faults that each have a share of the requests to a path; one draw for each request, on arrival.

    So the nth request gets the same fault for the same seed, whatever else is scripted.
    """

    def __init__(self, shares: Mapping[Fault, float], *, path: str, seed: int) -> None:
        _check_shares(shares)
        self.shares: Mapping[Fault, float] = MappingProxyType(dict(shares))
        self._path = path
        self._random = Chance(f"mix:{seed}")
        self._drawn: WeakKeyDictionary[RequestRecord, Fault | None] = WeakKeyDictionary()

    def fault_for(self, record: RequestRecord) -> Fault | None:
        """Tell which fault a request has drawn, if any; the same one, however often it is asked."""
        if not self.shares or self._path not in (EVERY_PATH, record.path):
            return None
        if record not in self._drawn:
            self._drawn[record] = self._draw()
        return self._drawn[record]

    def _draw(self) -> Fault | None:
        left = self._random.random()
        for fault, share in self.shares.items():
            left -= share
            if left < 0:
                return fault
        return None


class Faults:
    """The queue of faults, the mix of faults behind it, and the requests that a stall holds.

    A request gets the first rule that fits it, and that its probability, where one is given, allows;
    where there is none, it gets what it has drawn from the mix.
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
        """What is still to be played, in order."""
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
        """Put a fault at the end of the queue.

        Args:
            fault: what goes wrong.
            times: for how many requests; `None` for every one until cleared.
            probability: how likely it is for each request, 0 to 1, drawn from the sandbox's seed.
            path: the path it is meant for, order creation by default; `"*"` for every path that is not
                for steering the sandbox.
            username: only for this poster.
            amount: only for this `poster_amount`, compared as a number.

        Raises:
            ValueError: an argument is out of range, or a fault that is played before the body is read
                is restricted by what the body says.
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
        """Give each fault its share of all requests, from now on, in the place of the mix before.

        `{CloseAfterProcessing(): 0.05, Status(429): 0.1}` spoils 15 of 100 requests, each in one way.
        The nth request from now on draws the same for the same seed; requests that come one after the
        other are so reproducible, and of those that come at once the order of arrival decides.

        Args:
            shares: how likely each fault is, 0 to 1, and no more than 1 together.
            path: the path it is meant for, as in `add`.

        Raises:
            ValueError: a share is out of range, or their sum is.
        """
        self._mix = Mix(shares, path=path, seed=self._seed)

    def clear(self) -> None:
        """Forget every rule, and the mix; requests that stall go on stalling."""
        self._rules.clear()
        self.mix({})

    def release(self) -> int:
        """Let every request that stalls go on; return how many there were. Any thread may say so."""
        held = [future for future in self._held if not future.done()]
        for future in held:
            _release(future)
        return len(held)

    @property
    def stalled(self) -> tuple[RequestRecord, ...]:
        """The requests that stall now."""
        return tuple(record for future, record in self._held.items() if not future.done())

    async def hold(self, record: RequestRecord) -> None:
        """Stall until released."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[future] = record
        self._waiting.changed()
        try:
            await future
        finally:
            del self._held[future]

    def take(self, record: RequestRecord, *, before_body: bool) -> Fault | None:
        """Take the fault for a request, if there is one.

        Asked twice: before the body is read, for faults that do not need it, and after.
        """
        drawn = self._mix.fault_for(record)
        for rule in self._rules:
            if (rule.needs_body and before_body) or not rule.fits(record):
                continue
            if before_body and not rule.fault.before_body:
                return None
            if rule.probability < 1 and self._random.random() >= rule.probability:
                continue
            self._use(rule)
            return rule.fault
        return None if drawn is not None and before_body and not drawn.before_body else drawn

    def _use(self, rule: Rule) -> None:
        if rule.times is None:
            return
        rule.times -= 1
        if rule.times == 0:
            self._rules.remove(rule)


def _release(future: asyncio.Future[None]) -> None:
    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        future.set_result(None)
    else:  # a loop that waits hears of nothing that another thread does behind its back
        loop.call_soon_threadsafe(_let_go, future)


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check_shares(shares: Mapping[Fault, float]) -> None:
    for fault, share in shares.items():
        if not isinstance(fault, Fault):
            raise ValueError(f"{fault!r} is no fault: make one, as in CloseAfterProcessing()")  # noqa: TRY004
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {fault.name} must be from 0 to 1, not {share}")
    if (together := math.fsum(shares.values())) > 1 + 1e-9:  # 0.1 is not a tenth to the last bit
        raise ValueError(f"the shares of all faults must be 1 at most together, not {together:g}")


def _check(rule: Rule) -> None:
    if rule.times is not None and rule.times < 1:
        raise ValueError(f"times must be 1 or more, or None, not {rule.times}")
    if not 0 <= rule.probability <= 1:
        raise ValueError(f"probability must be from 0 to 1, not {rule.probability}")
    if rule.fault.before_body and rule.needs_body:
        raise ValueError(f"{rule.fault.name} plays before the body is read: give no username and no amount")
    if rule.amount is not None and not rule.amount.is_finite():
        raise ValueError(f"amount must be finite, not {rule.amount}")
