"""Which journal an address means."""

from pathlib import Path

import pytest

from tests.support.cases import each
from transfer_async import PostgresJournal, SQLiteJournal
from transfer_async.journal import journal_at


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_databases_address_means_a_journal_in_it(scheme: str):
    assert isinstance(journal_at(f"{scheme}://user:secret@host:5432/bank"), PostgresJournal)


@pytest.mark.parametrize("path", ["journal.db", "/var/lib/bank/journal.db", "C:\\bank\\journal.db"])
def test_a_path_means_a_journal_in_that_file(path: str):
    assert isinstance(journal_at(path), SQLiteJournal)


@each("address", ["", "  ", "mysql://host/bank", "sqlite:///journal.db", "file://j.db"])
def test_anything_else_is_refused(address: str):
    with pytest.raises(ValueError, match="journal"):
        journal_at(address)


def test_memory_is_no_file():
    with pytest.raises(ValueError, match="MemoryJournal"):
        journal_at(":memory:")


def test_nothing_is_made_before_the_journal_is_used(tmp_path: Path):
    journal_at(str(tmp_path / "journal.db"))

    assert list(tmp_path.iterdir()) == []
