"""Checks, just before a request is written, that it is not sent twice, too late, or on a stale connection.

A pooled connection may be about to close, or may have received unsolicited bytes, which would be mistaken for
the response to the next request. `exchange` checks the connection and immediately writes to it.
``aiohttp.ClientSession`` has no public hook that runs just before it writes a request. Therefore
`SessionBody`, an order's body, performs the check when the session writes it. For other requests, a
middleware (`SessionRequest`) performs it. Trace callbacks for the write are awaited before the check.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError

_TLS_TURNS = 4  # the iterations of the event loop in which a TLS session ticket is processed


class ConnectionStale(aiohttp.ClientConnectionError):
    """Nothing was written, because the pooled connection was closing or had received unsolicited bytes."""


class AnsweredEarly(aiohttp.ClientConnectionError):
    """A response arrived before the request's body was sent, so it does not belong to the request."""


class TooLate(aiohttp.ClientConnectionError):
    """The request's time limit passed before its first byte was sent."""


class NeverTwice(aiohttp.ClientConnectionError):
    """aiohttp was about to send a request a second time on its own."""


class GuardedBody:
    """The content of one request, which is sent at most once, in time, and on a clean connection.

    ``in_time`` is called at the last moment, and returns whether the request may still be sent.
    """

    adopted: bool = False  # whether a session has created a real request with this body
    stale: bool = False  # whether the last connection was stale
    late: bool = False  # whether the time limit had passed
    handed_over: bool = False  # whether bytes of the request may have been sent; if not, none were
    spent: bool = False  # whether the request must no longer be sent

    def __init__(self, content: bytes | None, *, in_time: Callable[[], bool]) -> None:
        self.content = content
        self._in_time = in_time
        self.connection: ConnectionState = ConnectionState()

    async def take(self, transport: Any, protocol: Any) -> None:
        """Check and take a connection, or raise an error. The caller must then write immediately."""
        if self.spent:  # aiohttp itself retries GET, PUT and DELETE.
            raise NeverTwice
        if not ConnectionState.may_take(protocol) or await _is_stale(transport, protocol):
            self.stale = True
            raise ConnectionStale
        if self.spent:  # The request was cancelled during the check.
            raise NeverTwice
        if not self._in_time():
            self.late = True
            raise TooLate
        self.connection.take(transport, protocol)
        self.spent = self.handed_over = True


class SessionBody(aiohttp.BytesPayload):
    """An order's body for a session. aiohttp buffers the headers until the session writes the body."""

    def __init__(self, guard: GuardedBody) -> None:
        super().__init__(guard.content or b"", content_type="application/json")
        self._guard = guard

    @property
    def size(self) -> int:
        """The length in bytes, which aiohttp reads when it creates a real request with the body."""
        # A test library that replaces aiohttp's responses (for example aioresponses) never reads the size, so
        # its response is the only evidence. Before a real response, aiohttp always reads the size.
        self._guard.adopted = True
        return len(self._value)

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionBody:
        """Return the same object, because a body that may be sent only once must not be copied."""
        return self

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Check the connection, and write the body to it."""
        trace = getattr(writer, "_on_chunk_sent", None)  # This calls `on_request_chunk_sent` of all traces.
        if trace is not None:
            writer._on_chunk_sent = None  # type: ignore[attr-defined] # aiohttp has no public API for this
            await trace(self._value)
        await self._guard.take(writer.transport, getattr(writer, "protocol", None))
        await super().write_with_length(writer, content_length)
        self._guard.connection.sent(getattr(writer, "output_size", 0))


class SessionRequest:
    """A middleware that sends each request except orders at most once, and on a clean connection."""

    def __init__(self, guard: GuardedBody) -> None:
        self._guard = guard

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Check the connection, then send ``request``."""
        self._guard.adopted = True
        send = request.send

        async def send_guarded(connection: Any) -> aiohttp.ClientResponse:
            await _trace_first(request)
            await self._guard.take(connection.transport, connection.protocol)
            response = await send(connection)
            self._guard.connection.sent(_min_size(request.headers, self._guard.content or b""))
            return response

        request.send = send_guarded  # type: ignore # the only place between a connection and its first byte
        return await handler(request)


def _min_size(headers: Mapping[str, str], content: bytes) -> int:
    """Return the size of a request without its first line, because a proxy receives another first line."""
    return sum(len(f"{name}: {value}\r\n") for name, value in headers.items()) + len(content)


async def _trace_first(request: Any) -> None:
    """Await a request's trace callbacks now, so that aiohttp does not await them while it writes."""
    if not getattr(request, "_traces", None):
        return
    trace_headers, trace_chunk = request._on_headers_request_sent, request._on_chunk_request_sent
    request._on_headers_request_sent = request._on_chunk_request_sent = _no_trace
    await trace_headers(request.method, request.url, request.headers)
    if request.body:
        await trace_chunk(request.method, request.url, await request.body.as_bytes())


async def _no_trace(*_: object) -> None:
    """Do nothing. aiohttp calls this function instead of a trace callback that has already been awaited."""


async def _is_stale(transport: Any, protocol: Any) -> bool:
    """Return whether a connection is closing, or received bytes before the request."""
    if transport is None or _is_spoiled(transport, protocol):
        return True
    socket = transport.get_extra_info("socket")
    if socket is None or not _is_readable(socket):
        return False
    if transport.get_extra_info("sslcontext") is None:
        return True
    # Over TLS, the waiting bytes may be a session ticket. Let the loop process it, then check again.
    for _ in range(_TLS_TURNS):
        await asyncio.sleep(0)
        if _is_spoiled(transport, protocol):
            return True
        if not _is_readable(socket):
            return False
    return True


def _is_spoiled(transport: Any, protocol: Any) -> bool:
    """Return whether a connection is closing, or its parser has read all or part of a response."""
    if transport.is_closing() or protocol is None:
        return bool(transport.is_closing())
    # A complete unsolicited response sets `should_close`. The request's own response completes a partial one.
    return bool(protocol.should_close) or _has_begun(getattr(protocol, "_parser", None))


def _is_readable(socket: Any) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()  # select.select cannot watch descriptors above 1,023.
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


# --- unsolicited responses ---------------------------------------------------------------------------
# Decides whether a response belongs to the request, and whether its connection may be reused.
#
# A reused connection may deliver an unsolicited response that was still in transit during the check before
# the first byte. The real response then arrives after it. If the unsolicited response is a refusal that is
# mistaken for the real one, an existing order counts as refused. Therefore a refusal is accepted only under
# three conditions:
#
# * Nothing arrived after it: aiohttp's buffers contain no further message, and the socket no byte. This is
#   checked immediately, and again just before the order is retried.
# * It does not consist of part of another response, completed by the real one.
# * It arrived after the request was received: the peer's TCP segments acknowledge at least one byte of the
#   request. If no byte is acknowledged, the response belongs to another request.
#
# One case is not detected: an unsolicited refusal that arrives after the acknowledgement. If the real
# response arrives after the last check, or over TLS after a refusal that closes the connection, the refusal
# is accepted. After a final refusal, the immediate check is the last one.


_PLAIN_TURNS = 4  # the iterations of the event loop in which waiting TLS bytes are decrypted
_LONGEST_ALERT = 100  # the maximum bytes of a TLS alert; an order is longer

# The attribute of a protocol that holds the state of the connection's last exchange. The state refers to the
# protocol, so a ``WeakKeyDictionary`` would keep each closed connection in memory.
_LAST = "_last_exchange_of_transfer_async"


class ConnectionState:
    """The state of an exchange's connection. A new state has no connection until `take` is called."""

    __slots__ = ("_parser", "_protocol", "_size", "_transport", "trusted")

    def __init__(self) -> None:
        self._parser: Any = None
        self._protocol: Any = None
        self._transport: Any = None
        self._size = 0
        self.trusted: bool = False

    @staticmethod
    def may_take(protocol: Any) -> bool:
        """Return whether a connection is new, or its last response was trusted and no bytes followed it."""
        last = getattr(protocol, _LAST, None)
        return last is None or (last.trusted and not _has_begun(last._parser))

    def take(self, transport: Any, protocol: Any) -> None:
        """Record that this connection carries the request. It cannot be reused until it is trusted again."""
        if protocol is not None:
            setattr(protocol, _LAST, self)
        self._transport, self._protocol = transport, protocol

    def sent(self, size: int) -> None:
        """Record that the request, of at least ``size`` bytes, was written."""
        self._size = size

    def trust(self) -> None:
        """Record that the response belonged to the request, so the connection may be reused."""
        self.trusted = True
        # This parser reads whatever arrives while the connection is idle. The next request gets a new parser.
        self._parser = getattr(self._protocol, "_parser", None)

    def distrust(self) -> None:
        """After a response that is not trusted, close the connection unless another request uses it."""
        is_last, self.trusted = self._is_last, False
        if is_last:
            self._protocol.close()

    @property
    def _is_last(self) -> bool:
        """Whether no other request has used the connection since."""
        if self._protocol is None or getattr(self._protocol, _LAST) is not self:
            return False
        # Other code that shares a borrowed session does not set `_LAST`, but each request sets a new parser.
        # A lost connection has no parser.
        parser = getattr(self._protocol, "_parser", None)
        return not self.trusted or parser is None or parser is self._parser

    async def is_alone(self, *, whole: bool) -> bool:
        """Return whether the response is the only one that arrived, and arrived after its request.

        If ``whole`` is false, the response was not read to its end, so waiting bytes may belong to it.
        """
        if not self._is_last:
            return True
        if 0 < self._size <= _unacknowledged(self._transport):
            return False
        if not whole:
            return not _holds_another(self._protocol)
        for _ in range(_PLAIN_TURNS):
            if not self.is_quiet():
                return False
            if self._transport.is_closing() or not _bytes_waiting(self._transport, self._protocol):
                return True
            await asyncio.sleep(0)  # Over TLS, wait until the bytes are decrypted.
        return False

    def is_quiet(self) -> bool:
        """Return false if bytes are known to have arrived after the response."""
        if not self._is_last:
            return True
        if _is_amid_another(self._protocol):
            return False
        over_tls = _extra(self._transport, "sslcontext") is not None
        return _bytes_waiting(self._transport, self._protocol) <= (_LONGEST_ALERT if over_tls else 0)


_STATUS_LINE = re.compile(r"HTTP/\d(\.\d)? \d{3}")
# A body may quote a status line, so this pattern also requires a header after it.
_HEAD = re.compile(rb"HTTP/\d(\.\d)? \d{3}[^\r\n]*\r?\n[\w-]+:")


def is_of_two(response: Any, content: bytes) -> bool:
    """Return whether a response contains a second head, and so consists of parts of two responses."""
    if any(map(_STATUS_LINE.search, (response.reason or "", *response.headers.values()))):
        return True
    return _HEAD.search(content) is not None


def _holds_another(protocol: Any) -> bool:
    """Return whether aiohttp has buffered another head or unreadable bytes after the response."""
    try:
        return bool(protocol._buffer or protocol._tail)
    except AttributeError:  # An unknown version of aiohttp is not trusted.
        return True


def _is_amid_another(protocol: Any) -> bool:
    """Return whether aiohttp has buffered, or begun to read, another message after the response."""
    if _holds_another(protocol) or isinstance(error := protocol.exception(), HttpProcessingError):
        return True
    try:
        parser = protocol._parser
        if parser is None:  # The connection is lost; its error shows whether a message had begun.
            return not isinstance(getattr(error, "message", ""), str)
    except AttributeError:  # an unknown version of aiohttp
        return True
    return _has_begun(parser)


def _has_begun(parser: Any) -> bool:
    """Return whether a parser has read part of a message. Do not use the parser after this call."""
    if parser is None:
        return False
    try:
        # Between two messages, this does nothing. Within a message, it returns or keeps the part received.
        return parser.feed_eof() is not None or bool(getattr(parser, "_lines", ()))
    except Exception:  # noqa: BLE001 - within a body, or with an unknown version of aiohttp
        return True


def _extra(transport: Any, name: str) -> Any:
    try:
        return transport.get_extra_info(name)
    except AttributeError:  # A closed TLS transport has no socket; its waiting bytes cannot be read.
        return None


def _bytes_waiting(transport: Any, protocol: Any) -> int:
    """Return the number of bytes waiting in the socket, at most a few hundred; 0 at the end of the stream."""
    if protocol._parser is None:  # The connection is lost, and its descriptor may be reused by now.
        return 0
    try:
        with _extra(transport, "socket").dup() as twin:
            return len(twin.recv(4 * _LONGEST_ALERT, socket.MSG_PEEK))
    except (AttributeError, OSError):  # There is no socket, no byte waits, or the connection was reset.
        return 0


def _unacknowledged(transport: Any) -> int:
    """Return the number of sent bytes that the peer has not acknowledged; 0 except on Linux."""
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    count = bytearray(4)
    try:
        fcntl.ioctl(_extra(transport, "socket").fileno(), termios.TIOCOUTQ, count)
    except (AttributeError, OSError, ValueError):
        return 0
    return int.from_bytes(count, sys.byteorder)
