import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from tests._pipeline.waiting import ENDINGS, waiting_at
from tests.support.bank import Gate, World, failure, new_order, refused_order, turns
from transfer_async import (
    NO_ORDER,
    ClientClosed,
    KeyState,
    MemoryJournal,
    Order,
    OrderIntent,
    OrderRequest,
    OutcomeUnknown,
    RateLimited,
    Refused,
    RetryPolicy,
    TransferClient,
)
from transfer_async.journal import transitions
from transfer_async.journal.model import Ending, Unread
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, Status


def ordering(client: TransferClient, **fields: Any) -> asyncio.Task[Order]:
    return asyncio.create_task(client.create_order(new_order(), **{"key": "k", **fields}))


# --- closing ------------------------------------------------------------------------------------


async def test_closing_refuses_new_calls_and_waits_for_calls_in_flight(world: World):
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


async def test_a_request_cut_off_by_close_is_in_doubt_and_its_caller_gets_the_doubt(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    close, when_closed = TransferClient._close_connections, []

    async def note(client: TransferClient) -> None:
        when_closed.append((await world.entry()).state)
        await close(client)

    monkeypatch.setattr(TransferClient, "_close_connections", note)
    client = world.made()
    call = await world.stalled(ordering(client))
    await client.close(timeout=0)
    doubt = await failure(call, OutcomeUnknown)

    assert (doubt.key, doubt.order_may_exist) == ("k", True)
    # The client's pending work ends before its connections and journal are closed.
    assert when_closed == [KeyState.IN_DOUBT]
    assert world.bank.open
    assert call.cancelling() == 0


@pytest.mark.parametrize(("where", "ending"), ENDINGS.items(), ids=ENDINGS)
async def test_a_wait_cut_off_by_close_raises_the_recorded_outcome(
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


async def test_an_order_waiting_for_a_connection_at_close_was_not_sent(world: World):
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


async def test_close_finishes_a_write_in_progress_and_starts_nothing_more(world: World):
    gate = Gate()
    world.journal.before[transitions.MarkSending] = gate
    client = world.made()
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close(timeout=0))
    await turns(5)
    gate.open()
    await closing
    with pytest.raises(ClientClosed):
        await call

    assert gate.passed
    assert world.journal.kinds == ["Claim", "MarkSending", "Release", "MarkUndone"]
    assert not world.sandbox.requests
    assert not world.bank.open


async def test_close_does_not_interrupt_an_undo(world: World):
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
    assert (await world.entry()).pending_undos == ()


async def test_closing_does_not_wait_forever_for_work_that_cannot_be_interrupted(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transfer_async._client.CLOSING_GRACE", 0.0)
    gate = Gate()
    world.bank.on_release = gate
    client = world.made()
    call = await gate.catches(client.create_order(refused_order(), key="k"))
    await client.close(timeout=0)
    undos_pending = (await world.entry()).pending_undos
    gate.open()
    with pytest.raises(Refused):
        await call

    assert [owed.hook for owed in undos_pending] == ["funds_hold"]
    assert not world.bank.open


async def test_a_client_may_be_closed_twice_even_concurrently(world: World):
    client = world.made()
    call = await world.stalled(ordering(client))
    await asyncio.gather(client.close(timeout=0), client.close(timeout=0))
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await call

    assert (await world.entry()).state is KeyState.IN_DOUBT


async def test_a_client_closes_its_own_journal_but_not_a_given_one(
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


async def test_a_finished_call_is_no_longer_tracked(world: World):
    async with world.client() as client:
        await client.create_order(new_order(), key="k")
        await asyncio.gather(client.create_order(refused_order(), key="n"), return_exceptions=True)
        await turns(2)

        assert client._calls._calls == {}


async def test_a_hook_may_fetch_while_the_client_closes(world: World):
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


async def test_a_cancelled_close_leaves_nothing_that_could_still_send(world: World):
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
async def test_a_cancelled_close_leaves_no_session_open(world: World, after: int):
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


# --- order_may_exist, as it is when the error is delivered ----------------------------------------


class Other:
    """Simulates another worker that uses the same key once while a call is delayed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.order: Order | None = None

    async def creates(self, *_: object) -> None:
        if self.order is None:
            self.order = await self.world.create(held="h-2")

    async def is_at_work(self, *_: object) -> None:
        self.world.bank.on_release = None
        await self.world.crash(transitions.MarkSending, held="h-2")

    async def is_in_doubt(self, *_: object) -> None:
        self.world.bank.on_release = None
        await self.world.in_doubt(held="h-2")

    async def is_refused(self, *_: object) -> None:
        self.world.bank.on_release = None
        await self.world.fails(Refused, refused_order(), held="h-2")


class Slow:
    """A hook that takes longer than the quote is valid."""

    name = "slow"

    def __init__(self, world: World) -> None:
        self.world = world

    async def before(self, _: OrderIntent) -> None:
        self.world.bank.on_placed = self.world.passing(2.0)

    async def undo(self, *_: object) -> None:
        pass


def _answers(answer: Any) -> Callable[..., Any]:
    async def function(*_: object) -> Any:
        return answer

    return function


def _raises(error: Exception) -> Callable[..., Any]:
    async def function(*_: object) -> Any:
        raise error

    return function


DEFINITE: dict[str, Callable[[World], dict[str, Any]]] = {
    "Refused": lambda world: {"fault": Status(422)},
    "Unauthorized": lambda world: {"fault": Status(401)},
    "RateLimited": lambda world: {"fault": Status(429), "retry": RetryPolicy(attempts=1)},
    "Refuted": lambda world: {
        "fault": CloseAfterProcessing(),
        "resolve": _answers(NO_ORDER),
        "settle_after": 0.0,
    },
    "HoldFailed": lambda world: {"broken": True},
    "Expired": lambda world: {
        "hooks": [Slow(world), world.bank.hold],
        "send_before": world.time.clock.utc() + timedelta(seconds=1),
    },
}
"""Settings that make a call end in the definite failure named by the key."""


@pytest.mark.parametrize(
    ("meanwhile", "may_exist", "kind"),
    [
        *[("creates", True, kind) for kind in DEFINITE],
        ("is_at_work", True, "Refused"),
        ("is_in_doubt", True, "Refused"),
        ("is_refused", False, "Refused"),
    ],
)
async def test_a_hold_is_never_released_for_a_key_taken_by_others_during_the_undos(
    world: World, kind: str, meanwhile: str, may_exist: bool
):
    """Without this, the bank is told to release its own hold after another worker created the order."""
    settings = DEFINITE[kind](world)
    if fault := settings.pop("fault", None):
        world.sandbox.faults.add(fault)
    if settings.pop("broken", False):
        world.bank.on_placed = _raises(RuntimeError())
    world.bank.on_release = getattr(Other(world), meanwhile)
    async with world.client(**{n: v for n, v in settings.items() if n != "send_before"}) as client:
        limit = settings.get("send_before")
        error = await failure(client.create_order(new_order(), key="k", send_before=limit))

    assert (type(error).__name__, error.order_may_exist) == (kind, may_exist)


async def test_a_stale_journal_reply_is_not_reported_as_final(world: World):
    world.journal.after[transitions.Release] = Other(world).creates
    world.sandbox.faults.add(Status(422))
    error = await world.fails(Refused, held="h-1")

    assert error.order_may_exist


async def test_a_recorded_refusal_is_read_again_on_delivery(world: World):
    other = Other(world)
    world.sandbox.faults.add(Status(422))
    async with world.client() as client:
        first = await failure(client.create_order(new_order(), key="k", held="h-1", once=True), Refused)

        async def creates(*_: object) -> None:
            world.journal.after.clear()
            await other.creates()

        world.journal.after[Claim] = creates
        again = await failure(client.create_order(new_order(), key="k", held="h-1", once=True), Refused)

    assert (first.order_may_exist, again.order_may_exist) == (False, True)


async def test_a_call_ended_by_close_reports_the_final_state(world: World):
    entered = Gate()
    world.bank.on_place = entered
    world.bank.on_release = Other(world).creates
    client = world.made()
    call = await entered.catches(ordering(client))
    await client.close(timeout=0)
    closed = await failure(call, ClientClosed)

    assert closed.order_may_exist


@pytest.mark.parametrize("reading", [OSError("disk gone"), asyncio.CancelledError()])
async def test_a_key_that_cannot_be_read_at_close_may_have_an_order(
    world: World, monkeypatch: pytest.MonkeyPatch, reading: BaseException
):
    async def read(*_: object) -> Any:
        raise reading

    async with world.client() as client:
        monkeypatch.setattr(world.journal, "read", read)
        error = await failure(client.create_order(refused_order(), key="k"), Refused)

        monkeypatch.undo()
        assert error.order_may_exist
        assert world.bank.open  # a late sender may have reported an order, so the undo stays pending

        world.time.pass_(60.0)
        await client.recover()
    assert not world.bank.open


async def test_a_key_with_a_corrupt_record_may_have_an_order(world: World, monkeypatch: pytest.MonkeyPatch):
    read = world.journal.read

    async def damaged(scope: str, key: str) -> Any:
        entry = await read(scope, key)
        unread = Unread(why="", kept="", hooks=(), earlier_hooks=())
        return None if entry is None else replace(entry, unread=unread)

    monkeypatch.setattr(world.journal, "read", damaged)
    error = await world.fails(Refused, refused_order())

    assert error.order_may_exist


async def test_a_waiting_result_is_up_to_date_when_it_is_taken(world: World):
    """Another worker creates the second order while the bank stores the first result."""
    requests = [OrderRequest(refused_order(), key=key, held="h-1") for key in ("k", "l")]
    async with world.client() as client, aclosing(client.create_orders(requests)) as results:
        first = await anext(results)
        while len(world.sandbox.requests) < 2:  # noqa: ASYNC110 - both are refused, and one of them waits
            await asyncio.sleep(0)
        waiting = "l" if first.request.key == "k" else "k"
        while (await world.entry(waiting)).state is not KeyState.FREE:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await turns(20)
        await world.create(key=waiting, held="h-2")
        second = await anext(results)

    assert (first.error.order_may_exist, second.error.order_may_exist) == (False, True)
