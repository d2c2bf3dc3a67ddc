"""The journal's state machine: a table of transitions, and `decide`, which applies the table without I/O.

::

    free ──claim──> claimed ──mark──> sending ──create──> created     (final)
      ^                |                 |────doubt────> in doubt ──resolve──> created
      '───── free ─────'────── free ─────'──────────────────'  (refute)

**The basic rule.** A key is not free while its order exists or may exist, or while a worker is using it. Only
the sender's own result can therefore change the state from `SENDING` to `FREE`. If the lease of a key in
`CLAIMED` expires, another worker may take over the key. If the lease of a key in `SENDING` expires, another
worker can only put the key in doubt.

**What cannot be prevented.** If a process is suspended between its last check and writing the request, it
sends the request when it resumes, however late. Three rules limit the damage. The key never becomes free on
its own. If the sender did not report the doubt, a refutation by a program is accepted only after a long wait
(`Refute`). A sender whose attempt was superseded records a suspected duplicate (`Suspect`).

**A definite result replaces a doubt.** The sender of an attempt may record its result even after another
worker has put that attempt in doubt. A worker's transition is a compare-and-set. The transition must match
the claim's epoch before `MarkSending`, and the attempt's token afterwards.

**Decisions of people** are transitions, too. A person's decision may require that the key has not changed
since the person saw it. When the key changes, `decide` makes a pending proposal void. `CREATED` is final if
the service responded with the order. An order id that a person or the bank's ``resolve`` supplied may be
amended or withdrawn. After a withdrawal the key is in doubt again. The key's hooks can still be undone,
because the journal keeps its intent.

**Take-over.** A call continues a dead worker's claim only if it can reuse the results of that worker's hooks
(`Claim`). If the hooks' results cannot be reused, or if the claim is too old, a new intent begins. The write
that begins the new intent also makes the old intent's undos pending, so that no undo is lost.

`decide` takes an entry, a transition and the time. `decide` returns the entry after the transition, or the
reason for the rejection. A rejected transition changes nothing, except in two cases that put the key in
doubt: a claim of a key that a dead worker left in `SENDING`, and the end of an intent while an earlier
intent's order may exist. Times in the far future come from a wrong clock, and are corrected silently. If you
change the rules of the state machine, change `TRANSITIONS`, `transitions`, `operator_transitions` and the
contract suite too.
"""

from __future__ import annotations

from typing import Any

import attrs
from msgspec.structs import replace

from transfer_async._support.util import FrozenStruct
from transfer_async.journal.model import (
    AT_WORK,
    BELIEVED,
    LONGEST_LEASE,
    Entry,
    KeyState,
    Rejection,
    TransitionResult,
    demands_four_eyes,
)
from transfer_async.journal.operator_transitions import OPERATOR_TRANSITIONS, Demand
from transfer_async.journal.transitions import (
    AcquireLease,
    AddPendingUndos,
    Claim,
    Create,
    Expire,
    GoInDoubt,
    MarkNotified,
    MarkSending,
    MarkUndone,
    Move,
    Quarantine,
    Release,
    RenewLease,
    RequestNotification,
    Suspect,
    TakeOver,
)

# --- the table ----------------------------------------------------------------------------------


class Transition(FrozenStruct, frozen=True):
    """One row of the table: a transition's class, its source and target states, and why it is allowed."""

    move: type
    source: KeyState
    to: KeyState
    reason: str


S = KeyState

TRANSITIONS: tuple[Transition, ...] = (
    Transition(Claim, S.FREE, S.CLAIMED, "no order exists for the key; the last failure is recorded"),
    Transition(Claim, S.CLAIMED, S.CLAIMED, "the worker's lease expired before it sent anything"),
    Transition(RenewLease, S.CLAIMED, S.CLAIMED, "hooks may take longer than a lease"),
    Transition(TakeOver, S.CLAIMED, S.CLAIMED, "recovery undoes an abandoned claim under a new lease"),
    Transition(
        MarkSending,
        S.CLAIMED,
        S.SENDING,
        "if the process crashes from now on, the order is in doubt",
    ),
    Transition(Release, S.CLAIMED, S.FREE, "nothing was sent"),
    Transition(Release, S.SENDING, S.FREE, "the service refused, or there is proof that nothing was sent"),
    Transition(Release, S.IN_DOUBT, S.FREE, "the sender's own result replaces the recorded doubt"),
    Transition(Create, S.SENDING, S.CREATED, "the service returned the order that was sent"),
    Transition(Create, S.IN_DOUBT, S.CREATED, "the sender's own result replaces the recorded doubt"),
    Transition(Create, S.FREE, S.CREATED, "the sender received the order, so the refutation was wrong"),
    Transition(GoInDoubt, S.SENDING, S.IN_DOUBT, "the request may have been processed"),
    Transition(
        GoInDoubt,
        S.IN_DOUBT,
        S.IN_DOUBT,
        "the sender reports that the outcome is unknown, and sends no further request",
    ),
    Transition(Expire, S.SENDING, S.IN_DOUBT, "the worker has ended, but its request may still arrive"),
    Transition(
        RequestNotification,
        S.IN_DOUBT,
        S.IN_DOUBT,
        "the outcome was published as unknown, so the final outcome must be published too",
    ),
    *(Transition(*row) for row in OPERATOR_TRANSITIONS),
    *(
        Transition(Quarantine, state, S.IN_DOUBT, "the record is corrupt, and its order may have been sent")
        for state in (S.CLAIMED, S.SENDING, S.IN_DOUBT)
    ),
    # `Quarantine` of a free key puts it in doubt if its order may exist: see `Quarantine.order_may_exist`.
    *(Transition(Quarantine, state, state, "nothing can be sent any more") for state in (S.FREE, S.CREATED)),
    *(Transition(MarkUndone, state, state, "an undo has run successfully") for state in KeyState),
    *(
        Transition(
            AddPendingUndos,
            state,
            state,
            "a worker's hook ran after another worker or a person had ended the intent",
        )
        for state in KeyState
    ),
    *(
        Transition(AcquireLease, state, state, "only one worker at a time processes the key")
        for state in KeyState
    ),
    *(Transition(MarkNotified, state, state, "the final outcome was published") for state in S),
    Transition(Suspect, S.FREE, S.IN_DOUBT, "an order may exist, and a free key would allow a second order"),
    *(
        Transition(
            Suspect,
            state,
            state,
            "the sender's report is recorded; from now on only a person can free the key",
        )
        for state in KeyState
        if state is not KeyState.FREE
    ),
)
_TO = {(row.move, row.source): row.to for row in TRANSITIONS}


def decide(
    entry: Entry | None,
    move: Move,
    *,
    now: float,
    id_taken: bool = False,
    four_eyes: Entry | None = None,
) -> TransitionResult | None:
    """Decide a transition. Return the entry after the transition, or the reason why it was rejected.

    Args:
        entry: the key's entry, or None if it does not exist.
        move: the transition.
        now: the time in seconds on the journal's clock.
        id_taken: whether another key of the scope is bound to the order id that the transition binds.
        four_eyes: the scope's own entry under `FOUR_EYES`, or None if it does not exist. If the transition's
            `is_by_one_person` is true, the transaction that writes the transition must read this entry.

    Returns:
        The result, or None if the transition needs an entry that does not exist.
    """
    entry = None if entry is None else _on_this_clock(entry, now)
    if entry is not None and four_eyes is not None and move.is_by_one_person and demands_four_eyes(four_eyes):
        return TransitionResult(now=now, entry=entry, denial=Rejection.ALONE)
    if entry is not None and entry.unread is not None and not isinstance(move, (Quarantine, Demand)):
        return TransitionResult(now=now, entry=entry, denial=Rejection.UNREAD)
    if type(move) is Claim or type(move) is Demand:
        return move.decide(entry, now)
    if entry is None:
        return TransitionResult(now=now, entry=move.begin(now)) if isinstance(move, Suspect) else None
    return move.made(entry, _TO.get((type(move), entry.state)), now, id_taken=id_taken)


def _on_this_clock(entry: Entry, now: float) -> Entry:
    """Return ``entry``, with corrections to times that are too far in the future.

    If a clock that was far ahead is set back, stored leases could last for years. Leases that end too far in
    the future therefore count as expired. If another worker then takes over the key, the compare-and-set
    rejects the former worker's writes. An implausibly late ``sent_until`` is replaced by the end of the
    longest lease that could start now.
    """
    limit = now + BELIEVED
    if entry.lease_until <= limit and entry.sent_until <= limit and not entry.pending_undos:
        return entry
    changes: dict[str, Any] = {}
    if entry.lease_until > limit:
        changes["lease_until"] = 0.0
    if entry.sent_until > limit and entry.state in AT_WORK:
        changes["sent_until"] = now + LONGEST_LEASE
    if any(undo.lease_until > limit for undo in entry.pending_undos):
        undos = (
            attrs.evolve(undo, lease_until=0.0) if undo.lease_until > limit else undo
            for undo in entry.pending_undos
        )
        changes["pending_undos"] = tuple(undos)
    return replace(entry, **changes) if changes else entry
