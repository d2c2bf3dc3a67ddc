"""One exchange over aiohttp, and the evidence of how far it got.

What a failed POST proves is never in the exception's type: the same ``TimeoutError`` stands for a
name that did not resolve and for an order that was processed. What proves it is whether the body
was handed over to the connection:

========================  ===================  ==================================================
body handed over          response             what is certain
========================  ===================  ==================================================
no                        any                  never sent; a response here answers somebody else
yes                       none                 nothing: it may have been processed
yes                       a response object    what its status says, even if its body is cut
========================  ===================  ==================================================

A pooled connection may already hold bytes that answer nobody's question. So just before the first
byte it is looked at, and if it is closing or readable, nothing is written and another is taken.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import aiohttp
from aiohttp import hdrs
from attrs import field, frozen
from multidict import CIMultiDict
from yarl import URL

from transfer_async._http import urls
from transfer_async._http.decoder import BoundedBody
from transfer_async._http.unsolicited import Carrier
from transfer_async._http.write_guard import AnsweredEarly, GuardedBody, GuardedRequest, WriteGuard
from transfer_async._models.base import ByValue
from transfer_async._models.causes import bare
from transfer_async._support.clock import in_seconds
from transfer_async._support.deadlines import NEVER
from transfer_async._support.validators import positive

POOL_KEEPALIVE = 4.0
"""Seconds a connection may idle: clearly below the 5 s after which common servers close theirs."""

SHORT = 200
"""Bytes of a body that may be the specification's error body, which is a no whatever its status."""

_STALE_IN_A_ROW = 16  # connections that fail the look, before the exchange counts as failed


@frozen(kw_only=True, eq=False, repr=False)
class Timeouts(ByValue):
    """How long each part of a call may take, in seconds or as ``timedelta``.

    Args:
        connect: from asking the pool to a usable connection: pool, name, TCP and TLS.
        sock_connect: TCP and TLS alone.
        sock_read: between two pieces of an answer, once the request is written.
        total: one whole exchange; a broken answer may hang until then.
        hook: one hook's ``before`` or ``undo``, and one call of ``resolve`` or of the token callable.
    """

    connect: float = field(default=5.0, converter=in_seconds, validator=positive())
    sock_connect: float = field(default=5.0, converter=in_seconds, validator=positive())
    sock_read: float = field(default=20.0, converter=in_seconds, validator=positive())
    total: float = field(default=25.0, converter=in_seconds, validator=positive())
    hook: float = field(default=120.0, converter=in_seconds, validator=positive())


def _for_exchange(timeouts: Timeouts, *, left: float) -> aiohttp.ClientTimeout:
    """aiohttp's form of ``timeouts``, cut to the seconds that are ``left``, never rounded up."""
    total = min(timeouts.total, max(left, 0.001))
    # A part of `connect`, and begun later: as long as the whole, it never ends first, and is a timer less.
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
    """One for all clients, made where it is needed: it reads the system's certificates, for 10 ms or more."""
    context = tls.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _verifying(base_url: str, *, borrowed: bool) -> tls.SSLContext | bool:
    """What makes aiohttp verify certificates, whatever the connector of a borrowed session says."""
    # True leaves it to the connector, which may have been told not to; our own have not.
    return _default_context() if borrowed and base_url.startswith("https:") else True


def _keep_large_blocks() -> None:
    """Have the C library keep the memory that answers are read into, where it would go back with each.

    asyncio asks for 256 KiB whenever it reads. glibc has the kernel map blocks as large, and fill in empty
    pages, until it has seen a larger one freed: 17 µs of the processor for each answer.
    """
    bytes(1 << 20)


def _without_secrets(error: BaseException | None) -> BaseException | None:
    """``error`` fit to be chained; the frames that it went through have the token in their variables."""
    return None if error is None else bare(error).with_traceback(None)


@frozen(kw_only=True, slots=False)  # with a dict, it is made in three quarters of the time
class Evidence:
    """How far one exchange got.

    Args:
        sent: whether the body was handed over to the connection; without a body, the request.
        status: the status, from a response object only; never from an exception.
        headers: the response's headers; case-insensitive.
        body: what was read of the response's body, cut at the limit.
        intact: whether the whole body was read, as far as HTTP can tell.
        alone: whether it is all that came, and came after its question, as far as was looked: a 2xx to
            an order is known by what it says.
        error: what went wrong beneath, if anything did: without the request, and whatever else it carried.
    """

    sent: bool
    status: int | None = None
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    intact: bool = False
    alone: bool = True
    error: BaseException | None = field(default=None, converter=_without_secrets)

    @property
    def request_id(self) -> str | None:
        """The service's ``X-Request-Id``, if it is fit to be shown in a log."""
        told = self.headers.get("X-Request-Id", "")
        return told if 0 < len(told) <= 100 and told.isascii() and told.isprintable() else None


class TransportClosed(aiohttp.ClientConnectionError):
    """The client was closed in the meantime; nothing was sent."""


class Transport:
    """The sessions of one client, and one exchange at a time over them.

    Orders have a pool of their own: aiohttp hands out the connection that has idled longest, and
    other traffic would keep the oldest alive.

    Args:
        base_url: normalised.
        session: a session that somebody else owns; used as it is, never closed.
        ssl: a TLS context, or None for the default one.
        proxy: a proxy's address, or None.
        timeouts: see `Timeouts`.
        max_response_bytes: how much of a response's body, decompressed, is read at most.
        max_connections: how many connections each of the two pools may hold at once.
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
    ) -> None:
        self._base_url = base_url
        self._create_order = URL(base_url + urls.CREATE_ORDER, encoded=True)
        self._orders = self._others = session
        self._borrowed = session is not None
        self._opened = self._closed = False
        self._timeouts = timeouts
        self._full_timeout = _for_exchange(timeouts, left=timeouts.total)
        self._max_response_bytes = max_response_bytes
        self._max_connections = max_connections
        self._options: dict[str, Any] = {
            "allow_redirects": False,
            "raise_for_status": False,
            "auto_decompress": False,  # see `bounded`
            "ssl": _verifying(base_url, borrowed=session is not None) if ssl is None else ssl,
        }
        self._proxy_authorization: str | None = None
        address, authorization = urls.proxy_and_authorization(proxy)
        if address is not None:
            self._options["proxy"] = address
        if authorization is not None and self._create_order.scheme == "https":
            self._options["proxy_headers"] = {hdrs.PROXY_AUTHORIZATION: authorization}
        elif authorization is not None:
            self._proxy_authorization = authorization

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._opened and not self._closed

    def open(self) -> None:
        """Make the sessions; needs a running loop.

        Raises:
            TransportClosed: it was closed.
        """
        if self._closed:
            raise TransportClosed
        self._opened = True
        if self._orders is None:
            self._orders, self._others = self._session(), self._session()

    def _pool(self, *, orders: bool) -> aiohttp.ClientSession:
        self.open()
        session = self._orders if orders else self._others
        assert session is not None  # noqa: S101 - open() has made both
        return session

    def _with_proxy(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """``headers``; without TLS, what a proxy is to know goes along with the request itself."""
        if self._proxy_authorization is None:
            return headers
        told = headers.copy()
        told[hdrs.PROXY_AUTHORIZATION] = self._proxy_authorization
        return told

    def _session(self) -> aiohttp.ClientSession:
        _keep_large_blocks()
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=POOL_KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close the sessions, unless they were borrowed; nothing is sent from now on."""
        self._closed = True
        if not self._borrowed:
            orders, others, self._orders, self._others = self._orders, self._others, None, None
            async with AsyncExitStack() as left:  # whoever is cancelled at the one closes the other, too
                for session in (orders, others):
                    if session is not None:
                        left.push_async_callback(session.close)

    def post_order(
        self, body: GuardedBody, *, headers: CIMultiDict[str], left: float
    ) -> Coroutine[Any, Any, Evidence]:
        """Send one create-order request (specification 4.1), once.

        Args:
            body: guards itself; its ``handed_over`` stays true to the wire also if this is cancelled.
            headers: with the authorization.
            left: seconds until the deadline.

        Returns:
            The evidence, also when this is cancelled: then what it had come to.
        """
        return self._carry_out(
            "POST",
            self._create_order,
            body,
            data=body,
            headers=headers,
            middlewares=(),
            left=left,
            is_order=True,
        )

    def stays_quiet(self, carrier: Carrier) -> bool:
        """Whether nothing has come after the answer on ``carrier`` since it was read."""
        if self._borrowed or not carrier.trusted:  # others may use it by now, or it is closed
            return True
        return carrier.is_quiet()

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        headers: CIMultiDict[str],
        left: float,
        in_time: Callable[[], bool],
    ) -> Evidence:
        """Send any other request, once; ``path`` is appended to the base address as it is."""
        url, guard = URL(self._base_url + path, encoded=True), GuardedRequest(in_time)
        evidence = await self._carry_out(
            method, url, guard, data=content, headers=headers, middlewares=(guard,), left=left, is_order=False
        )
        if isinstance(evidence.error, asyncio.CancelledError):
            raise evidence.error
        return evidence

    async def _carry_out(
        self,
        method: str,
        url: URL,
        guard: WriteGuard,
        *,
        data: bytes | GuardedBody | None,
        headers: CIMultiDict[str],
        middlewares: tuple[GuardedRequest, ...],
        left: float,
        is_order: bool,
    ) -> Evidence:
        """Carry out one exchange: elsewhere, if its connection has gone bad before the first byte."""
        loop, headers = asyncio.get_running_loop(), self._with_proxy(headers)
        until = loop.time() + left
        try:
            for _ in range(_STALE_IN_A_ROW):
                guard.stale = False
                try:
                    response = await self._pool(orders=is_order).request(
                        method,
                        url,
                        data=data,
                        headers=headers,
                        middlewares=middlewares,
                        timeout=self._timeout(left=until - loop.time()),
                        **self._options,
                    )
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - its type proves nothing
                    evidence = Evidence(sent=guard.handed_over, error=error)
                    # Time to read begins with the body written: this is a timer of the request before.
                    guard.stale = guard.stale or isinstance(error, aiohttp.SocketTimeoutError)
                else:
                    if guard.handed_over or not guard.adopted:
                        return await self._heard(response, guard.carrier, is_order=is_order)
                    # What answered before it was asked is a connection gone bad, like any other.
                    response.close()
                    guard.stale = True
                    evidence = Evidence(sent=False, error=AnsweredEarly())
                if guard.handed_over or not guard.stale or isinstance(evidence.error, asyncio.CancelledError):
                    break
            return evidence
        finally:
            guard.spent = True  # whatever aiohttp still has of it, it goes nowhere

    def _timeout(self, *, left: float) -> aiohttp.ClientTimeout:
        full = left >= self._timeouts.total
        return self._full_timeout if full else _for_exchange(self._timeouts, left=left)

    async def _heard(self, response: aiohttp.ClientResponse, carrier: Carrier, *, is_order: bool) -> Evidence:
        """What ``response`` says, and, where that is believed as it is, whether it is ours."""
        content, error = await self._read(response)
        # After HEAD an older aiohttp waits for the body that does not come: what is left there tells nothing.
        whole = response.content.is_eof() and response.method != hdrs.METH_HEAD
        alone = True
        if not is_order or response.status // 100 != 2 or len(content) < SHORT:
            try:
                alone = await carrier.is_alone(whole=whole)
            except asyncio.CancelledError as cancelled:
                alone, error = False, cancelled
        if not is_order:  # an order's is judged by what it says
            if error is None and alone and whole and response.status < 500:
                carrier.trust()
            else:
                carrier.distrust()
        return Evidence(
            sent=True,
            status=response.status,
            headers=response.headers,
            body=content,
            intact=error is None,
            alone=alone,
            error=error,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[bytes, BaseException | None]:
        """The body, within bounds, and what cut it: how far it got never changes what the status says."""
        body = BoundedBody(self._max_response_bytes, encoding=response.headers.get("Content-Encoding"))
        try:
            while chunk := await response.content.readany():
                body.take(chunk)
                if response.content.at_eof():  # mostly it is all there at once, and need not be asked again
                    break
            body.end()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a cut answer is an answer
            response.close()
            return body.content, error
        response.release()
        return body.content, None
