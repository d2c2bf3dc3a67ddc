"""The work on one intent, as errors, events and messages tell of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from attrs import evolve

from transfer_async._models.causes import bare
from transfer_async._models.errors import Attempt, Outcome, TransferError
from transfer_async._models.requests import OrderIntent
from transfer_async._support.deadlines import NEVER
from transfer_async._support.state import State


class Work(State, kw_only=True):
    """What one call, or one run of `recover`, has done about an intent so far.

    Args:
        intent: as the caller made it; with the id on record, once the key is claimed or its record found.
        began: when, on the client's clock.
        deadline: until when its caller waits, on the client's clock.
        receipts: what hooks handed back, in this call and before a take-over.
        attempts_begun: how many HTTP attempts were begun.
        undone: how many hooks were undone.
        owed: how many undos failed, and are owed.
    """

    intent: OrderIntent
    began: float
    deadline: float = NEVER
    receipts: dict[str, str | None] = msgspec.field(default_factory=dict)
    attempts_begun: int = 0
    undone: int = 0
    owed: int = 0
    _attempts: tuple[Attempt, ...] = ()
    _noted: tuple[Callable[[], Attempt], ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The HTTP attempts that have ended."""
        self._attempts += tuple(tell() for tell in self._noted)
        self._noted = ()
        return self._attempts

    def note(self, tell: Callable[[], Attempt]) -> None:
        """An attempt has ended; ``tell`` is called once, if it is asked for: of most orders nobody does."""
        self._noted += (tell,)

    def correct_last(self, outcome: Outcome) -> None:
        """The last attempt has come to something else than it seemed."""
        *before, last = self.attempts
        self._attempts = (*before, evolve(last, outcome=outcome))


def stamped(error: TransferError, work: Work, *, order_may_exist: bool) -> TransferError:
    """``error`` with what is known of the work on it, and nothing in its chain that must not be shown."""
    bare(error)
    error.key = work.intent.key
    error.attempts = work.attempts
    error.receipts = dict(work.receipts)
    if work.intent.held is not None:
        error.receipts.setdefault("held", work.intent.held)  # the one on record comes first
    error.order_may_exist = order_may_exist
    return error
