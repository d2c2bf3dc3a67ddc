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

What a person says is a move like any other, and may be bound to the key as it was seen. What one
proposes and another approves is void with the next move of the key: `decide` sees to that, for all
moves alike. `CREATED` is final where the service answered with the order. An id that a person gave,
or the bank's own means, may be amended, or taken back: then the key is in doubt again, and its
intent, which was kept for that, can still be undone.

A dead worker's claim is gone on with only by a call that its hooks have served (`Claim`). For any
other, and where it is too old, a new intent begins: the old one's undos are owed from that very
write on, so none is forgotten whatever comes next.

`decide` takes an entry, a move and the time, and gives the entry after it, or why not. A move that
is denied changes nothing; only a claim that finds a dead worker's `SENDING` writes down the doubt
that it finds, and times that a clock left behind which was far ahead are set right by whoever finds
them, in silence. Keep in step with this page: `TABLE`, `moves`, `operator_moves`, and the contract
suite.
"""

from __future__ import annotations

from typing import Any

import attrs

from transfer_async._support.state import Fixed
from transfer_async.journal.claim import Claim
from transfer_async.journal.entries import (
    AT_WORK,
    BELIEVED,
    ENDED,
    LONGEST_LEASE,
    Denial,
    Entry,
    KeyState,
    Step,
    Verdict,
)
from transfer_async.journal.moves import (
    Attend,
    Create,
    Expire,
    Free,
    GoInDoubt,
    Keep,
    LayAside,
    Mark,
    Move,
    Owe,
    Paid,
    Promise,
    Refute,
    Resolve,
    Suspect,
    TakeOver,
    Told,
)
from transfer_async.journal.operator_moves import Amend, Demand, Look, Propose, TakeBack, Waive, Withdraw

# --- the table ----------------------------------------------------------------------------------


class Way(Fixed, frozen=True):
    """One way through the machine: a transition."""

    move: type
    source: KeyState
    to: KeyState
    reason: str


S = KeyState

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
    Way(Amend, S.CREATED, S.CREATED, "a person gave the wrong id, and another knows the right one"),
    Way(TakeBack, S.CREATED, S.IN_DOUBT, "a person gave the wrong id, and nobody knows the right one"),
    *(
        Way(Propose, state, state, "what one person says waits for another")
        for state in (S.IN_DOUBT, S.CREATED, S.FREE)
    ),
    *(
        Way(Withdraw, state, state, "what was proposed is not to be")
        for state in (S.IN_DOUBT, S.CREATED, S.FREE)
    ),
    Way(Demand, S.FREE, S.FREE, "of the scope's own entry: two persons are needed"),
    Way(Waive, S.FREE, S.FREE, "of the scope's own entry: two persons say that one is enough"),
    *(Way(Look, state, state, "that somebody was shown the parties is kept") for state in KeyState),
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
    if isinstance(move, (Claim, Demand)):
        return move.decide(entry, now)
    if entry is None:
        return None
    to = _TO.get((type(move), entry.state))
    denial = Denial.LOST if to is None else move.denial(entry, now)
    # The service's answer with somebody else's order is that whatever the key has become.
    if id_taken and (denial is None or isinstance(move, Create)):
        denial = Denial.FOREIGN
    if to is None or denial is not None:
        return Verdict(now=now, entry=entry, denial=denial)
    if move.is_a_change:  # whatever was proposed, was proposed of the key as it was
        return Verdict(
            now=now, entry=move.apply(entry.but(state=to, moves=entry.moves + 1, proposal=None), now)
        )
    return Verdict(now=now, entry=move.apply(entry.but(state=to), now))


def _on_this_clock(entry: Entry, now: float) -> Entry:
    """``entry``, without times that this clock, as it goes now, cannot have written.

    A clock that was far ahead and is set back leaves behind leases that no command could end for years.
    They are over: whoever had one and lives still hears so by the compare-and-set. When the last request
    may have been sent, nobody knows any more: no later than the longest lease from now.
    """
    limit = now + BELIEVED
    if entry.lease_until <= limit and entry.sent_until <= limit and not entry.owed:
        return entry
    changes: dict[str, Any] = {}
    if entry.lease_until > limit:
        changes["lease_until"] = 0.0
    if entry.sent_until > limit and entry.state in AT_WORK:
        changes["sent_until"] = now + LONGEST_LEASE
    if any(one.lease_until > limit for one in entry.owed):
        over = (attrs.evolve(one, lease_until=0.0) if one.lease_until > limit else one for one in entry.owed)
        changes["owed"] = tuple(over)
    return entry.but(**changes) if changes else entry


# --- the history --------------------------------------------------------------------------------


def is_told(move: Move, verdict: Verdict) -> bool:
    """Whether ``move`` has a line in the history: not if it was denied, or only says that somebody looks."""
    return move.is_in_history and (verdict.denial is None or verdict.found_doubt)


def history_step(entry: Entry, move: Move, *, now: float) -> Step:
    """The line that ``move`` adds to the key's history, ``entry`` being what it made."""
    return Step(
        at=now,
        move=move.name,
        state=entry.state,
        intent_id=entry.intent_id,
        epoch=entry.epoch,
        attempt=entry.attempt,
        order_id=getattr(move, "order_id", None) or entry.order_id or getattr(move, "wrong", None),
        ending=entry.ending if entry.ending is not None and isinstance(move, (Free, Refute)) else None,
        by=getattr(move, "by", None),
        reason=_reason(entry, move),
    )


def _reason(entry: Entry, move: Move) -> str | None:
    # Of a claim only the doubt that it finds has one; the state is the cheaper question.
    if entry.state is S.IN_DOUBT and isinstance(move, Claim):
        return entry.cause.told if entry.cause is not None else None
    return getattr(move, "reason", None)


# --- who waits ----------------------------------------------------------------------------------


def is_waiting(entry: Entry, now: float) -> bool:
    """Whether an entry waits for somebody, and nobody is at it now."""
    due = due_at(entry)
    return due is not None and not now < due <= now + BELIEVED


def due_at(entry: Entry) -> float | None:
    """When an entry begins to wait for somebody, if it ever does; leases that are over count as 0."""
    if entry.untold or (entry.proposal is not None and entry.state is S.CREATED):
        return 0.0
    is_bound = entry.state in AT_WORK
    if not entry.owed:
        return entry.lease_until if is_bound else None
    first = min(one.lease_until for one in entry.owed)
    return min(first, entry.lease_until) if is_bound else first


def is_ended(entry: Entry) -> bool:
    """Whether nothing is left to do for an entry, so that it may be forgotten."""
    if entry.proposal is not None or entry.four_eyes is not None:
        return False
    return entry.state in ENDED and not (entry.owed or entry.untold)
