"""The durable record of intents and their outcomes: one protocol, one table of states, several back ends.

A bank that writes a journal of its own needs what is here and nothing else: see `Journal`.
"""

from typing import Any

from transfer_async.journal.address import journal_at
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
)
from transfer_async.journal.operator_transitions import (
    Amend,
    Demand,
    Look,
    Propose,
    TakeBack,
    Waive,
    Withdraw,
)
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import KEPT, Journal, KeyRecord, NotToBeForgotten, forgettable
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
from transfer_async.journal.state_machine import decide, due_at, history_step, is_ended, is_told, is_waiting
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
)

__all__ = [
    "FOUR_EYES",
    "KEPT",
    "LONGEST_LEASE",
    "STEP_COLUMNS",
    "AcquireLease",
    "AddPendingUndos",
    "Amend",
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
    "Upgrade",
    "Waive",
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
"""What a journal of your own may still import, until version 1.0."""


def __getattr__(name: str) -> Any:
    if name in _FORMER_NAMES:
        return _FORMER_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
