"""PostgreSQL behind proxies, including PgBouncer, that use another connection for each transaction."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.chaos.pg_proxies import PoolingProxy
from tests.support.journalling import SCOPE, claim, create, judged, made, mark
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from transfer_async import PostgresJournal


async def test_many_callers_share_a_pooled_connection(database: str):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn) as journal:
        await asyncio.gather(*(judged(journal, claim(), key=f"k-{number}") for number in range(300)))
        verdicts = await asyncio.gather(
            *(judged(journal, mark(), key=f"k-{number}") for number in range(300))
        )

        assert all(verdict.denial is None for verdict in verdicts)


async def keep_prepared(journal: PostgresJournal) -> bool:
    """Return whether the journal's connections prepare statements."""
    return await journal._ask(lambda session: asyncio.sleep(0, session.prepares))


@pytest.mark.parametrize(("prepared", "keeps"), [(None, True), (True, True), (False, False)])
async def test_prepared_statements_are_detected(database: str, prepared: bool | None, keeps: bool):
    async with PostgresJournal(database, prepared=prepared) as journal:
        assert await keep_prepared(journal) is keeps


@pytest.mark.parametrize("prepared", [None, True])
async def test_behind_transaction_pooling_nothing_is_prepared_whatever_the_setting(
    database: str, prepared: bool | None
):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn, prepared=prepared) as journal:
        entry = await made(journal, claim(), mark(), create())
        used = list(proxy.transactions)

        assert await keep_prepared(journal) is False
        assert await journal.read(SCOPE, "k") == entry
        assert len(await journal.history(SCOPE, "k")) == 3
    assert all(one is not next_ for one, next_ in pairwise(used)), "each transaction has another connection"


async def test_behind_transaction_pooling_no_setting_is_left_for_another_program(database: str):
    async with PoolingProxy(database) as proxy:
        session = await PostgresJournal(proxy.dsn, prepared=True)._connect()
        shared = [await session._connection.fetchval("SHOW enable_seqscan") for _ in range(2)]
        session.terminate()

    assert shared == ["on", "on"]


# --- PgBouncer ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bouncer(restartable: PostgresServer) -> Iterator[PgBouncer]:
    if PgBouncer.program() is None:
        pytest.skip("there is no PgBouncer: install the system's package")
    with PgBouncer(restartable) as bouncer:
        yield bouncer


async def test_behind_pgbouncer_nothing_is_prepared_and_orders_work(database: str, bouncer: PgBouncer):
    async with PostgresJournal(bouncer.through(database)) as journal:
        keys = [f"k-{number}" for number in range(100)]
        entries = await asyncio.gather(
            *(made(journal, claim(), mark(), create(order_id=f"tx-{key}"), key=key) for key in keys)
        )

        assert await keep_prepared(journal) is False
        assert await asyncio.gather(*(journal.read(SCOPE, key) for key in keys)) == entries


async def test_two_preparing_journals_behind_pgbouncer_do_not_interfere(database: str, bouncer: PgBouncer):
    """New versions of PgBouncer track prepared statements. With an old one, both journals stop preparing."""
    dsn = bouncer.through(database)
    journals = [PostgresJournal(dsn, schema=schema, prepared=True) for schema in ("one", "other")]
    keys = [f"k-{number}" for number in range(30)]
    for journal in journals:
        await journal._open()
    entries = await asyncio.gather(
        *(
            made(journal, claim(n), mark(number=n), create(order_id=f"tx-{key}"), key=key)
            for n, journal in enumerate(journals)
            for key in keys
        )
    )
    found = [await journal.read(SCOPE, key) for journal in journals for key in keys]
    for journal in journals:
        await journal.close()

    assert found == entries
