"""Faults put in on purpose: were the pipeline so written, one of these checks would say so.

Each check holds for the code as it is, and must fail for its mutant.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from tests import bank as banks
from tests.bank import World, new_order, refused_order
from transfer_async import KeyState, answers, create_order, sending
from transfer_async.errors import OutcomeUnknown
from transfer_async.journal import moves, states
from transfer_async.sandbox import CloseAfterProcessing, StatusAfterProcessing, WrongTypes

Check = Callable[[World], Awaitable[None]]
Mutant = Callable[[pytest.MonkeyPatch], None]


# --- what must hold -----------------------------------------------------------------------------


async def a_hold_is_kept_in_doubt(world: World) -> None:
    world.sandbox.faults.add(CloseAfterProcessing())
    async with world.client() as client:
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert world.bank.open


async def a_hold_is_released_only_when_the_no_is_on_record(world: World) -> None:
    seen: list[KeyState] = []

    async def look(_: object) -> None:
        seen.append((await world.entry()).state)

    world.bank.on_release = look
    async with world.client() as client:
        await asyncio.gather(client.create_order(refused_order(), key="k"), return_exceptions=True)

    assert seen == [KeyState.FREE]


async def nothing_is_sent_without_its_mark(world: World) -> None:
    world.journal.fail_on = moves.Mark
    async with world.client() as client:
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert not world.sandbox.requests


async def an_order_without_an_answer_is_not_sent_again(world: World) -> None:
    world.sandbox.faults.add(CloseAfterProcessing())
    world.sandbox.faults.add(StatusAfterProcessing(503))
    async with world.client() as client:
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert len(world.sandbox.orders) == 1


async def two_workers_with_one_key_create_one_order(world: World) -> None:
    async with world.client() as client, world.client() as other:
        calls = (one.create_order(new_order(), key="k") for one in (client, other))
        await asyncio.gather(*calls, return_exceptions=True)

    assert len(world.sandbox.orders) == 1


async def a_receipt_outlives_its_worker(world: World) -> None:
    hooks = [world.bank.step("check"), world.bank.hold]
    await world.crash(moves.Mark, hooks=hooks)
    world.time.pass_(60.0)
    async with world.client(hooks=hooks) as client:
        await client.create_order(new_order(), key="k")

    assert world.bank.log.count("check") == 1


async def a_request_of_a_gone_worker_is_never_sent_again(world: World) -> None:
    await world.crash(moves.Create)
    world.time.pass_(10_000.0)
    async with world.client() as client:
        await client.recover()
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert len(world.sandbox.orders) == 1
    assert world.bank.open


async def a_redelivery_never_sends_what_a_gone_worker_was_sending(world: World) -> None:
    await world.crash(moves.Create)
    world.time.pass_(120.0)
    async with world.client() as client:
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert len(world.sandbox.orders) == 1


async def an_order_is_on_record_before_it_is_given_back(world: World) -> None:
    world.journal.fail_on = moves.Create
    async with world.client() as client:
        (result,) = await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert isinstance(result, Exception)


async def the_order_of_another_key_is_never_ours(world: World) -> None:
    async with world.client() as client:
        first = await client.create_order(new_order(), key="first")
        world.sandbox.faults.add(WrongTypes({"id": first.id}))
        (result,) = await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    assert isinstance(result, OutcomeUnknown)


# --- what somebody might write ------------------------------------------------------------------


def undo_after_unknown(patch: pytest.MonkeyPatch) -> None:
    went_in_doubt = create_order._went_in_doubt

    async def undoing(context: Any, call: Any, doubt: Any) -> Any:
        await create_order.undo(context, call, create_order.what_is_owed(context, call))
        return await went_in_doubt(context, call, doubt)

    patch.setattr(create_order, "_went_in_doubt", undoing)


def release_before_settle(patch: pytest.MonkeyPatch) -> None:
    certain_no = create_order._certain_no

    async def hasty(context: Any, call: Any, no: Any) -> None:
        await create_order.undo(context, call, create_order.what_is_owed(context, call))
        await certain_no(context, call, no)

    patch.setattr(create_order, "_certain_no", hasty)


def mark_after_send(patch: pytest.MonkeyPatch) -> None:
    mark, send = create_order._mark_sending, create_order.send

    async def send_first(context: Any, call: Any) -> Any:
        answer = await send(context, call)
        await mark(context, call)
        return answer

    async def not_yet(context: Any, call: Any) -> None:
        call.deadline = context.clock.now() + 30.0

    patch.setattr(create_order, "_mark_sending", not_yet)
    patch.setattr(create_order, "send", send_first)


def retry_after_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    again = answers.MAY_GO_AGAIN | {answers.Verdict.UNKNOWN}

    def may(context: Any, call: Any, error: Any) -> bool:
        return call.judgement in again

    patch.setattr(sending, "_may_go_again", may)


def claim_without_looking(patch: pytest.MonkeyPatch) -> None:
    def taken(entry: Any, move: Any, now: float) -> Any:
        return moves.Verdict(now=now, entry=states._new_intent(move, now, owed=()))

    patch.setattr(states, "_claim", taken)


def forget_receipts(patch: pytest.MonkeyPatch) -> None:
    def kept(entry: Any, move: Any, now: float) -> Any:
        return attrs.evolve(entry, lease_until=now + move.lease)

    patch.setitem(states._MADE, moves.Keep, kept)


def take_over_what_was_sending(patch: pytest.MonkeyPatch) -> None:
    claim = states._claim

    def taken(entry: Any, move: Any, now: float) -> Any:
        if entry is not None and entry.state is KeyState.SENDING and entry.lease_until <= now:
            entry = attrs.evolve(entry, state=KeyState.CLAIMED)
        return claim(entry, move, now)

    patch.setattr(states, "_claim", taken)


def free_what_was_sending(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(states._TO, (moves.Expire, KeyState.SENDING), KeyState.FREE)


def give_back_what_could_not_be_recorded(patch: pytest.MonkeyPatch) -> None:
    settle = create_order._settle

    async def settled(context: Any, call: Any, order: Any, reply: Any) -> Any:
        try:
            return await settle(context, call, order, reply)
        except create_order.JournalFailed:
            return order

    patch.setattr(create_order, "_settle", settled)


def believe_any_id(patch: pytest.MonkeyPatch) -> None:
    def unless_attempt(entry: Any, move: Any, now: float, id_taken: bool) -> Any:
        return None

    patch.setitem(states._DENIALS, moves.Create, unless_attempt)
    patch.setattr(states, "_is_answer", lambda _move: False)


CAUGHT: list[tuple[Mutant, Check]] = [
    (undo_after_unknown, a_hold_is_kept_in_doubt),
    (release_before_settle, a_hold_is_released_only_when_the_no_is_on_record),
    (mark_after_send, nothing_is_sent_without_its_mark),
    (retry_after_a_lost_answer, an_order_without_an_answer_is_not_sent_again),
    (claim_without_looking, two_workers_with_one_key_create_one_order),
    (forget_receipts, a_receipt_outlives_its_worker),
    (take_over_what_was_sending, a_redelivery_never_sends_what_a_gone_worker_was_sending),
    (free_what_was_sending, a_request_of_a_gone_worker_is_never_sent_again),
    (give_back_what_could_not_be_recorded, an_order_is_on_record_before_it_is_given_back),
    (believe_any_id, the_order_of_another_key_is_never_ours),
]


@pytest.mark.parametrize(
    "check", dict.fromkeys(check for _, check in CAUGHT), ids=lambda check: check.__name__
)
async def test_the_code_as_it_is_passes(check: Check):
    async with banks.world() as world:
        await check(world)


@pytest.mark.parametrize(("mutant", "check"), CAUGHT, ids=lambda one: one.__name__)
async def test_a_deliberate_fault_is_caught(mutant: Mutant, check: Check, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    async with banks.world() as world:
        with pytest.raises(AssertionError):
            await check(world)
