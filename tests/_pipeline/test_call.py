import asyncio
from typing import Any

import attrs
import pytest

from tests._pipeline.waiting import ENDINGS, waiting_at
from tests.support.bank import Gate, World, failure, new_order, refused_order, turns
from transfer_async import (
    ClientClosed,
    KeyState,
    MemoryJournal,
    Order,
    OrderIntent,
    OutcomeUnknown,
    RateLimited,
    Refused,
    TransferClient,
)
from transfer_async.journal import moves
from transfer_async.journal.entries import Ending
from transfer_async.sandbox import Status


def ordering(client: TransferClient, **fields: Any) -> asyncio.Task[Order]:
    return asyncio.create_task(client.create_order(new_order(), **{"key": "k", **fields}))


# --- closing ------------------------------------------------------------------------------------


async def test_closing_refuses_new_calls_at_once_and_waits_for_what_is_in_flight(world: World):
    client = world.made()
    call = await world.stalled(ordering(client))
    closing = asyncio.create_task(client.close())
    await turns(3)
    with pytest.raises(ClientClosed):
        await client.create_order(new_order(), key="other")
    waiting = closing.done(), call.done()
    world.sandbox.faults.release()
    order = await call
    await closing

    assert waiting == (False, False)
    assert [*world.sandbox.orders] == [order.id]


async def test_what_is_on_the_way_at_the_end_is_cut_off_into_doubt_and_its_caller_hears_of_the_doubt(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    let_go, when_let_go = TransferClient._let_go, []

    async def note(client: TransferClient) -> None:
        when_let_go.append((await world.entry()).state)
        await let_go(client)

    monkeypatch.setattr(TransferClient, "_let_go", note)
    client = world.made()
    call = await world.stalled(ordering(client))
    await client.close(timeout=0)
    doubt = await failure(call, OutcomeUnknown)

    assert (doubt.key, doubt.order_may_exist) == ("k", True)
    assert when_let_go == [KeyState.IN_DOUBT]  # before the connections and the journal are closed
    assert world.bank.open
    assert call.cancelling() == 0


@pytest.mark.parametrize(("where", "ending"), ENDINGS.items(), ids=ENDINGS)
async def test_what_is_waited_for_at_the_end_is_given_up_and_the_caller_hears_what_is_true(
    world: World, where: str, ending: Ending | None
):
    gate = Gate()
    client = await waiting_at(world, gate, where)
    call = await gate.catches(ordering(client))
    await client.close(timeout=0)
    error = await failure(call)
    gate.open()
    await turns(3)

    entry = await world.entry()
    told = "OutcomeUnknown" if ending is None else ending.error.replace("Cancelled", "ClientClosed")
    assert (type(error).__name__, error.key, error.order_may_exist) == (told, "k", ending is None)
    assert told != "ClientClosed" or error.__cause__ is None
    assert (entry.state, entry.ending) == (KeyState.FREE if ending else KeyState.IN_DOUBT, ending)
    assert bool(world.bank.open) is (ending is None)
    assert len(world.sandbox.requests) == (ending is None or ending.status is not None)


async def test_what_waits_for_a_connection_at_the_end_was_not_sent(world: World):
    client = world.made(max_connections=1)
    first = await world.stalled(ordering(client))
    second = ordering(client, key="second")
    await turns(10)
    assert (await world.entry("second")).state is KeyState.SENDING
    await client.close(timeout=0)
    errors = await asyncio.gather(first, second, return_exceptions=True)

    assert [type(error) for error in errors] == [OutcomeUnknown, ClientClosed]
    assert (await world.entry("second")).state is KeyState.FREE
    assert len(world.bank.open) == 1


async def test_a_write_in_progress_at_the_end_is_finished_and_nothing_is_begun_after_it(world: World):
    gate = Gate()
    world.journal.before[moves.Mark] = gate
    client = world.made()
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close(timeout=0))
    await turns(5)
    gate.open()
    await closing
    with pytest.raises(ClientClosed):
        await call

    assert gate.passed
    assert world.journal.kinds == ["Claim", "Mark", "Free", "Paid"]
    assert not world.sandbox.requests
    assert not world.bank.open


async def test_an_undo_in_progress_at_the_end_is_not_cut_off(world: World):
    gate = Gate()
    world.bank.on_release = gate
    client = world.made()
    call = await gate.catches(client.create_order(refused_order(), key="k"))
    closing = asyncio.create_task(client.close(timeout=0))
    await turns(5)
    gate.open()
    await closing
    with pytest.raises(Refused):
        await call

    assert not world.bank.open
    assert (await world.entry()).owed == ()


async def test_closing_does_not_wait_for_ever_for_what_cannot_be_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transfer_async._client.CLOSING_GRACE", 0.0)
    gate = Gate()
    world.bank.on_release = gate
    client = world.made()
    call = await gate.catches(client.create_order(refused_order(), key="k"))
    await client.close(timeout=0)
    still_owed = (await world.entry()).owed
    gate.open()
    with pytest.raises(Refused):
        await call

    assert [owed.hook for owed in still_owed] == ["funds_hold"]
    assert not world.bank.open


async def test_a_client_may_be_closed_twice_also_at_the_same_time(world: World):
    client = world.made()
    call = await world.stalled(ordering(client))
    await asyncio.gather(client.close(timeout=0), client.close(timeout=0))
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await call

    assert (await world.entry()).state is KeyState.IN_DOUBT


async def test_a_journal_that_was_given_is_not_closed_and_one_of_its_own_is(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    closed: list[MemoryJournal] = []

    async def close(journal: MemoryJournal) -> None:
        closed.append(journal)

    monkeypatch.setattr(MemoryJournal, "close", close)
    async with world.client():
        pass
    given = len(closed), world.journal.closed
    async with world.client(journal=None) as client:
        pass

    assert given == (0, 0)
    assert closed == [client._context.journal.store]


# --- carrying -----------------------------------------------------------------------------------


async def test_a_call_that_has_ended_is_forgotten(world: World):
    async with world.client() as client:
        await client.create_order(new_order(), key="k")
        await asyncio.gather(client.create_order(refused_order(), key="n"), return_exceptions=True)
        await turns(2)

        assert len(client._calls) == 0


async def test_a_hook_may_look_something_up_while_the_client_closes(world: World):
    gate, client = Gate(), None

    async def look_up(intent: OrderIntent) -> None:
        await gate()
        await client.request("GET", "/sandbox/orders", safe=True)

    client = world.made(hooks=[look_up, world.bank.hold])
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close())
    await turns(5)
    gate.open()
    await closing

    assert (await call).id in world.sandbox.orders
    with pytest.raises(ClientClosed):
        await client.request("GET", "/sandbox/orders", safe=True)


async def test_a_close_that_is_cancelled_leaves_nothing_that_could_still_send(world: World):
    gate = Gate()
    world.sandbox.faults.add(Status(429))
    client = world.made(clock=attrs.evolve(world.time.clock, sleep=lambda _: gate()))
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close())
    await turns(3)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(RateLimited):
        await call

    assert len(world.sandbox.requests) == 1
    assert not client._context.transport.is_open


@pytest.mark.parametrize("after", range(1, 9))
async def test_whoever_is_cancelled_while_it_closes_leaves_no_session_open(world: World, after: int):
    client = world.made()
    await client.create_order(new_order(), key="k")
    await client.who_am_i()
    transport: Any = client._context.transport
    sessions = [transport._orders, transport._others]
    closing = asyncio.create_task(client.close())
    await turns(after)
    closing.cancel()
    await asyncio.wait([closing])
    await client.close()

    assert [one.closed for one in sessions] == [True, True]
