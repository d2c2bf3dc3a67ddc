"""The moves of people: what one proposes for another to approve, what is corrected, and who has looked.

Resolving and refuting are people's moves, too, and the bank's own `resolve` makes them as well: they stand
among the `moves`. Each names the proposal that it approves, if it approves one.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from transfer_async._models.errors import Cause, CauseKind, Outcome
from transfer_async.journal.model import (
    Decision,
    Entry,
    KeyState,
    OutboxEntry,
    Proposal,
    Rejection,
    TransitionResult,
)
from transfer_async.journal.transitions import Move, OfPerson, denied_to_person, to_be_told

# --- four eyes ----------------------------------------------------------------------------------

_CAN_BE_PROPOSED = {
    KeyState.IN_DOUBT: (Decision.RESOLVE, Decision.REFUTE),
    KeyState.CREATED: (Decision.AMEND,),
    KeyState.FREE: (Decision.WAIVE,),
}


class Propose(Move, frozen=True, kw_only=True):
    """One person says what is to become of the key; it becomes of it when another approves.

    Args:
        id: the proposal's own.
        attempt: what it is about: the same compare-and-set as that of the decision itself.
        settle_after: for a refutation, which nobody may be sure of any earlier.
        seen: the entry's ``moves`` when it was looked at; None for whatever it has become.
    """

    name: ClassVar[str] = "propose"

    id: str
    decision: Decision
    attempt: str | None
    order_id: str | None = None
    by: str
    said: str
    undone: bool = False
    settle_after: float = 0.0
    seen: int | None = None

    @property
    def order_bound(self) -> str | None:
        return self.order_id

    @property
    def reason(self) -> str:
        """What the history says."""
        return f"{self.decision.value}: {self.said}"

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if self.seen is not None and self.seen != entry.moves:
            return Rejection.MOVED
        if entry.attempt != self.attempt or self.decision not in _CAN_BE_PROPOSED.get(entry.state, ()):
            return Rejection.LOST
        if self.decision is Decision.WAIVE:
            return None if entry.four_eyes else Rejection.LOST
        if self.decision is Decision.AMEND:
            return None if entry.is_amendable else Rejection.ANSWERED
        is_early = self.decision is Decision.REFUTE and now < entry.settled_at(self.settle_after)
        return Rejection.TOO_EARLY if is_early else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """It takes the place of an earlier one, and the next move makes it void."""
        proposal = Proposal(
            id=self.id,
            decision=self.decision,
            order_id=self.order_id,
            by=self.by,
            reason=self.said,
            at=now,
            undone=self.undone,
        )
        return replace(entry, proposal=proposal)


class Withdraw(Move, frozen=True, kw_only=True):
    """A proposal is taken back, or turned down: whoever does so, nothing becomes of it."""

    name: ClassVar[str] = "withdraw"

    proposal: str
    by: str
    reason: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        is_it = entry.proposal is not None and entry.proposal.id == self.proposal
        return None if is_it else Rejection.VOID


class Demand(Move, frozen=True, kw_only=True):
    """From now on two persons are needed in this scope; the one other move that needs no entry."""

    name: ClassVar[str] = "demand"

    by: str
    reason: str

    def decide(self, entry: Entry | None, now: float) -> TransitionResult:
        """The verdict; nothing is written where two are needed already. A damaged rule is written anew."""
        if entry is not None and entry.unread is not None and (entry.intent_id or entry.fingerprint):
            return TransitionResult(now=now, entry=entry, denial=Rejection.UNREAD)  # an order's record
        if entry is None or entry.unread is not None:
            damaged = () if entry is None or entry.unread is None else (entry.unread.kept,)
            made = Entry(
                state=KeyState.FREE,
                fingerprint="",
                intent_id="",
                intent=None,
                claimed_at=now,
                moves=1 if entry is None else entry.moves + 1,
                laid_aside=damaged if entry is None else (*entry.laid_aside, *damaged),
                four_eyes=True,
            )
            return TransitionResult(now=now, entry=made)
        if entry.four_eyes is None:
            return TransitionResult(now=now, entry=entry, denial=Rejection.LOST)
        if entry.four_eyes:
            return TransitionResult(now=now, entry=entry)
        return TransitionResult(
            now=now, entry=replace(entry, four_eyes=True, proposal=None, moves=entry.moves + 1)
        )


class Waive(Move, frozen=True, kw_only=True):
    """From now on one person is enough; two have said so."""

    name: ClassVar[str] = "waive"
    decision: ClassVar[Decision] = Decision.WAIVE

    proposal: str
    by: str
    reason: str
    seen: int | None = None

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return denied_to_person(self, entry) if entry.four_eyes else Rejection.LOST

    def apply(self, entry: Entry, now: float) -> Entry:
        return replace(entry, four_eyes=False)


# --- what is corrected --------------------------------------------------------------------------


class _OfWrongId(OfPerson, frozen=True, kw_only=True):
    """An id that was given is the wrong one; never one that the service itself answered.

    Args:
        wrong: the id on record.
    """

    decision: ClassVar[Decision] = Decision.AMEND

    wrong: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if not entry.is_amendable:
            return Rejection.ANSWERED
        return Rejection.LOST if entry.order_id != self.wrong else super().denial(entry, now)


class Amend(_OfWrongId, frozen=True, kw_only=True):
    """The key's order is another one than somebody said."""

    name: ClassVar[str] = "amend"

    order_id: str

    @property
    def order_bound(self) -> str:
        return self.order_id

    def apply(self, entry: Entry, now: float) -> Entry:
        """Whoever was told of the wrong one is told of the right one."""
        amended = replace(entry, order_id=self.order_id, untold=_untold_but(entry, self.wrong))
        return to_be_told(amended, now, outcome=Outcome.CREATED, order_id=self.order_id)


class TakeBack(_OfWrongId, frozen=True, kw_only=True):
    """The key's order is not the one that somebody said, and nobody knows which: it is in doubt again."""

    name: ClassVar[str] = "takeback"

    def apply(self, entry: Entry, now: float) -> Entry:
        """When its last request may have been sent stays as it was: the wait is not begun anew.

        So does what the sender reported, or that it reported nothing.
        """
        cause = Cause(kind=CauseKind.TAKEN_BACK, attempts=() if entry.cause is None else entry.cause.attempts)
        if entry.is_suspected:  # an earlier order may exist, so only a person may free the key
            cause = entry.cause or cause
        return replace(
            entry, order_id=None, lease_until=0.0, untold=_untold_but(entry, self.wrong), cause=cause
        )


def _untold_but(entry: Entry, order_id: str) -> tuple[OutboxEntry, ...]:
    wrong = (entry.intent_id, order_id)
    return tuple(pending for pending in entry.untold if (pending.intent_id, pending.order_id) != wrong)


# --- who has looked -----------------------------------------------------------------------------


class Look(Move, frozen=True, kw_only=True):
    """Somebody was shown who the parties are: for the history alone."""

    name: ClassVar[str] = "look"

    by: str
    reason: str

    @property
    def is_a_change(self) -> bool:
        return False
