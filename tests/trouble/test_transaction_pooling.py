"""PostgreSQL behind a proxy that gives each transaction another connection."""

import asyncio

from tests.support.journalling import SCOPE, claim, create, judged, made, mark
from tests.trouble.pg_proxies import PoolingProxy
from transfer_async import KeyState, PostgresJournal


async def test_a_journal_opens_through_a_proxy_that_pools_transactions(database: str):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn) as journal:
        entry = await made(journal, claim(), mark(), create())

        assert await journal.read(SCOPE, "k") == entry
        assert len(await journal.history(SCOPE, "k")) == 3
        assert entry.state is KeyState.CREATED


async def test_many_callers_share_it(database: str):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn) as journal:
        await asyncio.gather(*(judged(journal, claim(), key=f"k-{number}") for number in range(300)))
        verdicts = await asyncio.gather(
            *(judged(journal, mark(), key=f"k-{number}") for number in range(300))
        )

        assert all(verdict.denial is None for verdict in verdicts)


async def test_the_proxy_gives_every_transaction_another_connection(database: str):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn) as journal:
        await made(journal, claim(), mark(), create())
        used = proxy.transactions

        assert all(used[i] is not used[i + 1] for i in range(len(used) - 1))
