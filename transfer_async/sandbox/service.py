"""The service itself: a request in, a reply out; no socket, no clock and no randomness of its own.

Order of checks: path (404), method (405), token (401), `Accept` (406), then, for order creation, the
body's size (413), `Content-Type` (415), its JSON (400) and its meaning (422). The specification gives no
status but the body of a wrong token's answer; all statuses here, and the bodies
`{"message": ..., "errors": {field: [reason]}}` of the 422, are the sandbox's own choice.
"""

import abc
import asyncio
import hmac
import socket
import string
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Context, Decimal
from typing import ClassVar, cast

from aiohttp import web
from attrs import define, evolve, field, frozen

from transfer_async.sandbox import accounts, rendering, validation
from transfer_async.sandbox.accounts import Account, Accounts, Chance, CurrencyAccount
from transfer_async.sandbox.rendering import Order
from transfer_async.sandbox.validation import CreateOrder, Problems, parse

CREATE_ORDER_PATH = "/api/api/v1/order/create"
WHO_AM_I_PATH = "/api/api/v1/user/who-am-i"

MAX_BODY_BYTES = 64 * 1024

# Wide enough for any amount on any step, whatever the caller's own decimal context is.
_EXACT = Context(prec=200)
_ID_ALPHABET = string.ascii_lowercase + string.digits


@frozen(kw_only=True)
class Call:
    """A request as the service sees it; `body` is `None` when it was larger than `MAX_BODY_BYTES`."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=b"", repr=False)


@frozen(kw_only=True)
class Reply:
    """An answer: a status, a JSON body, and the order that the call created, if it did.

    It is sent after so many seconds, or never, and the connection closed, if it `is_lost`.
    """

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(factory=dict)
    order: Order | None = None
    seconds: float = 0.0
    is_lost: bool = False


def message(status: int, text: str, **more: object) -> Reply:
    """Answer with `{"message": text}`, the shape of the specification's section 7."""
    return Reply(status=status, body=validation.write({"message": text, **more}))


class Service:
    """What the service remembers, and its answers.

    Args:
        accounts: who is registered. A poster who is not yet is registered by the first order: the
            specification asks for a registered account of the beneficiary alone.
        token: the bank account's API token.
        seed: order ids are drawn from it.
        now: the time, aware.
    """

    def __init__(self, *, accounts: Accounts, token: str, seed: int, now: Callable[[], datetime]) -> None:
        self.accounts = accounts
        self.orders: dict[str, Order] = {}
        self._token = token
        self._random = Chance(seed)
        self._now = now
        self._routes: dict[str, dict[str, Callable[[Call], Reply]]] = {
            CREATE_ORDER_PATH: {"POST": self._create_order},
            WHO_AM_I_PATH: {"GET": self._who_am_i},
        }

    def answer(self, call: Call) -> Reply:
        """Answer one call; never raises, whatever was sent."""
        handlers = self._routes.get(call.path)
        if handlers is None:
            return message(404, "Not Found")
        return refuse_head(call, methods=handlers, token=self._token) or handlers[call.method](call)

    def match(self, order_id: str) -> None:
        """Move one order on to matched."""
        order = self.orders[order_id]
        self.orders[order_id] = order.matched(match_id=self.new_id(), at=self._now())

    def knows(self, call: Call) -> bool:
        """Tell whether a call has the token."""
        return _same_token(call.headers.get("Authorization", ""), self._token)

    def refused_head(self, call: Call) -> Reply | None:
        """Refuse a call for its method, token or `Accept`; `None` when there is nothing against it."""
        return refuse_head(call, methods=self._routes[call.path], token=self._token)

    def problems(self, request: CreateOrder) -> Problems:
        """What is against an order whose fields are well formed."""
        poster = self._poster(request)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        return _check_poster(request, poster) | _check_beneficiary(request, beneficiary, poster)

    def recorded(self, request: CreateOrder, *, beneficiary: Account) -> Reply:
        """Make the order of a request, whatever there is against it."""
        return self._record(self._made(request, self._poster(request), beneficiary))

    def new_id(self) -> str:
        """Draw an order id: `tx-` and twenty lower-case letters and digits."""
        return "tx-" + "".join(self._random.choices(_ID_ALPHABET, k=20))

    def _who_am_i(self, _: Call) -> Reply:
        return Reply(status=200, body=validation.write(rendering.who_am_i_object(self.accounts.bank)))

    def _create_order(self, call: Call) -> Reply:
        document = read_json(call)
        if isinstance(document, Reply):
            return document
        request, problems = parse(document)
        if request is None or problems:
            return unprocessable(problems)
        placed = self._place(request)
        return placed if isinstance(placed, Reply) else self._record(placed)

    def _record(self, order: Order) -> Reply:
        self.orders[order.id] = order
        if order.poster.username not in self.accounts:
            self.accounts.add(order.poster)
        return Reply(status=200, body=order.to_json(), order=order)

    def _place(self, request: CreateOrder) -> Order | Reply:
        problems = self.problems(request)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        if problems or beneficiary is None:
            return unprocessable(problems)
        return self._made(request, self._poster(request), beneficiary)

    def _poster(self, request: CreateOrder) -> Account:
        return self.accounts.get(request.poster_username) or _new_poster(request)

    def _made(self, request: CreateOrder, poster: Account, beneficiary: Account) -> Order:
        now = self._now()
        return Order(
            id=self.new_id(),
            number=len(self.orders) + 1,
            request=request,
            bank=self.accounts.bank,
            poster=poster,
            beneficiary=beneficiary,
            matcher_payment_method_type=_receiving_method(beneficiary, request.matcher_currency),
            posted_at=now,
            updated_at=now,
        )


def refuse_head(call: Call, *, methods: Collection[str], token: str | None) -> Reply | None:
    """Refuse a call for its method, token or `Accept`; `None` when there is nothing against it.

    With `token=None` nobody needs one.
    """
    if call.method not in methods:
        return evolve(message(405, "Method Not Allowed"), headers={"Allow": ", ".join(methods)})
    if token is not None and not _same_token(call.headers.get("Authorization", ""), token):
        return message(401, "Unauthorized")
    if not _accepts_json(call.headers.get("Accept", "*/*")):
        return message(406, "Only application/json is served.")
    return None


def read_json(call: Call) -> object:
    """Read a call's JSON body; a `Reply` (413, 415 or 400) when it cannot be."""
    if call.body is None:
        return message(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    if _media_type(call.headers.get("Content-Type", "")) != "application/json":
        return message(415, "The Content-Type must be application/json.")
    try:
        return validation.read(call.body)
    except validation.BadJson as error:
        return message(400, str(error))


def _same_token(authorization: str, token: str) -> bool:
    sent = authorization.encode("utf-8", "surrogateescape")
    return hmac.compare_digest(sent, f"Bearer {token}".encode("utf-8", "surrogateescape"))


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _accepts_json(value: str) -> bool:
    return not {_media_type(part) for part in value.split(",")}.isdisjoint(
        {"application/json", "application/*", "*/*", ""}
    )


def unprocessable(problems: Problems) -> Reply:
    """Refuse an order for what is wrong with its fields."""
    return message(422, "The order was refused.", errors=problems)


def _new_poster(request: CreateOrder) -> Account:
    name = request.poster_username.partition("@")[0]
    first, _, last = name.replace("_", ".").partition(".")
    held = accounts.currency_for(request.poster_currency, name=name, email=request.poster_username)
    return Account(
        username=request.poster_username,
        firstname=first.capitalize(),
        lastname=last.capitalize() or "Customer",
        country=accounts.country_name(request.poster_country),
        country_abbreviation=request.poster_country,
        currencies=(held,) if held else (),
    )


def _check_poster(request: CreateOrder, poster: Account) -> Problems:
    held = poster.holding(request.poster_currency)
    if not poster.active or poster.is_bank:
        return {"poster_username": ["must be an active customer"]}
    if held is None:
        return {"poster_currency": ["is not a currency of the poster"]}
    problems = _check_amount("poster_amount", request.poster_amount, held)
    if request.poster_payment_method_type not in held.payment_types:
        problems["poster_payment_method_type"] = ["is not a payment type of the poster in this currency"]
    if request.matcher_currency.lower() not in held.can_trade_with:
        problems["matcher_currency"] = ["cannot be traded with the poster's currency"]
    return problems


def _check_beneficiary(request: CreateOrder, beneficiary: Account | None, poster: Account) -> Problems:
    reason = _unpayable(beneficiary, poster)
    if beneficiary is None or reason:
        return {"poster_recipient_username": [reason]}
    held = beneficiary.holding(request.matcher_currency)
    if held is None or not held.payment_types:
        return {"poster_recipient_username": ["has no receiving account in this currency"]}
    return _check_amount("matcher_amount", request.matcher_amount, held)


def _unpayable(beneficiary: Account | None, poster: Account) -> str:
    if beneficiary is None or beneficiary.is_bank:
        return "is not a registered account"
    if not beneficiary.active:
        return "is not an active account"
    if not beneficiary.payable:
        return "has no valid receiving bank account"
    return "must not be the poster" if beneficiary is poster else ""


def _check_amount(name: str, amount: Decimal, held: CurrencyAccount) -> Problems:
    if not held.min_amount <= amount <= held.max_amount:
        return {name: [f"must be between {held.min_amount} and {held.max_amount} {held.code}"]}
    if held.steps and _EXACT.remainder(amount, held.steps):
        return {name: [f"must be a multiple of {held.steps} {held.code}"]}
    return {}


def _receiving_method(beneficiary: Account, code: str) -> str:
    held = beneficiary.holding(code)
    return next(iter(held.payment_types)) if held else ""


# --- exchange ----------------------------------------------------------------------------------------
# One request on its connection: what was received, and the means to answer it, well or badly.


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
            document = validation.read(self.body)
        except validation.BadJson:
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
        announces: bool = True,
    ) -> None:
        self.record = record
        self.new_id = new_id
        self.sleep = sleep
        self.answer: web.StreamResponse = NoAnswer()
        self._request = request
        self._process = process
        self._stall = stall
        self._is_last, self._announces = is_last, announces
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

    def end(self) -> None:
        """Close a connection that is kept for no more, where the answer did not announce it."""
        if self._is_last and not self._announces:
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
        if (self._is_last and self._announces) or response.headers.get("Connection", "").lower() == "close":
            response.force_close()
        await response.prepare(self._request)
        self.record.status = reply.status
        self.answer = response

    def _transport(self) -> asyncio.Transport:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        return transport
