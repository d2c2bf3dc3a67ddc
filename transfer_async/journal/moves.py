"""The moves that change an entry: for each, when it is denied and what it makes of the entry.

From which state it leads to which is in the table of `state_machine`, which is asked first. The one
that begins it all is in `claim`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from transfer_async._models.doubt_cause import Cause
from transfer_async._models.errors import Outcome
from transfer_async.journal.entries import (
    AT_WORK,
    LEFT_ALONE,
    REFUTED,
    Denial,
    Ending,
    Entry,
    HidesReply,
    KeyState,
    Owed,
    Untold,
)
from transfer_async.journal.proposal import Decision, is_same_person


class Move(HidesReply, frozen=True):
    """What is asked for of a key; `decide` says what becomes of it.

    A struct, and not a class of attrs, which compiles code for each class that it makes: for thirty moves
    that was a tenth of what it costs to import aiohttp.
    """

    name: ClassVar[str]
    """What the history and messages call it: it is stored, and outlives the name of the class."""

    @property
    def order_bound(self) -> str | None:
        """The id of the order that the key would be bound to: no other key of its scope may have it."""
        return None

    @property
    def is_in_history(self) -> bool:
        """Whether the history has a line of it: not where it only says that somebody looks."""
        return True

    @property
    def is_a_change(self) -> bool:
        """Whether what was seen of the key before it holds no longer: a proposal of then is void."""
        return self.is_in_history

    def denial(self, entry: Entry, now: float) -> Denial | None:
        """What speaks against it, where the table does not."""
        return None

    def apply(self, entry: Entry, now: float) -> Entry:
        """``entry``, which has the state that the table leads to, as it is after the move."""
        return entry


# --- what a move is compared with ----------------------------------------------------------------


class _OfClaim(Move, frozen=True, kw_only=True):
    """Made by whoever has the claim: the epoch alone would not do, for it begins anew with each intent."""

    intent_id: str
    epoch: int
    lease: float

    def _is_its_claim(self, entry: Entry) -> bool:
        return (entry.intent_id, entry.epoch) == (self.intent_id, self.epoch)


class _OfLiveClaim(_OfClaim, frozen=True, kw_only=True):
    """Made by a worker that has not slept through its lease."""

    def denial(self, entry: Entry, now: float) -> Denial | None:
        return None if self._is_its_claim(entry) and now < entry.lease_until else Denial.LOST


class OfAttempt(Move, frozen=True, kw_only=True):
    """About the requests under one mark, and no other."""

    attempt: str

    def denial(self, entry: Entry, now: float) -> Denial | None:
        return None if entry.attempt == self.attempt else Denial.LOST


# --- before anything is sent --------------------------------------------------------------------


class Keep(_OfLiveClaim, frozen=True, kw_only=True):
    """Renew the lease of a claim, and keep the receipts so far."""

    name: ClassVar[str] = "keep"

    receipts: dict[str, str | None]

    def apply(self, entry: Entry, now: float) -> Entry:
        """Two of one worker's may be written in either order; a receipt once written is never lost."""
        return entry.but(lease_until=now + self.lease, receipts=entry.receipts | self.receipts)


class TakeOver(_OfClaim, frozen=True, kw_only=True):
    """Take an abandoned claim in order to undo it."""

    name: ClassVar[str] = "takeover"

    def denial(self, entry: Entry, now: float) -> Denial | None:
        if not self._is_its_claim(entry):
            return Denial.LOST
        return None if entry.lease_until <= now else Denial.BUSY

    def apply(self, entry: Entry, now: float) -> Entry:
        """Of the older epoch nobody writes any more."""
        return entry.but(epoch=entry.epoch + 1, lease_until=now + self.lease)


class Mark(_OfLiveClaim, frozen=True, kw_only=True):
    """Mark as sending: durable before the first byte.

    Args:
        attempt: a token for all HTTP attempts of this call.
        window: seconds in which its requests may be sent.
    """

    name: ClassVar[str] = "mark"

    attempt: str
    receipts: dict[str, str | None]
    window: float

    def apply(self, entry: Entry, now: float) -> Entry:
        """From here on the attempt counts, and no longer the epoch."""
        return entry.but(
            attempt=self.attempt,
            receipts=self.receipts,
            lease_until=now + self.lease,
            sent_until=now + self.window,
        )


# --- what the sender knows ----------------------------------------------------------------------


class Create(OfAttempt, frozen=True, kw_only=True):
    """The service answered with our order."""

    name: ClassVar[str] = "create"

    order_id: str
    reply: bytes

    @property
    def order_bound(self) -> str:
        return self.order_id

    def apply(self, entry: Entry, now: float) -> Entry:
        return _created(entry, self, now)


def _created(entry: Entry, move: Create | Resolve, now: float) -> Entry:
    """The wish is kept where somebody gave the id alone: whoever is wrong may take it back."""
    made = entry.but(
        order_id=move.order_id,
        reply=move.reply,
        lease_until=0.0,
        intent=entry.intent if move.reply is None else None,
        owed=_owed_for_others(entry, entry.intent_id),
    )
    return to_be_told(made, now, outcome=Outcome.CREATED, order_id=move.order_id)


def _owed_for_others(entry: Entry, intent_id: str) -> tuple[Owed, ...]:
    """What is owed but for that intent: its order exists, so it keeps its hold, whoever refuted it."""
    return tuple(one for one in entry.owed if one.intent.id != intent_id) if entry.owed else ()


def to_be_told(entry: Entry, now: float, **end: Any) -> Entry:
    """``entry``, of which the end must be told, if anybody was promised it."""
    if not entry.promised:
        return entry
    return entry.but(untold=(*entry.untold, Untold(intent_id=entry.intent_id, since=now, **end)))


class Free(_OfClaim, frozen=True, kw_only=True):
    """A certain no: by the epoch before the mark, by the attempt from it on; ``owed`` is to be undone."""

    name: ClassVar[str] = "free"

    attempt: str | None
    ending: Ending
    owed: tuple[Owed, ...]

    def denial(self, entry: Entry, now: float) -> Denial | None:
        was_marked = entry.state is not KeyState.CLAIMED
        is_own = entry.attempt == self.attempt if was_marked else self._is_its_claim(entry)
        return None if is_own else Denial.LOST

    def apply(self, entry: Entry, now: float) -> Entry:
        """The no stays on record, and its undos are owed under the lease of whoever does them."""
        return _ended(entry, self.ending, self, now)


def _ended(entry: Entry, ending: Ending, move: Free | Refute, now: float) -> Entry:
    owed = entry.owed + _leased(due(move.owed, now), now + move.lease)
    ended = entry.but(ending=ending, owed=owed, lease_until=0.0, intent=None)
    return to_be_told(ended, now, outcome=ending.outcome, error=ending.error, status=ending.status)


def due(owed: tuple[Owed, ...], now: float) -> tuple[Owed, ...]:
    """``owed``, which has become due now, if it was not before."""
    return tuple(one if one.since is not None else attrs.evolve(one, since=now) for one in owed)


def _leased(owed: tuple[Owed, ...], until: float) -> tuple[Owed, ...]:
    return tuple(attrs.evolve(one, lease_until=until) for one in owed)


class GoInDoubt(OfAttempt, frozen=True, kw_only=True):
    """The outcome is unknown; no request of this attempt follows.

    Args:
        attempt: the token of the mark.
        candidate: the id of an order that the answer names, although it is not readably ours.
        cause: why it is unknown.
    """

    name: ClassVar[str] = "doubt"

    candidate: str | None = None
    cause: Cause | None = None

    @property
    def reason(self) -> str | None:
        """What the history says."""
        return None if self.cause is None else self.cause.told

    def apply(self, entry: Entry, now: float) -> Entry:
        """The wait for what may still take effect begins now, and every order that was named is kept."""
        cause = self.cause or entry.cause
        doubted = entry.but(lease_until=0.0, sent_until=min(entry.sent_until, now), cause=cause)
        if self.candidate is None or self.candidate in entry.candidates:
            return doubted
        return doubted.but(candidates=(*entry.candidates, self.candidate))


# --- what others find out -----------------------------------------------------------------------


class Expire(OfAttempt, frozen=True, kw_only=True):
    """The worker that was sending is gone: in doubt, and nothing else."""

    name: ClassVar[str] = "expire"

    @property
    def reason(self) -> str:
        """What the history says."""
        return LEFT_ALONE.told

    def denial(self, entry: Entry, now: float) -> Denial | None:
        return super().denial(entry, now) or (None if entry.lease_until <= now else Denial.BUSY)

    def apply(self, entry: Entry, now: float) -> Entry:
        """When its last request may have been sent, stays as the mark has it."""
        return entry.but(lease_until=0.0, cause=LEFT_ALONE)


class OfPerson(OfAttempt, frozen=True, kw_only=True):
    """What a person decides, or the bank's own means.

    Args:
        by: who says so.
        reason: how they know.
        proposal: the id of the other person's proposal that this approves, if it does.
        seen: the entry's ``moves`` when it was looked at; None for whatever it has become.
    """

    decision: ClassVar[Decision]

    by: str
    reason: str
    proposal: str | None = None
    seen: int | None = None

    def denial(self, entry: Entry, now: float) -> Denial | None:
        return super().denial(entry, now) or denied_to_person(self, entry)


def denied_to_person(move: Any, entry: Entry) -> Denial | None:
    """What speaks against a person's decision: it was seen otherwise, or its approval is not another's."""
    if move.seen is not None and move.seen != entry.moves:
        return Denial.MOVED
    if move.proposal is None:
        return None
    proposed = entry.proposal
    wanted = (move.proposal, move.decision, getattr(move, "order_id", None))
    if proposed is None or wanted != (proposed.id, proposed.decision, proposed.order_id):
        return Denial.VOID
    return Denial.SAME_PERSON if is_same_person(move.by, proposed.by) else None


class Resolve(OfPerson, frozen=True, kw_only=True):
    """The order of a doubt exists."""

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
    """The order of a doubt does not exist, and can no longer appear."""

    name: ClassVar[str] = "refute"
    decision: ClassVar[Decision] = Decision.REFUTE

    settle_after: float
    owed: tuple[Owed, ...]
    lease: float

    def denial(self, entry: Entry, now: float) -> Denial | None:
        is_settled = now >= entry.sent_until + self.settle_after
        return super().denial(entry, now) or (None if is_settled else Denial.TOO_EARLY)

    def apply(self, entry: Entry, now: float) -> Entry:
        return _ended(entry, Ending(outcome=Outcome.REFUSED, error=REFUTED), self, now)


# --- what is owed -------------------------------------------------------------------------------


class Paid(Move, frozen=True, kw_only=True):
    """Of what is owed for an intent, ``hooks`` is done; the rest is left to others.

    Args:
        lease_until: of the debts that were undone: what has become due since is not among them.
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
        for one in entry.owed:
            if (one.intent.id, one.lease_until) != (self.intent_id, self.lease_until):
                left.append(one)
            elif one.hook not in self.hooks:
                left.append(attrs.evolve(one, lease_until=0.0))
        return entry.but(owed=tuple(left))


class Owe(Move, frozen=True, kw_only=True):
    """Undos that have become due late: their worker slept while others ended its intent."""

    name: ClassVar[str] = "owe"

    owed: tuple[Owed, ...]
    lease: float

    def apply(self, entry: Entry, now: float) -> Entry:
        """Each is owed once, with the receipt that is on record: whoever slept may not have heard of it."""
        known = {(one.intent.id, one.hook): one for one in entry.owed}
        late = {(one.intent.id, one.hook): one for one in due(self.owed, now)}
        for which, one in known.items():
            if which in late and one.receipt is not None:
                late[which] = one
        others = tuple(one for which, one in known.items() if which not in late)
        return entry.but(owed=others + _leased(tuple(late.values()), now + self.lease))


class Attend(Move, frozen=True, kw_only=True):
    """Take what is owed, or in doubt, so that no other worker does the same at once; 0 lets it go."""

    name: ClassVar[str] = "attend"

    lease: float

    @property
    def is_in_history(self) -> bool:
        return False

    def denial(self, entry: Entry, now: float) -> Denial | None:
        at_work = [one.lease_until for one in entry.owed]
        if entry.state is KeyState.IN_DOUBT:
            at_work.append(entry.lease_until)
        return Denial.BUSY if self.lease and at_work and max(at_work) > now else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """Only a doubt has a lease that is free to take: a claim's and a sender's are their own."""
        owed = _leased(entry.owed, now + self.lease)
        lease = now + self.lease if entry.state is KeyState.IN_DOUBT else entry.lease_until
        return entry.but(owed=owed, lease_until=lease)


# --- what is noted beside it --------------------------------------------------------------------


class Suspect(Move, frozen=True, kw_only=True):
    """An order was answered for an attempt of which the record says something else: the history tells.

    Args:
        intent_id: whose order it is.
    """

    name: ClassVar[str] = "suspect"

    order_id: str
    reason: str
    intent_id: str = ""
    by: str = "sender"

    def apply(self, entry: Entry, now: float) -> Entry:
        """Whatever the key has become, the hold of an order that exists is not to be released."""
        return entry.but(owed=_owed_for_others(entry, self.intent_id))


class LayAside(Move, frozen=True, kw_only=True):
    """Put what cannot be read out of the way, word for word, so that operators can end the key.

    A worker may have sent its order, whatever its state says: what was bound is in doubt.
    """

    name: ClassVar[str] = "layaside"

    by: str
    reason: str

    def denial(self, entry: Entry, now: float) -> Denial | None:
        if entry.unread is None:
            return Denial.LOST
        if entry.unread.is_sealed:
            return Denial.UNREAD  # nothing is lost of it
        return Denial.BUSY if entry.state in AT_WORK and now < entry.lease_until else None

    def apply(self, entry: Entry, now: float) -> Entry:
        """When its request can have been sent last may be what cannot be read: then it waits from now on."""
        assert entry.unread is not None  # noqa: S101 - or it was denied
        readable = entry.but(unread=None, laid_aside=(*entry.laid_aside, entry.unread.kept), intent=None)
        if entry.state is not KeyState.IN_DOUBT:
            return readable
        return readable.but(attempt=entry.attempt or "", sent_until=entry.sent_until or now, lease_until=0.0)


class Promise(Move, frozen=True, kw_only=True):
    """Somebody is told that the outcome is unknown: the end of this doubt must be told, too."""

    name: ClassVar[str] = "promise"

    intent_id: str

    def denial(self, entry: Entry, now: float) -> Denial | None:
        return None if entry.intent_id == self.intent_id else Denial.LOST

    def apply(self, entry: Entry, now: float) -> Entry:
        return entry if entry.promised else entry.but(promised=True)


class Told(Move, frozen=True, kw_only=True):
    """The end of a doubt has been told."""

    name: ClassVar[str] = "told"

    untold: Untold

    def apply(self, entry: Entry, now: float) -> Entry:
        """What was told is told no more; that it was told twice does no harm.

        An id that was amended and amended back is to be told again, though it reads as what was told before.
        """
        since = self.untold.since
        left = (one for one in entry.untold if one != self.untold or since not in (None, one.since))
        return entry.but(untold=tuple(left))
