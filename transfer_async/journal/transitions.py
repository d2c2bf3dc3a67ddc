"""The transitions of a key.

Each class defines when a transition is rejected and how it changes the entry. `decide` first checks the table
in `state_machine`, which contains each transition's source and target states.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import attrs
from msgspec.structs import replace

from transfer_async._models.errors import Cause, Outcome
from transfer_async._models.requests import OrderIntent, fingerprint
from transfer_async.journal.model import (
    ABANDONED_CAUSE,
    AT_WORK,
    BELIEVED,
    BLANK,
    ENDED,
    REFUTED,
    SUSPECTED,
    Decision,
    Ending,
    Entry,
    HidesStored,
    HistoryEvent,
    KeyState,
    OutboxEntry,
    PendingUndo,
    Rejection,
    TransitionResult,
    is_same_person,
    undos_on_failure,
)


class Move(HidesStored, frozen=True):
    """Base class of all transitions; `decide` accepts or rejects them.

    Transitions are msgspec structs, so that they import faster: attrs compiles code for each class, and
    thirty attrs classes took a tenth as long as importing aiohttp. No transition has a subclass, so code that
    runs for each order compares ``type(move)``: for a struct's class, ``isinstance`` takes ten times as long.
    """

    name: ClassVar[str]
    """The transition's name in the history and in messages. It is stored, so it must never change."""

    @property
    def order_bound(self) -> str | None:
        """The order id to bind to the key, or None. Two keys of one scope cannot be bound to the same id."""
        return None

    @property
    def is_by_one_person(self) -> bool:
        """Whether a person makes this transition alone, which dual control forbids.

        The transaction that writes a transition by one person must also read the scope's entry under
        `FOUR_EYES`, and must lock that entry until the commit.
        """
        return False

    @property
    def is_in_history(self) -> bool:
        """Whether the history records the transition.

        Transitions that only take or release a lease are not recorded.
        """
        return True

    @property
    def is_a_change(self) -> bool:
        """Whether the transition increments the key's version, which makes a pending proposal void."""
        return self.is_in_history

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        """Return why a transition must be rejected although the table allows it, or None.

        Args:
            entry: the entry before the transition.
            now: the time in seconds on the journal's clock.
        """
        return None

    def apply(self, entry: Entry, now: float) -> Entry:
        """Return the entry after the transition.

        Args:
            entry: the entry, with the target state already set.
            now: the time in seconds on the journal's clock.
        """
        return entry

    def made(self, entry: Entry, to: KeyState | None, now: float, *, id_taken: bool) -> TransitionResult:
        """Return the result of the transition to the state ``to``, or its rejection if ``to`` is None."""
        denial = Rejection.LOST if to is None else self.denial(entry, now)
        # A `Create` with another key's order is rejected as `FOREIGN` in every state of this key.
        if id_taken and (denial is None or isinstance(self, Create)):
            denial = Rejection.FOREIGN
        if to is None or denial is not None:
            return TransitionResult(now=now, entry=entry, denial=denial)
        is_refuted_by_person = type(self) is Refute and not self.by_program
        if to is KeyState.FREE and entry.is_suspected and not is_refuted_by_person:
            kept = _kept_in_doubt(entry, self, now)
            return TransitionResult(now=now, entry=kept, denial=Rejection.LOST, found_doubt=True)
        if self.is_a_change:  # A pending proposal applied to the earlier version, so it is void.
            moved = replace(entry, state=to, version=entry.version + 1, proposal=None)
        else:
            moved = replace(entry, state=to)
        return TransitionResult(now=now, entry=self.apply(moved, now))


def _kept_in_doubt(entry: Entry, move: Move, now: float) -> Entry:
    """Put the entry in doubt: its intent has ended, but an earlier intent's order may exist.

    The later intent's hold is kept, because the hold covers the earlier order if that order exists. If a
    person refutes the earlier order, the hold is released.
    """
    if entry.state is KeyState.IN_DOUBT:
        return entry
    undos = move.pending_undos if isinstance(move, Release) else ()
    return replace(
        entry,
        state=KeyState.IN_DOUBT,
        version=entry.version + 1,
        proposal=None,
        attempt=entry.attempt or "",
        hooks=tuple(undo.hook for undo in undos),
        receipts=entry.receipts | {undo.hook: undo.receipt for undo in undos},
        sent_until=max(entry.sent_until, now),
        lease_until=0.0,
    )


# --- base classes -----------------------------------------------------------------------------------


class _OfClaim(Move, frozen=True, kw_only=True):
    """Base class of transitions that only the holder of the claim may make.

    Both the epoch and the intent's id must match, because the epoch starts at 1 for each intent.
    """

    intent_id: str
    epoch: int
    lease: float

    def _is_its_claim(self, entry: Entry) -> bool:
        return (entry.intent_id, entry.epoch) == (self.intent_id, self.epoch)


class _OfLiveClaim(_OfClaim, frozen=True, kw_only=True):
    """Base class of transitions that only the holder of the claim may make, while its lease is valid."""

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return None if self._is_its_claim(entry) and now < entry.lease_until else Rejection.LOST


class OfAttempt(Move, frozen=True, kw_only=True):
    """Base class of transitions that are rejected unless ``attempt`` is the token of the entry's attempt."""

    attempt: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return None if entry.attempt == self.attempt else Rejection.LOST


# --- before anything is sent --------------------------------------------------------------------


class RenewLease(_OfLiveClaim, frozen=True, kw_only=True):
    """Renew a claim's lease, and record the receipts that the hooks have returned so far."""

    name: ClassVar[str] = "keep"

    receipts: dict[str, str | None]

    def apply(self, entry: Entry, now: float) -> Entry:
        """Merge the receipts, so that none is lost if two renewals are written out of order."""
        return replace(entry, lease_until=now + self.lease, receipts=entry.receipts | self.receipts)


class TakeOver(_OfClaim, frozen=True, kw_only=True):
    """Take over an abandoned claim, so that its hooks can be undone."""

    name: ClassVar[str] = "takeover"

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if not self._is_its_claim(entry):
            return Rejection.LOST
        return None if entry.lease_until <= now else Rejection.BUSY

    def apply(self, entry: Entry, now: float) -> Entry:
        """Increase the epoch, so that the former worker can no longer write."""
        return replace(entry, epoch=entry.epoch + 1, lease_until=now + self.lease)


class MarkSending(_OfLiveClaim, frozen=True, kw_only=True):
    """Record that requests may be sent from now on. The record must be durable before the first byte is sent.

    Args:
        attempt: the token for all HTTP attempts of this call.
        receipts: the receipts of the hooks.
        window: for how many seconds requests may be sent.
        reason: the reason recorded in the history if a mismatched beneficiary name was accepted.
    """

    name: ClassVar[str] = "mark"

    attempt: str
    receipts: dict[str, str | None]
    window: float
    reason: str | None = None

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        """Also reject the transition if an earlier intent's order may exist, to prevent a second payment."""
        return Rejection.LOST if entry.is_suspected else super().denial(entry, now)

    def apply(self, entry: Entry, now: float) -> Entry:
        """Set the attempt's token. Later transitions must match the token instead of the epoch."""
        return replace(
            entry,
            attempt=self.attempt,
            receipts=self.receipts,
            lease_until=now + self.lease,
            sent_until=now + self.window,
        )


# --- what the sender knows ----------------------------------------------------------------------


class Create(OfAttempt, frozen=True, kw_only=True):
    """Record the order that the service returned.

    Args:
        order_id: the order's id.
        reply: the service's response with the order.
        retried: whether an earlier attempt to record the order failed, and the call raised an error.
        publish: whether to publish a suspected duplicate if the order was refuted before; see `Suspect`.
    """

    name: ClassVar[str] = "create"

    order_id: str
    reply: bytes
    retried: bool = False
    publish: bool = False

    @property
    def order_bound(self) -> str:
        return self.order_id

    def apply(self, entry: Entry, now: float) -> Entry:
        created = _created(entry, self, now)
        if not (self.publish and is_late(entry)):
            return created
        return _with_suspicion(created, self, now, outcome=Outcome.CREATED)


CREATED_LATE = "the order was created after its doubt had been refuted: a duplicate is suspected"
"""The reason that the history records for a `Create` that `is_late`."""


def is_late(created: Entry) -> bool:
    """Return whether a definite failure was recorded for the intent before its order was recorded."""
    return created.ending is not None


def _with_suspicion(entry: Entry, move: Create | Suspect, now: float, *, outcome: Outcome) -> Entry:
    """Return ``entry``, with an added notification if the suspected duplicate must be published."""
    if not (move.publish or entry.notification_requested):
        return entry
    suspicion = OutboxEntry(
        intent_id=move.intent.id if isinstance(move, Suspect) else entry.intent_id,
        outcome=outcome,
        order_id=move.order_id,
        error=SUSPECTED,
        since=now,
    )
    others = (pending for pending in entry.pending_notifications if pending != suspicion)
    return replace(entry, pending_notifications=(*others, suspicion))


def _created(entry: Entry, move: Create | Resolve, now: float) -> Entry:
    """Return the entry in the created state.

    Keep the intent if there is no reply, because the order id may then be withdrawn later.
    """
    made = replace(
        entry,
        order_id=move.order_id,
        reply=move.reply,
        lease_until=0.0,
        intent=entry.intent if move.reply is None else None,
        pending_undos=_pending_for_others(entry, entry.intent_id),
    )
    return with_notification(made, now, outcome=Outcome.CREATED, order_id=move.order_id)


def _pending_for_others(entry: Entry, intent_id: str) -> tuple[PendingUndo, ...]:
    """Return the pending undos of all intents except ``intent_id``.

    The order of this intent may exist, so its hold is kept.
    """
    if not entry.pending_undos:  # Most entries have none.
        return ()
    return tuple(undo for undo in entry.pending_undos if undo.intent.id != intent_id)


def with_notification(entry: Entry, now: float, **end: Any) -> Entry:
    """If the outcome was published as unknown, add a pending notification of the final outcome."""
    if not entry.notification_requested:
        return entry
    return replace(
        entry,
        pending_notifications=(
            *entry.pending_notifications,
            OutboxEntry(intent_id=entry.intent_id, since=now, **end),
        ),
    )


class Release(_OfClaim, frozen=True, kw_only=True):
    """Free the key after a definite failure.

    Before `MarkSending`, the claim's epoch must match. After `MarkSending`, the attempt's token must match.

    Args:
        attempt: the attempt's token; None before `MarkSending`.
        ending: the failure, which stays on record.
        pending_undos: the undos that become pending.
        reason: the text for the history if the beneficiary was not verified.
    """

    name: ClassVar[str] = "free"

    attempt: str | None
    ending: Ending
    pending_undos: tuple[PendingUndo, ...]
    reason: str | None = None

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        was_marked = entry.state is not KeyState.CLAIMED
        is_own = entry.attempt == self.attempt if was_marked else self._is_its_claim(entry)
        return None if is_own else Rejection.LOST

    def apply(self, entry: Entry, now: float) -> Entry:
        """Record the failure. Make the undos pending, with a lease for the worker that will run them."""
        return _ended(entry, self.ending, self, now)


def _ended(entry: Entry, ending: Ending, move: Release | Refute, now: float) -> Entry:
    undos = entry.pending_undos + _leased(due(move.pending_undos, now), now + move.lease)
    ended = replace(entry, ending=ending, pending_undos=undos, lease_until=0.0, intent=None)
    return with_notification(ended, now, outcome=ending.outcome, error=ending.error, status=ending.status)


def due(undos: tuple[PendingUndo, ...], now: float) -> tuple[PendingUndo, ...]:
    """Return ``undos``, with ``now`` in place of each missing due time."""
    return tuple(undo if undo.since is not None else attrs.evolve(undo, since=now) for undo in undos)


def _leased(undos: tuple[PendingUndo, ...], until: float) -> tuple[PendingUndo, ...]:
    return tuple(attrs.evolve(undo, lease_until=until) for undo in undos)


class GoInDoubt(OfAttempt, frozen=True, kw_only=True):
    """Record the sender's report that the outcome is unknown. The sender sends no more requests.

    Args:
        attempt: the attempt's token.
        candidate: the order id in a response that could not be read as the intent's order, or None.
        cause: why the outcome is unknown.
    """

    name: ClassVar[str] = "doubt"

    candidate: str | None = None
    cause: Cause | None = None

    @property
    def reason(self) -> str | None:
        """The reason that the history records."""
        return None if self.cause is None else self.cause.told

    def apply(self, entry: Entry, now: float) -> Entry:
        """Add the candidate order id, and start the wait before a refutation.

        The wait starts with this transition, even if the sending window ended earlier, because a stopped
        process may have sent the request late.
        """
        cause = self.cause or entry.cause
        if entry.is_suspected and entry.cause is not None and self.cause is not None:
            # Keep the earlier cause, because the other order may still exist.
            cause = attrs.evolve(entry.cause, attempts=self.cause.attempts)
        doubted = replace(entry, lease_until=0.0, sent_until=now, cause=cause)
        if self.candidate is None or self.candidate in entry.candidates:
            return doubted
        return replace(doubted, candidates=(*entry.candidates, self.candidate))


# --- the ends of a doubt and of an abandoned attempt ----------------------------------------------


class Expire(OfAttempt, frozen=True, kw_only=True):
    """Put a key in doubt after the lease of the worker that was sending its order has expired."""

    name: ClassVar[str] = "expire"

    @property
    def reason(self) -> str:
        """The reason that the history records."""
        return ABANDONED_CAUSE.told

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return super().denial(entry, now) or (None if entry.lease_until <= now else Rejection.BUSY)

    def apply(self, entry: Entry, now: float) -> Entry:
        """Record the cause.

        Do not change ``sent_until``, although a stopped sender may still send the order later.
        """
        return replace(entry, lease_until=0.0, cause=entry.cause if entry.is_suspected else ABANDONED_CAUSE)


class OfPerson(OfAttempt, frozen=True, kw_only=True):
    """Base class of decisions by a person or by the bank's ``resolve``.

    Args:
        by: the person who decides, or ``"resolve"``.
        reason: the evidence for the decision.
        proposal: the id of the proposal that this decision approves, or None.
        seen: the ``Entry.version`` that the person saw, or None to accept any version.
        by_program: whether the bank's ``resolve`` decides, instead of a person.
    """

    decision: ClassVar[Decision]

    by: str
    reason: str
    proposal: str | None = None
    seen: int | None = None
    by_program: bool = False

    @property
    def is_by_one_person(self) -> bool:
        return self.proposal is None and not self.by_program

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return super().denial(entry, now) or denied_to_person(self, entry)


def denied_to_person(move: Any, entry: Entry) -> Rejection | None:
    """Return why a person's decision must be rejected, or None.

    The key may have changed since the person saw it, the proposal may be void, or the person may have made
    the proposal.
    """
    if move.seen is not None and move.seen != entry.version:
        return Rejection.MOVED
    if move.proposal is None:
        return None
    proposed = entry.proposal
    wanted = (move.proposal, move.decision, getattr(move, "order_id", None))
    if proposed is None or wanted != (proposed.id, proposed.decision, proposed.order_id):
        return Rejection.VOID
    return Rejection.SAME_PERSON if is_same_person(move.by, proposed.by) else None


class Resolve(OfPerson, frozen=True, kw_only=True):
    """Record that the order of a key in doubt exists.

    Args:
        order_id: the order's id.
        reply: the order as JSON, or None if only the order id is known.
    """

    name: ClassVar[str] = "resolve"
    decision: ClassVar[Decision] = Decision.RESOLVE

    order_id: str
    reply: bytes | None

    @property
    def order_bound(self) -> str:
        return self.order_id

    def apply(self, entry: Entry, now: float) -> Entry:
        return _created(entry, self, now)


class Refute(OfPerson, frozen=True, kw_only=True):
    """Record that the order of a key in doubt does not exist, and can no longer appear.

    Args:
        settle_after: the minimum number of seconds since the last moment at which the order could have been
            sent.
        pending_undos: the undos that become pending.
        lease: the lease, in seconds, of the worker that runs the undos.
        abandoned_settle_after: replaces ``settle_after`` if the sender did not report the doubt. A program
            must pass this value: it can establish that no order exists so far, but not that none will appear
            later. A person passes None, because a person can find out what happened to the sender.
    """

    name: ClassVar[str] = "refute"
    decision: ClassVar[Decision] = Decision.REFUTE

    settle_after: float
    pending_undos: tuple[PendingUndo, ...]
    lease: float
    abandoned_settle_after: float | None = None

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        is_settled = now >= entry.settled_at(self.settle_after, self.abandoned_settle_after)
        return super().denial(entry, now) or (None if is_settled else Rejection.TOO_EARLY)

    def apply(self, entry: Entry, now: float) -> Entry:
        return _ended(entry, Ending(outcome=Outcome.REFUSED, error=REFUTED), self, now)


# --- pending undos ------------------------------------------------------------------------------


class MarkUndone(Move, frozen=True, kw_only=True):
    """Record which of an intent's pending undos were completed, and release the lease on the other undos.

    Args:
        intent_id: the intent's id.
        hooks: the hooks whose undos were completed.
        lease_until: the end of the lease under which the undos ran. Undos under other leases do not change.
    """

    name: ClassVar[str] = "paid"

    intent_id: str
    hooks: tuple[str, ...]
    lease_until: float

    @property
    def is_in_history(self) -> bool:
        return bool(self.hooks)

    def apply(self, entry: Entry, now: float) -> Entry:
        left = []
        for undo in entry.pending_undos:
            if (undo.intent.id, undo.lease_until) != (self.intent_id, self.lease_until):
                left.append(undo)
            elif undo.hook not in self.hooks:
                left.append(attrs.evolve(undo, lease_until=0.0))
        return replace(entry, pending_undos=tuple(left))


class AddPendingUndos(Move, frozen=True, kw_only=True):
    """Add the undos of a worker that was paused while another worker or a person ended its intent."""

    name: ClassVar[str] = "owe"

    pending_undos: tuple[PendingUndo, ...]
    lease: float

    def apply(self, entry: Entry, now: float) -> Entry:
        """Add the undos that are not recorded yet. Keep recorded receipts, which the worker may lack."""
        recorded = {(undo.intent.id, undo.hook): undo for undo in entry.pending_undos}
        added = {(undo.intent.id, undo.hook): undo for undo in due(self.pending_undos, now)}
        for undo_id, undo in recorded.items():
            if undo_id in added and undo.receipt is not None:
                added[undo_id] = undo
        others = tuple(undo for undo_id, undo in recorded.items() if undo_id not in added)
        return replace(entry, pending_undos=others + _leased(tuple(added.values()), now + self.lease))


class AcquireLease(Move, frozen=True, kw_only=True):
    """Lease a key that is in doubt or has pending undos, so that only one worker processes it.

    Args:
        lease: the duration of the lease in seconds; 0 releases the lease.
        ends: if ``lease`` is 0, the end of the lease to release; None releases all leases.
    """

    name: ClassVar[str] = "attend"

    lease: float
    ends: float | None = None

    @property
    def is_in_history(self) -> bool:
        return False

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        leases = [undo.lease_until for undo in entry.pending_undos]
        if entry.state is KeyState.IN_DOUBT:
            leases.append(entry.lease_until)
        return Rejection.BUSY if self.lease and leases and max(leases) > now else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """Set the lease on undos and on a key in doubt, but not on a claim or on an order being sent."""
        until = now + self.lease
        undos = tuple(
            attrs.evolve(undo, lease_until=until) if self.ends in (None, undo.lease_until) else undo
            for undo in entry.pending_undos
        )
        is_taken = entry.state is KeyState.IN_DOUBT and self.ends in (None, entry.lease_until)
        return replace(entry, pending_undos=undos, lease_until=until if is_taken else entry.lease_until)


# --- suspicions, corrupt records, notifications -------------------------------------------------


class Suspect(Move, frozen=True, kw_only=True):
    """Record a suspected duplicate: a sender's order may exist, although the doubt about it has ended.

    A sender may be stopped while its order is resolved or refuted, and send the request afterwards. After a
    `Suspect`, only a person can free the key. A free key is put in doubt. If a later intent uses the key,
    `Entry.is_suspected` becomes true, and the later intent's order cannot be sent. If the later intent ends
    without an order, the key is put in doubt.

    Args:
        order_id: the id of the sender's order, or the candidate from a response; None if unknown.
        reason: how the sender's result contradicts the recorded one.
        intent: the sender's intent.
        fingerprint: the digest of the intent's order.
        attempt: the sender's attempt token.
        hooks: the hooks to undo, in this order, if the order is refuted again.
        receipts: the receipts that the sender's hooks returned.
        cause: the sender's attempts, with the kind `CauseKind.SUPERSEDED`.
        by: the name that the history records as the report's author.
        outcome: the outcome of the sender's own attempt.
        publish: whether to publish the suspected duplicate even if no notification was requested.
    """

    name: ClassVar[str] = "suspect"

    order_id: str | None
    reason: str
    intent: OrderIntent
    fingerprint: str
    attempt: str
    hooks: tuple[str, ...]
    receipts: dict[str, str | None]
    cause: Cause
    by: str = "sender"
    outcome: Outcome = Outcome.CREATED
    publish: bool = False

    def begin(self, now: float) -> Entry:
        """Return a new entry in doubt for a key whose entry the journal has deleted."""
        forgotten = replace(BLANK, state=KeyState.IN_DOUBT, claimed_at=now, version=1)
        return self._bound(_with_suspicion(forgotten, self, now, outcome=self.outcome), now)

    def apply(self, entry: Entry, now: float) -> Entry:
        """Cancel the pending undos of the sender's intent.

        The sender's order may exist, so the sender's hold is kept.
        """
        pending = {undo.hook for undo in entry.pending_undos if undo.intent.id == self.intent.id}
        kept = replace(entry, pending_undos=_pending_for_others(entry, self.intent.id))
        kept = _with_suspicion(kept, self, now, outcome=self.outcome)
        if entry.ending is not None and entry.state is not KeyState.CREATED:
            # The key was free, so an undo that is no longer pending has already run.
            return self._bound(kept, now, undone=set(self.hooks) - pending)
        # The recorded attempts remain those of the intent that is using the key.
        attempts = () if entry.cause is None else entry.cause.attempts
        return replace(kept, candidates=self._named(kept), cause=attrs.evolve(self.cause, attempts=attempts))

    def _bound(self, entry: Entry, now: float, *, undone: Collection[str] = ()) -> Entry:
        """Put the entry in doubt for the sender's intent.

        The wait before a refutation starts with this transition.
        """
        is_same = entry.intent_id == self.intent.id
        return replace(
            entry,
            fingerprint=self.fingerprint,
            intent_id=self.intent.id,
            intent=self.intent,
            hooks=tuple(hook for hook in self.hooks if hook not in undone),
            receipts={hook: receipt for hook, receipt in self.receipts.items() if hook not in undone},
            held=self.intent.held,
            attempt=self.attempt,
            sent_until=now,
            lease_until=0.0,
            ending=None,
            candidates=self._named(entry if is_same else replace(entry, candidates=())),
            cause=self.cause,
        )

    def _named(self, entry: Entry) -> tuple[str, ...]:
        if self.order_id is None or self.order_id in entry.candidates:
            return entry.candidates
        return (*entry.candidates, self.order_id)


class Quarantine(Move, frozen=True, kw_only=True):
    """Put a corrupt record into quarantine, unchanged, so that operators can resolve the key.

    A key in use is put in doubt, because a worker may have sent its order even if the record says otherwise.

    Args:
        by: the person who puts the record into quarantine.
        reason: the reason to record in the history.
        proposing: whether the next step is a proposal, which another person must approve, not a decision.
        order_may_exist: whether to put even a free key in doubt, so that nobody pays again with it before a
            person has decided whether its order exists.
    """

    name: ClassVar[str] = "layaside"

    by: str
    reason: str
    proposing: bool = False
    order_may_exist: bool = False

    @property
    def is_by_one_person(self) -> bool:
        return not self.proposing

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if entry.unread is None:
            return Rejection.LOST
        if entry.unread.is_sealed:
            return Rejection.UNREAD  # The record is intact.
        return Rejection.BUSY if entry.state in AT_WORK and now < entry.lease_until else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """Move the record to ``quarantined``.

        If ``sent_until`` is unknown, assume that the order may have been sent at any time up to now.
        """
        assert entry.unread is not None  # noqa: S101 - otherwise it was rejected
        readable = replace(
            entry, unread=None, quarantined=(*entry.quarantined, entry.unread.kept), intent=None
        )
        if self.order_may_exist and entry.state is KeyState.FREE:
            readable = _bound_again(readable, entry.unread.hooks)
        if readable.state is not KeyState.IN_DOUBT:
            return readable
        return replace(
            readable, attempt=entry.attempt or "", sent_until=entry.sent_until or now, lease_until=0.0
        )


def _bound_again(entry: Entry, unread_hooks: tuple[str, ...]) -> Entry:
    """Put a free entry in doubt, and remove the pending undos of its last intent.

    If the undos were kept, recovery would run them and release the hold for an order that may exist. If the
    doubt is refuted, the undos become pending again.
    """
    intent_id = entry.intent_id or (entry.pending_undos[-1].intent.id if entry.pending_undos else "")
    own = tuple(undo for undo in entry.pending_undos if undo.intent.id == intent_id)
    intent = own[0].intent if own else None
    # A pending notification of the failure is dropped. The final outcome of the new doubt is published
    # instead.
    notifications = tuple(
        end for end in entry.pending_notifications if end.intent_id != intent_id or end.error == SUSPECTED
    )
    return replace(
        entry,
        state=KeyState.IN_DOUBT,
        fingerprint=fingerprint(intent.order) if intent and not entry.fingerprint else entry.fingerprint,
        intent_id=intent_id,
        intent=intent,
        hooks=tuple(undo.hook for undo in own) or unread_hooks,
        receipts=entry.receipts | {undo.hook: undo.receipt for undo in own},
        ending=None,
        pending_undos=_pending_for_others(entry, intent_id),
        notification_requested=entry.notification_requested or notifications != entry.pending_notifications,
        pending_notifications=notifications,
    )


class RequestNotification(Move, frozen=True, kw_only=True):
    """Record that an outcome was published as unknown, so that the final outcome is published too."""

    name: ClassVar[str] = "promise"

    intent_id: str

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        return None if entry.intent_id == self.intent_id else Rejection.LOST

    def apply(self, entry: Entry, now: float) -> Entry:
        return replace(entry, notification_requested=True)


class MarkNotified(Move, frozen=True, kw_only=True):
    """Remove a pending notification after it has been published."""

    name: ClassVar[str] = "told"

    notification: OutboxEntry

    def apply(self, entry: Entry, now: float) -> Entry:
        """Remove the pending notification with the same contents and time.

        If an order id was amended and changed back, its two notifications differ only in time, and both must
        be published.
        """
        since = self.notification.since
        left = (
            pending
            for pending in entry.pending_notifications
            if pending != self.notification or since not in (None, pending.since)
        )
        return replace(entry, pending_notifications=tuple(left))


# --- claim -------------------------------------------------------------------------------------------


class Claim(Move, frozen=True, kw_only=True):
    """Claim the key for a new intent, or take over a dead worker's intent.

    If the dead worker's claim is too old, or its beneficiary, hold or hooks differ from this call's, its
    hooks are undone and a new intent begins.

    Args:
        intent: the intent. If a dead worker's intent is taken over, that intent's id is used.
        fingerprint: the digest of the intent's order.
        client_made: whether the client generated the key.
        lease: the duration of the lease in seconds.
        max_claim_age: the maximum age, in seconds, of an abandoned claim that may be continued.
        hooks: the names of the hooks that this call may run and can undo, last first.
        once: whether a recorded final refusal of the same order ends the call. A refusal that is not final
            also ends the call if the bank passes the same hold again, because the bank may have released the
            hold.
    """

    name: ClassVar[str] = "claim"

    intent: OrderIntent
    fingerprint: str
    client_made: bool
    lease: float
    max_claim_age: float
    hooks: tuple[str, ...]
    once: bool = False

    def denial(self, entry: Entry, now: float) -> Rejection | None:
        if entry.state is KeyState.FREE:
            return Rejection.REFUSED if self.once and self._was_refused(entry) else None
        if entry.fingerprint != self.fingerprint:
            return Rejection.CONFLICT
        if entry.state is KeyState.CREATED:
            return Rejection.CREATED
        if entry.state is KeyState.IN_DOUBT:
            return Rejection.IN_DOUBT
        return Rejection.BUSY if now < entry.lease_until else None

    def decide(self, entry: Entry | None, now: float) -> TransitionResult:
        """Decide the claim. If the key has no entry, begin its first intent.

        If a dead worker may have sent the key's order, reject the claim and put the key in doubt.
        """
        if entry is None:
            return TransitionResult(now=now, entry=self._begin(BLANK, now))
        denial = self.denial(entry, now)
        if denial is not None:
            return TransitionResult(now=now, entry=entry, denial=denial)
        if entry.state is KeyState.FREE:
            return TransitionResult(now=now, entry=self._begin(entry, now))
        if entry.state is KeyState.SENDING or entry.is_suspected:
            doubted = replace(
                entry,
                state=KeyState.IN_DOUBT,
                attempt=entry.attempt or "",
                sent_until=max(entry.sent_until, now) if entry.is_suspected else entry.sent_until,
                cause=entry.cause if entry.is_suspected else ABANDONED_CAUSE,
                version=entry.version + 1,
            )
            return TransitionResult(now=now, entry=doubted, denial=Rejection.IN_DOUBT, found_doubt=True)
        if abs(now - entry.claimed_at) > self.max_claim_age or not self._is_served_by(entry):
            undos = due(undos_on_failure(entry), now)
            return TransitionResult(now=now, entry=self._begin(entry, now, undos=undos))
        continued = replace(
            entry,
            intent=attrs.evolve(self.intent, id=entry.intent_id),
            hooks=self.hooks,
            epoch=entry.epoch + 1,
            version=entry.version + 1,
            lease_until=now + self.lease,
        )
        return TransitionResult(now=now, entry=continued)

    def _was_refused(self, entry: Entry) -> bool:
        ending = entry.ending
        if ending is None or entry.fingerprint != self.fingerprint:
            return False
        same_hold = self.intent.held is not None and self.intent.held == entry.held
        return ending.is_final or (ending.refused and same_hold)

    def _is_served_by(self, entry: Entry) -> bool:
        """Return whether this claim can reuse the results of a dead worker's hooks.

        The dead worker's hooks acted on its intent's beneficiary and on the bank's own hold, so both must be
        the same in this claim. `denial` has already compared the orders. This client must have every hook
        that the dead worker had, so that it can undo what they did.
        """
        if entry.intent is None or entry.intent.beneficiary != self.intent.beneficiary:
            return False
        return entry.intent.held == self.intent.held and set(entry.hooks) <= set(self.hooks)

    def _begin(self, before: Entry, now: float, *, undos: tuple[PendingUndo, ...] = ()) -> Entry:
        return replace(
            BLANK,
            state=KeyState.CLAIMED,
            fingerprint=self.fingerprint,
            intent_id=self.intent.id,
            intent=self.intent,
            client_made=self.client_made,
            hooks=self.hooks,
            claimed_at=now,
            lease_until=now + self.lease,
            receipts={},
            held=self.intent.held,
            pending_undos=before.pending_undos + undos,
            pending_notifications=before.pending_notifications,
            quarantined=before.quarantined,
            version=before.version + 1,
            unknown_members=before.unknown_members,
        )


# --- the history --------------------------------------------------------------------------------


def is_told(move: Move, verdict: TransitionResult) -> bool:
    """Return whether the history records ``move``.

    A rejected transition is recorded only if it put the key in doubt.
    """
    return move.is_in_history and (verdict.denial is None or verdict.found_doubt)


def history_step(entry: Entry, move: Move, *, now: float) -> HistoryEvent:
    """Return the history line for ``move``, given the resulting ``entry``."""
    # A `Suspect` concerns the sender's own order, which may not be the key's order.
    known = None if type(move) is Suspect else entry.order_id
    return HistoryEvent(
        at=now,
        move=move.name,
        state=entry.state,
        intent_id=entry.intent_id,
        epoch=entry.epoch,
        attempt=entry.attempt,
        order_id=getattr(move, "order_id", None) or known or getattr(move, "wrong", None),
        ending=entry.ending if entry.ending is not None and isinstance(move, (Release, Refute)) else None,
        by=getattr(move, "by", None),
        reason=_reason(entry, move),
    )


def _reason(entry: Entry, move: Move) -> str | None:
    # The line of a claim has a reason only if the claim put the key in doubt.
    if entry.state is KeyState.IN_DOUBT and isinstance(move, Claim):
        return entry.cause.told if entry.cause is not None else None
    if is_late(entry) and isinstance(move, Create):
        return CREATED_LATE
    return getattr(move, "reason", None)


# --- waiting and ended keys ---------------------------------------------------------------------


def is_waiting(entry: Entry, now: float) -> bool:
    """Return whether work on an entry is due, and no worker holds a lease on the entry."""
    due = due_at(entry)
    return due is not None and not now < due <= now + BELIEVED


def due_at(entry: Entry) -> float | None:
    """Return when work on the entry becomes due; 0 if it is due now, None if no work is left."""
    if entry.pending_notifications or (entry.proposal is not None and entry.state is KeyState.CREATED):
        return 0.0
    is_bound = entry.state in AT_WORK
    if not entry.pending_undos:
        return entry.lease_until if is_bound else None
    first = min(undo.lease_until for undo in entry.pending_undos)
    return min(first, entry.lease_until) if is_bound else first


def is_ended(entry: Entry) -> bool:
    """Return whether no work is left for the entry, so that it may be deleted."""
    if entry.proposal is not None or entry.four_eyes is not None:
        return False
    return entry.state in ENDED and not (entry.pending_undos or entry.pending_notifications)
