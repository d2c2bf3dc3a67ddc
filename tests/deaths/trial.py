"""What a trial is made of: its size, the points at which a worker may die, and what is asked for."""

from __future__ import annotations

import enum

from attrs import frozen

from tests.bank import new_order
from transfer_async import NewOrder, PostgresJournal, RetryPolicy, SQLiteJournal
from transfer_async.sandbox import (
    CloseAfterProcessing,
    CloseBeforeReading,
    Fault,
    ResetAfterProcessing,
    StallAfterProcessing,
    StallBeforeProcessing,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    UnsolicitedReply,
)

SCOPE = "deaths"
DEADLINE = 0.8
LEASE = 1.25
PATIENCE = 0.5
LOCKED = 1.2 * PATIENCE
"""Seconds that a worker waits for a locked file, and for which somebody else may lock it."""

JOURNALS = (2, 4)
"""How many journal objects, with a client each, a worker has at least and at most."""

POLICY = RetryPolicy(deadline=DEADLINE, first_delay=0.01, max_delay=0.1)

FAULTS: dict[Fault, float] = {
    CloseBeforeReading(): 0.02,
    CloseAfterProcessing(): 0.02,
    ResetAfterProcessing(): 0.02,
    StallAfterProcessing(): 0.01,
    StallBeforeProcessing(0.5): 0.01,
    StallBeforeProcessing(1.0): 0.01,  # the order comes into being after its sender has given up
    Status(422): 0.03,
    Status(429, headers={"Retry-After": "0"}): 0.05,
    Status(503): 0.01,
    StatusAfterProcessing(500): 0.01,
    TruncatedBody(): 0.01,
    UnsolicitedReply(): 0.02,
}
"""What goes wrong at the service besides, and for which share of the orders."""


class Point(enum.StrEnum):
    """Where a worker dies, or is stopped."""

    BEFORE_CLAIM = "before the claim"
    CLAIMED = "after the claim"
    BETWEEN_HOOKS = "between two hooks"
    HELD = "hold placed, not recorded"
    MARKED = "marked, not sent"
    SENT = "sent, not answered"
    ANSWERED = "answered, not settled"
    SETTLED = "settled, not acknowledged"
    UNDONE = "hold released, not recorded"
    COMMITTING = "within a commit"
    RECOVERING = "during recover"
    ANYWHERE = "at a random time"


KINDS = {
    "good": tuple(point for point in Point if point not in (Point.UNDONE, Point.RECOVERING)),
    "unknown": (Point.UNDONE, Point.SETTLED, Point.COMMITTING, Point.ANYWHERE),
    "poor": (Point.BEFORE_CLAIM, Point.CLAIMED, Point.COMMITTING, Point.ANYWHERE),
}
"""The kinds of orders, each with the points that its call passes: most are good, some have a
beneficiary whom nobody knows, some a customer without funds."""


@frozen(kw_only=True)
class Trial:
    """How much is to happen.

    Args:
        journal: its address.
        directory: where the bank and the workers write down what they did.
        kills: how many workers are killed.
        stops: how often the database is stopped at once.
        pauses: how many workers are stopped until others had to do without them.
        seed: of the faults and of every choice.
        mutant: a fault of our own making that must be noticed; see `mutants`.
        workers: how many are alive at the same time.
        at_once: how many commands each works at.
        patience: seconds after which the trial is cut short, which is a violation.
    """

    journal: str
    directory: str
    kills: int = 0
    stops: int = 0
    pauses: int = 0
    seed: int = 0
    mutant: str | None = None
    workers: int = 3
    at_once: int = 4
    patience: float = 600.0

    @property
    def is_postgres(self) -> bool:
        """Whether the journal is a database."""
        return self.journal.startswith("postgres")


def journal_of(trial: Trial) -> PostgresJournal | SQLiteJournal:
    """A journal object more."""
    if trial.is_postgres:
        return PostgresJournal(trial.journal)
    return SQLiteJournal(trial.journal, timeout=PATIENCE)


def order_of(key: str) -> NewOrder:
    """The order that a key asks for; the poster's username says whose it is at the service."""
    poster = poster_of(key)
    if key.startswith("unknown"):
        return new_order(poster_username=poster, poster_recipient_username="nobody@example.com")
    return new_order(poster_username=poster)


def poster_of(key: str) -> str:
    """The username under which the service knows of a key."""
    return f"{key}@deaths.example"
