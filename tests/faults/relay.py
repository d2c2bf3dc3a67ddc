"""A TCP relay that loses connections, bytes and time at random points, in both directions."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.listening import stop_serving

FAULTS = ("close", "reset", "lose the rest", "delay")


class Relay:
    """Relays connections to ``port``.

    Each direction of a connection has at most one fault, in a random chunk of data.

    Attributes:
        faults: how often each fault happened, by its name.
    """

    def __init__(self, port: int, *, seed: int) -> None:
        self._port, self._random = port, random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.faults: Counter[str] = Counter()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        await stop_serving(self._server, self._tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = (writer, far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer, ends))
                group.create_task(self._pump(far_reader, writer, ends))
        except* ConnectionError:
            pass
        finally:
            for end in ends:
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: Any) -> None:
        fault, good = self._random.choice((*FAULTS, "", "")), self._random.randrange(8)
        while data := await reader.read(1 << 16):
            if fault and good == 0:
                data = await self._fail(fault, data, reader, writer, ends)
                fault = ""
            else:
                good -= 1
            writer.write(data)
        writer.close()

    async def _fail(
        self, fault: str, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: Any
    ) -> bytes:
        """Apply ``fault`` to ``data``, often before its first byte. Return the bytes that still arrive."""
        cut = self._random.choice((0, self._random.randrange(len(data))))
        self.faults[fault] += 1
        writer.write(data[:cut])
        if fault == "delay":
            await asyncio.sleep(self._random.random() * 0.05)
            return data[cut:]
        if fault == "lose the rest":
            while await reader.read(1 << 16):
                pass
            return b""
        self._end(ends, with_reset=fault == "reset")
        return b""

    def _end(self, ends: Any, *, with_reset: bool) -> None:
        for end in ends:
            if with_reset and (sock := end.get_extra_info("socket")) is not None and sock.fileno() != -1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.transport.abort()
            else:
                end.close()
        raise ConnectionResetError


@asynccontextmanager
async def relaying(port: int, *, seed: int) -> AsyncIterator[Relay]:
    """Yield a running `Relay`."""
    relay = Relay(port, seed=seed)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()
