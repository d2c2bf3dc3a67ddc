"""`journal_at` creates the right journal for each address."""

import pytest

from tests.support.cases import each
from transfer_async import PostgresJournal, SQLiteJournal
from transfer_async.journal import journal_at

KINDS = {
    "postgresql://user:secret@host:5432/bank": PostgresJournal,
    "postgres://user:secret@host:5432/bank": PostgresJournal,
    "journal.db": SQLiteJournal,
    "/var/lib/bank/journal.db": SQLiteJournal,
    "C:\\bank\\journal.db": SQLiteJournal,
}


@each(("address", "kind"), KINDS.items())
def test_each_kind_of_address_gives_its_kind_of_journal(address: str, kind: type):
    assert isinstance(journal_at(address), kind)


@each("address", ["", "  ", "mysql://host/bank", "sqlite:///journal.db", "file://j.db", ":memory:"])
def test_any_other_address_is_refused(address: str):
    with pytest.raises(ValueError, match="journal"):
        journal_at(address)
