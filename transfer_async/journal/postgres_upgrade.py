"""A journal's tables in PostgreSQL, of whatever version, as an upgrade uses them."""

from __future__ import annotations

from transfer_async._models.errors import JournalFailed
from transfer_async.journal.postgres_patience import driver
from transfer_async.journal.postgres_sessions import Session
from transfer_async.journal.postgres_sql import Statements
from transfer_async.journal.rows import ENTRY_TABLE, VERSION, EntryRow
from transfer_async.journal.upgrading import (
    PAGE,
    STOP,
    Upgradable,
    Upgrade,
    checked_counts,
    statements_from,
    table_of,
)

WAIT = 3.0
"""Seconds that it waits for others to let the tables go: whoever comes meanwhile waits behind it."""

ONE_STATEMENT = 600.0
"""Seconds that one statement of it may take: all keys of a large journal are counted."""

_ROW = "state, token, order_id, due_at, ended_at, body::text, intent::text, NULL::bytea"


class UpgradableTables(Upgradable):
    """See `Upgradable`.

    Args:
        session: which nobody else uses.
        schema: where the tables are.
        sql: the statements for that schema.
    """

    def __init__(self, session: Session, *, schema: str, sql: Statements) -> None:
        self._session = session
        self._schema = schema
        self._sql = sql

    async def version(self) -> int | None:
        """See `Upgradable`."""
        if not await self._session.value(self._sql.is_there):
            raise JournalFailed(f"there is no journal in the schema {self._schema} yet: nothing to upgrade")
        found: int | None = await self._session.value(self._sql.version)
        return found

    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable`."""
        sql = f'SELECT id, {_ROW} FROM "{self._schema}".{table} WHERE id > $1 ORDER BY id LIMIT {PAGE}'
        return [(number, EntryRow(*row)) for number, *row in await self._session.fetch(sql, after)]

    async def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable`; whoever leaves in between loses the session, and with it what was begun."""
        asyncpg = driver()
        try:
            return await self._carried_out(upgrade)
        except asyncpg.LockNotAvailableError as error:
            raise JournalFailed(f"somebody is using the journal: {STOP}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            why = f"only the owner of the tables in the schema {self._schema} may upgrade them"
            raise JournalFailed(why) from error

    async def _carried_out(self, upgrade: Upgrade) -> bool:
        session, entries = self._session, f'"{self._schema}".{table_of(upgrade.found)}'
        await session.say(self._sql.begin)
        await session.say(f"SET LOCAL lock_timeout = {int(1000 * WAIT)}; SET LOCAL enable_seqscan = on")
        await session.say(self._sql.one_maker_at_a_time)
        if await session.value(self._sql.version) != upgrade.found:
            return False
        # Before `meta`, for so do those who write: each would wait for the other.
        await session.say(f"LOCK TABLE {entries} IN ACCESS EXCLUSIVE MODE")
        for statement in statements_from(upgrade.found, self._schema):
            await session.say(statement)
        await session.say(f'UPDATE "{self._schema}".meta SET version = {VERSION}')
        count = f'SELECT state, count(*) FROM "{self._schema}".{ENTRY_TABLE} GROUP BY state'
        checked_counts(upgrade, await session.fetch(count))
        await session.say("COMMIT")
        return True
