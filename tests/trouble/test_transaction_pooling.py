"""PostgreSQL behind proxies that give each transaction another connection; one is PgBouncer."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.journalling import SCOPE, claim, create, judged, made, mark
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
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


async def keep_prepared(journal: PostgresJournal) -> bool:
    """Whether the journal's connections do."""
    return await journal._ask(lambda session: asyncio.sleep(0, session.keeps))


@pytest.mark.parametrize(("prepared", "keeps"), [(None, True), (True, True), (False, False)])
async def test_whether_statements_are_prepared_is_found_out(
    database: str, prepared: bool | None, keeps: bool
):
    async with PostgresJournal(database, prepared=prepared) as journal:
        assert await keep_prepared(journal) is keeps


@pytest.mark.parametrize("prepared", [None, True])
async def test_statements_are_not_prepared_behind_such_a_proxy_whatever_was_said(
    database: str, prepared: bool | None
):
    async with PoolingProxy(database) as proxy, PostgresJournal(proxy.dsn, prepared=prepared) as journal:
        entry = await made(journal, claim(), mark(), create())

        assert await keep_prepared(journal) is False
        assert await journal.read(SCOPE, "k") == entry


# --- PgBouncer ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bouncer(restartable: PostgresServer) -> Iterator[PgBouncer]:
    if PgBouncer.program() is None:
        pytest.skip("there is no PgBouncer: install the system's package")
    with PgBouncer(restartable) as bouncer:
        yield bouncer


async def test_behind_pgbouncer_nothing_is_prepared_and_all_is_as_it_should_be(
    database: str, bouncer: PgBouncer
):
    async with PostgresJournal(bouncer.through(database)) as journal:
        keys = [f"k-{number}" for number in range(100)]
        entries = await asyncio.gather(
            *(made(journal, claim(), mark(), create(order_id=f"tx-{key}"), key=key) for key in keys)
        )

        assert await keep_prepared(journal) is False
        assert await asyncio.gather(*(journal.read(SCOPE, key) for key in keys)) == entries


async def test_two_journals_that_prepare_behind_pgbouncer_all_the_same_keep_apart(
    database: str, bouncer: PgBouncer
):
    """Its newer versions keep track of what is prepared; with an older one, both give it up."""
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
