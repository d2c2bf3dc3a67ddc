"""The durable record of intents and their outcomes: one protocol, one table of states, several back ends."""

from transfer_async.journal.address import journal_at
from transfer_async.journal.entries import KeyState
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import Journal, KeyRecord
from transfer_async.journal.sqlite import SQLiteJournal

__all__ = [
    "Journal",
    "KeyRecord",
    "KeyState",
    "MemoryJournal",
    "PostgresJournal",
    "SQLiteJournal",
    "journal_at",
]
