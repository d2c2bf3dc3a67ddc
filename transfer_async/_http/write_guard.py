"""The last look before the first byte: nothing is sent twice, too late, or on a connection gone bad.

A pooled connection may be about to close, or may hold bytes that answer nobody's question and would
be taken for the answer to ours. aiohttp has no public place between "a connection is had" and "the
first byte is written", but two that serve: a body is asked to write itself, and a middleware may
wrap a request's ``send``.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from transfer_async._http.unsolicited import Carrier

_TLS_TURNS = 4  # turns of the loop in which a session ticket is digested


class ConnectionStale(aiohttp.ClientConnectionError):
    """The pooled connection was closing, or held bytes that nobody asked for; nothing was written."""


class AnsweredEarly(aiohttp.ClientConnectionError):
    """A response came although the request's body had not left: it answers something else."""


class TooLate(aiohttp.ClientConnectionError):
    """The time in which the request may be sent was over before its first byte."""


class NeverTwice(aiohttp.ClientConnectionError):
    """A request was about to be sent a second time without being asked for."""


class WriteGuard:
    """What one request passes just before its first byte, and what it knows of that afterwards.

    Args:
        in_time: whether it may still be sent; asked at the last moment.

    Attributes:
        adopted: aiohttp has made a real request of it.
        stale: the last connection had gone bad.
        late: its time was over.
        handed_over: its bytes may have left; as long as this is false, none has.
        spent: it goes nowhere any more, handed over or not.
        carrier: of the connection that it was handed over to.
    """

    adopted: bool = False
    stale: bool = False
    late: bool = False
    handed_over: bool = False
    spent: bool = False

    def __init__(self, in_time: Callable[[], bool] = lambda: True) -> None:
        self._in_time = in_time
        self.carrier: Carrier = Carrier()

    async def take(self, transport: Any, protocol: Any) -> None:
        """Take a connection, if nothing speaks against it: the request is written next.

        Raises:
            NeverTwice: it was handed over before, or given up.
            ConnectionStale: the connection has gone bad.
            TooLate: its time is over.
        """
        if self.spent:  # aiohttp sends GET, PUT and DELETE again by itself
            raise NeverTwice
        if not Carrier.may_take(protocol) or await _is_stale(transport, protocol):
            self.stale = True
            raise ConnectionStale
        if self.spent:  # given up while the connection was looked at
            raise NeverTwice
        if not self._in_time():
            self.late = True
            raise TooLate
        self.spent = self.handed_over = True
        self.carrier.take(transport, protocol)


class GuardedBody(aiohttp.BytesPayload, WriteGuard):
    """An order's body: handed over once, in time, on a clean connection, and it knows whether it was.

    aiohttp only buffers the headers until the body is written, so as long as ``handed_over`` is
    false, no byte of the request has left.
    """

    def __init__(self, content: bytes, *, in_time: Callable[[], bool]) -> None:
        super().__init__(content, content_type="application/json")
        WriteGuard.__init__(self, in_time)

    @property
    def size(self) -> int:
        """The length in bytes; aiohttp asks for it when it makes a real request of this body."""
        # A stand-in that answers in aiohttp's place (aioresponses, say) never asks, and its answer
        # is then the only evidence there is. A real response always comes after this.
        self.adopted = True
        return len(self._value)

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardedBody:
        """Itself: what may be handed over once exists once, also for a stand-in that keeps copies."""
        return self

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Hand the body over, if nothing speaks against it."""
        await self.take(writer.transport, getattr(writer, "protocol", None))
        await super().write_with_length(writer, content_length)
        self.carrier.sent(getattr(writer, "output_size", 0))


class GuardedRequest(WriteGuard):
    """Any other request, as a client middleware: sent once, on a clean connection."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send ``request`` at the last moment only."""
        self.adopted = True
        send = request.send

        async def send_guarded(connection: Any) -> aiohttp.ClientResponse:
            await self.take(connection.transport, connection.protocol)
            return await send(connection)

        request.send = send_guarded  # type: ignore # the one place between a connection and its first byte
        return await handler(request)


async def _is_stale(transport: Any, protocol: Any) -> bool:
    """Whether a connection is closing, or holds bytes that came before anything was asked on it."""
    if transport is None or transport.is_closing() or (protocol is not None and protocol.should_close):
        return True
    socket = transport.get_extra_info("socket")
    if socket is None or not _is_readable(socket):
        return False
    if transport.get_extra_info("sslcontext") is None:
        return True
    # Over TLS what waits may be a session ticket: let the loop digest it, then look again. Bytes of
    # an answer show as `should_close` as soon as they are decrypted.
    for _ in range(_TLS_TURNS):
        await asyncio.sleep(0)
        if transport.is_closing() or (protocol is not None and protocol.should_close):
            return True
        if not _is_readable(socket):
            return False
    return True


def _is_readable(socket: Any) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()  # select.select cannot watch descriptors past 1,023
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))
