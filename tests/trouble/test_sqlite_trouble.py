"""The journal's file in trouble at every step of a call: nothing is sent unmarked, nothing is forgotten."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import World, new_order
from tests.trouble.sqlite_troubles import TROUBLES
from tests.trouble.storm import AFTER_THE_REQUEST, BEFORE_THE_REQUEST, Trouble, stormy_world, struck
from transfer_async import KeyState, Outcome, OutcomeUnknown, SQLiteJournal
from transfer_async.journal import moves
from transfer_async.journal.claim import Claim


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    def make(world: World) -> SQLiteJournal:
        # It waits only for a lock that is not given back meanwhile: any limit runs out.
        return SQLiteJournal(tmp_path / "journal.db", timeout=0.1, clock=world.time.clock)

    async with stormy_world(make) as world:
        yield world


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Trouble:
    return TROUBLES[request.param](world.journal.journal, tmp_path / "journal.db")


async def test_the_trouble_is_a_real_one(world: World, trouble: Any):
    call = await struck(world, trouble, moves.Mark)

    assert isinstance(call.error.__cause__, sqlite3.Error)
    assert call.error.__cause__.sqlite_errorname.startswith(trouble.error)


@pytest.mark.parametrize("at", BEFORE_THE_REQUEST)
async def test_nothing_is_sent_that_could_not_be_marked(world: World, trouble: Trouble, at: type):
    call = await struck(world, trouble, at)

    assert (call.error.outcome, call.error.order_may_exist) == (Outcome.NOT_SENT, True)
    assert call.requests == 0


async def test_no_funds_are_held_for_a_key_that_could_not_be_claimed(world: World, trouble: Trouble):
    await struck(world, trouble, Claim)

    assert world.bank.open == {}
    assert await world.known() is None


async def test_the_hold_of_what_could_not_be_marked_stays_until_the_lease_is_over(
    world: World, trouble: Trouble
):
    call = await struck(world, trouble, moves.Mark)
    held = len(world.bank.open)
    await call.recover()

    assert held == 1
    assert (world.bank.open, (await world.entry()).state) == ({}, KeyState.FREE)


async def test_an_order_that_could_not_be_recorded_is_on_the_error(world: World, trouble: Trouble):
    call = await struck(world, trouble, moves.Create)

    assert (call.error.outcome, call.error.order_may_exist) == (Outcome.CREATED, True)
    assert call.error.order.id in world.sandbox.orders


@pytest.mark.parametrize(
    ("at", "certain"), [(moves.GoInDoubt, Outcome.UNKNOWN), (moves.Free, Outcome.REFUSED)]
)
async def test_what_is_certain_is_said_even_if_it_could_not_be_recorded(
    world: World, trouble: Trouble, at: type, certain: Outcome
):
    call = await struck(world, trouble, at)

    assert (call.error.outcome, call.error.order_may_exist) == (certain, True)
    assert call.requests == 1


@pytest.mark.parametrize("at", AFTER_THE_REQUEST)
async def test_what_was_sent_is_in_doubt_afterwards_and_its_hold_stays(
    world: World, trouble: Trouble, at: type
):
    call = await struck(world, trouble, at)
    await call.recover()

    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert len(world.bank.open) == 1


@pytest.mark.parametrize("at", AFTER_THE_REQUEST)
async def test_what_was_sent_is_not_sent_again(world: World, trouble: Trouble, at: type):
    call = await struck(world, trouble, at)
    world.time.pass_(10_000.0)
    order = world.bank.intents[-1].order
    async with world.client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.create_order(order, key="k")

    assert call.requests == 1
    assert len(world.sandbox.requests) == 2


async def test_what_was_recorded_before_is_there_afterwards(world: World, trouble: Trouble):
    await struck(world, trouble, moves.Create)
    async with world.client() as client:
        order = await client.create_order(new_order(), key="an earlier one")

    assert order.id in world.sandbox.orders
    assert len(world.sandbox.requests) == 2
