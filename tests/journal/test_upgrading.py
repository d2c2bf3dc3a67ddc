"""Journals of other versions: refusal, upgrade, and what an old program can still do afterwards."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.journal.released import BACK_ENDS, HERE, SCOPE, SEAL_KEYS, versions_of
from tests.journal.released.stores import Content, FileStore, Store, TableStore
from tests.support.bank import World, world
from tests.support.commands import invoke
from tests.support.journalling import claim, of_key
from transfer_async import (
    JournalFailed,
    KeyState,
    NotSent,
    Operators,
    Order,
    Outcome,
    PersonName,
    PostgresJournal,
    SQLiteJournal,
    TransferError,
)
from transfer_async.journal import Journal, KeySeal, Upgrade, postgres, transitions
from transfer_async.journal.rows import ENTRY_TABLE, NOTHING, VERSION

__all__ = ["world"]  # a fixture

STATES = {"created": 2, "in_doubt": 1, "free": 2, "claimed": 1, "sending": 1}
"""The number of keys in each state in the sample of version 1."""

Maker = Callable[[int], Store]


@pytest.fixture(params=BACK_ENDS)
def maker(request: pytest.FixtureRequest) -> Maker:
    """Return a function that creates a store with the sample of a version."""
    if request.param == "sqlite":
        return partial(FileStore, request.getfixturevalue("path"))
    return partial(TableStore, request.getfixturevalue("database"))


@pytest.fixture
def store(maker: Maker) -> Store:
    """Return a store with the sample of version 1."""
    return maker(1)


async def content(store: Store) -> Content:
    return await asyncio.to_thread(store.content)


async def upgrade(store: Store, **settings: Any) -> Upgrade:
    journal = store.journal(**settings)
    try:
        return await journal.upgrade()
    finally:
        await journal.close()


async def claimed(journal: Journal, key: str) -> None:
    verdict = await journal.move(SCOPE, key, of_key(claim(), key))
    assert verdict is not None
    assert verdict.denial is None


def set_version(store: Store, version: int) -> str:
    """Return the SQL statement that sets the stored version."""
    is_file = isinstance(store, FileStore)
    return f"PRAGMA user_version={version}" if is_file else f"UPDATE meta SET version = {version}"


# --- what is kept of each version -----------------------------------------------------------------------


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_there_is_test_data_of_each_version(back_end: str):
    """When you raise `VERSION`, add a sample with `python -m tests.journal.released`."""
    assert versions_of(back_end) == set(range(1, VERSION + 1))


@pytest.mark.parametrize("version", sorted(versions_of("sqlite")))
async def test_every_key_of_each_version_is_readable_with_its_state(maker: Maker, version: int):
    store = await asyncio.to_thread(maker, version)
    states = {row[2]: row[3] for row in (await content(store)).keys}
    await upgrade(store)
    async with store.journal(seal=KeySeal(SEAL_KEYS, current="sample")) as journal:
        found = {key: await journal.read(SCOPE, key) for key in states}
        assert all([await journal.history(SCOPE, key) for key in states])

    assert len(states) >= 7
    assert {key: (entry.state.value, entry.unread) for key, entry in found.items() if entry} == {
        key: (state, None) for key, state in states.items()
    }


async def test_keys_of_version_1_are_readable_and_can_be_resolved(store: Store):
    keys = ("created", "doubt", "owing", "resolved")
    await upgrade(store)
    async with store.journal() as journal:
        entries = [await journal.read(SCOPE, key) for key in keys]
        operators = Operators(journal, SCOPE, settle_after=0.0)
        doubts = await operators.in_doubt()
        freed = await operators.refute("doubt", by="ada", reason="seen")
        last = (await journal.history(SCOPE, "resolved"))[-1]
    created, doubt, owing, resolved = [entry for entry in entries if entry is not None]

    assert Order.from_json(created.reply or b"").id == created.order_id
    assert doubt.intent is not None
    assert (doubt.intent.beneficiary, doubt.candidates) == (PersonName("Ben", "Okri"), ())
    undos = [(one.hook, one.receipt) for one in owing.pending_undos]
    assert undos == [("funds_hold", f"hold-{owing.intent_id}")]
    ends = [(one.outcome, one.order_id) for one in resolved.pending_notifications]
    assert ends == [(Outcome.CREATED, "tx-byhand1")]
    assert (last.move, last.by, last.reason) == ("resolve", "ada", "seen on the statement")
    assert [(one.key, one.cause, one.receipts) for one in doubts] == [("doubt", None, doubt.receipts)]
    assert freed.state is KeyState.FREE


# --- an upgrade -----------------------------------------------------------------------------------------


async def test_an_upgrade_changes_only_the_table_name_and_the_version(store: Store):
    """A plan counts the keys and changes nothing. A second upgrade has nothing to do."""
    before, journal = await content(store), store.journal()
    plan = await journal.planned_upgrade()
    planned = await content(store)
    made = await journal.upgrade(plan)
    await journal.close()
    after = await content(store)
    again = await upgrade(store)

    assert planned == before
    assert plan == made == Upgrade(found=1, version=VERSION, states=STATES, unreadable=0)
    assert made.keys == len(before.keys)
    assert (before.version, before.is_whole, after.version, after.is_whole) == (1, True, VERSION, True)
    assert (after.keys, after.history) == (before.keys, before.history)
    assert again == Upgrade(found=VERSION, version=VERSION, states={}, unreadable=0)
    assert await content(store) == after


def test_an_upgraded_file_has_the_tables_of_a_new_one(tmp_path: Path):
    found = []
    for name, version in (("old.db", 1), ("new.db", VERSION)):
        store = FileStore(tmp_path / name, version)
        asyncio.run(upgrade(store))
        with closing(sqlite3.connect(store.path)) as db:
            names = db.execute("SELECT name, tbl_name FROM sqlite_master ORDER BY name").fetchall()
            sql = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
            found.append([(*one, db.execute(sql, one[:1]).fetchall()) for one in names])

    # SQLite names its automatic index for UNIQUE after the table's original name.
    assert str(found[0]).replace("autoindex_keys_1", f"autoindex_{ENTRY_TABLE}_1") == str(found[1])


async def test_upgraded_tables_are_those_of_a_new_schema(database: str):
    for schema, version in (("old", 1), ("new", VERSION)):
        made = partial(TableStore, database, version, schema=schema)
        await upgrade(await asyncio.to_thread(made))
    connection = await asyncpg.connect(database)
    sql = (
        "SELECT c.relname, a.attname, a.atttypid, a.attnotnull, a.attstorage, c.reloptions FROM pg_class c "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
        "WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' ORDER BY 1, a.attnum"
    )
    old, new = [await connection.fetch(sql, schema) for schema in ("old", "new")]
    await connection.close()

    assert old == new
    assert old


async def test_an_upgrade_counts_corrupt_records_and_leaves_them_and_needs_no_encryption_key(store: Store):
    sealed = KeySeal(SEAL_KEYS, current="sample")
    async with store.old_journal(seal=sealed) as old:
        await claimed(old, "sealed")
    await asyncio.to_thread(store.say, "UPDATE keys SET body = '{}' WHERE key = 'doubt'")
    before = await content(store)
    made = await upgrade(store)
    async with store.journal(seal=sealed) as journal:
        entry = await journal.read(SCOPE, "sealed")

    assert (made.unreadable, made.keys) == (1, 8)
    assert (await content(store)).keys == before.keys
    assert entry is not None
    assert entry.is_readable


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "why"), [(VERSION + 1, "newer version"), (0, "unknown to this version")])
async def test_a_journal_of_an_unknown_version_is_refused(store: Store, version: int, why: str):
    await asyncio.to_thread(store.say, set_version(store, version))
    before = await content(store)

    journal = store.journal()
    for refused in (journal.__aenter__, journal.upgrade):
        with pytest.raises(JournalFailed, match=why):
            await refused()
    await journal.close()
    assert await content(store) == before


async def test_an_upgrade_without_a_journal_is_refused(tmp_path: Path, database: str):
    empty = tmp_path / "empty.db"
    await asyncio.to_thread(empty.touch)
    for journal in (SQLiteJournal(empty), PostgresJournal(database)):
        with pytest.raises(JournalFailed, match="there is no journal in"):
            await journal.upgrade()
        await journal.close()


async def test_only_the_owner_of_the_tables_may_upgrade_them(database: str):
    store = await asyncio.to_thread(TableStore, database)
    clerk = f"clerk_{database.rpartition('/')[2]}"
    await asyncio.to_thread(
        store.say,
        f"CREATE ROLE {clerk} LOGIN",
        f"GRANT USAGE ON SCHEMA transfer_async TO {clerk}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA transfer_async TO {clerk}",
    )
    journal = PostgresJournal(database.replace("postgres@", f"{clerk}@"))
    with pytest.raises(JournalFailed, match="only the owner"):
        await journal.upgrade()
    await journal.close()

    assert (await content(store)).version == 1


# --- the fence ------------------------------------------------------------------------------------------


def statements_of_version_1(back_end: str) -> list[str]:
    """Return the SQL statements that a program of version 1 runs."""
    text = (HERE / f"1.{back_end}.statements.sql").read_text(encoding="utf-8")
    return [one for one in map(str.strip, text.split(";\n")) if one]


def test_no_statement_of_version_1_finds_its_table_in_the_file(path: Path):
    store, statements = FileStore(path), statements_of_version_1("sqlite")

    def missed() -> list[str]:
        found = []
        with closing(sqlite3.connect(store.path)) as db:
            for sql in statements:
                try:
                    db.execute(f"EXPLAIN {sql}", (None,) * sql.count("?"))
                except sqlite3.OperationalError as error:
                    found.append(str(error))
        return found

    before = missed()
    asyncio.run(upgrade(store))

    assert (before, missed()) == ([], ["no such table: keys"] * len(statements))
    assert len(statements) >= 10


async def test_no_statement_of_version_1_finds_its_table_in_the_database(database: str):
    store = await asyncio.to_thread(TableStore, database)
    statements = await asyncio.to_thread(statements_of_version_1, "postgres")
    connection = await asyncpg.connect(database)
    prepared = [await connection.prepare(sql) for sql in statements]  # like a program that is still running
    types = {"text": "", "text[]": [], "float8": 0.0, "int8": 1}
    values = [[types[one.name] for one in statement.get_parameters()] for statement in prepared]
    for statement, given in zip(prepared, values, strict=True):
        await statement.fetch(*given)
    await upgrade(store)
    for sql, statement, given in zip(statements, prepared, values, strict=True):
        with pytest.raises(asyncpg.UndefinedTableError, match="keys"):
            await statement.fetch(*given)
        with pytest.raises(asyncpg.UndefinedTableError, match="keys"):
            await connection.prepare(sql)
    await connection.close()

    assert len(statements) >= 10


async def test_a_program_of_version_1_works_until_the_upgrade_and_is_refused_after_it(store: Store):
    newer = r"newer version of transfer_async.*: stop this program"
    async with store.old_journal() as old:
        await claimed(old, "before")
        new = store.journal()
        with pytest.raises(JournalFailed) as older:
            await claimed(new, "new")
        await claimed(old, "meanwhile")
        await upgrade(store)
        await claimed(new, "new")  # The program need not be started again.
        await new.close()
        before = await content(store)
        for key in ("after", "new", "before", "created", "doubt", "refuted"):
            with pytest.raises(JournalFailed, match=newer):
                await old.move(SCOPE, key, of_key(claim(2), key))
        with pytest.raises(JournalFailed, match=newer):
            await Operators(old, SCOPE, settle_after=0.0).refute("doubt", by="ada", reason="none")
    with pytest.raises(JournalFailed, match=newer):
        async with store.old_journal():
            pass

    why = str(older.value)
    name = "journal.db" if isinstance(store, FileStore) else "the schema transfer_async"
    assert why.startswith(f"{name} was written by an older version of transfer_async (its format is 1, ")
    assert "this program's is 2)" in why
    assert "stop every program that uses it, then run: transfer-async journal upgrade" in why
    assert await content(store) == before
    assert {"before", "meanwhile", "new"} < {row[2] for row in before.keys}


async def test_an_order_in_flight_during_the_upgrade_is_not_sent_again(store: Store, world: World):
    async with store.old_journal() as old:
        world.journal.journal = old
        world.meanwhile(transitions.Create, lambda: upgrade(store))
        error = await world.fails(TransferError, key="mine", scope=SCOPE)
    async with store.journal() as journal:
        await world.fails(TransferError, key="mine", journal=journal, scope=SCOPE)
        entry = await journal.read(SCOPE, "mine")

    assert not isinstance(error, NotSent)
    assert entry is not None
    assert entry.state is KeyState.SENDING
    assert len(world.sandbox.orders) == 1


# --- others at the same time ----------------------------------------------------------------------------


async def test_only_one_of_two_concurrent_upgrades_runs(store: Store):
    made = await asyncio.gather(*(upgrade(store) for _ in range(4)))

    assert sorted(one.found for one in made) == [1, *[VERSION] * 3]
    assert (await content(store)).is_whole


async def test_a_plan_that_another_process_has_carried_out_needs_nothing_more(store: Store):
    journal = store.journal()
    plan = await journal.planned_upgrade()
    await upgrade(store)
    before = await content(store)
    made = await journal.upgrade(plan)
    await journal.close()

    assert (plan.found, made) == (1, NOTHING)
    assert await content(store) == before


def test_an_upgrade_is_refused_while_an_old_program_writes(path: Path):
    store = FileStore(path)
    before = store.content()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL").fetchone()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalFailed, match=r"in use.*BUSY.*: stop every program"):
            asyncio.run(upgrade(store, timeout=0.05))
        other.execute("ROLLBACK")

    assert store.content() == before
    assert asyncio.run(upgrade(store)).found == 1


async def test_an_upgrade_is_refused_while_an_old_transaction_is_open(
    database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT", 0.05)
    store = await asyncio.to_thread(TableStore, database)
    before = await content(store)
    other = await asyncpg.connect(database)
    await other.execute("BEGIN; UPDATE transfer_async.keys SET token = token")
    users = "Connected: 1 x a program without a name"
    with pytest.raises(JournalFailed, match=f"the journal is in use: stop every program.*{users}"):
        await upgrade(store)
    await other.close()

    assert await content(store) == before
    assert (await upgrade(store)).found == 1


async def test_a_write_between_the_plan_and_the_lock_stops_the_upgrade(store: Store):
    """Programs that are still running must be stopped first."""
    journal = store.journal()
    plan = await journal.planned_upgrade()
    await asyncio.to_thread(store.say, "UPDATE keys SET state = 'free' WHERE key = 'claimed'")
    with pytest.raises(JournalFailed, match="written to during the upgrade"):
        await journal.upgrade(plan)
    await journal.close()
    found = await content(store)

    assert (found.version, found.is_whole) == (1, True)
    assert (await upgrade(store)).found == 1


# --- cut at any byte ------------------------------------------------------------------------------------


def test_an_interrupted_upgrade_leaves_a_valid_file(tmp_path: Path):
    store, cut = FileStore(tmp_path / "journal.db"), FileStore(tmp_path / "cut.db")
    store.say("PRAGMA journal_mode=WAL")
    before = store.content()
    with closing(sqlite3.connect(store.path)) as reader:  # keeps SQLite from deleting the log at the end
        reader.execute("SELECT count(*) FROM keys").fetchone()
        asyncio.run(upgrade(store))
        main, log = store.path.read_bytes(), Path(f"{store.path}-wal").read_bytes()
        after = store.content()
    versions = []
    for end in range(0, len(log) + 512, 512):
        cut.path.write_bytes(main)
        Path(f"{cut.path}-wal").write_bytes(log[:end])
        found = cut.content()
        assert found == (before if found.version == 1 else after), end
        versions.append(found.version)

    assert (versions[0], versions[-1]) == (1, VERSION)
    assert versions == sorted(versions)
    assert before.is_whole
    assert after.is_whole


# --- the command ----------------------------------------------------------------------------------------


def test_the_upgrade_command_shows_the_plan_and_asks(path: Path):
    missing = invoke("journal", "upgrade", "--journal", str(path))
    store = FileStore(path)
    asked = invoke("journal", "upgrade", "--journal", str(path))

    assert (missing.exit_code, asked.exit_code) == (2, 2)
    assert "does not exist" in missing.stderr
    assert "will be upgraded from format 1 to format 2; 7 keys: 1 claimed, 2 created" in asked.stderr
    assert store.content().version == 1


def test_the_upgrade_command_reports_the_upgrade_also_as_json(tmp_path: Path):
    texts, objects = FileStore(tmp_path / "journal.db"), FileStore(tmp_path / "other.db")
    texts.say("UPDATE keys SET body = '{}' WHERE key = 'doubt'")
    made, again = [invoke("journal", "upgrade", "--journal", str(texts.path), "--yes") for _ in range(2)]
    as_json = [
        json.loads(invoke("journal", "upgrade", "--journal", str(objects.path), "--yes", "--json").stdout)
        for _ in range(2)
    ]

    assert (made.exit_code, again.exit_code) == (0, 0)
    assert "1 corrupt record will not be repaired" in made.stderr
    assert made.stdout == "the journal's format is now 2; 7 keys unchanged\n"
    assert again.stdout == "the journal already has format 2: there is nothing to upgrade\n"
    assert as_json == [
        {"upgraded": True, "found": 1, "version": 2, "keys": 7, "states": STATES, "unreadable": 0},
        {"upgraded": False, "found": 2, "version": 2},
    ]
