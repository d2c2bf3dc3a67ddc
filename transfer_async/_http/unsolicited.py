"""The connection that carries one exchange: may its answer be believed, and may it carry another?

On a connection that carried something before, an answer nobody asked for may be on its way when the
look before the first byte finds nothing. Then it comes first, and ours comes after it. Taken for ours
it would be a no to an order that exists. So a no is believed only if

* nothing came after it: no message that aiohttp keeps, none that it has begun to read, no byte that
  waits in the socket, neither at once nor, where the order is sent again, when that is about to happen;
* it did not come before the request: whoever answers has got it, and TCP says so with the answer's own
  bytes. An answer to a request of which the peer has acknowledged nothing is to something else.

What this cannot see: an unasked no that came when our request had been acknowledged already, if our
own answer is later than the last look (after a refusal the only look is at once), or comes over TLS
behind a no that closes the connection.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

_TLS_TURNS = 4  # turns of the loop in which bytes that wait over TLS are made plain
_LONGEST_ALERT = 100  # bytes of a TLS alert at most; an order is longer

_LAST: weakref.WeakKeyDictionary[Any, Carrier] = weakref.WeakKeyDictionary()
"""What each connection has carried last."""


class Carrier:
    """What one exchange knows of its connection: nothing, until it takes one.

    Attributes:
        trusted: its answer was to its question, so the connection may carry another.
    """

    __slots__ = ("__weakref__", "_protocol", "_size", "_transport", "trusted")

    def __init__(self) -> None:
        self._protocol: Any = None
        self._transport: Any = None
        self._size = 0
        self.trusted: bool = False

    @staticmethod
    def may_take(protocol: Any) -> bool:
        """Whether the last answer on a connection has come, and was to its question."""
        last = None if protocol is None else _LAST.get(protocol)
        return last is None or last.trusted

    def take(self, transport: Any, protocol: Any) -> None:
        """The request goes out on this connection, which carries no other until it is trusted again."""
        # Had somebody else's reply come first, ours would be the answer to the next order on it.
        self._transport, self._protocol = transport, protocol
        if protocol is not None:
            _LAST[protocol] = self

    def sent(self, size: int) -> None:
        """The request has gone out, in so many bytes at the least."""
        self._size = size

    def trust(self) -> None:
        """The answer that came was ours: the connection may carry another request."""
        self.trusted = True

    def distrust(self) -> None:
        """It was not, or none came: the connection is closed, unless it carries another request already."""
        self.trusted = False
        if self._is_last:
            self._protocol.close()

    @property
    def _is_last(self) -> bool:
        return self._protocol is not None and _LAST.get(self._protocol) is self

    async def is_alone(self, *, whole: bool) -> bool:
        """Whether the answer that was read is all that came, and came after its question.

        Args:
            whole: it was read to its end; of a cut one the rest may wait, and tells nothing.
        """
        if not self._is_last:
            return True
        if 0 < self._size <= _unacknowledged(self._transport):
            return False
        if not whole:
            return not _holds_another(self._protocol)
        for _ in range(_TLS_TURNS):
            if not self.is_quiet():
                return False
            if self._transport.is_closing() or not _bytes_waiting(self._transport, self._protocol):
                return True
            await asyncio.sleep(0)  # over TLS: until it is made plain
        return False

    def is_quiet(self) -> bool:
        """Whether nothing has come after the answer that was read, as far as can be told at once."""
        if not self._is_last:
            return True
        if _is_amid_another(self._protocol):
            return False
        over_tls = _extra(self._transport, "sslcontext") is not None
        return _bytes_waiting(self._transport, self._protocol) <= (_LONGEST_ALERT if over_tls else 0)


def _holds_another(protocol: Any) -> bool:
    """Whether aiohttp has taken in a whole head after the answer that was read, or what it cannot read."""
    try:
        return bool(protocol._buffer or protocol._tail)
    except AttributeError:  # an aiohttp that does not tell is not believed
        return True


def _is_amid_another(protocol: Any) -> bool:
    """Whether aiohttp holds, or has begun to read, a message after the one that was read to its end."""
    if _holds_another(protocol) or isinstance(error := protocol.exception(), HttpProcessingError):
        return True
    try:
        parser = protocol._parser
        if parser is None:  # the connection is lost; the error bears what was begun
            return not isinstance(getattr(error, "message", ""), str)
        # Between two messages this does nothing; amid one it gives, or keeps, what it has of it.
        return parser.feed_eof() is not None or bool(getattr(parser, "_lines", ()))
    except Exception:  # noqa: BLE001 - amid a body; or, again, it does not tell
        return True


def _extra(transport: Any, name: str) -> Any:
    try:
        return transport.get_extra_info(name)
    except AttributeError:  # over TLS, once it is closed: what still waits cannot be made plain, nor be seen
        return None


def _bytes_waiting(transport: Any, protocol: Any) -> int:
    """How many bytes wait in the socket, up to a few hundred; an end is none."""
    if protocol._parser is None:  # the connection is lost, and its descriptor may be another's by now
        return 0
    try:
        with _extra(transport, "socket").dup() as twin:
            return len(twin.recv(4 * _LONGEST_ALERT, socket.MSG_PEEK))
    except (AttributeError, OSError):  # there is no socket, nothing waits, or it was reset
        return 0


def _unacknowledged(transport: Any) -> int:
    """How many bytes that were sent the peer has not acknowledged; 0 where the system does not tell."""
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
