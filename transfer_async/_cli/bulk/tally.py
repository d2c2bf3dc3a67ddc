"""What has become of the orders so far: counts, the exit code, and the last words."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from transfer_async.errors import AlreadyCreated, JournalFailed, Outcome, Refused, TransferError
from transfer_async.models import Order


class Kind(enum.Enum):
    """What an order has come to, as the summary counts it."""

    CREATED = "created"
    REFUSED = "refused"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


class ExitCode(enum.IntEnum):
    """How the command ends."""

    ALL_CREATED = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_SENT = 4
    UNKNOWN = 5


def kind_of(result: Order | Exception) -> Kind:
    """What ``result`` counts as."""
    if isinstance(result, Order):
        return Kind.CREATED
    if not isinstance(result, TransferError):
        return Kind.UNKNOWN  # an error of the client's own says nothing for certain
    return {
        Outcome.CREATED: Kind.CREATED,
        Outcome.REFUSED: Kind.REFUSED,
        Outcome.NOT_SENT: Kind.NOT_SENT,
        Outcome.UNKNOWN: Kind.UNKNOWN,
    }[result.outcome]


def code_of(result: Order | Exception) -> ExitCode:
    """The exit code if every other order were created."""
    if isinstance(result, (Order, AlreadyCreated)):
        return ExitCode.ALL_CREATED
    if isinstance(result, JournalFailed) and result.outcome is not Outcome.NOT_SENT:
        return ExitCode.UNKNOWN  # it is known here, and the journal will only know that it was sent
    if isinstance(result, Refused):
        return ExitCode.REFUSED if result.is_final else ExitCode.NOT_SENT
    return ExitCode.NOT_SENT if kind_of(result) is Kind.NOT_SENT else ExitCode.UNKNOWN


class Tally:
    """Counts.

    Attributes:
        counts: how many orders came to what.
        done: how many there are in all.
        owed: how many hooks could not be undone.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self.done = self.owed = 0
        self._codes = dict.fromkeys(ExitCode, 0)

    def add(self, result: Order | Exception) -> None:
        """Count one more."""
        self.done += 1
        self.counts[kind_of(result)] += 1
        self._codes[code_of(result)] += 1

    @property
    def exit_code(self) -> ExitCode:
        """The highest that any order asks for."""
        return max((code for code, count in self._codes.items() if count), default=ExitCode.ALL_CREATED)

    def told(self) -> str:
        """The counts in one line, without those that are nothing."""
        return ", ".join(f"{count:,} {kind.value}" for kind, count in self.counts.items() if count) or "none"

    def advice(self) -> Iterator[str]:
        """What is to be done, a line each."""
        if count := self._codes[ExitCode.UNKNOWN]:
            yield (
                f"in doubt: {count:,}. These orders may exist: keep the holds, do not pay in another way; "
                "see: transfer-async journal list"
            )
        if count := self._codes[ExitCode.NOT_SENT]:
            yield f"may end otherwise another time: {count:,}. Run the same command again"
        if self.owed:
            yield f"undos that failed and are owed: {self.owed:,}; see: transfer-async journal recover"
