"""Creation of a journal from its address, and of its encryption keys from the environment."""

from __future__ import annotations

import os

from transfer_async._models.errors import hides_arguments
from transfer_async._support.util import public
from transfer_async.journal.encryption import KeySeal, Seal
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.sqlite import SQLiteJournal


@hides_arguments
def journal_at(address: str, *, seal: Seal | None = None) -> SQLiteJournal | PostgresJournal:
    """Create the journal at a ``postgresql://`` address or a file path; it opens at its first use.

    Args:
        address: where it is.
        seal: for what is stored of persons.

    Raises:
        ValueError: it is neither.
    """
    if address.startswith(("postgresql://", "postgres://")):
        return PostgresJournal(address, seal=seal)
    if "://" in address or not address.strip() or public(address) != address:  # "host=db password=..."
        raise ValueError("a journal is the path of a file, or a postgresql:// address")
    return SQLiteJournal(address, seal=seal)


def seal_from_env() -> Seal | None:
    """Create the `KeySeal` of the key file that ``TRANSFER_SEAL`` names; None if it is not set.

    Raises:
        ValueError: the file is no good.
    """
    path = os.environ.get("TRANSFER_SEAL")
    if not path:
        return None
    try:
        return KeySeal.from_file(path)
    except ValueError as error:
        raise ValueError(f"TRANSFER_SEAL: {error}") from None
