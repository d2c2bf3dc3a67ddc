"""Real faults of a journal in PostgreSQL, which a test can start and stop."""

import asyncio
from typing import Any

import asyncpg

from tests.support.bank import World
from tests.support.loop_time import MUST_RUN_OUT
from tests.support.postgres import PostgresServer
from transfer_async.journal import PostgresJournal
from transfer_async.journal.postgres import MAX_CONNECTIONS

PATIENT = 60.0
"""A timeout in seconds of a transition without a fault; it expires only if something hangs."""
END_THE_OTHERS = """
    SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class WorldlyJournal(PostgresJournal):
    """A journal with the clock of a `World`."""

    def __init__(self, dsn: str, world: World) -> None:
        super().__init__(dsn, timeout=PATIENT)
        self._world = world

    def lose_patience(self) -> None:
        """Shorten the timeout, which must expire because the database does not respond."""
        self._timeout = MUST_RUN_OUT

    def be_patient(self) -> None:
        self._timeout = PATIENT

    def _time(self, _database: float) -> float:
        return self._world.time.utc().timestamp()


class StoppedServer:
    """Stops the server as a power cut would, and starts it again."""

    def __init__(self, journal: WorldlyJournal, dsn: str, server: PostgresServer) -> None:
        self._journal, self._server = journal, server

    async def begin(self) -> None:
        self._journal.lose_patience()
        await asyncio.to_thread(self._server.stop_at_once)

    async def end(self) -> None:
        await asyncio.to_thread(self._server.restart)
        self._journal.be_patient()


class LockedTables:
    """Lock the tables in another transaction that does not end."""

    def __init__(self, journal: WorldlyJournal, dsn: str, server: PostgresServer) -> None:
        self._journal, self._dsn = journal, dsn
        self._connection: Any = None

    async def begin(self) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._dsn)
            await self._connection.execute("BEGIN; LOCK TABLE transfer_async.keys_2")
        self._journal.lose_patience()

    async def end(self) -> None:
        if self._connection is not None:
            await self._connection.execute(
                END_THE_OTHERS
            )  # Statements that the journal abandoned must not run now.
            await self._connection.close()
        self._journal.be_patient()


class TakenConnections:
    """Use every connection that the journal may open."""

    def __init__(self, journal: WorldlyJournal, dsn: str, server: PostgresServer) -> None:
        self._journal = journal
        self._taken: list[Any] = []

    async def begin(self) -> None:
        sessions = self._journal._sessions
        assert sessions is not None
        while len(self._taken) < MAX_CONNECTIONS:
            session = sessions.one()
            await session.__aenter__()
            self._taken.append(session)
        self._journal.lose_patience()

    async def end(self) -> None:
        for session in self._taken:
            await session.__aexit__(None, None, None)
        self._journal.be_patient()


class ChangedTables:
    """Rename one of the tables."""

    def __init__(self, journal: WorldlyJournal, dsn: str, server: PostgresServer) -> None:
        self._dsn = dsn

    async def begin(self) -> None:
        await self._say("ALTER TABLE transfer_async.history RENAME TO elsewhere")

    async def end(self) -> None:
        await self._say("ALTER TABLE IF EXISTS transfer_async.elsewhere RENAME TO history")

    async def _say(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


TROUBLES: dict[str, Any] = {
    "stopped": StoppedServer,
    "tables locked": LockedTables,
    "taken": TakenConnections,
    "changed": ChangedTables,
}
