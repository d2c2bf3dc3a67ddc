"""A call that is cancelled or closed in flight ends at once, and what is certain is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import samples
from tests.support.bank import turns
from tests.support.loop_time import LoopTime
from transfer_async import Timeouts, TransferClient
from transfer_async._models.errors import Outcome, TransferError
from transfer_async._models.events import AttemptStarted

from .parties import KEY, Bank
from .servers import Connection, answers, http, order_reply, serving


def begin(client: TransferClient) -> asyncio.Task[Any]:
    """Start one order and return its task."""
    return asyncio.create_task(client.create_order(samples.new_order(), key=KEY))


# --- the caller is cancelled --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "state", "funds"),
    [
        pytest.param(order_reply, "created", "kept", id="the order"),
        pytest.param(lambda _: b"", "in_doubt", "kept", id="nothing"),
        *(
            pytest.param(lambda _, status=status: http(status, b"{}"), "free", "released", id=f"{status}")
            for status in (422, 425, 429)
        ),
    ],
)
async def test_a_cancelled_caller_returns_at_once_and_a_later_response_is_recorded(
    bank: Bank, answer: Callable[[Any], bytes], state: str, funds: str
):
    may_answer = asyncio.Event()

    async def answer_late(connection: Connection) -> None:
        request = await connection.request()
        await may_answer.wait()
        connection.send(answer(request))

    async with serving(answer_late) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])  # the call ends before there is a response
        may_answer.set()

    assert calling.cancelled()
    assert await bank.state(server.url) == state
    assert bank.funds.state == funds
    assert len(server.requests) == 1
    assert [type(event) for event in bank.events].count(AttemptStarted) == 1
    assert bank.pauses == []


async def test_a_timeout_after_the_caller_was_cancelled_is_recorded_as_a_doubt(
    bank: Bank, loop_time: LoopTime
):
    never = Connection.gone_after_request
    async with serving(never) as server, bank.client(server.url) as client:
        calling = begin(client)
        await server.got_request.wait()
        calling.cancel()
        await asyncio.wait([calling])
        await loop_time.pass_(Timeouts().total)

    assert calling.cancelled()
    assert await bank.state(server.url) == "in_doubt"
    assert bank.funds.state == "kept"
    assert [type(event) for event in bank.events].count(AttemptStarted) == 1


@pytest.mark.parametrize("turn", range(0, 40, 3))
async def test_a_caller_cancelled_at_any_turn_leaves_journal_hold_and_service_in_agreement(
    bank: Bank, turn: int
):
    async with serving(answers) as server:
        async with bank.client(server.url) as client:
            calling = begin(client)
            await turns(turn)
            calling.cancel()
            await asyncio.wait([calling])
        state = await bank.state(server.url)

    result = (state, len(server.requests), len(bank.funds.placed), len(bank.funds.released))
    assert result in [("unheard of", 0, 0, 0), ("free", 0, 0, 0), ("free", 0, 1, 1), ("created", 1, 1, 0)]


# --- the client is closed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begun", "outcome", "state"),
    [
        pytest.param(
            lambda request: order_reply(request)[:4000], Outcome.UNKNOWN, "in_doubt", id="the order"
        ),
        pytest.param(lambda _: http(422, b"x" * 1000)[:-500], Outcome.REFUSED, "free", id="422"),
    ],
)
async def test_only_a_refusal_counts_if_its_response_is_cut_off_by_the_grace_period(
    bank: Bank, begun: Callable[[Any], bytes], outcome: Outcome, state: str
):
    reading = asyncio.Event()

    async def begin_to_answer(connection: Connection) -> None:
        connection.send(begun(await connection.request()))
        reading.set()
        await connection.gone()

    async with serving(begin_to_answer) as server:
        client = bank.client(server.url)
        calling = begin(client)
        await reading.wait()
        await turns(20)
        await client.close(timeout=0)
        with pytest.raises(TransferError) as caught:
            await calling

    assert caught.value.outcome is outcome
    assert caught.value.status in (200, 422)
    assert await bank.state(server.url) == state
    assert bank.funds.state == ("released" if state == "free" else "kept")


async def test_a_call_still_connecting_when_the_grace_period_ends_was_never_sent(bank: Bank):
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


async def test_a_call_cut_off_when_its_connection_went_bad_is_not_sent_on_another(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    async with serving(answers) as server:
        client = bank.client(server.url)
        looks: list[object] = []

        async def bad_once(*connection: object) -> bool:
            looks.append(connection)
            if len(looks) == 1:  # interrupt after the check, before the call gets its result
                asyncio.get_running_loop().call_soon(client._calls.cut_off)
            return len(looks) == 1

        monkeypatch.setattr("transfer_async._http.write_guard._is_stale", bad_once)
        with pytest.raises(TransferError) as caught:
            await client.create_order(samples.new_order(), key=KEY)
        await client.close()

    assert caught.value.outcome is Outcome.NOT_SENT
    assert len(looks) == 1
    assert server.heads == []
    assert bank.funds.state == "released"
