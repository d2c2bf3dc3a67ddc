"""The journal, which stores intents and their outcomes in memory, in a SQLite file or in PostgreSQL.

To implement your own journal, you need only the names exported here; see `Journal`. Under the layering rules,
this package may import `_converters`, `_models` and `_support`.
"""

import os
from typing import Any

from transfer_async._models.errors import hides_arguments
from transfer_async._support.util import public
from transfer_async.journal.encryption import DoesNotOpen, KeySeal, Seal
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.model import (
    FOUR_EYES,
    LONGEST_LEASE,
    Decision,
    Ending,
    Entry,
    HistoryEvent,
    KeyState,
    OutboxEntry,
    PendingUndo,
    Proposal,
    Rejection,
    TransitionResult,
    Unread,
    Watcher,
)
from transfer_async.journal.operator_transitions import (
    WITHOUT_CHANGE,
    Amend,
    Demand,
    Look,
    Note,
    Propose,
    TakeBack,
    Unwatch,
    Waive,
    Watch,
    Withdraw,
)
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import KEPT, AuditLine, Journal, KeyRecord, NotToBeForgotten, forgettable
from transfer_async.journal.rows import (
    STEP_COLUMNS,
    EntryRow,
    Upgrade,
    entry_of,
    row_of,
    step_of,
    step_values,
)
from transfer_async.journal.sqlite import SQLiteJournal
from transfer_async.journal.state_machine import decide
from transfer_async.journal.transitions import (
    AcquireLease,
    AddPendingUndos,
    Claim,
    Create,
    Expire,
    GoInDoubt,
    MarkNotified,
    MarkSending,
    MarkUndone,
    Move,
    Quarantine,
    Refute,
    Release,
    RenewLease,
    RequestNotification,
    Resolve,
    Suspect,
    TakeOver,
    due_at,
    history_step,
    is_ended,
    is_told,
    is_waiting,
)

__all__ = [
    "FOUR_EYES",
    "KEPT",
    "LONGEST_LEASE",
    "STEP_COLUMNS",
    "WITHOUT_CHANGE",
    "AcquireLease",
    "AddPendingUndos",
    "Amend",
    "AuditLine",
    "Claim",
    "Create",
    "Decision",
    "Demand",
    "DoesNotOpen",
    "Ending",
    "Entry",
    "EntryRow",
    "Expire",
    "GoInDoubt",
    "HistoryEvent",
    "Journal",
    "KeyRecord",
    "KeySeal",
    "KeyState",
    "Look",
    "MarkNotified",
    "MarkSending",
    "MarkUndone",
    "MemoryJournal",
    "Move",
    "NotToBeForgotten",
    "Note",
    "OutboxEntry",
    "PendingUndo",
    "PostgresJournal",
    "Proposal",
    "Propose",
    "Quarantine",
    "Refute",
    "Rejection",
    "Release",
    "RenewLease",
    "RequestNotification",
    "Resolve",
    "SQLiteJournal",
    "Seal",
    "Suspect",
    "TakeBack",
    "TakeOver",
    "TransitionResult",
    "Unread",
    "Unwatch",
    "Upgrade",
    "Waive",
    "Watch",
    "Watcher",
    "Withdraw",
    "decide",
    "due_at",
    "entry_of",
    "forgettable",
    "history_step",
    "is_ended",
    "is_told",
    "is_waiting",
    "journal_at",
    "row_of",
    "step_of",
    "step_values",
]

_FORMER_NAMES = {
    "Attend": AcquireLease,
    "Denial": Rejection,
    "Free": Release,
    "Keep": RenewLease,
    "LayAside": Quarantine,
    "Mark": MarkSending,
    "Owe": AddPendingUndos,
    "Owed": PendingUndo,
    "Paid": MarkUndone,
    "Promise": RequestNotification,
    "Told": MarkNotified,
    "Untold": OutboxEntry,
    "Verdict": TransitionResult,
}
"""The former names of exported classes. They can be imported until version 1.0."""


def __getattr__(name: str) -> Any:
    if name in _FORMER_NAMES:
        return _FORMER_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hides_arguments
def journal_at(address: str, *, seal: Seal | None = None) -> SQLiteJournal | PostgresJournal:
    """Create a `PostgresJournal` or a `SQLiteJournal`, depending on ``address``.

    The journal opens on first use.

    Args:
        address: the ``postgresql://`` URL of a database, or the path of a SQLite file.
        seal: encrypts stored personal data, for example a `KeySeal`.

    Raises:
        ValueError: ``address`` is neither a ``postgresql://`` URL nor a file path.
    """
    if address.startswith(("postgresql://", "postgres://")):
        return PostgresJournal(address, seal=seal)
    if "://" in address or not address.strip() or public(address) != address:  # "host=db password=..."
        raise ValueError("a journal must be a file path or a postgresql:// address")
    return SQLiteJournal(address, seal=seal)


def seal_from_env() -> Seal | None:
    """Return a `KeySeal` from the file that ``TRANSFER_SEAL`` names, or None if the variable is not set.

    Raises:
        ValueError: the file cannot be read, or its contents are invalid.
    """
    path = os.environ.get("TRANSFER_SEAL")
    if not path:
        return None
    try:
        return KeySeal.from_file(path)
    except ValueError as error:
        raise ValueError(f"TRANSFER_SEAL: {error}") from None
