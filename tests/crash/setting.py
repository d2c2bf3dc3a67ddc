"""The addresses and files of a trial, its orders, and the faults of the service."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path

from attrs import asdict, frozen

from tests.support.bank import new_order
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

SCOPE = "kills"
DEADLINE = 0.8
LEASE = 1.25
TIMEOUT = 0.5
"""Seconds for which a worker waits for a locked file."""

POLICY = RetryPolicy(deadline=DEADLINE, first_delay=0.01, max_delay=0.1)

FAULTS: dict[Fault, float] = {
    CloseBeforeReading(): 0.02,
    CloseAfterProcessing(): 0.02,
    ResetAfterProcessing(): 0.02,
    StallAfterProcessing(): 0.01,
    StallBeforeProcessing(0.5): 0.01,
    StallBeforeProcessing(1.0): 0.01,  # the order is created after its sender has given up
    Status(422): 0.03,
    Status(429, headers={"Retry-After": "0"}): 0.05,
    Status(503): 0.01,
    StatusAfterProcessing(500): 0.01,
    TruncatedBody(): 0.01,
    UnsolicitedReply(): 0.02,
}
"""The faults of the service, with the share of orders that each affects."""

_HERE = "KILLS_PLACE"


class Point(enum.StrEnum):
    """A point at which a process can be killed or paused."""

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


@frozen(kw_only=True)
class Place:
    """The addresses and files of a trial, which processes read from the environment.

    Args:
        directory: the directory of all files.
        journal: the journal's address.
        base_url: the service's base URL.
        token: the service's token.
        broker: the broker's address, if there is a broker.
    """

    directory: str
    journal: str
    base_url: str
    token: str
    broker: str = ""

    def enter(self) -> None:
        """Store the place in the environment of this process and its children."""
        service = {"TRANSFER_BASE_URL": self.base_url, "TRANSFER_API_TOKEN": self.token}
        os.environ.update(service | {_HERE: json.dumps(asdict(self))})

    @classmethod
    def here(cls) -> Place:
        """Read the place from the environment."""
        return cls(**json.loads(os.environ[_HERE]))

    @property
    def is_postgres(self) -> bool:
        """Whether the journal is a database."""
        return self.journal.startswith("postgres")

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return Path(self.directory) / name

    def new_journal(self) -> PostgresJournal | SQLiteJournal:
        """Return a new journal object."""
        if self.is_postgres:
            return PostgresJournal(self.journal)
        return SQLiteJournal(self.journal, timeout=TIMEOUT)


def order_of(key: str) -> NewOrder:
    """Return the order of a key; the poster's username contains the key."""
    poster = f"{key}@kills.example"
    if key.startswith("unknown"):
        return new_order(poster_username=poster, poster_recipient_username="nobody@example.com")
    return new_order(poster_username=poster)


def key_of(poster: str) -> str:
    """Return the key in a poster's username."""
    return poster.partition("@")[0]
