"""The audit of all keys: which parts of the history are read again, and which are cached."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import World
from tests.support.journalling import SCOPE, WAYS, KeyState, made, resolve
from transfer_async import MemoryJournal, SQLiteJournal
from transfer_async._support.clock import Clock
from transfer_async.journal import audit
from transfer_async.journal.protocol import KEPT
from transfer_async.testing.journal_contract import JournalTime


@pytest.fixture(autouse=True)
def _short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SPAN", 4)  # the history lines of one resolved doubt
    monkeypatch.setattr(audit, "MAX_RANGES", 2)


@pytest.fixture
def journal_time() -> JournalTime:
    return JournalTime()


@pytest.fixture
async def journal(path: Path, journal_time: JournalTime) -> AsyncIterator[SQLiteJournal]:
    async with SQLiteJournal(path, clock=journal_time.clock) as journal:
        yield journal


async def resolved(journal: Any, *keys: str, by: str = "ada") -> None:
    for key in keys:
        await made(journal, *WAYS[KeyState.IN_DOUBT], resolve(order_id=f"tx-{key}", by=by), key=key)


async def changed(journal: SQLiteJournal, sql: str) -> None:
    """Change the stored file directly."""
    await journal._ask(lambda file: file._db.execute(sql).rowcount)


async def found(journal: Any, **wanted: Any) -> tuple[list[str], int]:
    """Return all keys found, and the number of pages."""
    keys, after, pages = [], "", 0
    while after or not pages:
        lines, after = await journal.audit(SCOPE, limit=99, after=after, **wanted)
        keys += [key for key, *_ in lines]
        pages += 1
    return keys, pages


async def test_only_the_end_of_the_history_is_read_a_second_time(journal: SQLiteJournal):
    """Without this, each page of a journal with 100,000 keys takes a second."""
    await resolved(journal, *"abcdefgh")
    first = await found(journal)

    assert first == ([*"hgfedcba"], 5)
    assert await found(journal, by="ada") == (first[0], 1)
    assert await found(journal, by="ben") == ([], 1)


async def test_a_line_that_is_committed_late_is_found(journal: SQLiteJournal):
    """Without this, a decision of another worker is missing from every audit."""
    await resolved(journal, *"abcd")
    await found(journal)
    await changed(journal, "UPDATE history SET by_whom = 'ben' WHERE by_whom IS NULL AND id = 14")

    assert await found(journal, by="ben") == (["d"], 1)


@pytest.mark.parametrize("kept", [(), ("in doubt",)], ids=["all were pruned", "the oldest key is kept"])
async def test_lines_with_the_ids_of_pruned_ones_are_found(
    journal: SQLiteJournal, journal_time: JournalTime, kept: tuple[str, ...]
):
    """SQLite reuses the ids of deleted rows."""
    for key in kept:
        await made(journal, *WAYS[KeyState.IN_DOUBT], key=key)
    await resolved(journal, *"abcd")
    await found(journal)
    journal_time.pass_(2 * KEPT)
    await journal.prune(SCOPE, before=journal_time.utc())
    assert (await found(journal))[0] == []
    await resolved(journal, *"wxyz", by="ben")

    assert (await found(journal, by="ben"))[0] == [*"zyxw"]


async def test_the_audit_skips_the_id_gap_left_by_pruning(journal: SQLiteJournal):
    await resolved(journal, "a", "b")
    await changed(journal, "UPDATE history SET id = id + 1000000 WHERE id > 4")

    assert await found(journal) == (["b", "a"], 2)


async def test_a_damaged_time_hides_a_line_from_time_ranges_only(journal: SQLiteJournal):
    await resolved(journal, "a")
    await changed(journal, "UPDATE history SET at = 'damaged' WHERE by_whom = 'ada'")

    assert await found(journal) == (["a"], 1)
    assert await found(journal, since=0.0) == ([], 1)


async def test_the_audit_cache_is_bounded(journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "MAX_KNOWN", 2)
    monkeypatch.setattr(audit, "MAX_RANGES", 1)
    await resolved(journal, *"abcdefgh")
    after, sizes = "", []
    while after or not sizes:
        _, after = await journal.audit(SCOPE, limit=99, after=after)
        sizes.append(sum(known.number for known in journal._audit._known.values()))

    assert max(sizes) == 2
    assert (await found(journal))[0] == [*"hgfedcba"]


async def test_no_page_is_longer_than_its_limit(journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "SPAN", 8)  # two lines that name a person
    await resolved(journal, *"abcdef")
    pages, after = [], ""
    while after or not pages:
        lines, after = await journal.audit(SCOPE, limit=2, after=after)
        pages.append("".join(key for key, *_ in lines))

    assert pages == ["fe", "dc", "ba", ""]  # the oldest lines name no person


async def test_a_forgotten_key_is_not_listed_in_memory(world: World):
    journal = MemoryJournal(clock=Clock(now=world.time.now, utc=world.time.utc), keep=10.0)
    await resolved(journal, "a")
    world.time.pass_(20)
    await resolved(journal, "b")

    assert await found(journal) == (["b"], 1)
