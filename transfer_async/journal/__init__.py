"""The durable record of intents and their outcomes: one protocol, one table of states, several back ends.

A bank that writes a journal of its own needs what is here and nothing else: see `Journal`.
"""

from transfer_async.journal.address import journal_at
from transfer_async.journal.claim import Claim
from transfer_async.journal.entries import (
    LONGEST_LEASE,
    Denial,
    Ending,
    Entry,
    KeyState,
    Owed,
    Step,
    Unread,
    Untold,
    Verdict,
)
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.moves import (
    Attend,
    Create,
    Expire,
    Free,
    GoInDoubt,
    Keep,
    LayAside,
    Mark,
    Move,
    Owe,
    Paid,
    Promise,
    Refute,
    Resolve,
    Suspect,
    TakeOver,
    Told,
)
from transfer_async.journal.operator_moves import Amend, Demand, Look, Propose, TakeBack, Waive, Withdraw
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.proposal import FOUR_EYES, Decision, Proposal
from transfer_async.journal.protocol import KEPT, Journal, KeyRecord, NotToBeForgotten, forgettable
from transfer_async.journal.rows import STEP_COLUMNS, EntryRow, entry_of, row_of, step_of, step_values
from transfer_async.journal.seal import DoesNotOpen, KeySeal, Seal
from transfer_async.journal.sqlite import SQLiteJournal
from transfer_async.journal.state_machine import decide, due_at, history_step, is_ended, is_told, is_waiting
from transfer_async.journal.upgrading import Upgrade

__all__ = [
    "FOUR_EYES",
    "KEPT",
    "LONGEST_LEASE",
    "STEP_COLUMNS",
    "Amend",
    "Attend",
    "Claim",
    "Create",
    "Decision",
    "Demand",
    "Denial",
    "DoesNotOpen",
    "Ending",
    "Entry",
    "EntryRow",
    "Expire",
    "Free",
    "GoInDoubt",
    "Journal",
    "Keep",
    "KeyRecord",
    "KeySeal",
    "KeyState",
    "LayAside",
    "Look",
    "Mark",
    "MemoryJournal",
    "Move",
    "NotToBeForgotten",
    "Owe",
    "Owed",
    "Paid",
    "PostgresJournal",
    "Promise",
    "Proposal",
    "Propose",
    "Refute",
    "Resolve",
    "SQLiteJournal",
    "Seal",
    "Step",
    "Suspect",
    "TakeBack",
    "TakeOver",
    "Told",
    "Unread",
    "Untold",
    "Upgrade",
    "Verdict",
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
