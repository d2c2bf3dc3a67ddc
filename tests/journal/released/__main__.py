"""Save samples of the current version. Run it once, when the version is released."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg

from tests.contract.conftest import TimedPostgresJournal
from tests.journal.released import HERE, SCOPE, SEAL_KEYS
from tests.support.bank import World, new_order
from tests.support.postgres import PostgresServer
from transfer_async import Decision, Operators, PersonName, SQLiteJournal, TransferClient
from transfer_async.journal import KeySeal, RequestNotification, transitions
from transfer_async.journal.durable import DurableJournal
from transfer_async.journal.postgres_sql import Statements
from transfer_async.journal.rows import ENTRY_TABLE, VERSION
from transfer_async.sandbox import Sandbox


class _World(World):
    """A world whose scope does not depend on the sandbox's port."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self.scope = SCOPE

    def made(self, **settings: Any) -> TransferClient:
        return super().made(scope=SCOPE, **settings)


async def _fill(world: World, journal: DurableJournal) -> None:
    """Put one key in each state."""
    world.journal.journal = journal
    await world.create(key="created")
    await world.in_doubt("doubt", beneficiary=PersonName("Ben", "Okri"))
    await world.owing("owing")
    await world.crash(transitions.MarkSending, key="claimed")
    await world.crash(transitions.Create, key="sending")
    operators = Operators(journal, SCOPE, clock=world.time.clock)
    await world.in_doubt("resolved")
    await world.move(RequestNotification(intent_id=(await world.entry("resolved")).intent_id), "resolved")
    await operators.resolve("resolved", order_id="tx-byhand1", by="ada", reason="seen on the statement")
    await world.in_doubt("refuted")
    world.time.pass_(400.0)
    await operators.refute("refuted", by="ada", reason="the service's support: no such order")
    await world.in_doubt("proposed")
    await operators.demand_four_eyes(by="ada", reason="the bank's rule 12")
    await operators.propose(
        "proposed", Decision.RESOLVE, order_id="tx-byhand2", by="ada", reason="seen on the statement"
    )
    journal._seal = KeySeal(SEAL_KEYS, current="sample")
    await world.create(new_order(), key="sealed")
    await journal.close()


async def _sqlite(path: Path) -> str:
    async with Sandbox(seed=1) as sandbox:
        world = _World(sandbox)
        await _fill(world, SQLiteJournal(path, clock=world.time.clock))
    with closing(sqlite3.connect(path)) as db:
        marks = [f"PRAGMA {name}={db.execute(f'PRAGMA {name}').fetchone()[0]};" for name in _MARKS]
        return "\n".join([*db.iterdump(), *marks]) + "\n"


_MARKS = ("application_id", "user_version")


async def _postgres(dsn: str) -> str:
    async with Sandbox(seed=1) as sandbox:
        world = _World(sandbox)
        journal = TimedPostgresJournal(dsn, world.time)
        await _fill(world, journal)
    connection = await asyncpg.connect(dsn)
    try:
        statements = [Statements("{schema}", idle=1.0, slack=1.0).tables.strip()]
        for table in (ENTRY_TABLE, "history"):
            rows = await connection.fetch(f'SELECT * FROM "{journal._schema}".{table} ORDER BY id')
            statements += [_insertion(table, row) for row in rows]
            name = f"'\"{{schema}}\".{table}', 'id'"
            statements.append(f"SELECT setval(pg_get_serial_sequence({name}), {len(rows)});")
    finally:
        await connection.close()
    return "\n".join(statements) + "\n"


def _insertion(table: str, row: Any) -> str:
    columns, values = ", ".join(row.keys()), ", ".join(map(_literal, row.values()))
    return f'INSERT INTO "{{schema}}".{table} ({columns}) OVERRIDING SYSTEM VALUE VALUES ({values});'


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return repr(value) if isinstance(value, (int, float)) else "'" + str(value).replace("'", "''") + "'"


def main() -> None:
    """Write the samples for both back ends."""
    with tempfile.TemporaryDirectory() as directory, PostgresServer() as server:
        made = {
            "sqlite": asyncio.run(_sqlite(Path(directory) / "journal.db")),
            "postgres": asyncio.run(_postgres(server.dsn)),
        }
    for back_end, text in made.items():
        (HERE / f"{VERSION}.{back_end}.sql").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
