"""Which journal an address means."""

from __future__ import annotations

from transfer_async._support.addresses import public
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import Journal
from transfer_async.journal.sqlite import SQLiteJournal


def journal_at(address: str) -> Journal:
    """The journal at a ``postgresql://`` address, or in the file of that path; it opens when it is used.

    Raises:
        ValueError: it is neither.
    """
    if address.startswith(("postgresql://", "postgres://")):
        return PostgresJournal(address)
    if "://" in address or not address.strip() or public(address) != address:  # "host=db password=..."
        raise ValueError("a journal is the path of a file, or a postgresql:// address")
    return SQLiteJournal(address)
