"""The database in trouble at every step of a call: nothing is sent without its mark, nothing is forgotten."""

from collections.abc import AsyncIterator

import pytest

from tests.support.bank import World, new_order
from tests.support.postgres import PostgresServer
from tests.trouble.postgres_troubles import TROUBLES, WorldlyJournal
from tests.trouble.storm import BEFORE_THE_REQUEST, Trouble, stormy_world, struck
from transfer_async import KeyState, Outcome, OutcomeUnknown
from transfer_async.journal import moves


@pytest.fixture
async def world(database: str) -> AsyncIterator[World]:
    async with stormy_world(lambda world: WorldlyJournal(database, world)) as world:
        yield world


@pytest.fixture(params=TROUBLES)
def trouble(
    request: pytest.FixtureRequest, world: World, database: str, restartable: PostgresServer
) -> Trouble:
    return TROUBLES[request.param](world.journal.journal, database, restartable)


@pytest.mark.parametrize("at", BEFORE_THE_REQUEST)
async def test_nothing_is_sent_that_could_not_be_marked_and_its_hold_goes_once_the_lease_is_over(
    world: World, trouble: Trouble, at: type
):
    call = await struck(world, trouble, at)
    held = len(world.bank.open)
    await call.recover()
    entry = await world.known()

    assert (call.error.outcome, call.error.order_may_exist) == (Outcome.NOT_SENT, True)
    assert (call.requests, held) == (0, 1 if at is moves.Mark else 0)
    assert entry is None or entry.state is KeyState.FREE
    assert world.bank.open == {}


@pytest.mark.parametrize(
    ("at", "certain"),
    [
        (moves.Create, Outcome.CREATED),
        (moves.GoInDoubt, Outcome.UNKNOWN),
        (moves.Free, Outcome.REFUSED),
    ],
)
async def test_what_was_sent_is_in_doubt_afterwards_and_is_not_sent_again(
    world: World, trouble: Trouble, at: type, certain: Outcome
):
    call = await struck(world, trouble, at)
    await call.recover()
    async with world.client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.create_order(world.bank.intents[-1].order, key="k")

    assert (call.error.outcome, call.error.order_may_exist) == (certain, True)
    assert (call.error.order is not None) == (certain is Outcome.CREATED)
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert (call.requests, len(world.sandbox.requests), len(world.bank.open)) == (1, 2, 1)


async def test_what_was_recorded_before_is_there_afterwards(world: World, trouble: Trouble):
    await struck(world, trouble, moves.Create)
    async with world.client() as client:
        order = await client.create_order(new_order(), key="an earlier one")

    assert order.id in world.sandbox.orders
    assert len(world.sandbox.requests) == 2
