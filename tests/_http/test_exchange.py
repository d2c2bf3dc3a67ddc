"""The SDK's own exchange: when it is used, what it sends, and its time limits."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aioresponses import aioresponses
from multidict import CIMultiDict
from yarl import URL

from tests.faults.parties import KEY, Bank, Certificates
from tests.faults.servers import Connection, answers, http, order_reply, serving
from tests.support import samples
from tests.support.cases import each
from tests.support.loop_time import LoopTime
from transfer_async import RetryPolicy, Timeouts, TransferClient
from transfer_async._http import exchange
from transfer_async._http.transport import Transport
from transfer_async._http.write_guard import ConnectionState, GuardedBody
from transfer_async._models.errors import ConnectionFailed, Outcome

# --- which path is taken ------------------------------------------------------------------------


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the methods of the requests that the SDK's own exchange sends."""
    methods: list[str] = []
    send = exchange.exchange

    async def noted(connector: Any, origin: Any, method: str, *rest: Any, **options: Any) -> Any:
        methods.append(method)
        return await send(connector, origin, method, *rest, **options)

    monkeypatch.setattr(exchange, "exchange", noted)
    return methods


async def order_and_read(client: TransferClient) -> None:
    await client.create_order(samples.new_order(), key=KEY)
    await client.who_am_i()


@pytest.mark.parametrize("over", ["plain", "TLS"])
async def test_the_clients_own_session_uses_the_exchange(
    bank: Bank, exchanged: list[str], certificates: Certificates, over: str
):
    tls, trust = (certificates.server, {"ssl": certificates.client}) if over == "TLS" else (None, {})
    async with serving(answers, tls=tls) as server, bank.client(server.url, **trust) as client:
        await order_and_read(client)

    assert exchanged == ["POST", "GET"]


@pytest.mark.parametrize("version", ["3.11.18", "3.15.0", "4.0.0a2.dev0"])
async def test_the_session_sends_with_an_untried_version(
    bank: Bank, exchanged: list[str], version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exchange, "_is_tried", exchange._is_tried.__wrapped__)
    monkeypatch.setattr(aiohttp, "__version__", version)
    async with serving(answers) as server, bank.client(server.url) as client:
        await order_and_read(client)

    assert exchanged == []
    assert len(server.requests) == 2


async def test_the_session_sends_if_an_instrumentation_added_traces(
    bank: Bank, exchanged: list[str], monkeypatch: pytest.MonkeyPatch
):
    traced: list[str] = []
    traces = aiohttp.TraceConfig()

    async def note(_session: Any, _context: Any, started: aiohttp.TraceRequestStartParams) -> None:
        traced.append(started.method)

    traces.on_request_start.append(note)
    monkeypatch.setattr(Transport, "_session", lambda _: aiohttp.ClientSession(trace_configs=[traces]))
    async with serving(answers) as server, bank.client(server.url) as client:
        await order_and_read(client)

    assert exchanged == []
    assert traced == ["POST", "GET"]


async def test_a_mocked_session_is_used_even_if_the_mock_came_last(exchanged: list[str]):
    async with (
        serving(answers) as server,
        TransferClient(server.url, "token", retry=RetryPolicy(attempts=1)) as client,
    ):
        await client.who_am_i()
        with aioresponses(), pytest.raises(ConnectionFailed):  # The mock returns nothing.
            await client.who_am_i()
        for name in ("request", "_request"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(aiohttp.ClientSession, name, None)
                with pytest.raises(ConnectionFailed):
                    await client.who_am_i()

    assert exchanged == ["GET"]
    assert len(server.requests) == 1


CHANGES: dict[str, tuple[object, str, object]] = {
    "without a member": (ResponseHandler, "start_timeout", None),
    "without an option": (
        *(ResponseHandler, "set_response_params"),
        lambda self, *, skip_payload, read_until_eof: None,
    ),
    "with another argument": (
        aiohttp.BaseConnector,
        "connect",
        lambda self, req, traces, timeout, where: None,
    ),
    "imported after a mock": (exchange, "_METHODS", (exchange._METHODS[0], lambda: None)),
    "imported after a mock of another kind": (exchange, "_METHODS", (object(), exchange._METHODS[1])),
}


@each(("owner", "name", "changed"), CHANGES)
def test_an_aiohttp_of_another_shape_counts_as_untried(owner: object, name: str, changed: object):
    with pytest.MonkeyPatch.context() as patch:
        if changed is None:
            patch.delattr(owner, name)
        else:
            patch.setattr(owner, name, changed)
        is_tried = exchange._is_tried.__wrapped__()

    assert not is_tried
    assert exchange._is_tried.__wrapped__()


# --- what is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("json", [None, {"a": 1}], ids=["empty", "body"])
async def test_the_exchange_and_plain_aiohttp_send_the_same_bytes(
    bank: Bank, method: str, json: Any, monkeypatch: pytest.MonkeyPatch
):
    heads: list[bytes] = []

    async def note(connection: Connection) -> None:
        read_until = connection.reader.readuntil

        async def noted(separator: bytes) -> bytes:
            heads.append(await read_until(separator))
            return heads[-1]

        monkeypatch.setattr(connection.reader, "readuntil", noted)
        await connection.request()
        connection.send(http(200, b"" if method == "HEAD" else b"{}"))

    async with serving(note) as server:
        for possible in (exchange.is_possible, lambda _: False):
            monkeypatch.setattr(exchange, "is_possible", possible)
            async with bank.client(server.url) as client:
                await client.request(method, "/thing?a=%20b", json=json)
    with_type = heads[1].replace(b"\r\nContent-Type: application/octet-stream", b"")

    assert sorted(heads[0].split(b"\r\n")) == sorted(with_type.split(b"\r\n"))
    assert server.requests[0].body == server.requests[1].body


@each("value", ["a\r\nX-Other: b", "a\nb", "a\0b", "a\x7fb"])
def test_a_header_with_a_control_character_is_not_sent(value: str):
    with pytest.raises(ValueError, match="control character"):
        exchange.head_of("GET", URL("http://service.example/"), CIMultiDict({"X-Name": value}))


# --- the check, the write, and the end ----------------------------------------------------------


async def test_nothing_is_awaited_between_the_check_and_the_write(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    steps: list[str] = []
    take = GuardedBody.take

    async def take_and_note(body: GuardedBody, transport: Any, protocol: Any) -> None:
        await take(body, transport, protocol)
        asyncio.get_running_loop().call_soon(steps.append, "another turn of the loop")

    def note_size(_: ConnectionState, __: int) -> None:
        steps.append("written")

    monkeypatch.setattr(GuardedBody, "take", take_and_note)
    monkeypatch.setattr(ConnectionState, "sent", note_size)
    async with serving(answers) as server:
        await bank.send_order(server.url)

    assert steps == ["written", "another turn of the loop"]


@pytest.mark.usefixtures("http_path")
async def test_a_cancelled_exchange_closes_its_connection(bank: Bank):
    async def answer_late(connection: Connection) -> None:
        await connection.request()
        await connection.gone()
        gone.set()

    gone = asyncio.Event()
    async with serving(answer_late) as server, bank.client(server.url) as client:
        reading = asyncio.create_task(client.who_am_i())
        await server.got_request.wait()
        reading.cancel()
        await asyncio.wait([reading])
        async with asyncio.timeout(2):  # Four idle seconds would close the connection.
            await gone.wait()

    assert reading.cancelled()


# --- time limits --------------------------------------------------------------------------------

SLOW_READ = Timeouts(sock_read=5.0)


@pytest.mark.usefixtures("http_path")
async def test_each_interim_response_and_each_part_of_a_body_starts_the_read_timeout_anew(
    bank: Bank, loop_time: LoopTime
):
    async def slow(connection: Connection) -> None:
        reply = order_reply(await connection.request())
        interim = [b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 2
        for part in (*interim, *(reply[start : start + 3000] for start in range(0, len(reply), 3000))):
            await loop_time.pass_(4.0)
            connection.send(part)
            await connection.drain()
            await loop_time.pass_(0.0)

    async with serving(slow) as server:
        order = await bank.send_order(server.url, timeouts=SLOW_READ)

    assert order.id.startswith("tx-")


@pytest.mark.usefixtures("http_path")
async def test_the_deadline_ends_a_wait_that_interim_responses_start_anew(
    bank: Bank, loop_time: LoopTime, caplog: pytest.LogCaptureFixture
):
    async def answer_too_late(connection: Connection) -> None:
        request = await connection.request()
        for piece in (*[b"HTTP/1.1 102 Processing\r\n\r\n"] * 6, order_reply(request)):
            await loop_time.pass_(4.0)
            connection.send(piece)
            await connection.drain()
            await loop_time.pass_(0.0)

    async with serving(answer_too_late) as server:
        error: Any = await bank.try_order(server.url, timeouts=SLOW_READ)

    assert error.status is None
    assert error.order_may_exist
    assert isinstance(error.__cause__, TimeoutError)
    assert [record for record in caplog.records if record.name == "asyncio"] == []  # no failed callback


async def test_the_deadline_ends_a_wait_in_which_interim_responses_never_stop(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    """The timer alone cannot end the wait: each interim response starts it anew before it can run."""
    read = ResponseHandler.read

    async def read_slowly(protocol: ResponseHandler) -> Any:
        message = await read(protocol)
        loop_time.passed += 1.0
        return message

    async def flood(connection: Connection) -> None:
        request = await connection.request()
        connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50 + order_reply(request))

    monkeypatch.setattr(ResponseHandler, "read", read_slowly)
    async with serving(flood) as server:
        error: Any = await bank.try_order(server.url, timeouts=SLOW_READ)

    assert error.outcome is Outcome.UNKNOWN
    assert isinstance(error.__cause__, TimeoutError)


async def test_the_wait_for_a_response_starts_when_the_request_is_written(bank: Bank, loop_time: LoopTime):
    async def slow(connection: Connection) -> None:
        await connection.bytes_waiting()
        await loop_time.pass_(6.0)
        connection.writer.transport.resume_reading()
        await connection.request()
        connection.send(http(200, b"{}"))

    async with serving(slow, reading=False) as server, bank.client(server.url, timeouts=SLOW_READ) as client:
        assert await client.request("PUT", "/thing", json="x" * (16 << 20)) == {}


@pytest.mark.usefixtures("http_path")
async def test_no_timer_outlives_its_exchange(bank: Bank, loop_time: LoopTime):
    async with serving(answers) as server, bank.client(server.url) as client:
        for key in ("first", "second"):
            await client.create_order(samples.new_order(), key=key)
            await loop_time.pass_(100.0)

    assert server.accepted == 1
