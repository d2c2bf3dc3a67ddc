"""Cancelled, or closed, in flight: the caller hears at once, and what is certain is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests import samples
from transfer_async import Clock, Timeouts, TransferClient
from transfer_async._models.errors import ClientClosed, Outcome, OutcomeUnknown, TransferError
from transfer_async._models.events import AttemptStarted, Event

from .parties import KEY, Bank
from .servers import Connection, answers, http, order_reply, replies, serving, until


def begin(client: TransferClient, key: str = KEY) -> asyncio.Task[Any]:
    """One order, on the way."""
    return asyncio.create_task(client.create_order(samples.new_order(), key=key))


def attempts(events: list[Event]) -> int:
    """How many attempts were begun."""
    return sum(isinstance(event, AttemptStarted) for event in events)


class Gate:
    """A service that answers when it is let."""

    def __init__(self, answer: Callable[[Any], bytes | None] = order_reply) -> None:
        self.open = asyncio.Event()
        self._answer = answer

    async def __call__(self, connection: Connection) -> None:
        while request := await connection.request():
            await self.open.wait()
            answer = self._answer(request)
            if answer is None:
                return
            connection.send(answer)


# --- the caller is cancelled --------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_in_flight_hears_at_once(bank: Bank):
    gate = Gate()
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        answered = gate.open.is_set()
        gate.open.set()

    assert not answered


async def test_an_order_that_is_created_after_its_caller_left_is_recorded(bank: Bank):
    gate = Gate()
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])
        gate.open.set()

    assert await bank.state(server.url) == "created"
    assert bank.funds.state == "kept"
    assert len(server.requests) == 1


async def test_an_order_created_for_nobody_is_given_to_whoever_asks_again(bank: Bank):
    gate = Gate()
    async with serving(gate) as server:
        async with bank.client(server.url) as client:
            calling = begin(client)
            await server.got_request.wait()
            calling.cancel()
            await asyncio.wait([calling])
            gate.open.set()
        order = await bank.send_order(server.url)

    assert order.id.startswith("tx-")
    assert len(server.requests) == 1


async def test_a_lost_answer_after_the_caller_left_is_recorded_as_a_doubt(bank: Bank):
    gate = Gate(lambda _: None)
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])
        gate.open.set()

    assert await bank.state(server.url) == "in_doubt"
    assert bank.funds.state == "kept"
    assert len(server.requests) == 1


async def test_a_refusal_after_the_caller_left_releases_the_hold(bank: Bank):
    gate = Gate(lambda _: http(422, b'{"message": "No."}'))
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])
        gate.open.set()

    assert await bank.state(server.url) == "free"
    assert bank.funds.state == "released"


@pytest.mark.parametrize("status", [425, 429])
async def test_no_further_attempt_starts_after_the_caller_left(bank: Bank, status: int):
    gate = Gate(lambda _: http(status, b"{}"))
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])
        gate.open.set()

    assert len(server.requests) == attempts(bank.events) == 1
    assert bank.pauses == []
    assert await bank.state(server.url) == "free"
    assert bank.funds.state == "released"


async def test_a_caller_cancelled_in_the_pause_before_another_attempt_ends_it(bank: Bank):
    pausing = asyncio.Event()

    async def for_ever(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    clock = Clock(sleep=for_ever)
    async with serving(replies(http(429, b"{}"))) as server, bank.client(server.url, clock=clock) as client:
        calling = begin(client)
        await pausing.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    assert len(server.requests) == 1
    assert await bank.state(server.url) == "free"
    assert bank.funds.state == "released"


async def test_a_caller_may_be_cancelled_twice(bank: Bank):
    gate = Gate()
    async with serving(gate) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        calling.cancel()
        await asyncio.wait([calling])
        gate.open.set()

    assert calling.cancelled()
    assert await bank.state(server.url) == "created"


async def test_a_time_limit_of_the_callers_own_is_a_cancellation_like_any_other(bank: Bank):
    gate = Gate()
    async with serving(gate) as server, bank.client(server.url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await client.create_order(samples.new_order(), key=KEY)
        gate.open.set()

    assert await bank.state(server.url) == "created"
    assert len(server.requests) == 1


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_caller_cancelled_at_any_turn_leaves_journal_hold_and_service_in_agreement(
    bank: Bank, turns: int
):
    async with serving(answers) as server:
        async with bank.client(server.url) as client:
            calling = begin(client)
            for _ in range(turns):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
        state = await bank.state(server.url)

    told = (state, len(server.requests), len(bank.funds.placed), len(bank.funds.released))
    assert told in [
        ("unheard of", 0, 0, 0),
        ("free", 0, 0, 0),
        ("free", 0, 1, 1),
        ("created", 1, 1, 0),
    ]


# --- the client is closed -----------------------------------------------------------------------


async def test_closing_waits_for_what_is_in_flight(bank: Bank):
    gate = Gate()
    async with serving(gate) as server:
        client = bank.client(server.url)
        calling = begin(client)
        await server.got_request.wait()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        gate.open.set()
        order = await calling
        await closing

    assert order.id.startswith("tx-")
    assert await bank.state(server.url) == "created"


async def test_what_is_in_flight_when_patience_ends_is_in_doubt(bank: Bank):
    async with serving(Connection.gone_after_request) as server:
        client = bank.client(server.url)
        calling = begin(client)
        await server.got_request.wait()
        await client.close(timeout=0)
        with pytest.raises(OutcomeUnknown) as caught:
            await calling

    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.order_may_exist
    assert await bank.state(server.url) == "in_doubt"
    assert bank.funds.state == "kept"
    assert len(server.requests) == attempts(bank.events) == 1


async def test_an_answer_that_is_being_read_when_patience_ends_is_in_doubt(bank: Bank):
    reading = asyncio.Event()

    async def begin_to_answer(connection: Connection) -> None:
        request = await connection.request()
        connection.send(order_reply(request)[:4000])
        reading.set()
        await connection.gone()

    async with serving(begin_to_answer) as server:
        client = bank.client(server.url)
        calling = begin(client)
        await reading.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        await client.close(timeout=0)
        with pytest.raises(OutcomeUnknown) as caught:
            await calling

    assert caught.value.status == 200
    assert await bank.state(server.url) == "in_doubt"
    assert bank.funds.state == "kept"


async def test_a_refusal_that_is_being_read_when_patience_ends_stands(bank: Bank):
    reading = asyncio.Event()

    async def begin_to_refuse(connection: Connection) -> None:
        await connection.request()
        connection.send(http(422, b"x" * 1000)[:-500])
        reading.set()
        await connection.gone()

    async with serving(begin_to_refuse) as server:
        client = bank.client(server.url)
        calling = begin(client)
        await reading.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        await client.close(timeout=0)
        with pytest.raises(TransferError) as caught:
            await calling

    assert caught.value.outcome is Outcome.REFUSED
    assert bank.funds.state == "released"


async def waiting_for_the_pool(bank: Bank, end: Callable[[TransferClient], Any]) -> tuple[Any, int]:
    """What a call that waits for a connection ends in, when ``end`` comes over its client."""
    gate = Gate()
    async with serving(gate) as server:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
            Bank().client(server.url, session=session) as other,
        ):
            first = begin(other, "first")
            await server.got_request.wait()
            client = bank.client(server.url, session=session)
            second = begin(client)
            await until(lambda: attempts(bank.events))
            await asyncio.sleep(0)
            await end(client)
            with pytest.raises(TransferError) as caught:
                await second
            gate.open.set()
            await first
        return caught.value, len(server.requests)


async def test_a_call_that_waits_for_the_pool_when_patience_ends_was_never_sent(bank: Bank):
    error, received = await waiting_for_the_pool(bank, lambda client: client.close(timeout=0))

    assert error.outcome is Outcome.NOT_SENT
    assert not error.order_may_exist
    assert bank.funds.state == "released"
    assert received == 1  # the other one's


async def test_a_call_that_is_connecting_when_patience_ends_was_never_sent(bank: Bank):
    connected = asyncio.Event()

    async def say_nothing(connection: Connection) -> None:
        connected.set()
        await connection.gone()

    async with serving(say_nothing) as server:
        client = bank.client(server.url.replace("http:", "https:"))
        calling = begin(client)
        await connected.wait()
        await client.close(timeout=0)
        with pytest.raises(TransferError) as caught:
            await calling

    assert caught.value.outcome is Outcome.NOT_SENT
    assert not caught.value.order_may_exist
    assert bank.funds.state == "released"


async def test_a_closed_client_refuses_new_calls(bank: Bank):
    async with serving(answers) as server:
        client = bank.client(server.url)
        await client.close()
        with pytest.raises(ClientClosed):
            await client.create_order(samples.new_order(), key=KEY)

    assert server.accepted == 0
    assert bank.funds.placed == []


async def test_many_calls_in_flight_all_end_when_the_client_closes(bank: Bank):
    async with serving(Connection.gone_after_request) as server:
        client = bank.client(server.url)
        calling = [begin(client, f"payment-{number}") for number in range(30)]
        await until(lambda: len(server.requests) == 30)
        await client.close(timeout=0)
        ended = await asyncio.gather(*calling, return_exceptions=True)

    assert {type(error) for error in ended} == {OutcomeUnknown}
    assert {error.outcome for error in ended} == {Outcome.UNKNOWN}
    assert bank.funds.released == []
    assert len(await bank.journal.in_doubt(server.url)) == 30


async def test_a_call_cut_off_when_its_connection_went_bad_is_not_sent_on_another(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    async with serving(answers) as server:
        client = bank.client(server.url)
        looks: list[object] = []

        async def bad_once(*connection: object) -> bool:
            looks.append(connection)
            if len(looks) == 1:  # cut off after the look, before the call has heard of it
                asyncio.get_running_loop().call_soon(cut_off)
            return len(looks) == 1

        def cut_off() -> None:
            for call in list(client._calls._calls.values()):
                call.cut_off()

        monkeypatch.setattr("transfer_async._http.write_guard._is_stale", bad_once)
        with pytest.raises(TransferError) as caught:
            await client.create_order(samples.new_order(), key=KEY)
        await client.close()

    assert caught.value.outcome is Outcome.NOT_SENT
    assert len(looks) == 1
    assert server.heads == []
    assert bank.funds.state == "released"


async def test_a_total_time_that_ends_while_nobody_waits_is_recorded_as_a_doubt(bank: Bank):
    limits = Timeouts(total=0.05)
    never = Connection.gone_after_request
    async with serving(never) as server, bank.client(server.url, timeouts=limits) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])

    assert await bank.state(server.url) == "in_doubt"
    assert attempts(bank.events) == 1
