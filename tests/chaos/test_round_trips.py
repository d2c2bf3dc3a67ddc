"""How often the journal asks PostgreSQL, and waits."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.pg_proxies import Cut, CuttingProxy, Message
from tests.support.journalling import SCOPE, claim, create, made, mark
from transfer_async import PostgresJournal


class Counter:
    """Counts what a client waits for an answer to."""

    count = 0

    def __call__(self, message: Message) -> Cut:
        self.count += message.kind in b"SQ"
        return Cut.NEVER


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
async def journal(database: str, counter: Counter) -> AsyncIterator[PostgresJournal]:
    """It has carried out some orders: what has to be prepared is prepared."""
    async with CuttingProxy(database, counter) as proxy, PostgresJournal(proxy.dsn) as journal:
        await asyncio.gather(*(carried_out(journal, f"earlier-{number}") for number in range(20)))
        counter.count = 0
        yield journal


async def carried_out(journal: PostgresJournal, key: str) -> None:
    await made(journal, claim(), mark(), create(order_id=f"tx-{key}"), key=key)


async def test_an_order_costs_three_round_trips_and_a_known_key_one(
    journal: PostgresJournal, counter: Counter
):
    await carried_out(journal, "k")
    of_the_order, counter.count = counter.count, 0
    await journal.move(SCOPE, "k", claim(2))

    assert (of_the_order, counter.count) == (3, 1 + len(["BEGIN", "load", "COMMIT"]))


async def test_orders_that_come_at_once_share_them(journal: PostgresJournal, counter: Counter):
    await asyncio.gather(*(carried_out(journal, f"k-{number}") for number in range(32)))

    assert counter.count <= 0.5 * 32
