"""The server of the tests keeps what it acknowledged, and leaves nothing behind."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests import postgres

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start")


def ask(dsn: str, *questions: str) -> Any:
    async def asked() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return [await connection.fetchval(question) for question in questions][-1]
        finally:
            await connection.close()

    return asyncio.run(asked())


def test_what_was_committed_survives_a_stop_at_once():
    with postgres.postgres_server() as server:
        database = server.new_database()
        ask(database, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (7)")
        server.restart(at_once=True)

        assert ask(database, "SELECT n FROM t") == 7
        assert ask(database, "SHOW fsync") == "on"


def test_a_setting_can_be_changed():
    with postgres.postgres_server(extra={"fsync": "off"}) as server:
        assert ask(server.dsn, "SHOW fsync") == "off"


def test_the_server_is_gone_when_its_process_was_killed():
    program = (
        "import os; from tests.postgres import PostgresServer; server = PostgresServer().start();"
        "print(server._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True)
    pid = int(ended.stdout)

    for _ in range(500):
        if not Path(f"/proc/{pid}").exists():
            break
        os.sched_yield()
        subprocess.run(["sleep", "0.01"], check=True)
    assert not Path(f"/proc/{pid}").exists()
