"""Each fault: the bytes that the client receives, and whether the order exists."""

import asyncio
import gzip
import json
import re

import pytest

from tests.support.bank import turns
from tests.support.cases import each
from transfer_async.sandbox import (
    AnotherOrder,
    BrokenChunk,
    CloseAfterProcessing,
    CloseBeforeReading,
    CompressedHugeBody,
    GarbageBody,
    HugeBody,
    Redirect,
    ResetAfterProcessing,
    Sandbox,
    SlowBytes,
    StallAfterProcessing,
    StallBeforeProcessing,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    TruncatedHead,
    UnsolicitedReply,
    WrongTypes,
)

from .wire_client import WireClient, connected, order_body

MEGABYTE = 1 << 20
ELSEWHERE = {"Location": "https://e.org/"}
GZIP = {"Content-Encoding": "gzip"}
WAIT = {"Retry-After": "1"}


@each(
    ("fault", "status", "headers", "body", "orders"),
    [
        (Status(429, headers=WAIT, body='{"message": "Slow"}'), 429, WAIT, b'{"message": "Slow"}', 0),
        (Status(204), 204, {}, b"", 0),
        (Status(304), 304, {}, b"", 0),
        (StatusAfterProcessing(503, headers=WAIT), 503, WAIT, b'{"message": "A scripted fault."}', 1),
        (StatusAfterProcessing(200, body=""), 200, {}, b"", 1),
        (GarbageBody("<html>"), 200, {}, b"<html>", 1),
        *(
            (Redirect("https://e.org/", status=status), status, ELSEWHERE, b"{}", 0)
            for status in (301, 302, 303, 307, 308)
        ),
    ],
)
async def test_faults_that_respond_have_this_response_and_order_count(fault, status, headers, body, orders):
    async with Sandbox() as sandbox, connected(sandbox) as client:
        sandbox.faults.add(fault)
        answer = await client.ask(order_body())

        assert (answer.status, answer.body, len(sandbox.orders)) == (status, body, orders)
        assert headers.items() <= dict(answer.headers).items()
        assert (await client.ask(order_body())).status == 200


async def test_close_before_reading_does_not_wait_for_the_body_and_creates_no_order(
    sandbox: Sandbox, client: WireClient
):
    sandbox.faults.add(CloseBeforeReading())
    client.send(headers={"Content-Length": "100"})

    assert await client.rest() == b""
    assert not sandbox.orders
    assert (sandbox.requests[-1].fault, sandbox.requests[-1].processed) == (CloseBeforeReading(), False)


@each(
    ("fault", "arrives"),
    [(CloseAfterProcessing(), b""), (TruncatedHead(), b"HTTP/1.1 200 OK\r\nContent-Ty")],
)
async def test_faults_that_cut_the_response_send_these_bytes_of_an_existing_order(fault, arrives):
    async with Sandbox() as sandbox, connected(sandbox) as client:
        client.meets(fault)

        assert await client.rest() == arrives
    assert list(sandbox.orders) == [sandbox.requests[-1].order_id]
    assert (sandbox.requests[-1].processed, sandbox.requests[-1].status) == (True, None)


async def test_reset_after_processing_resets_the_connection_and_the_order_exists(
    sandbox: Sandbox, client: WireClient
):
    client.meets(ResetAfterProcessing())

    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert len(sandbox.orders) == 1


@each(
    ("fault", "body"),
    [
        (TruncatedBody(1), rb"\{"),
        (TruncatedBody(100), rb"\{.{99}"),
        (TruncatedBody(1_000_000), rb"\{.*\}"),
        (TruncatedBody(20, chunked=True), rb"14\r\n\{.{19}\r\n"),
    ],
)
async def test_a_truncated_body_is_shorter_than_its_length_or_lacks_the_last_chunk(fault, body):
    async with Sandbox() as sandbox, connected(sandbox) as client:
        client.meets(fault)
        status, headers = await client.head()
        rest = await client.rest()

        assert (status, len(sandbox.orders)) == (200, 1)
        assert re.fullmatch(body, rest, re.DOTALL)
        assert headers.get("Transfer-Encoding") == "chunked" or len(rest) < int(headers["Content-Length"])


async def test_a_broken_chunk_leaves_the_connection_open_until_released(sandbox: Sandbox, client: WireClient):
    client.meets(BrokenChunk())
    await sandbox.stalled()
    sandbox.faults.release()
    raw = await client.rest()

    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert raw.endswith(b"\r\n\r\nzz\r\n{}\r\n")
    assert len(sandbox.orders) == 1


@pytest.mark.parametrize(("fault", "early"), [(StallBeforeProcessing(), 0), (StallAfterProcessing(), 1)])
async def test_a_stalled_response_arrives_after_the_release(
    sandbox: Sandbox, client: WireClient, fault, early: int
):
    client.meets(fault)
    await sandbox.stalled()

    assert len(sandbox.orders) == early
    assert [record.order_id for record in sandbox.faults.stalled] == ([*sandbox.orders] or [None])
    assert sandbox.faults.release() == 1
    assert (await client.answer()).json["id"] in sandbox.orders


async def test_stall_before_processing_creates_the_order_after_the_client_closed(sandbox: Sandbox):
    async with connected(sandbox) as client:
        client.meets(StallBeforeProcessing())
        await sandbox.stalled()
    sandbox.faults.release()
    await sandbox.finished()

    assert len(sandbox.orders) == 1
    assert sandbox.requests[-1].processed


@pytest.mark.parametrize("stall", [StallBeforeProcessing, StallAfterProcessing])
async def test_a_stall_of_seconds_ends_by_itself(stall):
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if seconds != 4.5:  # the order of the matcher bot
            await asyncio.Event().wait()

    async with Sandbox(sleep=sleep) as sandbox, connected(sandbox) as client:
        sandbox.faults.add(stall(4.5))

        assert (await client.ask(order_body())).status == 200
    assert waits == [300.0, 4.5]


async def test_slow_bytes_send_the_whole_response_in_pieces():
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await (asyncio.sleep(0) if seconds == 0.25 else asyncio.Event().wait())

    async with Sandbox(sleep=sleep) as sandbox, connected(sandbox) as client:
        sandbox.faults.add(SlowBytes(0.25, size=1000))
        answer = await client.ask(order_body())

        assert await client.rest() == b""
    assert answer.json["id"] in sandbox.orders
    assert waits.count(0.25) == -(-len(answer.body) // 1000)


async def test_wrong_types_replace_fields_of_the_order(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(WrongTypes())
    answer = (await client.ask(order_body())).json

    assert (answer["id"], answer["poster_amount"], answer["user"]) == (12345, "a lot", "somebody")
    assert answer["matcher_currency"] == "USD"
    assert len(sandbox.orders) == 1


async def test_another_order_has_a_different_id_poster_and_amount(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(AnotherOrder())
    answer = (await client.ask(order_body())).json

    assert len(sandbox.orders) == 1
    assert answer["id"] not in sandbox.orders
    assert answer["user"]["username"] == "a.stranger@example.com"
    assert answer["user_id"] == answer["user"]["id"]
    assert (answer["poster_amount"], answer["matcher_amount"]) == (156025, 101)


@pytest.mark.parametrize("fault", [WrongTypes(), AnotherOrder()])
async def test_a_fault_of_the_response_leaves_a_refusal_unchanged(
    sandbox: Sandbox, client: WireClient, fault
):
    sandbox.faults.add(fault)

    assert (await client.ask({})).status == 422
    assert not sandbox.orders


async def test_an_unsolicited_reply_follows_the_response_on_the_same_connection(
    sandbox: Sandbox, client: WireClient
):
    sandbox.faults.add(UnsolicitedReply(delay=None))
    first = await client.ask(order_body())
    await sandbox.stalled()
    sandbox.faults.release()
    second = await client.answer()
    third = await client.ask(order_body())

    assert (second.status, second.json) == (200, {"id": "FOREIGN"})
    assert [first.json["id"], third.json["id"]] == [*sandbox.orders]


async def test_an_unsolicited_reply_is_dropped_after_the_client_closed(sandbox: Sandbox):
    sandbox.faults.add(UnsolicitedReply(delay=None))
    async with connected(sandbox) as client:
        await client.ask(order_body())
        await sandbox.stalled()
    await turns(10)
    sandbox.faults.release()
    await sandbox.finished()

    assert len(sandbox.orders) == 1


@each(
    ("fault", "headers", "size", "read"),
    [
        (HugeBody(3 * MEGABYTE), {}, range(3 * MEGABYTE, 4 * MEGABYTE), bytes),
        (CompressedHugeBody(10 * MEGABYTE), GZIP, range(MEGABYTE // 10), gzip.decompress),
    ],
)
async def test_a_huge_body_has_the_order_and_may_be_small_on_the_wire(fault, headers, size, read):
    async with Sandbox() as sandbox, connected(sandbox) as client:
        client.meets(fault)
        head = (await client.head())[1]
        body = await _chunks(client)

        assert head.items() >= {"Transfer-Encoding": "chunked", **headers}.items()
        assert len(body) in size
        assert json.loads(read(body))["id"] in sandbox.orders


async def _chunks(client: WireClient) -> bytes:
    body = bytearray()
    while size := int(await client.reader.readuntil(b"\r\n"), 16):
        body += await client.reader.readexactly(size)
        await client.reader.readexactly(2)
    return bytes(body)


@pytest.mark.parametrize("fault", [HugeBody(), CompressedHugeBody(1 << 40)])
async def test_a_client_may_close_the_connection_during_a_huge_body(sandbox: Sandbox, fault):
    async with connected(sandbox) as client:
        client.meets(fault)
        await client.reader.readexactly(1000)
    await sandbox.finished()

    assert len(sandbox.orders) == 1


@each(
    ("make", "rule"),
    [
        (lambda: Status(100), "status"),
        (lambda: Status(600), "status"),
        (lambda: Status(200, headers={"a b": "c"}), "header"),
        (lambda: Status(200, headers={"a": "b\r\nc: d"}), "header"),
        (lambda: Redirect("/", status=200), "status"),
        (lambda: Redirect("/\n"), "header"),
        (lambda: TruncatedBody(0), "keep"),
        (lambda: SlowBytes(size=0), "size"),
    ],
)
def test_invalid_settings_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
