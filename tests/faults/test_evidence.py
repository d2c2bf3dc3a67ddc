"""If the evidence says "never sent", the service really got nothing."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from attrs import frozen
from multidict import CIMultiDict

from tests.support.loop_time import LoopTime
from transfer_async import Timeouts
from transfer_async._http.classify import RETRYABLE, Classification
from transfer_async._http.transport import ExchangeResult, Transport
from transfer_async._http.write_guard import GuardedBody

from .parties import Bank, Certificates, transport_to
from .servers import Connection, Server, foreign_reply, http, serving, serving_beside, until

LARGE = b" " * 600_000  # larger than the buffers of both sockets, which are set below


def small_buffers(address: Any) -> socket.socket:
    """Create a client socket with a small send buffer, so that a large body is written in many pieces."""
    made = socket.socket(address[0], address[1])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    made.setblocking(False)
    return made


class SmallBuffers(Transport):
    """A transport whose sockets have small buffers."""

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._max_connections, keepalive_timeout=4, socket_factory=small_buffers
        )
        return aiohttp.ClientSession(connector=connector)


# --- the trial ----------------------------------------------------------------------------------


class Erratic:
    """A service with random faults: it reads or responds slowly, closes, resets, or sends unsolicited
    data.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    async def __call__(self, connection: Connection) -> None:
        while await self._one(connection):
            pass

    async def _one(self, connection: Connection) -> bool:
        mood = self._draw.random()
        if mood < 0.15:
            await asyncio.sleep(self._draw.uniform(0, 0.004))
        if mood > 0.97 or await connection.request() is None:
            connection.reset()
            return False
        if 0.1 < mood < 0.3:
            await asyncio.sleep(self._draw.uniform(0, 0.006))
        if 0.3 < mood < 0.4:
            return False
        if 0.4 < mood < 0.45:
            connection.reset()
            return False
        connection.send(http(200, b"{}"))
        if 0.6 < mood < 0.7:
            connection.send(foreign_reply())
        return not 0.45 < mood < 0.6


@frozen
class Posted:
    """One request of the trial, and the evidence about it."""

    number: int
    evidence: ExchangeResult


async def post(transport: Transport, number: int, draw: random.Random) -> Posted:
    """Send one POST with a random time limit, and often cancel it at a random moment."""
    content = LARGE if draw.random() < 0.1 else b'{"n": 1}'
    body = GuardedBody(content, in_time=lambda: True)
    headers = CIMultiDict({"X-Number": str(number)})
    left = draw.choice([0.0, 25.0, draw.uniform(0, 0.003), draw.uniform(0, 0.01)])
    task = asyncio.create_task(transport.post_order(body, headers=headers, left=left))
    if draw.random() < 0.4:
        if draw.random() < 0.5:
            for _ in range(draw.randrange(12)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(draw.uniform(0, 0.005))
        if task.cancel() and not draw.randrange(3):
            task.cancel()
    try:
        evidence = await task
    except asyncio.CancelledError:  # the task was cancelled before its first step
        evidence = ExchangeResult(sent=False)
    return Posted(number, evidence)


async def run(count: int, tls: Certificates | None, *, beside: bool) -> tuple[list[Posted], Server]:
    """Post ``count`` requests, twenty at a time. Return when the server has read everything.

    The server runs on its own thread if ``beside`` is true. If the machine is so slow that no request was
    sent in time, try again with twice the time.
    """
    draw = random.Random(20)
    posted: list[Posted] = []
    serve = serving_beside if beside else serving
    mine, its = (tls.client, tls.server) if tls else (None, None)
    async with serve(Erratic(random.Random(21)), tls=its) as server:
        for patience in (1, 2, 4, 8, 16, 32):
            limits = Timeouts(total=0.05 * patience, connect=0.02 * patience)
            first = len(posted)
            async with transport_to(
                server.url, SmallBuffers, timeouts=limits, max_connections=8, ssl=mine
            ) as transport:
                for start in range(first, first + count, 20):
                    numbers = range(start, min(start + 20, first + count))
                    posted += await asyncio.gather(*(post(transport, number, draw) for number in numbers))
            await server.idle()
            if any(one.evidence.sent and one.evidence.status is None for one in posted):
                break
    return posted, server


@pytest.mark.trial(short=50, ci=600, long=40_000)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("beside", [False, True], ids=["one loop", "beside"])
@pytest.mark.parametrize("over", ["plain", "TLS"])
async def test_requests_reported_as_never_sent_never_arrived(
    certificates: Certificates,
    over: str,
    beside: bool,
    size: int,
    record_property: Callable[[str, object], None],
):
    posted, server = await run(size, certificates if over == "TLS" else None, beside=beside)

    begun = {int(head.headers["x-number"]) for head in server.heads}
    whole = Counter(int(request.headers["x-number"]) for request in server.requests)
    sent = [one for one in posted if one.evidence.sent]
    never_sent = {one.number for one in posted if not one.evidence.sent}
    answered = sum(one.evidence.status is not None for one in posted)
    summary = f"{len(posted)} posts, {len(sent)} sent, {answered} answered, {sum(whole.values())} arrived"
    record_property("posts", summary)
    print(summary)  # noqa: T201 - the figures are part of the result
    assert len(posted) >= size
    assert never_sent & begun == set()
    assert max(whole.values()) == 1
    assert never_sent  # the trial had both outcomes
    assert any(one.evidence.status is None for one in sent)


# --- single rules -------------------------------------------------------------------------------


async def test_an_order_cancelled_while_it_is_written_was_sent():
    """The rest of a large order still arrives."""
    read_on = asyncio.Event()

    async def read_late(connection: Connection) -> None:
        connection.writer.transport.pause_reading()
        await connection.bytes_waiting()
        await read_on.wait()
        connection.writer.transport.resume_reading()
        await connection.request()

    async with (
        serving(read_late, reading=False) as server,
        transport_to(server.url, SmallBuffers) as transport,
    ):
        body = GuardedBody(LARGE, in_time=lambda: True)
        task = asyncio.create_task(transport.post_order(body, headers=CIMultiDict(), left=25.0))
        await until(lambda: server.open)
        await server.open[0].bytes_waiting()
        task.cancel()
        evidence = await task
        read_on.set()
        await server.idle()

    assert (evidence.sent, evidence.status) == (True, None)
    assert isinstance(evidence.error, asyncio.CancelledError)
    assert len(server.requests) == 1


async def test_an_unknown_outcome_in_the_retry_table_does_not_cause_a_second_send(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    async def takes_too_long(connection: Connection) -> None:
        await connection.request()
        await loop_time.pass_(Timeouts().total + 1.0)
        await connection.gone()

    monkeypatch.setattr("transfer_async._http.classify.RETRYABLE", RETRYABLE | {Classification.UNKNOWN})
    async with serving(takes_too_long) as server:
        await bank.try_order(server.url)

    assert len(server.requests) == 1
