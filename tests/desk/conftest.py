"""Fixtures for the desk. A header names the user, and the test sets that user's roles."""

from collections.abc import AsyncIterator

import pytest

from tests.desk.visitor import Desk, Visitor
from tests.support.bank import World


@pytest.fixture
async def doubted(world: World) -> World:
    """Return a world with a doubt that is old enough to be refuted."""
    await world.in_doubt()
    world.time.pass_(600)
    return world


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    """Yield the desk of a client of the world, mounted under `/bank/desk`."""
    async with world.client() as client, Desk.of(client) as made:
        yield made


@pytest.fixture
def ada(desk: Desk) -> Visitor:
    """Return an operator with every role."""
    return desk.visitor("ada")


@pytest.fixture
def ben(desk: Desk) -> Visitor:
    """Return another operator with every role."""
    return desk.visitor("ben")
