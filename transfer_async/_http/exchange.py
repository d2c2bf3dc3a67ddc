"""Sends a request on a connection from aiohttp's pool, and parses the response with aiohttp's parser.

``ClientSession.request`` creates several objects and two timers for each request. It writes the head and the
body separately, and on Python 3.11 starts a task for that. This module executes half as many instructions,
and writes the request with a single call. aiohttp's connector still handles the connection pool, DNS and TLS.

`GuardedBody` and `ConnectionState` record the state of an exchange, as listed in this table:

============  =====================================  ===================================================
state         how it is reached                      what it proves, and what may follow
============  =====================================  ===================================================
not written   the initial state                      nothing was sent
stale         the check before the write found that  nothing was sent; the connection is closed, and the
              the connection is closing or readable  request may be written to another one
written       the check passed; no ``await`` comes   the service may have the request: without a response
              between it and the write               the outcome is unknown. Nothing is written again
answered      the head of a final response came      its status counts, even if its body is cut
              after the write
trusted       the response was read and is the only  the connection may carry another request
              one, and it belongs to the request
============  =====================================  ===================================================

Errors, timeouts and cancellations close the connection, but never change the state.
"""

from __future__ import annotations

import asyncio
from functools import cache
from inspect import getfile, signature
from types import FunctionType
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from transfer_async._http.write_guard import GuardedBody

_TRIED = ((3, 12), (3, 13), (3, 14))  # the versions of aiohttp that this module is tested with
_METHODS = (aiohttp.ClientSession.request, aiohttp.ClientSession._request)


@cache
def _is_tried() -> bool:
    """Return whether the installed aiohttp is a tested version that has the private members used here."""
    version = tuple(int(part) for part in aiohttp.__version__.split(".")[:2] if part.isdecimal())
    connect = signature(aiohttp.BaseConnector.connect).parameters
    options = signature(ResponseHandler.set_response_params).parameters
    members = ("read", "read_timeout", "set_exception", "start_timeout")
    return (
        version in _TRIED
        and [*connect] == ["self", "req", "traces", "timeout"]
        and {"skip_payload", "read_until_eof", "auto_decompress"} <= {*options}
        and all(hasattr(ResponseHandler, name) for name in members)
        and all(type(method) is FunctionType for method in _METHODS)
        and _METHODS[1].__code__.co_filename == getfile(aiohttp.ClientSession)
    )


def is_possible(session: aiohttp.ClientSession) -> bool:
    """Return whether `exchange` can replace ``session.request``.

    `exchange` requires a tested version of aiohttp, unpatched aiohttp methods (a library may patch them to
    mock the service), and a session without traces (instrumentation may add them).
    """
    methods = (aiohttp.ClientSession.request, aiohttp.ClientSession._request)
    return methods == _METHODS and not session.trace_configs and _is_tried()


class Response:
    """A response with the attributes and methods of ``aiohttp.ClientResponse`` that the transport uses.

    Waiting fails at the deadline, or if the complete head or the next part of the body does not arrive within
    ``sock_read`` seconds.
    """

    def __init__(self, connection: Any, method: str, *, deadline: float, sock_read: float) -> None:
        self._connection = connection
        self.transport, self.protocol = connection.transport, connection.protocol
        self._deadline, self._sock_read = deadline, sock_read
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.method = method
        self.content: Any = None

    async def receive(self) -> None:
        """Wait for the head of the final response, and set the status, the headers and the content."""
        while True:
            self._start_timer()
            message, payload = await self.protocol.read()
            if message.code == 101 or not 100 <= message.code <= 199:
                break
            if self._loop.time() >= self._deadline:
                # While interim responses keep arriving, each one restarts the timer before it can run.
                raise TimeoutError
        self.status, self.reason, self.headers = message.code, message.reason, message.headers
        self.content = payload
        if not payload.is_eof():
            self.protocol.read_timeout = self._sock_read
            self.protocol.start_timeout()

    def _start_timer(self) -> None:
        self._stop_timer()
        when = min(self._deadline, self._loop.time() + self._sock_read)
        self._timer = self._loop.call_at(when, self._end_wait)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_wait(self) -> None:
        if self._loop.time() >= self._deadline:
            error: Exception = TimeoutError()
        elif self.content is None and not self.transport.get_write_buffer_size():
            error = aiohttp.SocketTimeoutError("Timeout on reading data from socket")
        else:  # ``sock_read`` does not apply while the request is being written, nor to the body as a whole.
            self._start_timer()
            return
        self.protocol.set_exception(error)
        if self.content is not None:
            self.content.set_exception(error)

    def release(self) -> None:
        """Return the connection to the pool."""
        self._stop_timer()
        self._connection.release()

    def close(self) -> None:
        """Close the connection."""
        self._stop_timer()
        self._connection.close()


async def exchange(
    connector: Any,
    origin: aiohttp.ClientRequest,
    method: str,
    url: URL,
    guard: GuardedBody,
    *,
    head: bytes,
    limits: aiohttp.ClientTimeout,
) -> Response:
    """Write a request once, to a connection that passes ``guard``'s checks, and wait for the response's head.

    After an error, ``guard`` shows whether the request was written. The connector takes the address from
    ``origin``, which can be any request to the same host.
    """
    assert limits.total is not None and limits.sock_read is not None  # noqa: S101, PT018
    deadline = asyncio.get_running_loop().time() + limits.total
    content = guard.content or b""
    if guard.content is not None or method not in ("GET", "HEAD", "OPTIONS"):
        head += b"Content-Length: %d\r\n" % len(content)
    data = b"%b\r\n%b" % (head, content)
    try:
        connection = await connector.connect(origin, [], limits)
    except TimeoutError as error:
        raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {url}") from error
    response = Response(connection, method, deadline=deadline, sock_read=limits.sock_read)
    try:
        await guard.take(response.transport, response.protocol)
        # Nothing is awaited between the check and the write.
        response.protocol.set_response_params(
            skip_payload=method == "HEAD", read_until_eof=True, auto_decompress=False
        )
        response.transport.write(data)
        guard.connection.sent(len(data))
        await response.receive()
    except BaseException as error:
        response.close()
        if isinstance(error, HttpProcessingError):
            raise aiohttp.ClientResponseError(
                origin.request_info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        raise
    return response


def head_of(method: str, url: URL, headers: CIMultiDict[str]) -> bytes:
    """Return the request line and the headers, without ``Content-Length`` and the final line break."""
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not all(map(str.isprintable, lines)):
        raise ValueError("a header contains a line break or another control character")
    return ("\r\n".join(lines) + "\r\n").encode()
