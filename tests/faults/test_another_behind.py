"""A response to another request arrives first, and our own response, an order, behind it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tests.support import samples
from tests.support.bank import turns
from transfer_async import CauseKind, Clock, RetryPolicy
from transfer_async._http import write_guard
from transfer_async._http.write_guard import ConnectionState
from transfer_async._models.errors import (
    OutcomeUnknown,
    RateLimited,
    Refused,
    ServiceFailed,
    TransferError,
    UnreadableOrder,
)

from .parties import Bank
from .servers import (
    Connection,
    Received,
    Script,
    Server,
    answers,
    foreign_reply,
    http,
    order_body,
    order_reply,
    replies,
    serving,
    then_closes,
)

REFUSALS = {status: http(status, b'{"message": "no"}') for status in (401, 422, 429)}
UNAUTHORIZED = http(200, b'{"message": "Unauthorized"}')


def answered(*behind: Callable[[Received], bytes]) -> Script:
    """Return a script that creates the first order, and sends all of ``behind`` for each later request."""

    async def script(connection: Connection) -> None:
        first = await connection.request()
        connection.send(order_reply(first))
        while request := await connection.request():
            connection.send(b"".join(one(request) for one in behind))

    return script


async def second_order(bank: Bank, server: Server, **settings: Any) -> TransferError:
    """Create two orders on the same connection. Return the error of the second."""
    async with bank.client(server.url, **settings) as client:
        await client.create_order(samples.new_order(), key="first")
        with pytest.raises(TransferError) as caught:
            await client.create_order(samples.new_order(), key="second")
    return caught.value


def is_in_doubt(bank: Bank, server: Server, error: TransferError) -> None:
    assert isinstance(error, OutcomeUnknown)
    assert error.order_may_exist
    assert len(server.requests) == 2
    assert bank.funds.released == []


# --- a response behind the refusal --------------------------------------------------------------

BEHIND: dict[str, tuple[Callable[[Received], bytes], ...]] = {
    **{f"all of it, {status}": (lambda _, no=no: no, order_reply) for status, no in REFUSALS.items()},
    "all of it, a wrong token with 200": (lambda _: UNAUTHORIZED, order_reply),
    # aiohttp keeps a part of the first line in its parser.
    "only begun": (lambda _: REFUSALS[422] + b"HTTP/1.1 200 O",),
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
async def test_a_refusal_followed_by_another_response_is_a_doubt(bank: Bank, sides: Any, behind: Any):
    """Without this, the bank pays twice after a 429, and releases an existing order's hold after a 422."""
    tls, trust = sides
    async with serving(answered(*behind), tls=tls) as server:
        is_in_doubt(bank, server, await second_order(bank, server, **trust))


async def test_a_response_that_waits_in_the_socket_behind_a_refusal_makes_it_a_doubt(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    """The loop was busy, so aiohttp has not read the response yet."""
    look = ConnectionState.is_alone
    async with serving(answered(lambda _: REFUSALS[422])) as server:

        async def just_after_it_came(one: ConnectionState, **options: Any) -> bool:
            server.open[0].send(order_reply(server.requests[-1]))
            return await look(one, **options)

        monkeypatch.setattr(ConnectionState, "is_alone", just_after_it_came)
        is_in_doubt(bank, server, await second_order(bank, server))


@pytest.mark.parametrize("seconds", [0.0, 1000.0], ids=["in time", "too late for a retry"])
async def test_a_response_during_the_pause_before_a_retry_makes_the_refusal_a_doubt(
    bank: Bank, seconds: float
):
    now = [0.0]
    async with serving(answered(lambda _: REFUSALS[429])) as server:

        async def meanwhile(_: float) -> None:
            server.open[0].send(order_reply(server.requests[-1]))
            await turns(20)
            now[0] += seconds

        clock = Clock(now=lambda: now[0], sleep=meanwhile, chance=lambda: 0.0)
        error: Any = await second_order(bank, server, clock=clock)

    is_in_doubt(bank, server, error)
    assert str(error) == "another response arrived after the service's refusal"
    assert error.kind is CauseKind.SECOND_ANSWER
    assert type(error.__cause__) is RateLimited


@pytest.mark.parametrize("is_used_meanwhile", [False, True])
async def test_a_borrowed_connection_is_checked_before_a_retry_unless_other_code_uses_it(
    bank: Bank, is_used_meanwhile: bool
):
    """Without this, the order is sent again although its own response has arrived."""
    others: list[asyncio.Task[Any]] = []

    async def script(connection: Connection) -> None:
        while request := await connection.request():
            begun = b"HTTP/1.1 200 O"  # the response to the other code's request
            connection.send(REFUSALS[429] if "order" in request.path else begun)

    async with serving(script) as server, aiohttp.ClientSession() as session:

        async def meanwhile(_: float) -> None:
            if not is_used_meanwhile:
                server.open[0].send(order_reply(server.requests[-1]))
            elif not others:
                others.append(asyncio.create_task(session.get(server.url + "/other")))
            await turns(40)

        clock = Clock(sleep=meanwhile, chance=lambda: 0.0)
        error: Any = await bank.try_order(server.url, session=session, clock=clock)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    assert type(error) is (RateLimited if is_used_meanwhile else OutcomeUnknown)
    assert bank.funds.state == ("released" if is_used_meanwhile else "kept")
    assert [request.connection for request in server.requests] == ([1, 1, 2, 2] if others else [1])


async def test_a_refusal_that_arrived_before_any_byte_of_the_request_is_a_doubt(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_guard, "_unacknowledged", lambda _: 100_000)
    async with serving(answered(lambda _: REFUSALS[422])) as server:
        is_in_doubt(bank, server, await second_order(bank, server))


# --- what is no other response ------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["silently", "as told"])
async def test_a_refusal_counts_if_the_server_closes_after_it(
    bank: Bank, sides: Any, headers: dict[str, str]
):
    """Without this, every refusal of such a service is a doubt, and every hold is kept."""
    tls, trust = sides
    async with serving(then_closes(http(422, b"{}", headers=headers)), tls=tls) as server:
        error = await bank.try_order(server.url, **trust)

    assert type(error) is Refused
    assert bank.funds.state == "released"


async def test_line_ends_after_a_refusal_are_not_a_response(bank: Bank):
    async with serving(answered(lambda _: REFUSALS[422] + b"\r\n")) as server:
        error = await second_order(bank, server)

    assert type(error) is Refused


async def test_a_refusal_checked_while_the_client_closes_is_a_doubt(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    """Without this, the hold of an order that was sent is released."""
    looking = asyncio.Event()

    async def look(_: ConnectionState, *, whole: bool) -> bool:
        looking.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(ConnectionState, "is_alone", look)
    async with serving(replies(REFUSALS[422])) as server:
        client = bank.client(server.url)
        call = asyncio.create_task(client.create_order(samples.new_order(), key="k"))
        await looking.wait()
        await client.close(timeout=0)
        (error,) = await asyncio.gather(call, return_exceptions=True)

    assert isinstance(error, OutcomeUnknown)
    assert bank.funds.state == "kept"


# --- other requests -----------------------------------------------------------------------------


def accounts(first: bytes) -> Script:
    """Return a script whose first connection sends ``first`` before every response except the first."""

    async def script(connection: Connection) -> None:
        while request := await connection.request():
            ours = http(200, samples.encode(samples.user_json()))
            shifted = connection.number == 1 and len(connection.server.requests) == 2
            connection.send((first if shifted and request else b"") + ours)

    return script


@pytest.mark.parametrize(
    "first", [REFUSALS[401], REFUSALS[422], http(200, b'{"id": "usr-FOREIGN"}')], ids=["401", "422", "200"]
)
async def test_a_read_is_retried_on_another_connection(bank: Bank, first: bytes):
    """Without this, a beneficiary is checked against somebody else's account."""
    async with serving(accounts(first)) as server, bank.client(server.url) as client:
        await client.who_am_i()
        user = await client.who_am_i()

    assert user.id == samples.user_json()["id"]
    assert [request.connection for request in server.requests] == [1, 1, 2]


@pytest.mark.parametrize(
    ("method", "status", "unacknowledged"),
    [("GET", 503, 0), ("GET", 500, 0), ("HEAD", 200, 0), ("GET", 200, 100_000)],
)
async def test_a_read_uses_another_connection_if_more_may_follow(
    bank: Bank, method: str, status: int, unacknowledged: int, monkeypatch: pytest.MonkeyPatch
):
    """Its own response may follow a proxy's 5xx or one that came too early, and a body may follow HEAD."""
    monkeypatch.setattr(
        write_guard, "_unacknowledged", lambda _: unacknowledged if len(server.requests) == 1 else 0
    )

    async def script(connection: Connection) -> None:
        while await connection.request():
            is_first = len(connection.server.requests) == 1
            connection.send(http(status) if is_first else http(200, samples.encode(samples.user_json())))

    async with serving(script) as server, bank.client(server.url) as client:
        with suppress(ServiceFailed):
            await client.request(method, "/thing", safe=True)
        await client.who_am_i()

    assert [request.connection for request in server.requests][:2] == [1, 2]


@pytest.mark.parametrize("status", [200, 422, 429])
async def test_a_request_that_may_not_be_sent_twice_is_unknown(bank: Bank, status: int):
    async with serving(accounts(http(status, b"{}"))) as server, bank.client(server.url) as client:
        await client.request("POST", "/thing", json={})
        with pytest.raises(OutcomeUnknown):
            await client.request("POST", "/thing", json={})

    assert len(server.requests) == 2


# --- distrusted connections ---------------------------------------------------------------------


@pytest.mark.parametrize("first", [foreign_reply(), http(200, b"{}")], ids=["another order", "no order"])
async def test_the_next_order_avoids_a_connection_with_a_foreign_response(bank: Bank, first: bytes):
    """Without this, the next order gets the refusal that belongs to the previous one."""

    async def shifted(connection: Connection) -> None:
        if connection.number > 1:
            await answers(connection)
            return
        await connection.request()
        connection.send(first)
        await connection.request()
        connection.send(http(422, b'{"message": "nobody of that name"}'))

    async with serving(shifted) as server, bank.client(server.url) as client:
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k1")
        order = await client.create_order(samples.new_order(), key="k2")

    assert order.id.startswith("tx-")
    assert [request.connection for request in server.requests] == [1, 2]


async def test_an_order_with_another_keys_id_retires_its_connection(bank: Bank):
    async def script(connection: Connection) -> None:
        while request := await connection.request():
            connection.send(http(200, order_body(request, id="tx-same")))

    async with serving(script) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="k1")
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k2")
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k3")

    assert [request.connection for request in server.requests] == [1, 1, 2]


async def test_a_refusal_leaves_its_connection_in_use(bank: Bank):
    async def script(connection: Connection) -> None:
        while await connection.request():
            connection.send(http(422, b"{}"))

    async with serving(script) as server, bank.client(server.url) as client:
        for key in ("k1", "k2"):
            with pytest.raises(Refused):
                await client.create_order(samples.new_order(), key=key)

    assert {request.connection for request in server.requests} == {1}


@pytest.mark.parametrize("kind", ["order", "read"])
async def test_the_next_request_tries_no_connection_left_by_a_mass_outage(bank: Bank, kind: str):
    """Without this, the next request tries 16 of them and is never sent, although the service works again."""
    together = asyncio.Barrier(100)

    async def script(connection: Connection) -> None:
        if connection.number <= 100:
            await connection.request()
            await together.wait()
            connection.send(http(503))
        await answers(connection)

    async with serving(script) as server, bank.client(server.url, retry=RetryPolicy(attempts=1)) as client:

        async def call(number: int) -> Any:
            if kind == "read":
                return await client.who_am_i()
            return await client.create_order(samples.new_order(), key=f"k{number}")

        errors = await asyncio.gather(*map(call, range(100)), return_exceptions=True)
        await call(100)

    assert {type(error) for error in errors} == {OutcomeUnknown if kind == "order" else ServiceFailed}
    assert server.accepted == 101


async def test_distrust_does_not_close_a_connection_that_carries_another_order():
    """Without this, the other order goes into doubt without a fault of its own."""
    closed: list[ConnectionState] = []
    first, second = ConnectionState(), ConnectionState()
    protocol = SimpleNamespace(close=lambda: closed.append(second))
    first.take(None, protocol)
    first.trust()
    second.take(None, protocol)
    first.distrust()
    closed_early = [*closed]
    second.distrust()

    assert (closed_early, closed) == ([], [second])


# --- acknowledgements ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_what_the_peer_has_not_acknowledged_is_counted():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while True:  # nothing reads the connection, so its buffers become full
                ours.send(bytes(1 << 16))

        assert write_guard._unacknowledged(SimpleNamespace(get_extra_info=lambda _: ours)) > 0


async def test_after_a_cut_response_leftover_bytes_make_a_connection_untrusted():
    state, protocol = ConnectionState(), SimpleNamespace(_buffer=["another answer"], _tail=b"")
    state.take(SimpleNamespace(get_extra_info=lambda _: None), protocol)

    assert not await state.is_alone(whole=False)
    protocol._buffer = []
    assert await state.is_alone(whole=False)
