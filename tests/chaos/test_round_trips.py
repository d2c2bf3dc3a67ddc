"""The number of round trips to PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.pg_proxies import Cut, CuttingProxy, Message
from tests.support.journalling import SCOPE, claim, create, made, mark
from transfer_async import PostgresJournal


class Counter:
    """Counts the messages for which a client waits, and the statements that the server must parse."""

    count = parsed = 0

    def __call__(self, message: Message) -> Cut:
        self.count += message.kind in b"SQ"
        self.parsed += message.kind == b"P"
        return Cut.NEVER


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
async def journal(database: str, counter: Counter) -> AsyncIterator[PostgresJournal]:
    """Yield a journal that has recorded some orders, so that its statements are prepared."""
    async with CuttingProxy(database, counter) as proxy, PostgresJournal(proxy.dsn) as journal:
        await asyncio.gather(*(record_order(journal, f"earlier-{number}") for number in range(20)))
        counter.count = counter.parsed = 0
        yield journal


async def record_order(journal: PostgresJournal, key: str) -> None:
    await made(journal, claim(), mark(), create(order_id=f"tx-{key}"), key=key)


async def test_an_order_costs_three_round_trips_and_a_known_key_one(
    journal: PostgresJournal, counter: Counter
):
    await record_order(journal, "k")
    for_the_order, parsed, counter.count = counter.count, counter.parsed, 0
    await journal.move(SCOPE, "k", claim(2))

    assert (for_the_order, parsed, counter.count) == (3, 0, 1 + len(["BEGIN", "load", "COMMIT"]))


async def test_concurrent_orders_share_round_trips(journal: PostgresJournal, counter: Counter):
    await asyncio.gather(*(record_order(journal, f"k-{number}") for number in range(32)))

    assert counter.count <= 0.5 * 32
