"""NATS connections that break and are refused for a while: the worker reconnects, or ends."""

import asyncio
import contextlib
import gc

import pytest

from tests.support.listening import stop_listening
from tests.worker.case import Case
from tests.worker.sides import NatsSide, until
from transfer_async.integrations.faststream.nats import JetStreamBroker

# The driver does not close the sockets of refused connections.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

INFO = b'INFO {"server_id":"door","version":"2.12.0","max_payload":1048576,"headers":true}\r\n'

FINAL = ["Authorization Violation", "maximum connections exceeded", "Authorization Timeout"]
"""Refusals that FastStream treats as final, although servers send them only for a while."""


class Door:
    """A proxy in front of a server. It forwards connections, breaks them, and refuses later ones.

    Attributes:
        reasons: the errors with which the next connections are refused, one for each.
        refused: the number of refused connections.
    """

    def __init__(self, server):
        self._server, self._writers = server, set()
        self.reasons, self.refused = [], 0

    async def __aenter__(self):
        self._listening = await asyncio.start_server(self._come, "127.0.0.1", 0)
        host, port = self._listening.sockets[0].getsockname()
        self.address = f"nats://{host}:{port}"
        return self

    async def __aexit__(self, *exc):
        await stop_listening(self._listening)
        self.slam()
        await self._listening.wait_closed()

    def slam(self, *reasons):
        """Break all connections. Refuse one later connection for each reason."""
        self.reasons += reasons
        for writer in self._writers:
            writer.close()

    async def _come(self, reader, writer):
        self._writers.add(writer)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            if self.reasons:
                await self._refuse(reader, writer, self.reasons.pop(0))
            else:
                await self._let_through(reader, writer)
        self._writers.discard(writer)

    async def _refuse(self, reader, writer, reason):
        writer.write(INFO)
        while not (await reader.readline()).startswith(b"PING"):
            pass
        writer.write(f"-ERR '{reason}'\r\n".encode())
        await writer.drain()
        self.refused += 1

    async def _let_through(self, reader, writer):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        with contextlib.closing(server_writer):
            ways = [_carry(reader, server_writer), _carry(server_reader, writer)]
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()


async def _carry(reader, writer):
    with contextlib.suppress(OSError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()


@pytest.fixture
async def door(nats):
    async with Door(nats) as door:
        yield door
    gc.collect()  # without this, the driver's unclosed sockets would be reported in another test


@pytest.fixture
async def case(nats, door, tmp_path):
    """Yield a case whose workers, but not the other side, connect through the proxy."""
    async with Case(NatsSide(nats, publish_timeout=0.5), tmp_path) as case:
        case.side.server = door
        yield case


async def working(case):
    """Return a worker whose slots wait for messages, and its connection."""
    run = await case.worker()
    await case.order()
    connection = await run.line.broker.connect()
    connection.options["reconnect_time_wait"] = 0.05
    return run, connection


def after_each_round(monkeypatch, look):
    """Call ``look`` after each round of the event loop. A task that did so would keep the loop busy."""
    loop = asyncio.get_running_loop()

    def look_again():
        look()
        loop.call_soon(look_again)

    def run_once_and_look():
        run_once()
        look()

    run_once = getattr(loop, "_run_once", None)
    if run_once is None:  # uvloop, which does not have this method
        look_again()
    else:
        monkeypatch.setattr(loop, "_run_once", run_once_and_look)


async def test_a_worker_refused_while_reconnecting_recovers(case, door, monkeypatch):
    """Its connection is never reported as closed."""
    run, connection = await working(case)
    seen = set()
    after_each_round(monkeypatch, lambda: seen.add((connection._status, run.line.is_closed)))

    for times, reason in enumerate(FINAL, 1):
        door.slam(reason, reason)
        assert (await case.order(f"after-{times}"))["outcome"] == "created"
        assert (door.refused, connection.is_connected) == (2 * times, True)
        await run.ready()

    assert {connection.CONNECTED, connection.RECONNECTING} <= {status for status, _ in seen}
    assert not any(closed for _, closed in seen)


async def test_the_configured_error_callback_is_still_called(case, door):
    errors = []

    async def tell(error):
        errors.append(str(error))
        raise error

    run, connection = await working(case)
    run.line._configured, connection._error_cb = None, tell
    await run.line.prepare()
    door.slam(FINAL[0])

    async def back():
        return connection.stats["reconnects"] == 1

    await until(back)
    assert f"nats: '{FINAL[0]}'" in errors


async def test_a_connection_that_is_not_reconnected_ends_the_worker(case, door, monkeypatch):
    # Without these checks, only the slots notice the failure.
    monkeypatch.setattr(JetStreamBroker, "chores", [])
    run, connection = await working(case)

    async def break_down():
        raise LookupError("a callback of somebody's")

    # The driver's task ends with this error.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    connection._disconnected_cb = break_down
    door.slam()

    with pytest.raises(ConnectionError, match="the broker closed the connection"):
        await run.ended()
    assert not connection.is_closed
    assert run.health.not_live() == ["the broker closed the connection"]
