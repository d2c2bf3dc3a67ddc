"""One connection to a service, used by hand: the client's own pool hides what is to be seen here."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from urllib.parse import urlsplit

from attrs import field, frozen

LARGEST = 1 << 20
"""Bytes of an answer that are read at most."""


@frozen(kw_only=True)
class Question:
    """A request: its path below the service's address, and its headers beside those that HTTP asks for."""

    method: str
    path: str
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@frozen(kw_only=True)
class RawAnswer:
    """What came back: no status where nothing whole did. It is looked at, and not kept."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)


@cache
def _verifying() -> ssl.SSLContext:
    """Verifies with the system's certificates, or those that SSL_CERT_FILE names; made once."""
    return ssl.create_default_context()


class OneConnection:
    """One connection, opened by the first question; it is never opened again.

    Args:
        base_url: as `transfer_async._http.urls.normalised` gives it.
        patience: seconds for one whole answer.
    """

    def __init__(self, base_url: str, *, patience: float) -> None:
        parts = urlsplit(base_url)
        self._prefix = parts.path
        self._patience = patience
        host = parts.hostname or ""
        if parts.scheme == "https":
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=patience, context=_verifying()
            )
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=patience)
        self._was_open = False

    async def ask(self, question: Question) -> RawAnswer:
        """Ask, and read the answer; none where the connection is closed or lost, or patience ends."""
        return await self._by_hand(self._ask, question)

    async def send_and_cut(self, question: Question) -> RawAnswer:
        """Send it whole, and close the connection; there is no answer."""
        return await self._by_hand(self._send_and_cut, question)

    @property
    def is_open(self) -> bool:
        """Whether it is there still, with nothing on it that nobody asked for."""
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
            connection.settimeout(self._patience)
        return False  # its end, or bytes: whichever, it is not to be used again

    def close(self) -> None:
        """Close it."""
        self._http.close()

    async def _by_hand(self, do: Callable[[Question], RawAnswer], question: Question) -> RawAnswer:
        try:
            async with asyncio.timeout(2 * self._patience):  # each piece of an answer may take `patience`
                return await asyncio.to_thread(do, question)
        except TimeoutError:
            self._interrupt()
            return RawAnswer()
        except asyncio.CancelledError:
            self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Have the thread hear of its end; it closes what it uses."""
        connection: socket.socket | None = self._http.sock
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _ask(self, question: Question) -> RawAnswer:
        try:
            self._send(question)
            response = self._http.getresponse()
            body = response.read(LARGEST)
            if (response.length and len(body) < LARGEST) or not 200 <= response.status <= 599:
                raise http.client.IncompleteRead(body)
            if not response.isclosed():  # there is more of it than anybody needs
                self._http.close()
            return RawAnswer(status=response.status, headers=tuple(response.getheaders()), body=body)
        except (OSError, http.client.HTTPException, ValueError):
            self._http.close()
            return RawAnswer()

    def _send_and_cut(self, question: Question) -> RawAnswer:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._send(question)
        self._http.close()
        return RawAnswer()

    def _send(self, question: Question) -> None:
        if self._was_open and self._http.sock is None:
            raise http.client.NotConnected
        self._was_open = True
        self._http.request(
            question.method, self._prefix + question.path, body=question.body, headers=dict(question.headers)
        )
