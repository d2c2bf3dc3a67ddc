"""The probe's requests and connections, and the parts of a response that a profile records.

The client's connection pool reconnects automatically, which would hide closed connections. Therefore the
probe uses the standard library's `http.client` in a thread. The probe parses responses in the same way as the
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from urllib.parse import urlsplit

import aiohttp
from attrs import field, frozen
from multidict import CIMultiDict

from transfer_async._cli.options import BASE_URL, TOKEN
from transfer_async._converters.converter import find_order_id, read_answer, read_into
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._http.classify import (
    ORDER_ANSWERS,
    READ_ANSWERS,
    WRONG_TOKEN,
    Classification,
    classify_response,
    other_order,
)
from transfer_async._http.retry import RetryPolicy, retry_after
from transfer_async._http.transport import ACCEPTED, BoundedBody, ExchangeResult
from transfer_async._http.urls import WHO_AM_I, proxy_and_authorization
from transfer_async._models.requests import NewOrder
from transfer_async._models.responses import User
from transfer_async._support.clock import Clock
from transfer_async.sandbox import SeenAnswer, profile
from transfer_async.sandbox.profile import IGNORED_HEADERS, BodyKind, OrderSeen, time_step
from transfer_async.sandbox.wire import decimal_of

MAX_BODY = 1 << 20  # maximum bytes read from a response's body; the client has the same limit
BUSY = (429, 503)  # statuses after which the probe repeats the request later
MAX_BUSY = 5  # number of busy responses in a row after which the probe stops
MAX_RETRY_AFTER = 120.0  # maximum seconds of ``Retry-After`` that the probe waits
FIRST_WAIT = 1.0  # seconds to wait if a busy service sends no ``Retry-After``; doubled each time

_LATER = "run the probe again later: it continues where this run stopped"
_NOT_RECORDED = "The profile does not record this failure"


class Stopped(Exception):
    """Raised if the probe must stop sending. The message explains why, and what to do next."""


@frozen(kw_only=True)
class Request:
    """A request. The path is relative to the base URL; `http.client` adds headers such as Host."""

    method: str
    path: str
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@frozen(kw_only=True)
class Response(ExchangeResult):
    """The response to a request, as the client classifies it. ``status`` is None if no response arrived."""

    sent: bool = True  # false if no connection could be opened, so that certainly nothing was sent
    intact: bool = True  # see `ExchangeResult`
    is_kept: bool = True  # whether the connection may carry another request, according to the response

    @property
    def is_busy(self) -> bool:
        """Return whether the service was too busy to process the request."""
        return self.status in BUSY


class Connection:
    """A connection that opens when it sends its first request, and never reconnects.

    Args:
        base_url: the normalised base URL.
        timeout: seconds to wait for each part of a response; a whole response may take twice as long.
        proxy: the address of an ``http://`` proxy, or None.
        context: the TLS context, or None for the default one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float,
        proxy: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        self._prefix, self._timeout, self._was_opened = parts.path, timeout, False
        self._headers: dict[str, str] = {}
        address, authorization = proxy_and_authorization(proxy)
        secret = {} if authorization is None else {"Proxy-Authorization": authorization}
        to = parts if address is None else urlsplit(address)
        host, port = to.hostname or "", to.port or (None if address is None else 80)
        self._http: http.client.HTTPConnection
        if parts.scheme == "https":
            context = context or ssl.create_default_context()
            self._http = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
            if address is not None:
                self._http.set_tunnel(parts.hostname or "", parts.port, headers=secret)
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=timeout)
            if address is not None:  # A request to a proxy contains the whole URL.
                self._prefix, self._headers = base_url, secret

    async def send(self, request: Request, *, cut: bool = False) -> Response:
        """Send a request and return the response.

        If ``cut`` is true, close the connection instead of reading the response. The returned status is None
        if the connection was cut, closed or lost, or if the request timed out.
        """
        try:
            async with asyncio.timeout(2 * self._timeout):
                return await asyncio.to_thread(self._exchange, request, cut=cut)
        except TimeoutError:
            self._interrupt()
            return Response()
        except asyncio.CancelledError:
            self._interrupt()
            raise

    @property
    def is_open(self) -> bool:
        """Return whether the connection is still open and has received no unexpected bytes."""
        connection: socket.socket | None = self._http.sock
        if connection is None:
            return False
        connection.settimeout(0)
        try:
            connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            connection.settimeout(self._timeout)
        return False  # The connection was closed, or has unexpected bytes: it must not be used again.

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _interrupt(self) -> None:
        """Interrupt the thread's blocking call. The interrupted thread then closes the connection."""
        connection: socket.socket | None = self._http.sock
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _exchange(self, request: Request, *, cut: bool) -> Response:
        if not self._was_opened:
            try:
                self._http.connect()
            except OSError:
                self._http.close()
                return Response(sent=False)
            self._was_opened = True
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if self._http.sock is None:  # http.client would open a new connection.
                raise http.client.NotConnected
            path, headers = self._prefix + request.path, {**request.headers, **self._headers}
            self._http.request(request.method, path, body=request.body, headers=headers)
            if not cut:
                return self._read()
        self._http.close()
        return Response()

    def _read(self) -> Response:
        response = self._http.getresponse()
        if not 200 <= response.status <= 599:
            raise http.client.UnknownProtocol(str(response.status))
        body, intact = _read_body(response)
        if not response.isclosed():  # The body is longer than the limit.
            self._http.close()
        return Response(
            status=response.status,
            headers=CIMultiDict(response.getheaders()),
            body=body,
            intact=intact,
            is_kept=not response.will_close,
        )


def _read_body(response: http.client.HTTPResponse) -> tuple[bytes, bool]:
    """Return the decompressed body, up to the client's size limit, and whether it is complete."""
    body = BoundedBody(MAX_BODY, encoding=response.getheader("Content-Encoding"))
    try:
        try:
            packed, is_cut = response.read(MAX_BODY + 1), bool(response.length)
        except http.client.IncompleteRead as error:
            packed, is_cut = error.partial, True
        if packed:
            body.take(packed)
        body.end()
    except (OSError, aiohttp.ClientPayloadError):
        return body.content, False
    return body.content, not is_cut


# --- the service -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Service:
    """The service under test."""

    base_url: str  # the normalised base URL
    token: str = field(repr=False)
    timeout: float  # see `Connection`
    proxy: str | None = field(default=None, repr=False)
    ssl: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(factory=dict, repr=False)  # the bank's headers for every request
    request_id_header: str | None = None  # the header for the attempt id of an order
    clock: Clock = field(factory=Clock)  # measures response times, and sleeps

    def connection(self) -> Connection:
        """Return a new, unopened connection."""
        return Connection(self.base_url, timeout=self.timeout, proxy=self.proxy, context=self.ssl)

    def request(
        self, method: str, path: str, *, token: str | None = None, body: bytes | None = None
    ) -> Request:
        """Return a request with the specification's headers (4.1, 4.2). ``token=""`` omits the token."""
        headers = {**self.headers, "Accept": "application/json", "Accept-Encoding": ACCEPTED}
        if token != "":
            headers["Authorization"] = f"Bearer {self.token if token is None else token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        return Request(method=method, path=path, headers=headers, body=body)

    async def exchange(self, request: Request, *, cut: bool = False) -> tuple[Response, float]:
        """Send a request on a new connection. Return the response and how long it took, in seconds."""
        connection = self.connection()
        began = self.clock.now()
        try:
            return await connection.send(request, cut=cut), self.clock.now() - began
        finally:
            connection.close()

    async def ask(
        self, request: Request, answers: dict[str, SeenAnswer] | None = None
    ) -> tuple[Response, SeenAnswer]:
        """Send a request that creates no order, and retry while the service is busy.

        Each busy response is added to ``answers``.
        """
        times = 0
        while True:
            response, seconds = await self.exchange(request)
            answer = seen_answer(response, seconds=seconds)
            if not response.is_busy:
                return response, answer
            if answers is not None:
                answers[profile.TURNED_AWAY] = answer
            await self.wait(response, times=times)
            times += 1

    async def wait(self, response: Response, *, times: int) -> None:
        """Wait before a request is repeated after a busy response. ``times`` is the number of previous busy
        responses.

        Raises:
            Stopped: the wait is too long, or there were too many consecutive busy responses.
        """
        if times >= MAX_BUSY:
            raise Stopped(
                f"the service responded to {MAX_BUSY} consecutive requests with {response.status}; {_LATER}"
            )
        asked = retry_after(response.headers.get("Retry-After"), now=self.clock.utc())
        seconds = FIRST_WAIT * 2.0**times if asked is None else asked
        if seconds > MAX_RETRY_AFTER:
            raise Stopped(
                f"the service responded with {response.status} and a Retry-After of "
                f"{seconds:,.0f} s; {_LATER}"
            )
        await self.clock.sleep(seconds)

    async def check(self) -> None:
        """Send who-am-i, so that a wrong base URL or token stops the probe before it sends an order."""
        response, _ = await self.ask(self.request("GET", WHO_AM_I))
        check_user(response)


def check_user(response: Response) -> None:
    """Raise `Stopped` unless the client can read the response to who-am-i."""
    check_reached(response)
    if classify_response(response, RetryPolicy(), READ_ANSWERS) is not Classification.ANSWERED:
        raise Stopped(
            f"the service responded to who-am-i with {response.status}: check {BASE_URL}, "
            f"and {TOKEN}. {_NOT_RECORDED}"
        )
    try:
        read_into(User, response.body)
    except Unreadable as error:
        raise Stopped(f"the client cannot read the response to who-am-i: {error}. {_NOT_RECORDED}") from None


def check_reached(response: Response) -> None:
    """Raise `Stopped` if the service could not be reached or rejected the token."""
    if not response.sent or response.status is None:
        trouble = "no response arrived" if response.sent else "no connection could be opened"
        raise Stopped(f"{trouble}: check {BASE_URL}, and that the service is running. {_NOT_RECORDED}")
    if classify_response(response, RetryPolicy(), ORDER_ANSWERS) is Classification.WRONG_TOKEN:
        raise Stopped(
            f"the service rejected the token (status {response.status}): check {TOKEN}. {_NOT_RECORDED}"
        )


# --- what a profile keeps ----------------------------------------------------------------------------
# A profile must not contain a person's name, a token or a machine's name.


SHOWN_HEADERS = frozenset({"server", "via", "allow", "retry-after", "connection", "keep-alive", "x-cache"})
"""The headers whose values a profile records, because they show how the service or a proxy works. For all
other headers, a profile records only the name.
"""

FIELDS = (
    frozenset({"code", "data", "detail", "details", "error", "error_code", "errors", "fields", "id"})
    | {"message", "reason", "request_id", "status", "status_code", "statusCode", "success", "title"}
    | {"trace_id", "type"}
)
"""The field names that a profile records. They are common in responses and never identify a person."""

_ID_HEADER = re.compile(r"(^|[-_])(id|ray|trace|traceparent)($|[-_])")
_SHOWABLE = re.compile(r"[\x20-\x7e]{0,200}")
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}")


@frozen
class FoundOrder:
    """The order found in a response."""

    order: OrderSeen
    order_id: str | None = None  # the order's id, if the response names one
    unreadable: str | None = None  # why the client cannot read the order in a success
    amount: Decimal | None = None  # the largest ``poster_amount`` in the response


def find_order(response: Response, known: Collection[str], *, sent: NewOrder | None = None) -> FoundOrder:
    """Find the order in a response, in the same way as the client does.

    Args:
        response: the response to a create-order request.
        known: the ids of known orders.
        sent: the order that was sent; None if its body was changed on purpose.
    """
    classification = classify_response(response, RetryPolicy(), ORDER_ANSWERS)
    order_id, unreadable, is_order = find_order_id(response.body), None, False
    try:
        answer = read_answer(response.body)
        order_id, is_order = answer.order.id, True
        if sent is not None and (other := other_order(sent, answer)):
            unreadable = f"the response describes a different order: {other} differs"
    except Unreadable as error:
        unreadable = str(error)
    document = _decoded(response.body)
    amount = max(_poster_amounts(document), default=None)
    if classification is Classification.ANSWERED and unreadable is not None:
        return FoundOrder("unknown", order_id, unreadable, amount)
    # An id in a refusal is an order's id only if it is known or at the top level.
    own_id = document.get("id") if isinstance(document, dict) else None
    is_named = is_order or order_id in known or own_id == order_id is not None
    if classification is Classification.ANSWERED or is_named:
        return FoundOrder("same" if order_id in known else "new", order_id, None, amount)
    is_refusal = response.status is not None and response.status // 100 == 4 and response.status != 408
    return FoundOrder("none" if is_refusal or classification is Classification.WRONG_TOKEN else "unknown")


NO_ORDER = FoundOrder("none")


def seen_answer(response: Response, *, seconds: float, found: FoundOrder = NO_ORDER) -> SeenAnswer:
    """Return the parts of a response that a profile records, with the response time and the order found."""
    if response.status is None:
        return SeenAnswer(order=found.order)
    document = _decoded(response.body)
    return SeenAnswer(
        status=response.status,
        body=_kind(response.body, document),
        fields=tuple(sorted(FIELDS.intersection(document))) if isinstance(document, dict) else (),
        unauthorized=document == WRONG_TOKEN,
        headers=_kept_headers(response.headers),
        within=time_step(seconds),
        order=found.order,
        unreadable=found.unreadable,
        amount=found.amount,
    )


def request_ids(responses: Iterable[Response]) -> tuple[str, ...]:
    """Return the headers whose name suggests an id, and whose value is different in every response."""
    values: dict[str, list[str]] = {}
    for response in responses:
        for name, value in response.headers.items():
            values.setdefault(name.lower(), []).append(value)
    return tuple(
        name
        for name, found in sorted(values.items())
        if _HEADER_NAME.fullmatch(name) and _ID_HEADER.search(name) and 1 < len(found) == len(set(found))
    )


def _kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): value for name, value in headers.items() if _HEADER_NAME.fullmatch(name.lower())}
    return {
        name: value if name in SHOWN_HEADERS and _SHOWABLE.fullmatch(value) else ""
        for name, value in sorted(names.items())
        if name not in IGNORED_HEADERS
    }


def _poster_amounts(tree: object) -> Iterator[Decimal]:
    """Yield every ``poster_amount``, at any depth, whether it is a number or a string."""
    inner: Iterable[object] = tree if isinstance(tree, list) else ()
    if isinstance(tree, dict):
        inner = tree.values()
        value = tree.get("poster_amount")
        amount = Decimal(value) if type(value) is int else decimal_of(value)
        if amount is not None:
            yield amount
    for item in inner:
        yield from _poster_amounts(item)


def _decoded(body: bytes) -> object:
    try:
        return decode(body)
    except Unreadable:
        return None


def _kind(body: bytes, document: object) -> BodyKind:
    if not body:
        return "empty"
    if document is not None:
        return "json"
    return "html" if body.lstrip()[:1] == b"<" else "text"
