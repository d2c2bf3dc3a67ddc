"""A journal that fails at any step of a call: nothing is sent without a mark, and nothing is lost."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import postgres_troubles, sqlite_troubles
from tests.chaos.storm import BEFORE_THE_REQUEST, Trouble, stormy_world, struck
from tests.support.bank import World, new_order
from tests.support.trials import mostly_in_trials
from transfer_async import KeyState, Outcome, OutcomeUnknown, SQLiteJournal
from transfer_async.journal import transitions
from transfer_async.journal.transitions import Claim

OF_A_FILE, OF_A_DATABASE = sqlite_troubles.TROUBLES, postgres_troubles.TROUBLES


@pytest.fixture(
    params=mostly_in_trials([*OF_A_FILE, *OF_A_DATABASE], often={*OF_A_FILE, *OF_A_DATABASE} - {"stopped"})
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Any:
    """Return the path of the file, or the address of the database."""
    return tmp_path / "journal.db" if kind in OF_A_FILE else request.getfixturevalue("database")


@pytest.fixture
async def world(kind: str, place: Any) -> AsyncIterator[World]:
    def make(world: World) -> Any:
        if kind in OF_A_DATABASE:
            return postgres_troubles.WorldlyJournal(place, world)
        # The lock is held for the whole time, so any timeout expires.
        return SQLiteJournal(place, timeout=0.1, clock=world.time.clock)

    async with stormy_world(make) as world:
        yield world


@pytest.fixture
def trouble(request: pytest.FixtureRequest, kind: str, place: Any, world: World) -> Trouble:
    if kind in OF_A_DATABASE:
        server = request.getfixturevalue("restartable")
        return OF_A_DATABASE[kind](world.journal.journal, place, server)
    return OF_A_FILE[kind](world.journal.journal, place)


@pytest.mark.parametrize("kind", OF_A_FILE, indirect=True)
async def test_each_file_trouble_causes_a_real_sqlite_error(world: World, trouble: Any):
    call = await struck(world, trouble, transitions.MarkSending)

    assert isinstance(call.error.__cause__, sqlite3.Error)
    assert call.error.__cause__.sqlite_errorname.startswith(trouble.error)


@pytest.mark.parametrize("kind", OF_A_FILE, indirect=True)
async def test_a_claim_that_fails_leaves_nothing_behind(world: World, trouble: Trouble):
    await struck(world, trouble, Claim)

    assert await world.known() is None


@pytest.mark.parametrize("at", BEFORE_THE_REQUEST)
async def test_an_unmarked_order_is_not_sent_and_its_hold_is_released_after_the_lease(
    world: World, trouble: Trouble, at: type
):
    call = await struck(world, trouble, at)
    held = len(world.bank.open)
    await call.recover()
    entry = await world.known()

    assert (call.error.outcome, call.error.order_may_exist) == (Outcome.NOT_SENT, True)
    assert (call.requests, held) == (0, 1 if at is transitions.MarkSending else 0)
    assert entry is None or entry.state is KeyState.FREE
    assert world.bank.open == {}


@pytest.mark.parametrize(
    ("at", "certain"),
    [
        (transitions.Create, Outcome.CREATED),
        (transitions.GoInDoubt, Outcome.UNKNOWN),
        (transitions.Release, Outcome.REFUSED),
    ],
)
async def test_a_sent_order_is_in_doubt_afterwards_and_is_not_sent_again(
    world: World, trouble: Trouble, at: type, certain: Outcome
):
    call = await struck(world, trouble, at)
    await call.recover()
    async with world.client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.create_order(world.bank.intents[-1].order, key="k")

    assert (call.error.outcome, call.error.order_may_exist) == (certain, True)
    order_id = call.error.order and call.error.order.id
    assert order_id in ([*world.sandbox.orders] if certain is Outcome.CREATED else [None])
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert (call.requests, len(world.sandbox.requests), len(world.bank.open)) == (1, 2, 1)


async def test_records_written_before_the_trouble_remain(world: World, trouble: Trouble):
    await struck(world, trouble, transitions.Create)
    async with world.client() as client:
        order = await client.create_order(new_order(), key="an earlier one")

    assert order.id in world.sandbox.orders
    assert len(world.sandbox.requests) == 2
