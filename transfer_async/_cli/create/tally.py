"""What has become of the orders so far: counts, the exit code, and the last words."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator

from transfer_async._cli.console import exit_codes
from transfer_async._models.errors import (
    AlreadyCreated,
    JournalFailed,
    Outcome,
    Refused,
    Refuted,
    TransferError,
)
from transfer_async._models.responses import Order

NAMED = 3
"""How many reasons are named; the others are counted."""


class Kind(enum.Enum):
    """What an order has come to, as the summary counts it."""

    CREATED = "created"
    REFUSED = "refused"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


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


def code_of(result: Order | Exception) -> int:
    """The exit code if every other order were created."""
    if isinstance(result, (Order, AlreadyCreated)):
        return exit_codes.DONE
    if isinstance(result, JournalFailed) and result.outcome is not Outcome.NOT_SENT:
        return exit_codes.UNKNOWN  # it is known here, and the journal will only know that it was sent
    if isinstance(result, Refused):
        return exit_codes.REFUSED if result.is_final else exit_codes.NOT_SENT
    return exit_codes.NOT_SENT if kind_of(result) is Kind.NOT_SENT else exit_codes.UNKNOWN


class Tally:
    """Counts.

    Attributes:
        counts: how many orders came to what.
        done: how many there are in all.
        owed: how many hooks could not be undone.
        made: how many of the orders came to be while this run went on; the others were there before.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self.done = self.owed = self.made = 0
        self._reasons: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._fields: Counter[str] = Counter()

    def add(self, result: Order | Exception) -> None:
        """Count one more."""
        self.done += 1
        self.counts[kind_of(result)] += 1
        self._reasons[code_of(result)][type(result).__name__] += 1
        if isinstance(result, Refused):
            self._fields.update(result.fields)

    @property
    def exit_code(self) -> int:
        """The highest that any order asks for."""
        return max((code for code, reasons in self._reasons.items() if reasons), default=exit_codes.DONE)

    def told(self) -> str:
        """The counts in one line, without those that are nothing."""
        return ", ".join(f"{count:,} {kind.value}" for kind, count in self.counts.items() if count) or "none"

    def advice(self) -> Iterator[str]:
        """What there is to know and to do, a line each."""
        if (before := self.counts[Kind.CREATED] - self.made) > 0:
            yield f"created before this run, and not again: {before:,}. Another payment needs another key"
        if count := self._reasons[exit_codes.UNKNOWN].total():
            yield (
                f"in doubt: {count:,}. These orders may exist: keep the holds, do not pay in another way; "
                "see: transfer-async journal list"
            )
        if reasons := self._reasons[exit_codes.NOT_SENT]:
            yield f"may end otherwise another time: {_counted(reasons)}. Run the same command again"
        reasons = self._reasons[exit_codes.REFUSED].copy()
        refuted = reasons.pop(Refuted.__name__, 0)
        if reasons:
            named = f" The service names: {_named(self._fields)}." if self._fields else ""
            yield (
                f"would be refused again: {_counted(reasons)}.{named} "
                "Correct these lines, under the same keys, and run the same command again"
            )
        if refuted:
            yield (
                f"certainly no order, after a doubt: {refuted:,}. These lines are not sent again: "
                "what is still to be paid needs another key"
            )
        if self.owed:
            yield f"undos that failed and are owed: {self.owed:,}; see: transfer-async journal recover"


def _counted(reasons: Counter[str]) -> str:
    """How many there are, and of which errors most of them."""
    return f"{reasons.total():,} ({_named(reasons)})"


def _named(counts: Counter[str]) -> str:
    named = dict(counts.most_common(NAMED))
    if others := counts.total() - sum(named.values()):
        named["others"] = others
    return ", ".join(f"{name} {count:,}" for name, count in named.items())
