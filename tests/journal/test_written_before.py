"""A journal that an earlier version wrote is read as it is: `written_before.sql` is what one left."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.journalling import REPLY, SCOPE
from transfer_async import KeyState, Operators, Outcome, PersonName, PostgresJournal, SQLiteJournal
from transfer_async.journal import Entry, Journal, Untold
from transfer_async.journal.rows import ENTRY_TABLE

SAMPLE = Path(__file__).with_name("written_before.sql")
"""Of moves by `tests.support.journalling`, before causes were kept: a key for each way one can stand."""
S = KeyState


Rows = list[sqlite3.Row]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, as it was left."""
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(SAMPLE.read_text(encoding="utf-8"))
    return path


@pytest.fixture
def rows(path: Path) -> tuple[Rows, Rows]:
    """The keys and the history: a database has the same rows in tables of its own."""
    keys = "SELECT k.*, r.reply FROM keys k LEFT JOIN replies r ON r.key_id = k.id ORDER BY k.id"
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return db.execute(keys).fetchall(), db.execute("SELECT * FROM history ORDER BY id").fetchall()


async def _insert(session: Any, keys: Rows, steps: Rows) -> None:
    columns = ("key", "state", "token", "order_id", "due_at", "ended_at", "body", "intent", "reply")
    for row in keys:
        await session.fetch(
            f"INSERT INTO transfer_async.{ENTRY_TABLE} (id, scope, {', '.join(columns)}) "
            "OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            *(row["id"], SCOPE, *(row[name] for name in columns)),
        )
    for row in steps:
        names = [name for name in row.keys() if name != "id"]  # noqa: SIM118 - a Row iterates over its values
        await session.fetch(
            f"INSERT INTO transfer_async.history ({', '.join(names)}, token) VALUES "
            f"({', '.join(f'${number}' for number in range(1, len(names) + 1))}, 't')",
            *(row[name] for name in names),
        )


@pytest.fixture(params=["sqlite", "postgres"])
def closed_journal(request: pytest.FixtureRequest, path: Path) -> SQLiteJournal | PostgresJournal:
    if request.param == "sqlite":
        return SQLiteJournal(path)
    return PostgresJournal(request.getfixturevalue("database"))


@pytest.fixture
async def journal(
    closed_journal: SQLiteJournal | PostgresJournal, rows: tuple[Rows, Rows]
) -> AsyncIterator[Journal]:
    if isinstance(closed_journal, SQLiteJournal):
        await closed_journal.upgrade()
    async with closed_journal as journal:
        if isinstance(journal, PostgresJournal):
            await journal._ask(lambda session: _insert(session, *rows))
        yield journal


async def entry(journal: Journal, key: str) -> Entry:
    found = await journal.read(SCOPE, key)
    assert found is not None
    return found


async def test_every_key_stands_where_it_stood(journal: Journal):
    names = ("doubt", "promised", "created", "resolved", "untold", "refused", "owing", "claimed", "sending")
    found = {name: await entry(journal, name) for name in names}

    assert {name: (one.state, one.order_id, one.is_readable) for name, one in found.items()} == {
        "doubt": (S.IN_DOUBT, None, True),
        "promised": (S.IN_DOUBT, None, True),
        "created": (S.CREATED, "tx-1", True),
        "resolved": (S.CREATED, "tx-2", True),
        "untold": (S.CREATED, "tx-3", True),
        "refused": (S.FREE, None, True),
        "owing": (S.FREE, None, True),
        "claimed": (S.CLAIMED, None, True),
        "sending": (S.SENDING, None, True),
    }
    assert found["created"].reply == REPLY
    assert found["untold"].untold == (Untold(intent_id="intent-1", outcome=Outcome.CREATED, order_id="tx-3"),)
    assert [(one.hook, one.receipt) for one in found["owing"].owed] == [("hold", "r-hold")]


async def test_a_doubt_has_all_that_was_kept_of_it_and_no_cause(journal: Journal):
    found = await entry(journal, "doubt")
    doubts = {doubt.key: doubt for doubt in await Operators(journal, SCOPE).in_doubt()}

    assert found.intent is not None
    assert found.intent.beneficiary == PersonName("Ben", "Okri")
    assert (doubts["doubt"].cause, doubts["doubt"].candidates) == (None, ("tx-cand",))
    assert doubts["doubt"].receipts == {"hold": "r-hold", "check": "r-check"}


async def test_its_history_is_told_as_it_was(journal: Journal):
    told = [(step.move, step.reason) for step in await journal.history(SCOPE, "doubt")]

    assert told == [("claim", None), ("keep", None), ("mark", None), ("doubt", "the answer names tx-cand")]


async def test_it_is_ended_as_ever(journal: Journal):
    operators = Operators(journal, SCOPE, settle_after=0.0)
    made = await operators.resolve("doubt", order_id="tx-cand", by="ada", reason="seen")
    freed = await operators.refute("promised", by="ada", reason="seen")

    assert (made.state, freed.state) == (S.CREATED, S.FREE)
    assert [one.outcome for one in (await entry(journal, "promised")).untold] == [Outcome.REFUSED]
