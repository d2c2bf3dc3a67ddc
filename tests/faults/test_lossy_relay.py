"""Orders through a relay that loses connections, bytes and time at random points, in both directions: at
most one order, and a true outcome.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support import samples
from transfer_async import Clock, FundsHold, Outcome, Timeouts, TransferClient
from transfer_async._models.errors import TransferError

from .servers import Connection, http, order_body, serving

AT_ONCE = 16
SHORT = Timeouts(connect=2.0, sock_read=0.5, total=2.0)


FAULTS = ("close", "reset", "lose the rest", "delay")


class Relay:
    """A script that relays connections to ``port``.

    Each direction of a connection has at most one fault, in a random chunk of data.

    Attributes:
        faults: how often each fault happened, by its name.
    """

    def __init__(self, port: int, *, seed: int) -> None:
        self._port, self._random = port, random.Random(seed)
        self.faults: Counter[str] = Counter()

    async def __call__(self, connection: Connection) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = (connection.writer, far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection.reader, far_writer, ends))
                group.create_task(self._pump(far_reader, connection.writer, ends))
        except* ConnectionError:
            pass
        finally:
            far_writer.close()

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


class Trial:
    """A service with its orders, a bank with its holds, and the outcome of each call."""

    def __init__(self) -> None:
        self.ledger: dict[str, list[str]] = defaultdict(list)
        self.placed: Counter[str] = Counter()
        self.released: Counter[str] = Counter()
        self.results: dict[str, tuple[Outcome, str | None]] = {}

    async def serve(self, connection: Connection) -> None:
        while request := await connection.request():
            name = request.order["poster_username"]
            if name.startswith("refused"):
                connection.send(http(422, b'{"message": "refused"}'))
                continue
            body = order_body(request)
            self.ledger[name].append(msgspec.json.decode(body)["id"])
            connection.send(http(200, body))

    async def place(self, intent: Any) -> str:
        self.placed[intent.order.poster_username] += 1
        return "hold"

    async def release(self, intent: Any, _receipt: str | None) -> None:
        self.released[intent.order.poster_username] += 1

    async def send(self, client: TransferClient, names: Iterator[str]) -> None:
        for name in names:
            try:
                order = await client.create_order(samples.new_order(poster_username=name), key=name)
                self.results[name] = (Outcome.CREATED, order.id)
            except TransferError as error:
                self.results[name] = (error.outcome, None)

    def is_true(self, name: str) -> bool:
        """Return whether a call's outcome and its hold agree with the service's orders."""
        outcome, order_id = self.results[name]
        orders, hold = self.ledger[name], (self.placed[name], self.released[name])
        if outcome is Outcome.CREATED:
            return orders == [order_id] and hold == (1, 0)
        if outcome is Outcome.UNKNOWN:
            return len(orders) <= 1 and hold == (1, 0)
        return not orders and hold == (1, 1)


async def no_pause(_: float) -> None: ...


@pytest.mark.trial(short=240, ci=1000, long=10000)
async def test_a_lossy_network_makes_no_second_order_and_no_false_outcome(size: int):
    trial = Trial()
    names = [f"{'refused' if number % 10 == 9 else 'sender'}-{number}@example.com" for number in range(size)]
    settings: dict[str, Any] = {
        "hooks": [FundsHold(trial.place, trial.release)],
        "timeouts": SHORT,
        "clock": Clock(sleep=no_pause, chance=lambda: 0.0),
    }
    async with (
        serving(trial.serve) as server,
        serving(relay := Relay(server.port, seed=size)) as between,
        TransferClient(between.url, "token", **settings) as client,
    ):
        left = iter(names)
        await asyncio.gather(*(trial.send(client, left) for _ in range(AT_ONCE)))
    outcomes = {outcome for outcome, _ in trial.results.values()}

    assert [name for name in names if not trial.is_true(name)] == []
    assert {Outcome.CREATED, Outcome.REFUSED, Outcome.UNKNOWN} <= outcomes
    assert relay.faults.keys() == set(FAULTS)
