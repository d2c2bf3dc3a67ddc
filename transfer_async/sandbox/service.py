"""The sandbox's service, which computes responses to requests without using a socket.

The caller provides the clock and the seed.

The service checks a request in this order: path (404), method (405), token (401) and `Accept` (406). For a
new order, the service then checks the body's size (413), `Content-Type` (415), JSON (400) and fields (422).
The specification defines no statuses, and shows only one refusal's body, for a wrong token. All statuses, and
the body of a 422 (`{"message": ..., "errors": {field: [reason]}}`), are the sandbox's own choice.
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

from transfer_async.sandbox import accounts, wire
from transfer_async.sandbox.accounts import Account, Accounts, Chance, CurrencyAccount
from transfer_async.sandbox.wire import CreateOrder, Order, Problems, parse

CREATE_ORDER_PATH = "/api/api/v1/order/create"
WHO_AM_I_PATH = "/api/api/v1/user/who-am-i"

MAX_BODY_BYTES = 64 * 1024

# Enough digits for any amount and step, independent of the caller's decimal context.
_EXACT = Context(prec=200)
_ID_ALPHABET = string.ascii_lowercase + string.digits


@frozen(kw_only=True)
class Call:
    """A request to the service. `body` is `None` if it exceeds `MAX_BODY_BYTES`."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=b"", repr=False)


@frozen(kw_only=True)
class Reply:
    """A response: a status, a JSON body, and the order that the request created, or `None`.

    The response is sent after `seconds`. If `is_lost` is true, the connection is closed without a response.
    """

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(factory=dict)
    order: Order | None = None
    seconds: float = 0.0
    is_lost: bool = False


def message(status: int, text: str, **more: object) -> Reply:
    """Build the response `{"message": text}`, as in the specification's section 7."""
    return Reply(status=status, body=wire.write({"message": text, **more}))


class Service:
    """The service: its orders and its responses.

    Args:
        accounts: the registered accounts. The specification requires only a registered beneficiary, so the
            first order from an unknown poster registers the poster.
        token: the API token of the bank's account.
        seed: determines the order ids.
        now: a function that returns the time as an aware datetime.
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
        """Return the response to one request. Never raise."""
        handlers = self._routes.get(call.path)
        if handlers is None:
            return message(404, "Not Found")
        return refuse_head(call, methods=handlers, token=self._token) or handlers[call.method](call)

    def match(self, order_id: str) -> None:
        """Mark one order as matched."""
        order = self.orders[order_id]
        self.orders[order_id] = order.matched(match_id=self.new_id(), at=self._now())

    def has_token(self, call: Call) -> bool:
        """Return whether a request contains the right token."""
        return _same_token(call.headers.get("Authorization", ""), self._token)

    def head_refusal(self, call: Call) -> Reply | None:
        """Return the response that refuses a request's method, token or `Accept`; `None` if all are valid."""
        return refuse_head(call, methods=self._routes[call.path], token=self._token)

    def problems(self, request: CreateOrder) -> Problems:
        """Return the problems of an order with well-formed fields."""
        poster = self._poster(request)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        return _check_poster(request, poster) | _check_beneficiary(request, beneficiary, poster)

    def create(self, request: CreateOrder, *, beneficiary: Account) -> Reply:
        """Create the order for a request, without checking the request."""
        now, poster = self._now(), self._poster(request)
        order = Order(
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
        self.orders[order.id] = order
        if poster.username not in self.accounts:
            self.accounts.add(poster)
        return Reply(status=200, body=order.to_json(), order=order)

    def new_id(self) -> str:
        """Return a new order id: `tx-` and twenty lower-case letters and digits."""
        return "tx-" + "".join(self._random.choices(_ID_ALPHABET, k=20))

    def _who_am_i(self, _: Call) -> Reply:
        return Reply(status=200, body=wire.write(wire.who_am_i_object(self.accounts.bank)))

    def _create_order(self, call: Call) -> Reply:
        document = read_json(call)
        if isinstance(document, Reply):
            return document
        request, problems = parse(document)
        if request is None or problems:
            return unprocessable(problems)
        problems = self.problems(request)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        if problems or beneficiary is None:
            return unprocessable(problems)
        return self.create(request, beneficiary=beneficiary)

    def _poster(self, request: CreateOrder) -> Account:
        return self.accounts.get(request.poster_username) or _new_poster(request)


def refuse_head(call: Call, *, methods: Collection[str], token: str | None) -> Reply | None:
    """Return the response that refuses a request's method, token or `Accept`; `None` if all are valid.

    If `token` is None, a request needs no token.
    """
    if call.method not in methods:
        return evolve(message(405, "Method Not Allowed"), headers={"Allow": ", ".join(methods)})
    if token is not None and not _same_token(call.headers.get("Authorization", ""), token):
        return message(401, "Unauthorized")
    if not _accepts_json(call.headers.get("Accept", "*/*")):
        return message(406, "The Accept header must allow application/json.")
    return None


def read_json(call: Call) -> object:
    """Return a request's JSON body, or a refusal (413, 415 or 400) if it cannot be read."""
    if call.body is None:
        return message(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    if _media_type(call.headers.get("Content-Type", "")) != "application/json":
        return message(415, "The Content-Type must be application/json.")
    try:
        return wire.read(call.body)
    except wire.BadJson as error:
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
    """Build the response that refuses an order with invalid fields."""
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
        return {"poster_currency": ["is not one of the poster's currencies"]}
    problems = _check_amount("poster_amount", request.poster_amount, held)
    if request.poster_payment_method_type not in held.payment_types:
        problems["poster_payment_method_type"] = ["is not one of the poster's payment types in this currency"]
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
# A request on its connection, and the operations for correct and faulty responses.


@frozen
class Fault(abc.ABC):
    """The base class of all faults of the service or the network.

    `name` identifies the fault under `/sandbox/faults`. A `before_body` fault acts before the body is read,
    so it cannot be restricted to a poster or an amount.
    """

    name: ClassVar[str]
    before_body: ClassVar[bool] = False

    @abc.abstractmethod
    async def __call__(self, exchange: "Exchange") -> None:
        """Apply the fault to ``exchange``."""


@define(kw_only=True, eq=False)
class RequestRecord:
    """One request and its result.

    Attributes:
        method, path, headers: the method, path and headers as received. Header names are case-insensitive.
            The headers include the token.
        body: the request's body, up to the service's limit; empty until it has been read.
        received_at: the time at which the sandbox finished reading the request's head.
        fault: the fault that was applied; `None` if there was no fault.
        processed: whether the service processed the request, even if the response was lost or faulty.
        status: the status that was sent; `None` if no complete head was sent.
        order_id: the id of the order that the request created; `None` if it created no order.
        finished: whether the sandbox has finished the request.
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
        """Return one field of the JSON body, or `None` if the field is missing or the body is not JSON."""
        try:
            document = wire.read(self.body)
        except wire.BadJson:
            return None
        return document.get(name) if isinstance(document, dict) else None

    def is_for(self, *, username: str | None, amount: Decimal | None) -> bool:
        """Return whether the body has the given poster and `poster_amount`. `None` matches any value."""
        if username is not None and self.field_of_body("poster_username") != username:
            return False
        return amount is None or _as_decimal(self.field_of_body("poster_amount")) == amount


def _as_decimal(value: object) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str | Decimal) else None
    except ArithmeticError:
        return None
    return number if number is not None and number.is_finite() else None


# With SO_LINGER on and zero seconds, the next close resets the connection.
_RESET = struct.pack("ii", 1, 0)


class NoAnswer(web.StreamResponse):
    """A response that aiohttp must not write, because a fault has already written or withheld it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do not write a head, because a fault has already written or withheld the response."""

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:
        """Do not end the response, because a fault has already written or withheld it."""


class Exchange:
    """A request, its record, and the operations that a fault can perform on its connection.

    `answer` is the response that the handler returns to aiohttp. `new_id` returns an unused order id.
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
            ConnectionError: the client closed the connection first.
            web.RequestPayloadError: the body is not valid HTTP.
        """
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        while len(body) <= MAX_BODY_BYTES and (chunk := await self._request.content.readany()):
            body += chunk
        self.record.body = bytes(body[:MAX_BODY_BYTES])
        self._body = bytes(body) if len(body) <= MAX_BODY_BYTES else None

    def process(self) -> Reply:
        """Process the request, and create the order if the request is valid."""
        record = self.record
        call = Call(method=record.method, path=record.path, headers=record.headers, body=self._body)
        reply = self._process(call)
        record.processed = True
        record.order_id = reply.order.id if reply.order else None
        return reply

    async def send(self, reply: Reply) -> None:
        """Send a complete response. The connection stays open, unless the request is the connection's last.

        Raises:
            ConnectionError: the client closed the connection.
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
        """Send the head of a response. `length` is the Content-Length, or `None` for a chunked body."""
        response = web.StreamResponse(status=reply.status)
        if length is None:
            response.enable_chunked_encoding()
        else:
            response.content_length = length
        await self._prepare(response, reply)
        return response

    async def stream(self, reply: Reply, parts: Iterable[bytes]) -> None:
        """Send a response with `parts` as its body, and keep the connection open."""
        response = await self.begin(reply, length=None)
        for part in parts:
            # Skip an empty chunk, which would end the body, and let other requests run.
            await (response.write(part) if part else asyncio.sleep(0))
        await response.write_eof()

    def write(self, data: bytes) -> None:
        """Write raw bytes to the connection.

        Raises:
            ConnectionError: the client closed the connection.
        """
        self._transport().write(data)

    async def stall(self, seconds: float | None = None) -> None:
        """Wait for `seconds`; if `None`, wait until `Faults.release` is called or the sandbox closes."""
        await (self._stall(self.record) if seconds is None else self.sleep(seconds))

    def close(self) -> None:
        """Close the connection (FIN) after the bytes written so far."""
        self.answer = NoAnswer()
        self._request.protocol.force_close()

    def end(self) -> None:
        """Close the connection after its last request, unless the response had ``Connection: close``."""
        if self._is_last and not self._announces:
            self._request.protocol.force_close()

    def reset(self) -> None:
        """Reset the connection (RST). Bytes that are not sent yet are lost."""
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
            raise ConnectionResetError("the client closed the connection")
        return transport
