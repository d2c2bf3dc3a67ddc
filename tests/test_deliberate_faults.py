"""Faults put in on purpose: were the pipeline so written, one of these checks would say so.

Each check holds for the code as it is, and must fail for its mutant.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import bank as banks
from tests.bank import World, new_order, owed_hooks, refused_order
from tests.simulation import mutants
from tests.simulation.mutants import Mutant
from transfer_async import KeyState, PersonName
from transfer_async.errors import OutcomeUnknown
from transfer_async.journal import base, moves, states
from transfer_async.sandbox import CloseAfterProcessing, StatusAfterProcessing, WrongTypes

Check = Callable[[World], Awaitable[None]]


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


async def what_was_verified_for_one_is_not_sent_to_another(world: World) -> None:
    check: Any = world.bank.step("verification")
    check.nothing_to_undo = True
    hooks = [check, world.bank.hold]
    await world.crash(moves.Mark, hooks=hooks, beneficiary=PersonName("Ben", "Okri"))
    world.time.pass_(60.0)
    async with world.client(hooks=hooks) as client:
        await client.create_order(new_order(), key="k", beneficiary=PersonName("Mallory", "Eze"))

    assert world.bank.log.count("verification") == 2


async def a_hold_of_the_banks_own_leaves_no_other_behind(world: World) -> None:
    await world.crash(moves.Mark)
    world.time.pass_(60.0)
    async with world.client() as client:
        await client.create_order(new_order(), key="k", held="H1")
        await client.recover()

    assert not world.bank.open


async def what_a_hook_did_that_is_gone_is_owed(world: World) -> None:
    await world.crash(moves.Mark, hooks=[world.bank.step("check"), world.bank.hold])
    world.time.pass_(60.0)
    async with world.client() as client:
        await client.create_order(new_order(), key="k")

    assert owed_hooks(await world.entry()) == ["check"]


async def a_key_of_today_is_never_forgotten(world: World) -> None:
    async with world.client() as client:
        await client.create_order(new_order(), key="k")
        world.time.pass_(3600.0)
        await client.prune(before=world.time.utc())
        await client.create_order(new_order(), key="k")

    assert len(world.sandbox.orders) == 1


# --- what somebody might write, beside what the simulation's mutants do --------------------------


def claim_without_looking(patch: pytest.MonkeyPatch) -> None:
    def taken(entry: Any, move: Any, now: float) -> Any:
        return moves.Verdict(now=now, entry=states._new_intent(move, now, owed=()))

    patch.setattr(states, "_claim", taken)


def believe_any_id(patch: pytest.MonkeyPatch) -> None:
    def unless_attempt(entry: Any, move: Any, now: float, id_taken: bool) -> Any:
        return None

    patch.setitem(states._DENIALS, moves.Create, unless_attempt)
    patch.setattr(states, "_is_answer", lambda _move: False)


def forget_whatever_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "KEPT", 0.0)


CAUGHT: list[tuple[Mutant, Check]] = [
    (mutants.undone_on_unknown, a_hold_is_kept_in_doubt),
    (mutants.undone_before_the_no_is_recorded, a_hold_is_released_only_when_the_no_is_on_record),
    (mutants.mark_after_send, nothing_is_sent_without_its_mark),
    (mutants.retry_after_a_lost_answer, an_order_without_an_answer_is_not_sent_again),
    (claim_without_looking, two_workers_with_one_key_create_one_order),
    (mutants.receipts_not_kept, a_receipt_outlives_its_worker),
    (mutants.take_over_what_was_sending, a_redelivery_never_sends_what_a_gone_worker_was_sending),
    (mutants.free_what_was_sending, a_request_of_a_gone_worker_is_never_sent_again),
    (mutants.told_before_it_is_settled, an_order_is_on_record_before_it_is_given_back),
    (mutants.checked_for_anybody, what_was_verified_for_one_is_not_sent_to_another),
    (mutants.hold_beside_the_banks_own, a_hold_of_the_banks_own_leaves_no_other_behind),
    (mutants.hooks_that_are_lacking_forgotten, what_a_hook_did_that_is_gone_is_owed),
    (believe_any_id, the_order_of_another_key_is_never_ours),
    (forget_whatever_is_asked_for, a_key_of_today_is_never_forgotten),
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
