"""The transitions that people make: proposals, corrections of order ids, dual control, and look-ups.

`Resolve` and `Refute` are in `transitions`, because the bank's own ``resolve`` makes them too. A decision
that approves a proposal contains the proposal's id. `OPERATOR_TRANSITIONS`, at the end of the module, lists
the states that each transition applies to. `transfer_async._pipeline.decisions` defines the texts and fields
of decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from transfer_async._models.errors import Cause, CauseKind, Outcome
from transfer_async.journal.model import (
    BLANK,
    Decision,
    Entry,
    HistoryEvent,
    KeyState,
    OutboxEntry,
    Proposal,
    Rejection,
    TransitionResult,
    Watcher,
)
from transfer_async.journal.transitions import (
    Move,
    OfPerson,
    Refute,
    RenewLease,
    Resolve,
    denied_to_person,
    with_notification,
)

# --- dual control -------------------------------------------------------------------------------


class Propose(Move, frozen=True, kw_only=True):
    """Record a person's proposal. The decision takes effect only when another person approves it.

    Args:
        id: the proposal's id.
        decision: the proposed decision.
        attempt: the attempt's token. The proposal is rejected if the entry contains a different token.
        order_id: the order's id, if the decision needs one.
        by: the person who makes the proposal.
        said: the person's evidence for the decision.
        undone: whether people have completed the undos that recovery cannot run.
        settle_after: for a refutation, the minimum number of seconds since the last moment at which the order
            could have been sent.
        seen: the version of the entry that the person saw; None accepts any version.
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
        """The reason that the history records."""
        return f"{self.decision.value}: {self.said}"

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if self.seen is not None and self.seen != entry.version:
            return Rejection.MOVED
        if entry.attempt != self.attempt or (entry.state, self.decision) not in _CAN_BE_PROPOSED:
            return Rejection.LOST
        if self.decision is Decision.WAIVE:
            return None if entry.four_eyes else Rejection.LOST
        if self.decision is Decision.AMEND:
            return None if entry.is_amendable else Rejection.ANSWERED
        is_early = self.decision is Decision.REFUTE and now < entry.settled_at(self.settle_after)
        return Rejection.TOO_EARLY if is_early else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """Record the proposal, which replaces any earlier one and becomes void when the key changes."""
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
    """Withdraw your own proposal, or reject another person's. The key's state does not change."""

    name: ClassVar[str] = "withdraw"

    proposal: str
    by: str
    reason: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        is_current = entry.proposal is not None and entry.proposal.id == self.proposal
        return None if is_current else Rejection.VOID


class Demand(Move, frozen=True, kw_only=True):
    """Require dual control in this scope from now on. Create the scope's own entry if necessary."""

    name: ClassVar[str] = "demand"

    by: str
    reason: str

    def decide(self, entry: Entry | None, now: float) -> TransitionResult:
        """Add the dual-control rule to the scope's own entry.

        An existing rule is kept; a corrupt entry is replaced.
        """
        if entry is not None and entry.unread is not None and (entry.intent_id or entry.fingerprint):
            # The record belongs to an order, not to the rule.
            return TransitionResult(now=now, entry=entry, denial=Rejection.UNREAD)
        if entry is None or entry.unread is not None:
            before = entry or BLANK
            damaged = () if before.unread is None else (before.unread.kept,)
            made = replace(
                BLANK,
                claimed_at=now,
                version=before.version + 1,
                quarantined=before.quarantined + damaged,
                four_eyes=True,
                unknown_members=before.unknown_members,
            )
            return TransitionResult(now=now, entry=made)
        if entry.four_eyes is None:
            return TransitionResult(now=now, entry=entry, denial=Rejection.LOST)
        if entry.four_eyes:
            return TransitionResult(now=now, entry=entry)
        return TransitionResult(
            now=now, entry=replace(entry, four_eyes=True, proposal=None, version=entry.version + 1)
        )


class Waive(Move, frozen=True, kw_only=True):
    """End dual control in this scope, after two people have agreed to it."""

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


# --- corrections of an order's id ---------------------------------------------------------------


class _OfWrongId(OfPerson, frozen=True, kw_only=True):
    """Base class of corrections to a recorded order id. An id from the service's response is never corrected.

    Args:
        wrong: the recorded id.
    """

    decision: ClassVar[Decision] = Decision.AMEND

    wrong: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if not entry.is_amendable:
            return Rejection.ANSWERED
        return Rejection.LOST if entry.order_id != self.wrong else super().denial(entry, now)


class Amend(_OfWrongId, frozen=True, kw_only=True):
    """Replace the recorded id of the key's order."""

    name: ClassVar[str] = "amend"

    order_id: str

    @property
    def order_bound(self) -> str:
        return self.order_id

    def apply(self, entry: Entry, now: float) -> Entry:
        """Replace the id. If the outcome was published as unknown, also add a pending notification."""
        amended = replace(
            entry, order_id=self.order_id, pending_notifications=_notifications_without(entry, self.wrong)
        )
        return with_notification(amended, now, outcome=Outcome.CREATED, order_id=self.order_id)


class TakeBack(_OfWrongId, frozen=True, kw_only=True):
    """Withdraw the recorded order id without a replacement, so that the key is in doubt again."""

    name: ClassVar[str] = "takeback"

    def apply(self, entry: Entry, now: float) -> Entry:
        """Remove the id.

        ``sent_until`` does not change, so that the wait before a refutation does not start again.
        """
        cause = Cause(kind=CauseKind.TAKEN_BACK, attempts=() if entry.cause is None else entry.cause.attempts)
        if entry.is_suspected:  # an earlier order may exist, so only a person may free the key
            cause = entry.cause or cause
        others = _notifications_without(entry, self.wrong)
        return replace(entry, order_id=None, lease_until=0.0, pending_notifications=others, cause=cause)


def _notifications_without(entry: Entry, order_id: str) -> tuple[OutboxEntry, ...]:
    """Return the pending notifications except the one for ``order_id``."""
    wrong = (entry.intent_id, order_id)
    return tuple(
        pending for pending in entry.pending_notifications if (pending.intent_id, pending.order_id) != wrong
    )


# --- look-ups and notes ---------------------------------------------------------------------------


class _WithoutChange(Move, frozen=True, kw_only=True):
    """Base class of transitions that only add a line to the history.

    A transition of this kind leaves a pending proposal valid.
    """

    by: str

    @property
    def is_a_change(self) -> bool:
        return False


class Look(_WithoutChange, frozen=True, kw_only=True):
    """Record in the history that a person saw the names of the order's parties."""

    name: ClassVar[str] = "look"

    reason: str


class Note(_WithoutChange, frozen=True, kw_only=True):
    """Record a person's note in the history."""

    name: ClassVar[str] = "note"

    reason: str


class Watch(_WithoutChange, frozen=True, kw_only=True):
    """Record that a person is looking at the key. The record applies until the key changes."""

    name: ClassVar[str] = "watch"

    def apply(self, entry: Entry, now: float) -> Entry:
        """Set the watcher, replacing any earlier one."""
        return replace(entry, watcher=Watcher(by=self.by, at=now, version=entry.version))


class Unwatch(_WithoutChange, frozen=True, kw_only=True):
    """Record that nobody is looking at the key any more. The person need not be the watcher."""

    name: ClassVar[str] = "unwatch"

    def apply(self, entry: Entry, now: float) -> Entry:
        return replace(entry, watcher=None)


WITHOUT_CHANGE = frozenset({Look.name, Note.name, Watch.name, Unwatch.name})
"""The names of the transitions that do not change the key, and so leave a pending proposal valid."""

_DECIDES_NOTHING = WITHOUT_CHANGE | {RenewLease.name}


def latest(steps: Sequence[HistoryEvent], limit: int) -> list[HistoryEvent]:
    """Shorten a history to ``limit`` lines: drop look-ups, notes and renewals first, then the oldest lines.

    Dropping look-ups and notes first prevents them from displacing the decisions. The newest line is always
    kept.
    """
    surplus = len(steps) - limit
    if surplus <= 0:
        return list(steps)
    dropped = set([at for at, step in enumerate(steps[:-1]) if step.move in _DECIDES_NOTHING][:surplus])
    left = [step for at, step in enumerate(steps) if at not in dropped]
    return left[len(left) - limit :]


# --- the states that they apply to ----------------------------------------------------------------

S = KeyState

_DECISIONS: tuple[tuple[type[Move], KeyState, KeyState, str], ...] = (
    (Resolve, S.IN_DOUBT, S.CREATED, "a person or ``resolve`` has found the order"),
    (Refute, S.IN_DOUBT, S.FREE, "no order exists, and none can appear later"),
    (Amend, S.CREATED, S.CREATED, "a person gave the wrong order id, and the right id is known"),
    (TakeBack, S.CREATED, S.IN_DOUBT, "a person gave the wrong order id, and the right id is not known"),
    (Waive, S.FREE, S.FREE, "two people have agreed to end dual control for the scope"),
)

_CAN_BE_PROPOSED = {(source, move.decision) for move, source, *_ in _DECISIONS if hasattr(move, "decision")}
"""The pairs of a key's state and a decision that can be proposed in that state."""

_PROPOSABLE = tuple(dict.fromkeys(source for _, source, *_ in _DECISIONS))

OPERATOR_TRANSITIONS: tuple[tuple[type[Move], KeyState, KeyState, str], ...] = (
    *_DECISIONS,
    *(
        (Propose, state, state, "one person proposes a decision, which another must approve")
        for state in _PROPOSABLE
    ),
    *((Withdraw, state, state, "the proposal was withdrawn or rejected") for state in _PROPOSABLE),
    (Demand, S.FREE, S.FREE, "dual control is required for the scope from now on"),
    *((Look, state, state, "the history must record who saw the parties' names") for state in S),
    *((Note, state, state, "a person adds a note to the history") for state in S),
    *((Watch, state, state, "others see that someone is looking at the key") for state in S),
    *((Unwatch, state, state, "others see that the person has stopped looking at the key") for state in S),
)
"""The table's rows for the transitions that people make: transition, source state, target state, reason."""
