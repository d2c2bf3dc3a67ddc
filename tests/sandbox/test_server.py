import asyncio
import json
import logging
import ssl
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from tests.faults.parties import make_certificates
from tests.support.bank import turns
from tests.support.cases import each
from tests.support.loop_time import LoopTime
from transfer_async.sandbox import (
    CloseAfterProcessing,
    HugeBody,
    Sandbox,
    SlowBytes,
    StallAfterProcessing,
    StallBeforeProcessing,
)
from transfer_async.sandbox.service import MAX_BODY_BYTES

from .wire_client import CREATE, WHO_AM_I, WireClient, connected, order_body

FIRST_ORDER = "tx-41pjso2krv6sk1wj6936"
"""The first order id of seed 0."""


async def test_the_clock_is_injected():
    noon = datetime(2024, 5, 6, 12, tzinfo=UTC)
    async with Sandbox(now=lambda: noon) as sandbox, connected(sandbox) as client:
        answer = await client.ask(order_body())

    assert answer.json["posted_at"] == "2024-05-06T12:00:00.000Z"
    assert sandbox.requests[-1].received_at == noon


async def test_requests_are_recorded(sandbox: Sandbox, client: WireClient):
    client.meets(CloseAfterProcessing())
    await client.rest()
    async with connected(sandbox) as second:
        await second.ask(method="GET", path=WHO_AM_I + "?a=b", headers={"X-Request-Id": "7"})
    first, last = sandbox.requests

    assert (first.method, first.path, first.status) == ("POST", CREATE, None)
    assert json.loads(first.body) == order_body()
    assert (first.fault, first.processed, first.finished) == (CloseAfterProcessing(), True, True)
    assert first.order_id in sandbox.orders
    assert (last.path, last.status, last.fault, last.order_id) == (WHO_AM_I, 200, None, None)
    assert last.headers["x-request-id"] == "7"
    assert sandbox.token not in repr(last)


async def test_only_the_newest_requests_are_kept():
    async with Sandbox(keep_requests=2) as sandbox, connected(sandbox) as client:
        for number in range(3):
            await client.ask(path=f"/{number}")

    assert [record.path for record in sandbox.requests] == ["/1", "/2"]


async def test_requests_and_orders_can_be_awaited(sandbox: Sandbox, client: WireClient):
    waits = [sandbox.received(2), sandbox.finished(2), sandbox.created(1), sandbox.matched(FIRST_ORDER)]
    tasks = [asyncio.create_task(wait) for wait in waits]
    await client.get(WHO_AM_I)  # requests to other paths do not count
    await client.ask(order_body())
    early = [task.done() for task in tasks]
    await client.ask({})
    await sandbox.match_now()
    await asyncio.gather(*tasks)

    assert early == [False, False, True, False]
    assert list(sandbox.orders) == [FIRST_ORDER]


async def test_an_order_can_be_awaited_before_its_response_is_sent():
    async def sleep(seconds: float) -> None:
        await asyncio.Event().wait()

    async with Sandbox(sleep=sleep) as sandbox, connected(sandbox) as client:
        client.meets(SlowBytes())
        await sandbox.created()

        assert not sandbox.requests[-1].finished


async def test_each_request_has_one_log_line_without_token_or_body(
    sandbox: Sandbox, client: WireClient, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        sandbox.faults.add(CloseAfterProcessing())
        await client.ask(path="/a%0Ab")
        client.send(order_body())
        await client.rest()
    lines = [record.getMessage() for record in caplog.records if record.name == "transfer_async.sandbox"]

    assert lines == [
        r"POST '/a\nb' -> 404, fault -",
        "POST '/api/api/v1/order/create' -> no answer, fault close-after-processing",
    ]
    assert sandbox.token not in caplog.text
    assert "ada.eze" not in caplog.text


async def test_a_client_may_expect_100_continue(client: WireClient):
    raw = json.dumps(order_body()).encode()
    client.send(headers={"Expect": "100-continue", "Content-Length": str(len(raw))})
    interim = await client.head()
    client.writer.write(raw)

    assert interim == (100, {})
    assert (await client.answer()).status == 200


async def test_a_body_up_to_the_limit_is_read_and_one_above_it_refused(client: WireClient):
    body = json.dumps(order_body()).encode()
    largest = body + b" " * (MAX_BODY_BYTES - len(body))

    assert (await client.ask(largest)).status == 200
    assert (await client.ask(largest + b" ")).status == 413


async def test_a_client_that_closes_during_its_body_creates_no_order(sandbox: Sandbox):
    async with connected(sandbox) as client:
        client.send(headers={"Content-Length": "100"})
        client.writer.write(b"{")
        await client.writer.drain()
        await asyncio.sleep(0)
    await sandbox.finished()

    assert not sandbox.orders
    assert not sandbox.requests[-1].processed


async def test_an_idle_connection_is_closed(loop_time: LoopTime):
    async with Sandbox(keep_alive=75.0) as sandbox, connected(sandbox) as client:
        await client.ask(method="GET", path=WHO_AM_I)
        await loop_time.pass_(76.0)

        assert await client.rest() == b""


@pytest.fixture
def tls() -> ssl.SSLContext:
    """Return a server's TLS context. Not async, because it reads files."""
    return make_certificates().server


async def test_an_unfinished_tls_handshake_ends_with_the_sandbox(tls: ssl.SSLContext):
    async with AsyncExitStack() as stack:
        async with Sandbox(ssl=tls) as sandbox:
            client = await stack.enter_async_context(connected(sandbox))
            client.writer.write(b"\x16\x03\x01")
            await client.writer.drain()
            await turns(20)

        assert await client.rest() == b""
        assert _others() == set()


async def test_an_ipv6_address_has_brackets():
    try:
        async with Sandbox(host="::1") as sandbox, connected(sandbox) as client:
            assert sandbox.base_url.startswith("http://[::1]:")
            assert (await client.ask(order_body())).status == 200
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


async def test_base_url_raises_before_the_sandbox_starts_and_after_it_stops():
    stopped = Sandbox()
    async with stopped:
        pass
    for other in (Sandbox(), stopped):
        with pytest.raises(RuntimeError, match="not listening"):
            other.base_url  # noqa: B018 - reading it is the test


async def test_a_sandbox_is_entered_once(sandbox: Sandbox):
    with pytest.raises(RuntimeError, match="can be used only once"):
        await sandbox.__aenter__()

    assert sandbox.base_url


async def test_exiting_before_entering_is_harmless():
    await Sandbox().__aexit__(None, None, None)


@each("fault", [None, StallBeforeProcessing(), StallAfterProcessing(), HugeBody(1 << 40)])
async def test_requests_in_progress_end_with_the_sandbox(fault):
    async with AsyncExitStack() as stack:
        async with Sandbox() as sandbox:
            busy, idle, silent, half, gone = [
                await stack.enter_async_context(connected(sandbox)) for _ in range(5)
            ]
            await idle.ask(method="GET", path=WHO_AM_I)
            half.send(headers={"Content-Length": "10"})
            half.writer.write(b"half")
            if fault:
                sandbox.faults.add(fault, times=2)
            for client in (busy, gone):
                client.send(order_body())
            await sandbox.received(2)
            gone.writer.close()
            await turns(20)
        for client in (busy, idle, silent, half):
            await asyncio.gather(client.rest(), return_exceptions=True)

        assert _others() == set()


# --- the matcher bot ----------------------------------------------------------------------------


async def test_match_now_matches_processing_orders_in_the_order_of_creation(sandbox: Sandbox):
    async with connected(sandbox) as client:
        ids = [(await client.ask(order_body())).json["id"] for _ in range(3)]

    assert await sandbox.match_now() == ids
    assert await sandbox.match_now() == []
    assert all(order.is_matched for order in sandbox.orders.values())


async def test_the_matcher_bot_runs_at_its_interval():
    waits: list[float] = []
    tick = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await tick.acquire()

    async with Sandbox(match_every=42.0, sleep=sleep) as sandbox, connected(sandbox) as client:
        for _ in range(2):
            order_id = (await client.ask(order_body())).json["id"]
            early = sandbox.orders[order_id].is_matched
            tick.release()
            await sandbox.matched(order_id)

            assert not early
    assert set(waits) == {42.0}


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_the_interval_of_the_matcher_bot_is_positive(seconds: float):
    with pytest.raises(ValueError, match="match_every must be greater than 0"):
        Sandbox(match_every=seconds)


def _others() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
