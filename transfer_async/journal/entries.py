"""The journal's nouns: where a key stands, what is held of it, and the moves that change it.

What each move does, and when it may not be made, is in `state_machine`.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from attrs import field, frozen

from transfer_async._models.errors import Outcome, is_final_no
from transfer_async._models.requests import OrderIntent

LONGEST_LEASE = 3600.0
"""Seconds: no client may be set to a longer one, so what reaches further was not written by this clock."""


class KeyState(enum.Enum):
    """Where a key stands."""

    FREE = "free"
    CLAIMED = "claimed"
    SENDING = "sending"
    IN_DOUBT = "in_doubt"
    CREATED = "created"


class Denial(enum.Enum):
    """Why a move was not made."""

    CONFLICT = "the key is bound to a different order"
    CREATED = "the key's order exists"
    BUSY = "a live lease is on the key"
    IN_DOUBT = "the key's order may exist"
    LOST = "the claim or the attempt is no longer the one this was asked about"
    TOO_EARLY = "a request may still take effect"
    FOREIGN = "the order's id is bound to another key"
    REFUSED = "the same order was refused before, and would be again"
    UNREAD = "what is stored of the key cannot be read"


@frozen(kw_only=True)
class Ending:
    """How an intent ended in a certain no: the no stays on record."""

    outcome: Outcome
    error: str
    status: int | None = None
    refused: bool = False
    """A hook said no, and did not just break."""

    in_vain: bool = False
    """See `transfer_async._models.errors.is_in_vain`."""

    fields: tuple[str, ...] = ()
    """Those of the request that the service named as it refused."""

    @property
    def is_final(self) -> bool:
        """Whether the service refused, and would refuse the same order again."""
        return self.outcome is Outcome.REFUSED and is_final_no(self.error, self.status)


@frozen(kw_only=True)
class Untold:
    """How a doubt ended of which somebody was told that it is unknown: still to be told."""

    intent_id: str
    outcome: Outcome
    order_id: str | None = None
    error: str | None = None
    status: int | None = None


@frozen(kw_only=True)
class Owed:
    """An undo that must still be done; ``lease_until`` while somebody is at it."""

    intent: OrderIntent
    hook: str
    receipt: str | None
    lease_until: float = 0.0


@frozen(kw_only=True)
class Unread:
    """What is stored of a key and cannot be read.

    Args:
        why: the kind of error; nothing of what is stored.
        kept: all of it, word for word.
        hooks: what would have to be undone should this intent end in a certain no.
        owed: what had to be undone already, for earlier intents.
    """

    why: str
    kept: str
    hooks: tuple[str, ...]
    owed: tuple[str, ...]


@frozen(kw_only=True)
class Step:
    """One line of a key's history."""

    at: float
    move: str
    state: KeyState
    intent_id: str
    epoch: int
    attempt: str | None = None
    order_id: str | None = None
    ending: Ending | None = None
    by: str | None = None
    reason: str | None = None


@frozen(kw_only=True, slots=False)  # with a dict, `but` is one copy of it
class Entry:
    """All that the journal holds of one key; times in seconds on the journal's clock.

    Args:
        state: see `KeyState`.
        fingerprint: of the order that the key is, or was last, bound to.
        intent_id: the current intent's.
        intent: kept until nothing is owed or in doubt.
        client_made: the client made the key itself.
        epoch: counts the claims of this intent; a claim that was taken over has the older one.
        hooks: what must be undone should this intent end in a certain no, in that order.
        claimed_at: when this intent was first claimed.
        lease_until: until when the worker at work is trusted to live.
        receipts: what the hooks handed back.
        attempt: the token of the call that was marked as sending.
        sent_until: no request of that call can have been sent after it.
        order_id: of the order, once it exists.
        reply: the order as the service sent it, if it did.
        ending: the certain no that the last intent ended in.
        owed: undos that must still be done, also of earlier intents.
        promised: somebody was told that the outcome of this intent is unknown, and is to be told its end.
        untold: what they must still be told, also of earlier intents.
        candidates: ids of orders that answers to this intent named, without being readably our order.
        unread: why the rest of this is only what could be read of it; the key is bound, whatever its state.
        laid_aside: what could not be read and was laid aside, word for word.
    """

    state: KeyState
    fingerprint: str
    intent_id: str
    intent: OrderIntent | None
    client_made: bool = False
    epoch: int = 1
    hooks: tuple[str, ...] = ()
    claimed_at: float
    lease_until: float = 0.0
    receipts: dict[str, str | None] = field(factory=dict)
    held: str | None = None
    attempt: str | None = None
    sent_until: float = 0.0
    order_id: str | None = None
    reply: bytes | None = None
    ending: Ending | None = None
    owed: tuple[Owed, ...] = ()
    promised: bool = False
    untold: tuple[Untold, ...] = ()
    candidates: tuple[str, ...] = ()
    unread: Unread | None = None
    laid_aside: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Entry:
        """The same entry with ``changes``, at a sixth of the cost of `attrs.evolve`: a call makes five."""
        changed = object.__new__(Entry)
        changed.__dict__.update(self.__dict__)
        changed.__dict__.update(changes)
        return changed


# --- moves --------------------------------------------------------------------------------------
# `name` is what is stored of a move in the history, and what messages call it: it outlives the class's own.


@frozen(kw_only=True)
class Claim:
    """Take the key for a new intent, or go on with one whose worker is gone.

    Whatever that worker's hooks did is undone, and a new intent begins, if it is too old or was done
    for other words than these: another beneficiary, another hold, other hooks.

    Args:
        intent: the wish, with a new id that is used only if the key is free.
        hooks: the names of the hooks that may now run and have something to undo, last first.
        once: a final refusal of the same order is its answer: no new intent begins. So is a hook's no,
            where the bank names the same hold again: it may have let go of it when it heard of the no.
    """

    name: ClassVar = "claim"

    intent: OrderIntent
    fingerprint: str
    client_made: bool
    lease: float
    max_claim_age: float
    hooks: tuple[str, ...]
    once: bool = False


@frozen(kw_only=True)
class Keep:
    """Renew the lease of a claim, and keep the receipts so far."""

    name: ClassVar = "keep"

    intent_id: str
    epoch: int
    lease: float
    receipts: dict[str, str | None]


@frozen(kw_only=True)
class TakeOver:
    """Take an abandoned claim in order to undo it."""

    name: ClassVar = "takeover"

    intent_id: str
    epoch: int
    lease: float


@frozen(kw_only=True)
class Mark:
    """Mark as sending: durable before the first byte.

    Args:
        attempt: a token for all HTTP attempts of this call.
        window: seconds in which its requests may be sent.
    """

    name: ClassVar = "mark"

    intent_id: str
    epoch: int
    attempt: str
    receipts: dict[str, str | None]
    lease: float
    window: float


@frozen(kw_only=True)
class Create:
    """The service answered with our order."""

    name: ClassVar = "create"

    attempt: str
    order_id: str
    reply: bytes


@frozen(kw_only=True)
class Free:
    """A certain no: by the epoch before the mark, by the attempt from it on; ``owed`` is to be undone."""

    name: ClassVar = "free"

    intent_id: str
    epoch: int
    attempt: str | None
    ending: Ending
    owed: tuple[Owed, ...]
    lease: float


@frozen(kw_only=True)
class GoInDoubt:
    """The outcome is unknown; no request of this attempt follows.

    Args:
        attempt: the token of the mark.
        candidate: the id of an order that the answer names, although it is not readably ours.
    """

    name: ClassVar = "doubt"

    attempt: str
    candidate: str | None = None

    @property
    def reason(self) -> str | None:
        """What the history says."""
        return None if self.candidate is None else f"the answer names {self.candidate}"


@frozen(kw_only=True)
class Expire:
    """The worker that was sending is gone: in doubt, and nothing else."""

    name: ClassVar = "expire"

    attempt: str


@frozen(kw_only=True)
class Resolve:
    """The order of a doubt exists."""

    name: ClassVar = "resolve"

    attempt: str
    order_id: str
    reply: bytes | None
    by: str
    reason: str


@frozen(kw_only=True)
class Refute:
    """The order of a doubt does not exist, and can no longer appear."""

    name: ClassVar = "refute"

    attempt: str
    settle_after: float
    by: str
    reason: str
    owed: tuple[Owed, ...]
    lease: float


@frozen(kw_only=True)
class Paid:
    """Of what is owed for an intent, ``hooks`` is done; the rest is left to others.

    Args:
        lease_until: of the debts that were undone: what has become due since is not among them.
    """

    name: ClassVar = "paid"

    intent_id: str
    hooks: tuple[str, ...]
    lease_until: float


@frozen(kw_only=True)
class Owe:
    """Undos that have become due late: their worker slept while others ended its intent."""

    name: ClassVar = "owe"

    owed: tuple[Owed, ...]
    lease: float


@frozen(kw_only=True)
class Attend:
    """Take what is owed, or in doubt, so that no other worker does the same at once; 0 lets it go."""

    name: ClassVar = "attend"

    lease: float


@frozen(kw_only=True)
class Suspect:
    """An order was answered for an attempt of which the record says something else: for the history alone."""

    name: ClassVar = "suspect"

    order_id: str
    reason: str
    by: str = "sender"


@frozen(kw_only=True)
class LayAside:
    """Put what cannot be read out of the way, word for word, so that operators can end the key.

    A worker may have sent its order, whatever its state says: what was bound is in doubt.
    """

    name: ClassVar = "layaside"

    by: str
    reason: str


@frozen(kw_only=True)
class Promise:
    """Somebody is told that the outcome is unknown: the end of this doubt must be told, too."""

    name: ClassVar = "promise"

    intent_id: str


@frozen(kw_only=True)
class Told:
    """The end of a doubt has been told."""

    name: ClassVar = "told"

    untold: Untold


Move = (
    Claim
    | Keep
    | TakeOver
    | Mark
    | Create
    | Free
    | GoInDoubt
    | Expire
    | Resolve
    | Refute
    | Paid
    | Owe
    | Attend
    | Suspect
    | LayAside
    | Promise
    | Told
)


@frozen(kw_only=True)
class Verdict:
    """What became of a move.

    Args:
        entry: as it is now.
        denial: why not, if the move was denied.
        found_doubt: a claim found a dead worker's request, and wrote down the doubt.
        now: the time it was judged at.
    """

    entry: Entry
    denial: Denial | None = None
    found_doubt: bool = False
    now: float

    @property
    def lease_left(self) -> float:
        """Seconds until the entry's lease ends, on the journal's own clock."""
        return max(0.0, self.entry.lease_until - self.now)
