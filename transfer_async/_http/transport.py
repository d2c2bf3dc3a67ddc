"""Sends a request with aiohttp, and records evidence of how far the request got.

The type of an exception never proves whether a POST was processed. A ``TimeoutError`` may mean that a host
name could not be resolved, or that the order was processed. The transport therefore records whether the body
was handed to the connection. A response that arrives before that belongs to another request. The table in
`exchange` lists the states of an exchange, and whether the order may have been sent in each of them.
"""

from __future__ import annotations

import asyncio
import ssl as tls
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import aiohttp
from aiohttp import hdrs
from attrs import field, frozen
from multidict import CIMultiDict
from yarl import URL

from transfer_async._http import exchange, urls
from transfer_async._http.exchange import Response
from transfer_async._http.write_guard import (
    AnsweredEarly,
    ConnectionState,
    GuardedBody,
    SessionBody,
    SessionRequest,
    is_of_two,
)
from transfer_async._models.errors import bare_alone, is_a, without_frames
from transfer_async._support.clock import NEVER, in_seconds
from transfer_async._support.util import is_end, must_propagate, positive

POOL_KEEPALIVE = 4.0
"""How long a pooled connection may be idle, in seconds. Common servers close idle connections after 5 s."""

SHORT = 200
"""The size in bytes from which a body is too long to be the specification's error body, which means a refusal
even with a 2xx status."""

RESPONSE_ID_HEADER = "X-Request-Id"
"""The default name of the header with the service's request id. The specification defines none."""

_STALE_IN_A_ROW = 16  # the number of consecutive stale connections after which the exchange fails


@frozen(kw_only=True)
class Timeouts:
    """The timeouts for the parts of a call, in seconds or as a ``timedelta``.

    Args:
        connect: the limit for obtaining a connection, including the wait for the pool, DNS, TCP and TLS.
        sock_connect: the limit for TCP and TLS alone.
        sock_read: the longest wait for the next part of the response, once the request is written.
        total: the limit for a complete exchange.
        hook: the limit for each call to a hook's ``before`` or ``undo``, to ``resolve``, or to the token
            callable.

    Raises:
        ValueError: a timeout is not finite, or not greater than 0.
    """

    connect: float = field(default=5.0, converter=in_seconds, validator=positive())
    sock_connect: float = field(default=5.0, converter=in_seconds, validator=positive())
    sock_read: float = field(default=20.0, converter=in_seconds, validator=positive())
    total: float = field(default=25.0, converter=in_seconds, validator=positive())
    hook: float = field(default=120.0, converter=in_seconds, validator=positive())


def _for_exchange(timeouts: Timeouts, *, left: float) -> aiohttp.ClientTimeout:
    """Convert ``timeouts`` for aiohttp, and limit each of them to the ``left`` seconds that remain."""
    total = min(timeouts.total, max(left, 0.001))
    # `sock_connect` is part of `connect`. A longer value has no effect, so omitting it saves a timer.
    sock_connect = None if timeouts.sock_connect >= timeouts.connect else min(timeouts.sock_connect, total)
    return aiohttp.ClientTimeout(
        total=total,
        connect=min(timeouts.connect, total),
        sock_connect=sock_connect,
        sock_read=min(timeouts.sock_read, total),
        ceil_threshold=NEVER,
    )


@cache
def _default_context() -> tls.SSLContext:
    """Return the TLS context that all clients share. Creating it takes 10 ms."""
    context = tls.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _without_secrets(error: BaseException | None) -> BaseException | None:
    """Return ``error``, sanitized and without the frames whose variables contain the token."""
    return None if error is None else without_frames(bare_alone(error))


@frozen(kw_only=True, slots=False)  # With a dict, creating an instance takes a quarter less time.
class ExchangeResult:
    """The result of an HTTP exchange, with evidence of how far the request got.

    Args:
        sent: whether the body (or the request, if it has none) was handed to the connection.
        status: the HTTP status from a response object, never from an exception.
        body: the part of the response's body that was read, truncated at the limit.
        intact: whether the body was read completely and without an error.
        alone: whether exactly one response arrived, after its request. It is not checked for a 2xx response
            to an order, because the order in the response shows which request was answered.
    """

    sent: bool
    status: int | None = None
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    intact: bool = False
    alone: bool = True
    error: BaseException | None = field(default=None, converter=_without_secrets)
    id_header: str = RESPONSE_ID_HEADER

    @property
    def request_id(self) -> str | None:
        """The service's request id, if it is safe to log: at most 100 printable ASCII characters."""
        given = self.headers.get(self.id_header, "")
        return given if 0 < len(given) <= 100 and given.isascii() and given.isprintable() else None


class TransportClosed(aiohttp.ClientConnectionError):
    """The client was closed before the request was sent."""


class Transport:
    """The HTTP sessions of one client: two of its own, or the caller's session, which is never closed.

    Orders have a separate connection pool. aiohttp reuses the connection that was idle longest. In a shared
    pool, other requests would keep old connections open, and orders would then be sent on those connections.
    """

    def __init__(
        self,
        base_url: str,
        *,
        session: aiohttp.ClientSession | None,
        ssl: tls.SSLContext | None,
        proxy: str | None,
        timeouts: Timeouts,
        max_response_bytes: int,
        max_connections: int,
        response_id_header: str = RESPONSE_ID_HEADER,
    ) -> None:
        self._base_url, self._response_id_header = base_url, response_id_header
        self._create_order = URL(base_url + urls.CREATE_ORDER, encoded=True)
        self._orders = self._others = session
        self._borrowed = session is not None
        self._may_exchange = session is None and proxy is None
        self._order_head: tuple[object, bytes] = (None, b"")  # the last order's headers, and its head
        self._origin: aiohttp.ClientRequest | None = None  # The connector reads the address from it.
        self._opened = self._closed = False
        self._timeouts = timeouts
        self._full_timeout = _for_exchange(timeouts, left=timeouts.total)
        self._max_response_bytes, self._max_connections = max_response_bytes, max_connections
        if ssl is None and session is not None and base_url.startswith("https:"):
            ssl = _default_context()  # A borrowed session's connector might not verify certificates.
        self._options: dict[str, Any] = {
            "allow_redirects": False,
            "raise_for_status": False,
            "auto_decompress": False,  # see `BoundedBody`
            "ssl": True if ssl is None else ssl,
        }
        self._added: dict[str, str] = {}  # Without TLS, each request carries the proxy's credentials.
        address, authorization = urls.proxy_and_authorization(proxy)
        if address is not None:
            self._options["proxy"] = address
        if authorization is not None:
            over_tls = self._create_order.scheme == "https"
            added = self._options.setdefault("proxy_headers", {}) if over_tls else self._added
            added[hdrs.PROXY_AUTHORIZATION] = authorization

    @property
    def is_open(self) -> bool:
        """Whether the transport has been opened and not yet closed."""
        return self._opened and not self._closed

    def open(self) -> None:
        """Create the sessions. Requires a running event loop."""
        if self._closed:
            raise TransportClosed
        self._opened = True
        if self._orders is None:
            self._orders, self._others = self._session(), self._session()

    def _session(self) -> aiohttp.ClientSession:
        # asyncio allocates 256 KiB for every read. Until a larger block has been freed, glibc maps such a
        # block anew each time, which takes 17 µs. Therefore a larger block is created and freed here.
        bytes(1 << 20)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=POOL_KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close the transport's own sessions. Nothing can be sent afterwards."""
        self._closed = True
        if not self._borrowed:
            orders, others, self._orders, self._others = self._orders, self._others, None, None
            async with AsyncExitStack() as left:  # A cancellation leaves no session open.
                for session in (orders, others):
                    if session is not None:
                        left.push_async_callback(session.close)

    def post_order(
        self, body: GuardedBody, *, headers: CIMultiDict[str], left: float
    ) -> Awaitable[ExchangeResult]:
        """Send a create-order request (specification 4.1) at most once, and return the result."""
        return self._carry_out("POST", self._create_order, body, headers=headers, left=left, is_order=True)

    def stays_quiet(self, connection: ConnectionState) -> bool:
        """Return whether no more bytes have arrived on ``connection`` since its response was read."""
        # An untrusted connection is closed.
        return not connection.trusted or connection.is_quiet()

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        headers: CIMultiDict[str],
        left: float,
        in_time: Callable[[], bool],
    ) -> ExchangeResult:
        """Send, at most once, a request other than an order. ``path`` is appended to the base URL."""
        url, guard = URL(self._base_url + path, encoded=True), GuardedBody(content, in_time=in_time)
        result = await self._carry_out(method, url, guard, headers=headers, left=left, is_order=False)
        if result.error is not None and must_propagate(result.error):
            raise result.error
        return result

    async def _carry_out(
        self,
        method: str,
        url: URL,
        guard: GuardedBody,
        *,
        headers: CIMultiDict[str],
        left: float,
        is_order: bool,
    ) -> ExchangeResult:
        """Run one HTTP exchange. If a connection is stale before the first byte, use another one."""
        loop = asyncio.get_running_loop()
        until = loop.time() + left
        try:
            for _ in range(_STALE_IN_A_ROW):
                guard.stale = False
                try:
                    response = await self._request(
                        method, url, guard, headers=headers, left=until - loop.time(), is_order=is_order
                    )
                # The error's type does not prove whether the request was sent.
                except BaseException as error:
                    if is_end(error):
                        raise
                    result = ExchangeResult(sent=guard.handed_over, error=error)
                    # A read timeout starts after the write, so an earlier one belongs to another request.
                    guard.stale = guard.stale or is_a(error, aiohttp.SocketTimeoutError)
                else:
                    if guard.handed_over or not guard.adopted:
                        return await self._heard(response, guard.connection, is_order=is_order)
                    # A connection that delivers a response before the request is sent is stale.
                    response.close()
                    guard.stale = True
                    result = ExchangeResult(sent=False, error=AnsweredEarly())
                was_cancelled = result.error is not None and is_a(result.error, asyncio.CancelledError)
                if guard.handed_over or not guard.stale or was_cancelled or loop.time() >= until:
                    break
            return result
        finally:
            guard.spent = True  # aiohttp must not send the rest of the request.

    def _request(
        self,
        method: str,
        url: URL,
        guard: GuardedBody,
        *,
        headers: CIMultiDict[str],
        left: float,
        is_order: bool,
    ) -> Awaitable[Response | aiohttp.ClientResponse]:
        """Send a request with `exchange` if possible, otherwise with the session."""
        self.open()
        session = self._orders if is_order else self._others
        assert session is not None  # noqa: S101 - open() has made both
        full = left >= self._timeouts.total
        timeout = self._full_timeout if full else _for_exchange(self._timeouts, left=left)
        if self._may_exchange and exchange.is_possible(session):
            if self._origin is None:
                self._origin = aiohttp.ClientRequest("GET", URL(self._base_url), ssl=self._options["ssl"])
            known, head = self._order_head
            if known is not headers or not is_order:  # The headers stay the same until the token changes.
                head = exchange.head_of(method, url, headers)
            if is_order:
                self._order_head = headers, head
            return exchange.exchange(
                session.connector, self._origin, method, url, guard, head=head, limits=timeout
            )
        return session.request(
            method,
            url,
            data=SessionBody(guard) if is_order else guard.content,
            headers={**headers, **self._added},
            middlewares=() if is_order else (SessionRequest(guard),),
            timeout=timeout,
            **self._options,
        )

    async def _heard(
        self, response: Response | aiohttp.ClientResponse, connection: ConnectionState, *, is_order: bool
    ) -> ExchangeResult:
        """Read ``response``. Unless its contents prove that it belongs to the request, check that it does."""
        content, error = await self._read(response)
        # After HEAD, older versions of aiohttp wait for a body that never arrives, so the check would fail.
        whole = response.content.is_eof() and response.method != hdrs.METH_HEAD
        alone = True
        if not is_order or response.status // 100 != 2 or len(content) < SHORT:
            try:
                alone = not is_of_two(response, content) and await connection.is_alone(whole=whole)
            except asyncio.CancelledError as cancelled:
                alone, error = False, cancelled
        if not is_order:  # For an order, the contents of the response decide this later.
            if error is None and alone and whole and response.status < 500:
                connection.trust()
            else:
                connection.distrust()
        return ExchangeResult(
            sent=True,
            status=response.status,
            headers=response.headers,
            body=content,
            intact=error is None,
            alone=alone,
            error=error,
            id_header=self._response_id_header,
        )

    async def _read(self, response: Response | aiohttp.ClientResponse) -> tuple[bytes, BaseException | None]:
        """Return the body up to the limit, and the error that cut it short, if any."""
        body = BoundedBody(self._max_response_bytes, encoding=response.headers.get("Content-Encoding"))
        try:
            while chunk := await response.content.readany():
                body.take(chunk)
                if response.content.at_eof():  # Most bodies arrive in one piece.
                    break
            body.end()
        except BaseException as error:  # A truncated response still has its status.
            response.close()
            if is_end(error):
                raise
            return body.content, error
        response.release()
        return body.content, None


# --- decompression -----------------------------------------------------------------------------------
# The body of a response is decompressed here, up to the limit. Older versions of aiohttp decompress a whole
# chunk at once, even if the result is a thousand times larger. Nor does aiohttp distinguish a truncated
# compressed body from a complete one.


ACCEPTED = "gzip, deflate"
"""The supported content encodings."""

_GZIP_OR_ZLIB = 47  # zlib's number for detecting gzip or zlib from the header
_PACKING = 1 << 16  # bytes that compression may add to a body
_BARE = -zlib.MAX_WBITS  # "deflate" without its header


class BodyTooLarge(aiohttp.ClientPayloadError):
    """The response's body is larger than the client's limit, and was read only up to the limit."""


class BodyCut(aiohttp.ClientPayloadError):
    """The response's compressed body is incomplete, or is not valid for its encoding."""


class BoundedBody:
    """The part of a response's body received so far, decompressed, at most ``limit`` bytes."""

    def __init__(self, limit: int, *, encoding: str | None) -> None:
        self._room = limit
        self._chunks: list[bytes] = []
        self._encoding = (encoding or "identity").strip().lower()
        self._unpack: zlib._Decompress | None = None
        self._packed_room = limit + _PACKING

    @property
    def content(self) -> bytes:
        """The data received so far."""
        return b"".join(self._chunks)

    def take(self, chunk: bytes) -> None:
        """Add a received chunk, up to the limit. Do not call `take` again after an error."""
        if self._encoding != "identity":
            chunk = self._unpacked(chunk)
        self._chunks.append(chunk[: self._room])
        self._room -= len(chunk)
        if self._room < 0:
            raise BodyTooLarge

    def end(self) -> None:
        """Check that the compressed data is complete. Call `end` when the response has ended."""
        if self._unpack is not None and not self._unpack.eof:
            raise BodyCut

    def _unpacked(self, chunk: bytes) -> bytes:
        if self._unpack is None:
            self._unpack = zlib.decompressobj(self._wbits(chunk))
        if self._unpack.eof:  # Otherwise zlib would keep all following bytes and copy them each time.
            raise BodyCut
        self._packed_room -= len(chunk)
        try:
            # One byte beyond the limit shows that the body is too large.
            unpacked = self._unpack.decompress(chunk, self._room + 1)
        except zlib.error as error:
            raise BodyCut from error
        if self._unpack.unused_data or self._packed_room < 0:
            self._chunks.append(unpacked[: self._room])
            raise BodyCut
        return unpacked

    def _wbits(self, chunk: bytes) -> int:
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            raise BodyCut("the response uses an encoding that was not requested")
        bare = self._encoding == "deflate" and chunk[:1] != b"" and chunk[0] & 0x0F != 8
        return _BARE if bare else _GZIP_OR_ZLIB
