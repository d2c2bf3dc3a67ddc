"""A desk for the tests' world: who asks is who a header names, with the roles that the test gives."""

from collections.abc import AsyncIterator

import pytest

from tests.desk.visitor import Desk
from tests.support.bank import World


@pytest.fixture
async def doubted(world: World) -> World:
    """A world with a doubt that may be refuted by now."""
    await world.in_doubt()
    world.time.pass_(600)
    return world


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    """The desk of a client of the world's, mounted under `/bank/desk`."""
    async with world.client() as client, Desk.of(client) as made:
        yield made
