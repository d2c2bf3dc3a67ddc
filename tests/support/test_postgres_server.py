"""The PostgreSQL of the tests keeps what it acknowledged."""

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.support import postgres

pytestmark = pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start")


def ask(dsn: str, *questions: str) -> Any:
    async def asked() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return [await connection.fetchval(question) for question in questions][-1]
        finally:
            await connection.close()

    return asyncio.run(asked())


@pytest.mark.trial(ci=1, long=1)
def test_what_was_committed_survives_a_stop_at_once():
    with postgres.postgres_server() as server:
        database = server.new_database()
        ask(database, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (7)")
        server.restart(at_once=True)

        assert ask(database, "SELECT n FROM t") == 7
        assert ask(database, "SHOW fsync") == "on"


@pytest.mark.trial(ci=1, long=1)
def test_a_setting_can_be_changed():
    with postgres.postgres_server(extra={"fsync": "off"}) as server:
        assert ask(server.dsn, "SHOW fsync") == "off"
