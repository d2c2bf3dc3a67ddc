"""One exchange: its time limits, connection pools and session, and how much of the request was sent."""

from __future__ import annotations

import asyncio
import gc
import gzip
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from tests.faults.parties import KEY, Bank, Certificates, transport_to
from tests.faults.servers import (
    Connection,
    answers,
    chunked,
    foreign_reply,
    head,
    http,
    order_body,
    replies,
    serving,
    then_closes,
)
from tests.support import samples
from tests.support.bank import failure
from tests.support.cases import each
from tests.support.loop_time import LoopTime
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import RetryPolicy, Timeouts
from transfer_async._http.transport import (
    POOL_KEEPALIVE,
    SHORT,
    BodyTooLarge,
    ExchangeResult,
    Transport,
    TransportClosed,
    _for_exchange,
)
from transfer_async._http.urls import CREATE_ORDER
from transfer_async._http.write_guard import AnsweredEarly, ConnectionState, GuardedBody, SessionBody
from transfer_async._models.errors import (
    ConnectionFailed,
    Outcome,
    OutcomeUnknown,
    RateLimited,
    Refused,
    ServiceFailed,
    Unauthorized,
    UnreadableOrder,
)

ONCE = RetryPolicy(attempts=1)

pytestmark = pytest.mark.usefixtures("http_path")


def body() -> GuardedBody:
    return GuardedBody(samples.new_order().to_json(), in_time=lambda: True)


async def post(
    transport: Transport, guarded: GuardedBody | None = None, *, left: float = 25.0
) -> ExchangeResult:
    return await transport.post_order(guarded or body(), headers=CIMultiDict(), left=left)


# --- time limits --------------------------------------------------------------------------------


@each(
    ("settings", "left", "total", "connect", "sock_connect", "sock_read"),
    [
        ({}, 24.9, 24.9, 5.0, None, 20.0),
        ({}, 7.7, 7.7, 5.0, None, 7.7),
        ({}, 4.9, 4.9, 4.9, None, 4.9),
        ({"total": 2.5}, 30.0, 2.5, 2.5, None, 2.5),
        # A limit of 0 or less would be none.
        ({}, 0.0, 0.001, 0.001, None, 0.001),
        ({}, -3.0, 0.001, 0.001, None, 0.001),
        # `sock_connect` is set only if it is shorter than `connect`.
        ({"sock_connect": 4.9}, 25.0, 25.0, 5.0, 4.9, 20.0),
        ({"sock_connect": 4.9}, 0.3, 0.3, 0.3, 0.3, 0.3),
        ({"sock_connect": 9.0}, 0.3, 0.3, 0.3, None, 0.3),
    ],
)
def test_limits_are_cut_to_the_time_left_but_never_rounded_up_extended_or_none(
    settings: dict[str, float], left: float, **limits: float | None
):
    cut = _for_exchange(Timeouts(**settings), left=left)

    assert {name: getattr(cut, name) for name in limits} == limits
    assert cut.ceil_threshold == float("inf")


# --- what an exchange shows ---------------------------------------------------------------------


@each(
    ("header", "shown"),
    [
        ("req-7", "req-7"),
        ("x" * 100, "x" * 100),
        ("a b", "a b"),
        ("x" * 101, None),
        ("", None),
        ("line\nbreak", None),
        ("\x1b[31mred", None),
        ("nul\0", None),
        ("ünïcode", None),
        ("tab\there", None),
        ("line\u2028break", None),
        ("\u202eright to left", None),
    ],
)
def test_a_request_id_is_shown_only_if_it_is_safe_for_a_log(header: str, shown: str | None):
    assert ExchangeResult(sent=True, headers=CIMultiDict({"X-Request-Id": header})).request_id == shown


async def test_an_order_request_matches_the_specification_below_the_base_url(bank: Bank):
    async with serving(answers) as server:
        await bank.send_order(f"{server.url}/partner")
    request = server.requests[0]

    assert (request.method, request.path) == ("POST", "/partner/api/api/v1/order/create")
    assert request.body == samples.new_order().to_json()
    assert request.headers == {
        "host": server.url.removeprefix("http://"),
        "authorization": "Bearer secret-token",
        "accept": "application/json",
        "accept-encoding": "gzip, deflate",  # compressions that are slow to undo are not offered
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "user-agent": request.headers["user-agent"],
    }
    assert request.headers["user-agent"].startswith("transfer_async")


async def test_after_a_failed_exchange_the_body_cannot_be_sent():
    guarded = body()
    async with serving(answers) as server, transport_to(server.url, timeouts=Timeouts(total=25)) as transport:
        await post(transport, guarded, left=0.0)

    assert guarded.spent


async def test_nothing_is_sent_after_the_transport_is_closed():
    async with serving(answers) as server:
        async with transport_to(server.url) as transport:
            pass
        evidence = await post(transport)

    assert isinstance(evidence.error, TransportClosed)
    assert (evidence.sent, server.accepted) == (False, 0)


async def test_an_exchange_cancelled_in_the_pool_was_not_sent():
    async with (
        serving(Connection.gone_after_request) as server,
        transport_to(server.url, max_connections=1) as transport,
    ):
        first = asyncio.create_task(post(transport))
        await server.got_request.wait()
        second = asyncio.create_task(post(transport))
        await asyncio.sleep(0)
        second.cancel()
        evidence = await second
        first.cancel()
        await first

    assert not evidence.sent
    assert isinstance(evidence.error, asyncio.CancelledError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("http_path", ["session"], indirect=True)
async def test_an_endless_answer_before_the_body_is_reported_as_such(monkeypatch: pytest.MonkeyPatch):
    async def greet(connection: Connection) -> None:
        connection.send(foreign_reply())
        await connection.gone()

    async def never_write(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SessionBody, "write_with_length", never_write)
    async with serving(greet) as server, transport_to(server.url) as transport:
        evidence = await post(transport)

    assert not evidence.sent
    assert evidence.status is None
    assert isinstance(evidence.error, AnsweredEarly)
    assert server.accepted == 16


# --- a response over the size limit ---------------------------------------------------------------

LIMIT = 100
LONG = b'{"message": "Unauthorized"}' + b" " * 5000  # What is read would alone be a refusal.
TOO_LARGE: dict[str, Callable[[int], bytes]] = {
    "length": lambda status: http(status, LONG),
    "chunks": lambda status: head(status, {"Transfer-Encoding": "chunked"}) + chunked(LONG[:50], LONG[50:]),
    "close": lambda status: head(status, {"Connection": "close"}) + LONG,
    "gzip": lambda status: http(status, gzip.compress(LONG), headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("form", TOO_LARGE)
@pytest.mark.parametrize(
    ("status", "order", "funds", "read", "change"),
    [
        (200, UnreadableOrder, "kept", ServiceFailed, OutcomeUnknown),
        (401, Unauthorized, "released", Unauthorized, Unauthorized),
        (403, OutcomeUnknown, "kept", Refused, OutcomeUnknown),
        (422, Refused, "released", Refused, Refused),
        (429, RateLimited, "released", RateLimited, RateLimited),
        (503, OutcomeUnknown, "kept", ServiceFailed, OutcomeUnknown),
    ],
)
async def test_a_response_over_the_size_limit_proves_only_what_its_status_proves(
    bank: Bank, form: str, status: int, order: type, funds: str, read: type, change: type
):
    async with (
        serving(then_closes(TOO_LARGE[form](status))) as server,
        bank.client(server.url, max_response_bytes=LIMIT, retry=ONCE) as client,
    ):
        calls = (
            client.create_order(samples.new_order(), key=KEY),
            client.who_am_i(),
            client.request("PUT", "/thing", json={"a": 1}),
        )
        errors: list[Any] = [await failure(call) for call in calls]

    assert [type(error) for error in errors] == [order, read, change]
    assert [error.status for error in errors] == [status] * 3
    assert [type(error.__cause__) for error in errors] == [BodyTooLarge] * 3
    assert [error.raw if hasattr(error, "raw") else error.body for error in errors] == [LONG[:LIMIT]] * 3
    assert bank.funds.state == funds
    assert len(server.requests) == 3


@pytest.mark.parametrize("form", ["length", "chunks", "gzip"])
async def test_no_request_follows_a_response_over_the_size_limit_on_its_connection(bank: Bank, form: str):
    async with (
        serving(replies(TOO_LARGE[form](422))) as server,
        bank.client(server.url, max_response_bytes=LIMIT) as client,
    ):
        for number in range(2):
            await failure(client.create_order(samples.new_order(), key=str(number)), Refused)
            await failure(client.who_am_i(), Refused)

    assert server.accepted == len(server.requests) == 4


# --- pools and sessions -------------------------------------------------------------------------


async def test_orders_have_their_own_connection_pool(bank: Bank):
    async with serving(answers) as server, bank.client(server.url) as client:
        for number in range(3):
            await client.create_order(samples.new_order(), key=str(number))
            await client.who_am_i()
    used = {request.connection: request.method for request in server.requests}

    assert server.accepted == 2
    assert sorted(used.values()) == ["GET", "POST"]
    assert len({(request.connection, request.method) for request in server.requests}) == 2


async def test_open_connections_never_exceed_the_pool_size(bank: Bank):
    most = 0

    async def count(connection: Connection) -> None:
        nonlocal most
        most = max(most, len(connection.server.open))
        await answers(connection)

    async with serving(count) as server, bank.client(server.url, max_connections=3) as client:
        await asyncio.gather(*(client.create_order(samples.new_order(), key=str(n)) for n in range(20)))

    assert most == 3
    assert len(server.requests) == 20


async def test_a_closed_connection_is_not_kept_in_memory(bank: Bank, monkeypatch: pytest.MonkeyPatch):
    """A worker with rare orders opens a new connection for each of them."""
    protocols: list[weakref.ref[Any]] = []
    take = ConnectionState.take

    def note(state: ConnectionState, transport: Any, protocol: Any) -> None:
        protocols.append(weakref.ref(protocol))
        take(state, transport, protocol)

    monkeypatch.setattr(ConnectionState, "take", note)
    async with serving(answers) as server:
        await bank.send_order(server.url)
        async with bank.client(server.url) as client:
            await client.who_am_i()
    await asyncio.sleep(0)
    gc.collect()

    assert [protocol() for protocol in protocols] == [None, None]


async def test_cookies_are_not_sent_back(bank: Bank):
    cookie = {"Set-Cookie": "session=abc; Path=/"}

    async def bake(connection: Connection) -> None:
        while request := await connection.request():
            kind = order_body(request) if request.method == "POST" else samples.encode(samples.user_json())
            connection.send(http(200, kind, headers=cookie))

    async with serving(bake) as server:
        url = server.url.replace("127.0.0.1", "localhost")  # aiohttp stores no cookies for IP addresses
        async with bank.client(url) as client:
            for number in range(2):
                await client.create_order(samples.new_order(), key=str(number))
                await client.who_am_i()

    assert len(server.requests) == 4
    assert all("cookie" not in request.headers for request in server.requests)


async def test_a_borrowed_session_is_used_without_its_own_settings_and_never_closed(
    bank: Bank, loop_time: LoopTime
):
    seen: list[str] = []

    async def note(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        seen.append(request.method)
        return await handler(request)

    async def late(connection: Connection) -> None:
        while request := await connection.request():
            await loop_time.pass_(0.05)
            if len(connection.server.requests) == 1:
                encoded = {"Content-Encoding": "gzip"}
                connection.send(http(200, gzip.compress(order_body(request)), headers=encoded))
            else:
                connection.send(http(422, b"{}"))

    own = {"Authorization": "Basic b3RoZXI=", "Content-Type": "text/plain", "X-Bank": "7"}
    async with (
        serving(late) as server,
        aiohttp.ClientSession(
            auto_decompress=False,
            headers=own,
            middlewares=[note],
            raise_for_status=True,
            timeout=aiohttp.ClientTimeout(total=0.02),
        ) as session,
    ):
        async with bank.client(server.url, session=session) as client:
            order = await client.create_order(samples.new_order(), key=KEY)
            with pytest.raises(Refused):
                await client.who_am_i()
        refusing = Bank()
        error = await refusing.try_order(server.url, session=session)
        closed = session.closed

    assert order.id.startswith("tx-")
    assert type(error) is Refused
    assert refusing.funds.state == "released"
    assert seen == []
    assert not closed
    assert server.accepted == 1
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer secret-token"] * 3
    assert server.requests[0].headers["content-type"] == "application/json"
    assert server.requests[0].headers["x-bank"] == "7"  # so the session itself has sent the request


async def test_a_body_held_back_for_100_continue_is_not_reported_as_sent(bank: Bank, loop_time: LoopTime):
    # aiohttp then sends the headers first and holds back the body.
    async def never_continue(connection: Connection) -> None:
        await connection.head()
        await loop_time.pass_(20.0)
        await connection.gone()

    async with (
        serving(never_continue) as server,
        aiohttp.ClientSession(headers={"Expect": "100-continue"}) as session,
    ):
        error = await bank.try_order(server.url, session=session, retry=ONCE, timeouts=Timeouts(total=19.0))

    assert error.outcome is Outcome.NOT_SENT
    assert server.requests == []
    assert bank.funds.state == "released"


# --- TLS and proxies ----------------------------------------------------------------------------


async def test_a_borrowed_connector_without_tls_verification_is_overridden(
    bank: Bank, certificates: Certificates
):
    """Without this, an attacker between the bank and the service gets the order and the token."""
    async with (
        serving(answers, tls=certificates.other_server) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
    ):
        async with session.get(server.url) as response:  # the connector itself accepts any certificate
            assert response.status == 200
        error = await bank.try_order(server.url, session=session, retry=ONCE)
        async with bank.client(server.url, session=session, retry=ONCE) as client:
            with pytest.raises(ConnectionFailed):
                await client.who_am_i()

    assert type(error) is ConnectionFailed
    assert len(server.heads) == 1
    assert bank.funds.state == "released"


async def test_an_explicit_ssl_setting_applies_to_a_borrowed_session(bank: Bank, certificates: Certificates):
    async with serving(answers, tls=certificates.server) as server, aiohttp.ClientSession() as session:
        order = await bank.send_order(server.url, session=session, ssl=certificates.client)

    assert order.id.startswith("tx-")


async def relay(connection: Connection, address: str) -> None:
    """Relay bytes in both directions, as a proxy does after CONNECT."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host if host != "localhost" else "127.0.0.1", int(port))
    connection.send(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def down() -> None:
        while data := await reader.read(1 << 16):
            connection.send(data)
        connection.close()

    downward = asyncio.create_task(down())
    try:
        while data := await connection.reader.read(1 << 16):
            writer.write(data)
    finally:
        downward.cancel()
        writer.close()


async def proxies(connection: Connection) -> None:
    """Act as a proxy: open tunnels, and answer unencrypted requests as the service would."""
    request = await connection.request()
    if request is None:
        return
    if request.method == "CONNECT":
        await relay(connection, request.path)
    else:
        connection.send(http(200, order_body(request)))


async def test_requests_go_through_the_proxy_which_alone_receives_its_password(
    bank: Bank, certificates: Certificates
):
    async with (
        serving(answers) as plain,
        serving(answers, tls=certificates.server) as server,
        serving(proxies) as proxy,
    ):
        address = proxy.url.replace("http://", "http://bank:hunter2@")
        for url in (plain.url, server.url):
            await bank.send_order(url, proxy=address, ssl=certificates.client)

    assert [request.path for request in proxy.requests] == [
        f"{plain.url}{CREATE_ORDER}",
        server.url.removeprefix("https://"),
    ]
    assert [request.headers["proxy-authorization"] for request in proxy.requests] == [BANKS_PASSWORD] * 2
    assert ["proxy-authorization" in request.headers for request in server.requests] == [False]
    assert plain.accepted == 0


BANKS_PASSWORD = "Basic YmFuazpodW50ZXIy"


async def test_a_tunnel_carries_many_orders_and_reads(bank: Bank, certificates: Certificates):
    async with (
        serving(answers, tls=certificates.server) as server,
        serving(proxies) as proxy,
        bank.client(server.url, proxy=proxy.url, ssl=certificates.client) as client,
    ):
        for number in range(3):
            await client.create_order(samples.new_order(), key=str(number))
            await client.who_am_i()

    assert len(server.requests) == 6
    assert len(proxy.requests) == 2


@pytest.mark.parametrize("status", [407, 422, 503])
async def test_a_proxy_that_refuses_the_tunnel_refuses_no_order(
    bank: Bank, certificates: Certificates, status: int
):
    async with (
        serving(answers, tls=certificates.server) as server,
        serving(replies(http(status, b'{"message": "No."}'))) as proxy,
    ):
        error = await bank.try_order(server.url, proxy=proxy.url, ssl=certificates.client, retry=ONCE)

    assert isinstance(error, ConnectionFailed)
    assert error.outcome is Outcome.NOT_SENT
    assert bank.funds.state == "released"
    assert server.accepted == 0


async def test_a_plain_proxy_that_cannot_reach_the_service_leaves_a_doubt(bank: Bank):
    # The proxy received the whole order; what it did with it is unknown.
    async with serving(answers) as server, serving(replies(http(502, b"Bad gateway"))) as proxy:
        error = await bank.try_order(server.url, proxy=proxy.url)

    assert type(error) is OutcomeUnknown
    assert len(proxy.requests) == 1
    assert server.accepted == 0
    assert bank.funds.state == "kept"


# --- other requests -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"])
async def test_a_request_with_a_lost_answer_is_not_sent_twice(bank: Bank, method: str):
    content = None if method in ("GET", "HEAD", "OPTIONS", "DELETE") else {"a": 1}
    async with serving(then_closes()) as server, bank.client(server.url) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.request(method, "/thing", json=content)

    assert not caught.value.order_may_exist
    assert [request.method for request in server.requests] == [method]


async def test_a_long_success_followed_by_another_response_does_not_answer_a_read(bank: Bank):
    user = http(200, samples.encode(samples.user_json()) + b" " * SHORT)
    async with serving(replies(user * 2)) as server, bank.client(server.url, retry=ONCE) as client:
        await failure(client.who_am_i(), ServiceFailed)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_body_and_the_token_go_nowhere_else(bank: Bank, status: int):
    async with serving(answers) as elsewhere:
        moved = http(status, headers={"Location": f"{elsewhere.url}{CREATE_ORDER}"})
        async with serving(replies(moved)) as server, bank.client(server.url) as client:
            error = await bank.try_order(server.url)
            with pytest.raises(ServiceFailed):
                await client.who_am_i()

    assert type(error) is OutcomeUnknown
    assert bank.funds.state == "kept"
    assert (len(server.requests), elsewhere.accepted) == (2, 0)


# --- memory --------------------------------------------------------------------------------------

READS = """
import asyncio, resource, socket
from transfer_async import TransferClient

def faults_of_reads(count):
    ours, theirs = socket.socketpair()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        ours.send(bytes(9000))
        theirs.recv(256 * 1024)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

async def main():
    async with TransferClient("https://bank.example", "token"):
        print(faults_of_reads(1000))

asyncio.run(main())
"""


@ONLY_IN_TRIALS
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others deal with memory in their own ways")
def test_memory_for_answers_is_not_reallocated_for_each():
    ended = subprocess.run([sys.executable, "-c", READS], capture_output=True, encoding="utf-8", check=True)

    assert int(ended.stdout) < 100


async def test_idle_connections_are_closed_before_common_servers_close_theirs():
    async with transport_to("http://127.0.0.1:1") as transport:
        transport.open()
        pools: list[Any] = [
            session.connector for session in (transport._orders, transport._others) if session
        ]

    assert [pool._keepalive_timeout for pool in pools] == [POOL_KEEPALIVE] * 2
    assert POOL_KEEPALIVE < 5.0
