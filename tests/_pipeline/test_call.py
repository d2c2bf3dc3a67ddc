import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.bank import NOON, Gate, World, failure, new_order, owed_hooks, refused_order, turns
from transfer_async import (
    NO_ORDER,
    ClientClosed,
    KeyState,
    MemoryJournal,
    Order,
    OrderIntent,
    OrderRequest,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    RateLimited,
    Refused,
    Refuted,
    RetryPolicy,
    TransferClient,
    TransferError,
)
from transfer_async.journal import transitions
from transfer_async.journal.model import Ending, Unread
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, Fault, Status


def ordering(client: TransferClient, **fields: Any) -> asyncio.Task[Order]:
    return asyncio.create_task(client.create_order(new_order(), **{"key": "k", **fields}))


# --- closing ------------------------------------------------------------------------------------


async def test_closing_refuses_new_calls_and_waits_for_calls_in_flight(world: World):
    client = world.made()
    call = await world.stalled(ordering(client))
    closing = asyncio.create_task(client.close())
    await turns(3)
    await failure(client.create_order(new_order(), key="other"), ClientClosed)
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


async def test_an_order_waiting_for_a_connection_at_close_was_not_sent(world: World):
    client = world.made(max_connections=1)
    first = await world.stalled(ordering(client))
    second = ordering(client, key="second")
    await turns(10)
    waiting = (await world.entry("second")).state
    await client.close(timeout=0)
    errors = await asyncio.gather(first, second, return_exceptions=True)

    assert [type(error) for error in errors] == [OutcomeUnknown, ClientClosed]
    entry = await world.entry("second")
    assert (waiting, entry.state) == (KeyState.SENDING, KeyState.FREE)
    assert entry.ending == Ending(outcome=Outcome.NOT_SENT, error="Cancelled")
    assert len(world.bank.open) == 1


async def test_close_finishes_a_write_in_progress_and_starts_nothing_more(world: World):
    gate = world.journal.before[transitions.MarkSending] = Gate()
    client = world.made()
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close(timeout=0))
    await turns(5)
    gate.open()
    await closing
    await failure(call, ClientClosed)

    assert gate.passed
    assert world.journal.kinds == ["Claim", "MarkSending", "Release", "MarkUndone"]
    assert not world.sandbox.requests
    assert not world.bank.open


@pytest.mark.parametrize("grace", [30.0, 0.0])
async def test_close_waits_for_an_undo_for_a_grace_period_and_does_not_interrupt_it(
    world: World, monkeypatch: pytest.MonkeyPatch, grace: float
):
    monkeypatch.setattr("transfer_async._client.CLOSING_GRACE", grace)
    gate = world.bank.on_release = Gate()
    client = world.made()
    call = await gate.catches(client.create_order(refused_order(), key="k"))
    closing = asyncio.create_task(client.close(timeout=0))
    if grace:
        await turns(5)
    else:
        await closing
    is_closed, undos = closing.done(), owed_hooks(await world.entry())
    gate.open()
    await failure(call, Refused)
    await closing

    assert (is_closed, undos) == (not grace, ["funds_hold"])
    assert not world.bank.open
    assert (await world.entry()).pending_undos == ()


async def test_a_client_may_be_closed_twice_even_concurrently(world: World):
    client = world.made()
    call = await world.stalled(ordering(client))
    await asyncio.gather(client.close(timeout=0), client.close(timeout=0))
    await client.close()
    await failure(call, OutcomeUnknown)

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
        await failure(client.create_order(refused_order(), key="n"))
        await turns(2)

        assert client._calls._calls == {}


async def test_a_hook_may_fetch_while_the_client_closes(world: World):
    gate = Gate()

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
    await failure(client.request("GET", "/sandbox/orders", safe=True), ClientClosed)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks before Python 3.12")
async def test_a_hook_of_an_eager_task_may_close_the_client(world: World):
    """Without this, the client does not wait for the call, and closes its own journal under it."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)

    async def close(_: OrderIntent) -> None:
        await client.close(timeout=0)

    client = world.made(hooks=[close, world.bank.hold])
    error = await failure(client.create_order(new_order(), key="k"), ClientClosed)

    assert (error.order_may_exist, world.bank.open) == (False, {})


async def test_a_cancelled_close_leaves_nothing_that_could_still_send(world: World):
    gate = world.time.on_sleep = Gate()
    world.sandbox.faults.add(Status(429))
    client = world.made()
    call = await gate.catches(ordering(client))
    closing = asyncio.create_task(client.close())
    await turns(3)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await failure(call, RateLimited)

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


def once(world: World, others: Callable[[World], Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
    """Return an undo, or a step of the journal, at whose first run another worker uses the key."""

    async def act(*_: object) -> None:
        world.bank.on_release = None
        world.journal.after.clear()
        await others(world)

    return act


async def creates(world: World) -> Order:
    return await world.create(held="h-2")


async def no_order(*_: object) -> Any:
    return NO_ORDER


async def breaks(_: object) -> None:
    raise RuntimeError


DEFINITE: dict[str, tuple[Fault | None, dict[str, Any]]] = {
    "Refused": (Status(422), {}),
    "Unauthorized": (Status(401), {}),
    "RateLimited": (Status(429), {"retry": RetryPolicy(attempts=1)}),
    "Refuted": (CloseAfterProcessing(), {"resolve": no_order, "settle_after": 0.0}),
    "HoldFailed": (None, {}),
    "Expired": (None, {"send_before": NOON + timedelta(seconds=1)}),
}
"""The fault and the settings that make a call end in the definite failure named by the key."""


OTHERS: dict[str, Callable[[World], Awaitable[Any]]] = {
    "creates": creates,
    "is_at_work": lambda world: world.crash(transitions.MarkSending, held="h-2"),
    "is_in_doubt": lambda world: world.in_doubt(held="h-2"),
    "is_refused": lambda world: world.fails(Refused, refused_order(), held="h-2"),
}


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
    """Without this, the bank releases its own hold after another worker created the order."""
    fault, settings = DEFINITE[kind]
    if fault is not None:
        world.sandbox.faults.add(fault)
    world.bank.on_placed = breaks if kind == "HoldFailed" else world.passing(2.0)
    world.bank.on_release = once(world, OTHERS[meanwhile])
    error = await world.fails(TransferError, **settings)

    assert (type(error).__name__, error.order_may_exist) == (kind, may_exist)


async def test_a_stale_journal_reply_is_not_reported_as_final(world: World):
    world.journal.after[transitions.Release] = once(world, creates)
    world.sandbox.faults.add(Status(422))

    assert (await world.fails(Refused, held="h-1")).order_may_exist


async def test_a_recorded_refusal_is_read_again_on_delivery(world: World):
    world.sandbox.faults.add(Status(422))
    errors = []
    async with world.client() as client:
        for _ in range(2):
            call = client.create_order(new_order(), key="k", held="h-1", once=True)
            errors.append(await failure(call, Refused))
            world.journal.after[Claim] = once(world, creates)

    assert [error.order_may_exist for error in errors] == [False, True]
    assert str(errors[1]).startswith("the service refused this order before; the order was not sent again")


async def test_a_recorded_refutation_is_read_again_on_delivery(world: World):
    await world.in_doubt(held="h-1")
    await world.refute()
    async with world.client() as client:
        call = client.create_order(new_order(), key="k", held="h-1", once=True)
        refuted = await failure(call, Refuted)

    assert str(refuted).startswith("the service refused this order before; the order was not sent again")
    assert not refuted.order_may_exist


async def test_a_recorded_refusal_of_a_hook_is_read_again_on_delivery(world: World):
    async def refuse(_: object) -> None:
        raise PreflightFailed("over the limit", refused=True)

    async with world.client(hooks=[refuse]) as client:
        for _ in range(2):
            call = client.create_order(new_order(), key="k", held="h-1", once=True)
            refused = await failure(call, PreflightFailed)

    assert str(refused).startswith("a hook refused this order before; the hook was not called again")
    assert refused.refused


async def test_a_call_ended_by_close_reports_the_final_state(world: World):
    entered = world.bank.on_place = Gate()
    world.bank.on_release = once(world, creates)
    client = world.made()
    call = await entered.catches(ordering(client))
    await client.close(timeout=0)

    assert (await failure(call, ClientClosed)).order_may_exist


@pytest.mark.parametrize("key", [None, "k"], ids=["generated", "given"])
async def test_only_a_pruned_key_that_the_client_generated_is_known_to_be_free(world: World, key: str | None):
    async def prune() -> None:
        world.journal.journal._entries.clear()

    world.meanwhile(transitions.MarkUndone, prune)

    assert (await world.fails(Refused, refused_order(), key=key)).order_may_exist is (key is not None)


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

    assert (await world.fails(Refused, refused_order())).order_may_exist


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_waiting_result_is_up_to_date_when_it_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch, is_read: bool
):
    """Another worker creates the second order while the bank stores the first result."""

    async def fails(*_: object) -> None:
        raise OSError("disk gone")

    requests = [OrderRequest(refused_order(), key=key, held="h-1") for key in ("k", "l")]
    async with world.client() as client, aclosing(client.create_orders(requests)) as results:
        first = await anext(results)
        waiting = "l" if first.request.key == "k" else "k"
        while getattr(await world.known(waiting), "ending", None) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await turns(20)
        await world.create(key=waiting, held="h-2")
        if not is_read:
            monkeypatch.setattr(world.journal, "read", fails)
        second = await anext(results)

    assert (first.error.order_may_exist, second.error.order_may_exist) == (False, True)
