"""The journal's state machine: one table, and pure functions beside it. Back ends only store.

::

    free --claim--> claimed --mark--> sending --create--> created     (final)
      ^                |                 |----doubt----> in doubt --resolve--> created
      '----- free -----'------ free -----'------------------'  (refute)

The rule beneath: **a key is bound by an order that exists or may exist**, and by a worker that is
at work on it. So there is no way from `SENDING` to `FREE` but an answer: a lease that runs out on
`CLAIMED` lets another worker go on, a lease that runs out on `SENDING` leads into doubt and nowhere
else. A pause of any length between the last check and the write is harmless for that reason alone.

Certain knowledge beats doubt: the sender of an attempt may still write its answer over the doubt
that others had about that very attempt. Every move is a compare-and-set: on the epoch as long as
only claims are at stake, on the attempt's token from the mark on.

A dead worker's claim is gone on with only by a call that its hooks have served (`_serves`). For any
other, and where it is too old, a new intent begins: the old one's undos are owed from that very
write on, so none is forgotten whatever comes next.

`decide` takes an entry, a move and the time, and gives the entry after it, or why not. A move that
is denied changes nothing; only a claim that finds a dead worker's `SENDING` writes down the doubt
that it finds, and times that a clock left behind which was far ahead are set right by whoever finds
them, in silence. Keep in step with this page: `TABLE`, and the contract suite of the back ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from attrs import frozen

from transfer_async._models.errors import Outcome
from transfer_async._models.requests import OrderIntent
from transfer_async.journal.entries import (
    LONGEST_LEASE,
    Attend,
    Claim,
    Create,
    Denial,
    Ending,
    Entry,
    Expire,
    Free,
    GoInDoubt,
    Keep,
    KeyState,
    LayAside,
    Mark,
    Move,
    Owe,
    Owed,
    Paid,
    Promise,
    Refute,
    Resolve,
    Step,
    Suspect,
    TakeOver,
    Told,
    Untold,
    Verdict,
)

# --- the table ----------------------------------------------------------------------------------


@frozen
class Way:
    """One way through the machine: a transition."""

    move: type
    source: KeyState
    to: KeyState
    reason: str


S = KeyState
REFUTED = "Refuted"
"""The error of an ending that came after a doubt."""

TABLE: tuple[Way, ...] = (
    Way(Claim, S.FREE, S.CLAIMED, "nothing exists under the key, and the last no is on record"),
    Way(Claim, S.CLAIMED, S.CLAIMED, "the worker's lease ran out before it sent anything"),
    Way(Keep, S.CLAIMED, S.CLAIMED, "hooks take longer than a lease"),
    Way(TakeOver, S.CLAIMED, S.CLAIMED, "an abandoned claim is undone under a lease of its own"),
    Way(Mark, S.CLAIMED, S.SENDING, "from here on a crash means doubt, never another try"),
    Way(Free, S.CLAIMED, S.FREE, "nothing was sent"),
    Way(Free, S.SENDING, S.FREE, "the service said no, or by evidence nothing was sent"),
    Way(Free, S.IN_DOUBT, S.FREE, "the sender itself knows, and that beats the doubt of others"),
    Way(Create, S.SENDING, S.CREATED, "the service answered with our order"),
    Way(Create, S.IN_DOUBT, S.CREATED, "the sender itself knows, and that beats the doubt of others"),
    Way(Create, S.FREE, S.CREATED, "the sender itself knows: whoever refuted that very attempt was wrong"),
    Way(GoInDoubt, S.SENDING, S.IN_DOUBT, "the request may have been processed"),
    Way(GoInDoubt, S.IN_DOUBT, S.IN_DOUBT, "the sender confirms the doubt, and that it sends no more"),
    Way(Expire, S.SENDING, S.IN_DOUBT, "the worker is gone, its request may not be"),
    Way(Resolve, S.IN_DOUBT, S.CREATED, "somebody has seen the order"),
    Way(Promise, S.IN_DOUBT, S.IN_DOUBT, "whoever hears that it is unknown must hear how it ends"),
    Way(Refute, S.IN_DOUBT, S.FREE, "no order exists, and none can appear any more"),
    *(
        Way(LayAside, state, S.IN_DOUBT, "what cannot be read may have been sent")
        for state in (S.CLAIMED, S.SENDING, S.IN_DOUBT)
    ),
    *(Way(LayAside, state, state, "nothing can be sent any more") for state in (S.FREE, S.CREATED)),
    *(Way(Paid, state, state, "an undo is done") for state in KeyState),
    *(
        Way(Owe, state, state, "whoever slept may have acted since, and undoes what others ended")
        for state in KeyState
    ),
    *(Way(Attend, state, state, "one worker at a time") for state in KeyState),
    *(Way(Told, state, state, "whoever waited for the end of a doubt has heard") for state in S),
    *(Way(Suspect, state, state, "what was seen is kept, whatever the key has become") for state in KeyState),
)
_TO = {(row.move, row.source): row.to for row in TABLE}


def decide(entry: Entry | None, move: Move, *, now: float, id_taken: bool = False) -> Verdict | None:
    """What ``move`` makes of ``entry``.

    Args:
        entry: the key's entry, or None if there is none.
        move: what is asked for.
        now: seconds on the journal's clock.
        id_taken: for `Create` and `Resolve`: the order's id is bound to another key of the scope.

    Returns:
        The verdict; None if there is no entry that the move could be about.
    """
    entry = None if entry is None else _on_this_clock(entry, now)
    if entry is not None and entry.unread is not None and not isinstance(move, LayAside):
        return Verdict(now=now, entry=entry, denial=Denial.UNREAD)
    if isinstance(move, Claim):
        return _claim(entry, move, now)
    if entry is None:
        return None
    if id_taken and _is_answer(move):
        return Verdict(now=now, entry=entry, denial=Denial.FOREIGN)
    to = _TO.get((type(move), entry.state))
    why_not = Denial.LOST if to is None else _denial(entry, move, now, id_taken)
    if to is None or why_not is not None:
        return Verdict(now=now, entry=entry, denial=why_not)
    return Verdict(now=now, entry=_MADE[type(move)](entry.but(state=to), move, now))


def _on_this_clock(entry: Entry, now: float) -> Entry:
    """``entry``, without times that this clock, as it goes now, cannot have written.

    A clock that was far ahead and is set back leaves behind leases that no command could end for years.
    They are over: whoever had one and lives still hears so by the compare-and-set. When the last request
    may have been sent, nobody knows any more: no later than the longest lease from now.
    """
    limit = now + LONGEST_LEASE
    if entry.lease_until <= limit and entry.sent_until <= limit and not entry.owed:
        return entry
    changes: dict[str, Any] = {}
    if entry.lease_until > limit:
        changes["lease_until"] = 0.0
    if entry.sent_until > limit and entry.state in _AT_WORK:
        changes["sent_until"] = limit
    if any(one.lease_until > limit for one in entry.owed):
        over = (attrs.evolve(one, lease_until=0.0) if one.lease_until > limit else one for one in entry.owed)
        changes["owed"] = tuple(over)
    return entry.but(**changes) if changes else entry


def _is_answer(move: Move) -> bool:
    """Whether it is the service's answer: somebody else's order is that whatever the key has become."""
    return isinstance(move, Create)


def _claim(entry: Entry | None, move: Claim, now: float) -> Verdict:
    if entry is None or entry.state is S.FREE:
        return _claim_free(entry, move, now)
    if entry.fingerprint != move.fingerprint:
        return Verdict(now=now, entry=entry, denial=Denial.CONFLICT)
    if entry.state is S.CREATED:
        return Verdict(now=now, entry=entry, denial=Denial.CREATED)
    if entry.state is S.IN_DOUBT:
        return Verdict(now=now, entry=entry, denial=Denial.IN_DOUBT)
    if now < entry.lease_until:
        return Verdict(now=now, entry=entry, denial=Denial.BUSY)
    if entry.state is S.SENDING:
        doubted = entry.but(state=S.IN_DOUBT)
        return Verdict(now=now, entry=doubted, denial=Denial.IN_DOUBT, found_doubt=True)
    if abs(now - entry.claimed_at) > move.max_claim_age or not _serves(entry, move):
        return Verdict(now=now, entry=_new_intent(move, now, before=entry, owed=owed_by(entry)))
    return Verdict(now=now, entry=_gone_on_with(entry, move, now))


def _claim_free(entry: Entry | None, move: Claim, now: float) -> Verdict:
    if entry is not None and move.once and _was_refused(entry, move):
        return Verdict(now=now, entry=entry, denial=Denial.REFUSED)
    return Verdict(now=now, entry=_new_intent(move, now, before=entry))


def _was_refused(entry: Entry, move: Claim) -> bool:
    ending = entry.ending
    if ending is None or entry.fingerprint != move.fingerprint:
        return False
    same_hold = move.intent.held is not None and move.intent.held == entry.held
    return ending.is_final or (ending.refused and same_hold)


def _serves(entry: Entry, move: Claim) -> bool:
    """Whether what a dead worker's hooks did serves the new claim, too, and stays in its hands.

    What was verified for Ben says nothing of Mallory, a hold of the bank's own takes the place of a
    hook's, and an undo that is not among ``move.hooks`` would be nobody's once the order exists.
    """
    same_words = entry.intent is not None and _words(entry.intent) == _words(move.intent)
    return same_words and set(entry.hooks) <= set(move.hooks)


def _words(intent: OrderIntent) -> tuple[Any, ...]:
    """What hooks go by, beside the order: that is the same wherever its fingerprint is."""
    return intent.beneficiary, intent.held


def _gone_on_with(entry: Entry, move: Claim, now: float) -> Entry:
    return entry.but(
        intent=attrs.evolve(move.intent, id=entry.intent_id),
        hooks=move.hooks,
        epoch=entry.epoch + 1,
        lease_until=now + move.lease,
    )


def _new_intent(move: Claim, now: float, *, before: Entry | None, owed: tuple[Owed, ...] = ()) -> Entry:
    return Entry(
        state=S.CLAIMED,
        fingerprint=move.fingerprint,
        intent_id=move.intent.id,
        intent=move.intent,
        client_made=move.client_made,
        hooks=move.hooks,
        claimed_at=now,
        lease_until=now + move.lease,
        held=move.intent.held,
        owed=(before.owed if before else ()) + owed,
        untold=before.untold if before else (),
        laid_aside=before.laid_aside if before else (),
    )


def owed_by(entry: Entry) -> tuple[Owed, ...]:
    """What is owed if the intent of ``entry``, whose worker is gone or in doubt, ends in a certain no."""
    if entry.intent is None:
        return ()
    return tuple(
        Owed(intent=entry.intent, hook=hook, receipt=entry.receipts.get(hook)) for hook in entry.hooks
    )


# --- what speaks against a move -----------------------------------------------------------------


def _denial(entry: Entry, move: Move, now: float, id_taken: bool) -> Denial | None:
    speaks_against = _DENIALS.get(type(move))
    return None if speaks_against is None else speaks_against(entry, move, now, id_taken)


def _is_same_claim(entry: Entry, move: Keep | Mark | TakeOver | Free) -> bool:
    # The epoch alone would not do: it begins anew with each intent.
    return (entry.intent_id, entry.epoch) == (move.intent_id, move.epoch)


def _unless_slept(entry: Entry, move: Keep | Mark, now: float, _id_taken: bool) -> Denial | None:
    return None if _is_same_claim(entry, move) and now < entry.lease_until else Denial.LOST


def _unless_abandoned(entry: Entry, move: TakeOver, now: float, _id_taken: bool) -> Denial | None:
    if not _is_same_claim(entry, move):
        return Denial.LOST
    return None if entry.lease_until <= now else Denial.BUSY


def _unless_attempt(entry: Entry, move: Any, _now: float, id_taken: bool) -> Denial | None:
    if entry.attempt != move.attempt:
        return Denial.LOST
    return Denial.FOREIGN if id_taken else None


def _unless_own(entry: Entry, move: Free, now: float, id_taken: bool) -> Denial | None:
    if entry.state is S.CLAIMED:
        return None if _is_same_claim(entry, move) else Denial.LOST
    return _unless_attempt(entry, move, now, id_taken)


def _unless_expired(entry: Entry, move: Expire, now: float, _id_taken: bool) -> Denial | None:
    if entry.attempt != move.attempt:
        return Denial.LOST
    return None if entry.lease_until <= now else Denial.BUSY


def _unless_same_intent(entry: Entry, move: Promise, _now: float, _id_taken: bool) -> Denial | None:
    return None if entry.intent_id == move.intent_id else Denial.LOST


def _unless_settled(entry: Entry, move: Refute, now: float, _id_taken: bool) -> Denial | None:
    if entry.attempt != move.attempt:
        return Denial.LOST
    return None if now >= entry.sent_until + move.settle_after else Denial.TOO_EARLY


def _unless_read(entry: Entry, _move: LayAside, now: float, _id_taken: bool) -> Denial | None:
    if entry.unread is None:
        return Denial.LOST
    return Denial.BUSY if entry.state in _AT_WORK and now < entry.lease_until else None


def _unless_attended(entry: Entry, move: Attend, now: float, _id_taken: bool) -> Denial | None:
    at_work = [one.lease_until for one in entry.owed]
    if entry.state is S.IN_DOUBT:
        at_work.append(entry.lease_until)
    return Denial.BUSY if move.lease and at_work and max(at_work) > now else None


_DENIALS: dict[type, Callable[[Any, Any, float, bool], Denial | None]] = {
    Keep: _unless_slept,
    TakeOver: _unless_abandoned,
    Mark: _unless_slept,
    Create: _unless_attempt,
    Free: _unless_own,
    GoInDoubt: _unless_attempt,
    Expire: _unless_expired,
    Resolve: _unless_attempt,
    Promise: _unless_same_intent,
    Refute: _unless_settled,
    Attend: _unless_attended,
    LayAside: _unless_read,
}


# --- what a move writes -------------------------------------------------------------------------


def _kept(entry: Entry, move: Keep, now: float) -> Entry:
    # Two of one worker's may be written in either order; a receipt once written is never lost.
    return entry.but(lease_until=now + move.lease, receipts=entry.receipts | move.receipts)


def _taken_over(entry: Entry, move: TakeOver, now: float) -> Entry:
    return entry.but(epoch=entry.epoch + 1, lease_until=now + move.lease)


def _marked(entry: Entry, move: Mark, now: float) -> Entry:
    return entry.but(
        attempt=move.attempt,
        receipts=move.receipts,
        lease_until=now + move.lease,
        sent_until=now + move.window,
    )


def _created(entry: Entry, move: Create | Resolve, _now: float) -> Entry:
    made = entry.but(order_id=move.order_id, reply=move.reply, lease_until=0.0, intent=None)
    return _to_be_told(made, outcome=Outcome.CREATED, order_id=move.order_id) if entry.promised else made


def _to_be_told(entry: Entry, **end: Any) -> Entry:
    return entry.but(untold=(*entry.untold, Untold(intent_id=entry.intent_id, **end)))


def _freed(entry: Entry, move: Free, now: float) -> Entry:
    return _ended(entry, move.ending, move, now)


def _refuted(entry: Entry, move: Refute, now: float) -> Entry:
    return _ended(entry, Ending(outcome=Outcome.REFUSED, error=REFUTED), move, now)


def _ended(entry: Entry, ending: Ending, move: Free | Refute, now: float) -> Entry:
    owed = entry.owed + _leased(move.owed, now + move.lease)
    ended = entry.but(ending=ending, owed=owed, lease_until=0.0, intent=None)
    if not entry.promised:
        return ended
    return _to_be_told(ended, outcome=ending.outcome, error=ending.error, status=ending.status)


def _leased(owed: tuple[Owed, ...], until: float) -> tuple[Owed, ...]:
    return tuple(attrs.evolve(one, lease_until=until) for one in owed)


def _doubted(entry: Entry, move: GoInDoubt, now: float) -> Entry:
    doubted = entry.but(lease_until=0.0, sent_until=min(entry.sent_until, now))
    if move.candidate is None or move.candidate in entry.candidates:
        return doubted
    return doubted.but(candidates=(*entry.candidates, move.candidate))


def _expired(entry: Entry, _move: Expire, _now: float) -> Entry:
    return entry.but(lease_until=0.0)


def _paid(entry: Entry, move: Paid, _now: float) -> Entry:
    left = []
    for one in entry.owed:
        if (one.intent.id, one.lease_until) != (move.intent_id, move.lease_until):
            left.append(one)
        elif one.hook not in move.hooks:
            left.append(attrs.evolve(one, lease_until=0.0))
    return entry.but(owed=tuple(left))


def _owing(entry: Entry, move: Owe, now: float) -> Entry:
    known = {(one.intent.id, one.hook): one for one in entry.owed}
    due = {(one.intent.id, one.hook): one for one in move.owed}
    for which, one in known.items():
        if which in due and one.receipt is not None:  # whoever slept may not have heard of it
            due[which] = one
    others = tuple(one for which, one in known.items() if which not in due)
    return entry.but(owed=others + _leased(tuple(due.values()), now + move.lease))


def _laid_aside(entry: Entry, _move: LayAside, now: float) -> Entry:
    assert entry.unread is not None  # noqa: S101 - or it was denied
    readable = entry.but(unread=None, laid_aside=(*entry.laid_aside, entry.unread.kept), intent=None)
    if entry.state is not S.IN_DOUBT:
        return readable
    # When its request can have been sent last may be what cannot be read: from now on it waits in any case.
    return readable.but(attempt=entry.attempt or "", sent_until=entry.sent_until or now, lease_until=0.0)


def _as_it_is(entry: Entry, _move: Suspect, _now: float) -> Entry:
    return entry


def _promised(entry: Entry, _move: Promise, _now: float) -> Entry:
    return entry if entry.promised else entry.but(promised=True)


def _told(entry: Entry, move: Told, _now: float) -> Entry:
    return entry.but(untold=tuple(one for one in entry.untold if one != move.untold))


def _attended(entry: Entry, move: Attend, now: float) -> Entry:
    owed = _leased(entry.owed, now + move.lease)
    lease = now + move.lease if entry.state is S.IN_DOUBT else entry.lease_until
    return entry.but(owed=owed, lease_until=lease)


_MADE: dict[type, Callable[[Entry, Any, float], Entry]] = {
    Keep: _kept,
    TakeOver: _taken_over,
    Mark: _marked,
    Create: _created,
    Free: _freed,
    GoInDoubt: _doubted,
    Expire: _expired,
    Resolve: _created,
    Refute: _refuted,
    Paid: _paid,
    Owe: _owing,
    Attend: _attended,
    LayAside: _laid_aside,
    Suspect: _as_it_is,
    Promise: _promised,
    Told: _told,
}


def is_told(move: Move, verdict: Verdict) -> bool:
    """Whether ``move`` has a line in the history: not if it was denied, or only says that somebody looks."""
    if verdict.denial is not None and not verdict.found_doubt:
        return False
    return not (isinstance(move, Attend) or (isinstance(move, Paid) and not move.hooks))


def history_step(entry: Entry, move: Move, *, now: float) -> Step:
    """The line that ``move`` adds to the key's history, ``entry`` being what it made."""
    return Step(
        at=now,
        move=move.name,
        state=entry.state,
        intent_id=entry.intent_id,
        epoch=entry.epoch,
        attempt=entry.attempt,
        order_id=getattr(move, "order_id", None) or entry.order_id,
        ending=entry.ending if isinstance(move, (Free, Refute)) else None,
        by=getattr(move, "by", None),
        reason=getattr(move, "reason", None),
    )


def is_waiting(entry: Entry, now: float) -> bool:
    """Whether an entry waits for somebody, and nobody is at it now."""
    due = due_at(entry)
    return due is not None and not now < due <= now + LONGEST_LEASE


def due_at(entry: Entry) -> float | None:
    """When an entry begins to wait for somebody, if it ever does; leases that are over count as 0."""
    if entry.untold:
        return 0.0
    is_bound = entry.state in _AT_WORK
    if not entry.owed:
        return entry.lease_until if is_bound else None
    first = min(one.lease_until for one in entry.owed)
    return min(first, entry.lease_until) if is_bound else first


_AT_WORK = (S.CLAIMED, S.SENDING, S.IN_DOUBT)


def is_ended(entry: Entry) -> bool:
    """Whether nothing is left to do for an entry, so that it may be forgotten."""
    return entry.state in (S.FREE, S.CREATED) and not (entry.owed or entry.untold)
