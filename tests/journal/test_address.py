"""`journal_at` creates the journal that an address names."""

from pathlib import Path

import pytest

from tests.support.cases import each
from transfer_async import PostgresJournal, SQLiteJournal
from transfer_async.journal import journal_at


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_database_address_gives_a_postgres_journal(scheme: str):
    assert isinstance(journal_at(f"{scheme}://user:secret@host:5432/bank"), PostgresJournal)


@pytest.mark.parametrize("path", ["journal.db", "/var/lib/bank/journal.db", "C:\\bank\\journal.db"])
def test_a_path_gives_a_sqlite_journal(path: str):
    assert isinstance(journal_at(path), SQLiteJournal)


@each("address", ["", "  ", "mysql://host/bank", "sqlite:///journal.db", "file://j.db"])
def test_any_other_address_is_refused(address: str):
    with pytest.raises(ValueError, match="journal"):
        journal_at(address)


def test_memory_is_no_file():
    with pytest.raises(ValueError, match="MemoryJournal"):
        journal_at(":memory:")


def test_no_file_is_created_before_the_first_use(tmp_path: Path):
    journal_at(str(tmp_path / "journal.db"))

    assert list(tmp_path.iterdir()) == []
