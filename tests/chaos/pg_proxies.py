"""Two proxies for PostgreSQL: one cuts connections, the other pools transactions."""

from __future__ import annotations

import abc
import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from attrs import define, evolve, frozen

from tests.support.listening import stop_listening

TERMINATE = b"X\0\0\0\4"
IDLE = b"Z\0\0\0\5I"
"""The message with which the server reports that it is ready and in no transaction."""


@frozen
class Message:
    """One message of the client or the server.

    Args:
        kind: the type of the message.
        raw: the complete bytes of the message.
        before: the client's messages since it last requested a response.
        is_within: whether the message was sent within a transaction.
    """

    kind: bytes
    raw: bytes
    before: bytes = b""
    is_within: bool = False

    @property
    def is_commit(self) -> bool:
        """Whether the message ends a writing transaction, which may consist of one statement."""
        if self.kind == b"S":
            return b'"new_reply"' in self.before and not self.is_within
        return self.says(b"COMMIT")

    def says(self, word: bytes) -> bool:
        """Return whether the message is a statement without parameters that begins with ``word``."""
        return self.kind == b"Q" and self.raw[5:].startswith(word)


async def read_message(reader: asyncio.StreamReader) -> Message:
    head = await reader.readexactly(5)
    return Message(head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4))


async def read_startup(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head) - 4)


class Proxy(abc.ABC):
    """A proxy that listens while its block runs; its ``dsn`` is the given address through the proxy."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def dsn(self) -> str:
        host = f"{self._parts.username}@127.0.0.1:{self._port}"
        return urlunsplit(self._parts._replace(netloc=host, query="sslmode=disable"))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(one.wait_closed() for one in self._writers), return_exceptions=True)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._writers.append(writer)
        return reader, writer

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client or the server has closed its connection.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    @abc.abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until the client or the server closes its connection."""


class Cut(enum.Enum):
    """When to cut a connection, relative to one of the client's messages."""

    NEVER = "not at this message"
    BEFORE = "before the message is forwarded"
    AFTER = "after it was forwarded: its reply is lost"
    LATE = "before it, but the message arrives later, when the client has reconnected"


class CuttingProxy(Proxy):
    """Decides before each message whether to cut the connection.

    Args:
        choose: returns when to cut the connection.
        arrives: returns whether a message that was held back arrives just before the current one.
    """

    def __init__(
        self,
        dsn: str,
        choose: Callable[[Message], Cut],
        *,
        arrives: Callable[[Message], bool] = lambda _: True,
    ) -> None:
        super().__init__(dsn)
        self._choose = choose
        self._arrives = arrives
        self._late: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.cuts: list[Cut] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server = await self.connect()
        server.write(await read_startup(reader))
        back = asyncio.create_task(_copy(server_reader, writer))
        try:
            await self._forward(reader, writer, server)
            if server not in [late for late, _ in self._late] and not server.is_closing():
                await back  # until the server has read all messages and ended the session
        finally:
            back.cancel()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        cut, before, is_within = Cut.NEVER, b"", False
        while cut is Cut.NEVER:
            message = evolve(await read_message(reader), before=before, is_within=is_within)
            before = b"" if message.kind in b"SQ" else before + message.raw
            is_within = message.says(b"BEGIN") or (is_within and not message.says(b"COMMIT"))
            if self._arrives(message):
                self._send_late()
            cut = self._choose(message)
            if cut is Cut.NEVER:
                server.write(message.raw)
        self.cuts.append(cut)
        writer.transport.abort()
        if cut is Cut.BEFORE:
            server.transport.abort()
        elif cut is Cut.AFTER:
            server.write(message.raw + TERMINATE)
        else:
            self._late.append((server, message.raw + TERMINATE))

    def _send_late(self) -> None:
        """Send the messages that were held back."""
        for server, raw in self._late:
            server.write(raw)
        self._late.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@define
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes


class PoolingProxy(Proxy):
    """Uses another server connection for each transaction of a client."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._idle: deque[_Connection] = deque()
        self.transactions: list[_Connection] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await read_startup(reader)
        # Keep one more connection than clients, so that no client gets the same one twice in a row.
        for _ in range(2):
            self._idle.append(await self._greeted(startup))
        writer.write(self._idle[-1].greeting)
        lent: list[_Connection] = []
        while (message := await read_message(reader)).kind != b"X":
            if not lent:
                lent.append(self._idle.popleft())
                self.transactions.append(lent[0])
                self._tasks.add(asyncio.create_task(self._answer(lent, writer)))
            lent[0].writer.write(message.raw)

    async def _answer(self, lent: list[_Connection], writer: asyncio.StreamWriter) -> None:
        """Forward the server's messages until the transaction ends, then free the connection."""
        while lent:
            message = await read_message(lent[0].reader)
            if message.raw == IDLE:
                self._idle.append(lent.pop())
            writer.write(message.raw)

    async def _greeted(self, startup: bytes) -> _Connection:
        reader, writer = await self.connect()
        writer.write(startup)
        greeting = b""
        while (message := await read_message(reader)).kind != b"Z":
            greeting += message.raw
        return _Connection(reader, writer, greeting + message.raw)
