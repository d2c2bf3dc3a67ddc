"""A response of any size needs a bounded amount of memory, and a response of any speed a bounded time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import samples
from tests.support.loop_time import LoopTime
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import Timeouts
from transfer_async._models.errors import Outcome, Refused, UnreadableOrder

from .parties import Bank
from .servers import Connection, Script, answers, head, http, order_body, replies, serving, then_closes

MEGABYTE = 1 << 20
HUGE = 300 * MEGABYTE
START = b'{"id": "tx-huge", "padding": "'

needs_proc = pytest.mark.skipif(  # only Linux records peak memory there
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process's memory is read from /proc"
)


async def cost(url: str, what: str, http_path: str, *, limit: int) -> dict[str, Any]:
    """Return what one call costs a client, measured in a separate process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.faults.reader", url, what, str(limit), http_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(__file__).parents[2],
    )
    out, _ = await child.communicate()
    return json.loads(out)


def endless(status: int) -> Script:
    """Return a script that responds with a huge uncompressed body."""

    async def script(connection: Connection) -> None:
        await connection.request()
        connection.send(head(status, {"Content-Length": str(HUGE)}) + START)
        for _ in range(HUGE // MEGABYTE):
            connection.send(b"x" * MEGABYTE)
            await connection.drain()

    return script


def bomb(wbits: int) -> bytes:
    """Return a huge body that is a thousand times smaller when compressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    first = packer.compress(START.ljust(MEGABYTE, b"x")) + packer.flush(zlib.Z_FULL_FLUSH)
    more = packer.compress(b"x" * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + more * (HUGE // MEGABYTE - 1)


def explodes(status: int, encoding: str) -> Script:
    """Return a script that responds with such a body, which is compressed only if the test runs."""

    async def script(connection: Connection) -> None:
        body = bomb({"gzip": 31, "deflate": 15}[encoding])
        await then_closes(http(status, body, headers={"Content-Encoding": encoding}))(connection)

    return script


@needs_proc
@pytest.mark.parametrize(
    ("script", "what", "limit", "error"),
    [
        pytest.param(explodes(200, "gzip"), "order", 1, "UnreadableOrder", id="gzip"),
        pytest.param(explodes(200, "deflate"), "order", 8, "UnreadableOrder", id="8", marks=ONLY_IN_TRIALS),
        pytest.param(endless(422), "order", 1, "UnreadableOrder", id="a refusal", marks=ONLY_IN_TRIALS),
        pytest.param(explodes(200, "gzip"), "read", 1, "ServiceFailed", id="a read", marks=ONLY_IN_TRIALS),
    ],
)
async def test_a_body_of_300_megabytes_costs_less_than_60(
    script: Script, what: str, limit: int, error: str, http_path: str
):
    async with serving(script) as server:
        seen = await cost(server.url, what, http_path, limit=limit * MEGABYTE)

    print(seen)  # noqa: T201 - the figures are part of the result
    assert seen["error"] == error
    assert seen["order_id"] == ("tx-huge" if error == "UnreadableOrder" else None)
    assert seen["read"] == limit * MEGABYTE
    assert seen["grown"] < 60 * 1024
    assert what == "read" or len(server.requests) == 1


async def test_a_response_of_the_size_limit_is_read_and_one_byte_more_is_a_doubt(bank: Bank):
    sizes: list[int] = []

    async def measure(connection: Connection) -> None:
        body = order_body(await connection.request())
        sizes.append(len(body))
        connection.send(http(200, body))

    async with serving(measure) as server:
        await Bank().send_order(server.url)
        await Bank().send_order(server.url, max_response_bytes=sizes[0])
        error = await bank.try_order(server.url, max_response_bytes=sizes[0] - 1)

    assert len(set(sizes)) == 1
    assert isinstance(error, UnreadableOrder)
    assert len(error.raw) == sizes[0] - 1
    assert error.order_id is not None
    assert bank.funds.state == "kept"


async def test_a_refusal_longer_than_the_size_limit_is_still_a_refusal(bank: Bank):
    async with serving(replies(http(422, b'{"message": "' + b"x" * 5000 + b'"}'))) as server:
        error = await bank.try_order(server.url, max_response_bytes=100)

    assert type(error) is Refused
    assert len(error.body) == 100
    assert bank.funds.state == "released"


async def test_a_connection_with_an_unread_rest_is_not_used_again(bank: Bank):
    async def long_then_good(connection: Connection) -> None:
        if connection.number == 1:
            await connection.request()
            connection.send(head(422, {"Content-Length": "20000"}) + b"x" * 15_000)
            await connection.gone()
        else:
            await answers(connection)

    async with (
        serving(long_then_good) as server,
        bank.client(server.url, max_response_bytes=10_000) as client,
    ):
        with pytest.raises(Refused):
            await client.create_order(samples.new_order(), key="first")
        await client.create_order(samples.new_order(), key="second")

    assert server.accepted == 2


LONG = head(200, {"Content-Length": "100000"})


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        pytest.param(LONG, b"{", 200, id="a body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", None, id="a header"),
        pytest.param(b"", b"HTTP/1.1 102 Processing\r\n\r\n", None, id="interim answers"),
    ],
)
async def test_a_response_sent_in_small_pieces_ends_at_the_total_timeout(
    bank: Bank, loop_time: LoopTime, start: bytes, piece: bytes, status: int | None
):
    async def dribble(connection: Connection) -> None:
        await connection.request()
        connection.send(start)
        for _ in range(100):  # Each piece arrives before the read timeout expires.
            connection.send(piece)
            await loop_time.pass_(0.1)

    async with serving(dribble) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(total=3.0, sock_read=2.0))

    assert isinstance(error, UnreadableOrder) is (status == 200)
    assert error.outcome is Outcome.UNKNOWN
    assert error.attempts[0].status == status
    assert isinstance(error.__cause__, TimeoutError)
    assert len(server.requests) == 1
