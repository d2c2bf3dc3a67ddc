"""The journal's nouns: where a key stands, what is held of it, and what became of a move."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from attrs import field, frozen

from transfer_async._models.base import ByValue
from transfer_async._models.doubt_cause import Cause
from transfer_async._models.errors import CauseKind, Outcome, is_final_no
from transfer_async._models.requests import OrderIntent
from transfer_async.journal.proposal import Proposal

LONGEST_LEASE = 3600.0
"""Seconds: no client may be set to a longer one."""

BELIEVED = LONGEST_LEASE + 60.0
"""Seconds: what reaches further was not written by this clock, even if it was set back a little since."""


class KeyState(enum.Enum):
    """Where a key stands."""

    FREE = "free"
    CLAIMED = "claimed"
    SENDING = "sending"
    IN_DOUBT = "in_doubt"
    CREATED = "created"


AT_WORK = (KeyState.CLAIMED, KeyState.SENDING, KeyState.IN_DOUBT)
"""Where somebody is at work, or will have to be."""

ENDED = (KeyState.FREE, KeyState.CREATED)
"""Where nobody is; here, and not where it is asked for: each member named costs as much as a call."""


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
    MOVED = "the key has moved since it was looked at"
    VOID = "the proposal is void: the key has moved since, or it is another one"
    SAME_PERSON = "whoever proposed it may not approve it"
    ANSWERED = "the service itself answered with the order"


LEFT_ALONE = Cause(kind=CauseKind.ABANDONED)
"""Why a dead worker's request is in doubt, whoever finds it."""


REFUTED = "Refuted"
"""The error of an ending that came after a doubt."""


@frozen(kw_only=True, eq=False, repr=False)
class Ending(ByValue):
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


@frozen(kw_only=True, eq=False, repr=False)
class Untold(ByValue):
    """How a doubt ended of which somebody was told that it is unknown: still to be told."""

    intent_id: str
    outcome: Outcome
    order_id: str | None = None
    error: str | None = None
    status: int | None = None
    since: float | None = field(default=None, eq=False)
    """When the doubt ended, on the journal's clock; None where that was not kept yet."""


@frozen(kw_only=True, eq=False, repr=False)
class Owed(ByValue):
    """An undo that must still be done; ``lease_until`` while somebody is at it."""

    intent: OrderIntent
    hook: str
    receipt: str | None
    lease_until: float = 0.0
    since: float | None = field(default=None, eq=False)
    """When it became due, on the journal's clock; None where that was not kept yet."""


@frozen(kw_only=True, eq=False, repr=False)
class Unread(ByValue):
    """What is stored of a key and cannot be read.

    Args:
        why: the kind of error; nothing of what is stored.
        kept: all of it, word for word.
        hooks: what would have to be undone should this intent end in a certain no.
        owed: what had to be undone already, for earlier intents.
        is_sealed: it can be read, by whoever has the key that it was sealed with.
    """

    why: str
    kept: str
    hooks: tuple[str, ...]
    owed: tuple[str, ...]
    is_sealed: bool = False


class HidesReply(msgspec.Struct, frozen=True):
    """Shows its fields, but no order as the service sent it: that names persons."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What is shown of it, for rich, too."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "reply"]

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__qualname__}({', '.join(shown)})"


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Entry(HidesReply, frozen=True, kw_only=True, gc=False):
    """All that the journal holds of one key; times in seconds on the journal's clock.

    Args:
        state: see `KeyState`.
        fingerprint: of the order that the key is, or was last, bound to.
        intent_id: the current intent's.
        intent: kept until nothing is owed or in doubt; and for an order of which the id alone is known,
            for that may be taken back.
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
        cause: why this intent is, or was, in doubt; None where that was not kept yet.
        unread: why the rest of this is only what could be read of it; the key is bound, whatever its state.
        laid_aside: what could not be read and was laid aside, word for word.
        moves: counts the moves of the key, but those that only say that somebody looks.
        proposal: what a person has proposed, and nothing has moved since.
        four_eyes: of the scope's own entry under `FOUR_EYES`: whether two persons are needed; else None.
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
    receipts: dict[str, str | None] = msgspec.field(default_factory=dict)
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
    cause: Cause | None = None
    unread: Unread | None = None
    laid_aside: tuple[str, ...] = ()
    moves: int = 0
    proposal: Proposal | None = None
    four_eyes: bool | None = None

    @property
    def all_receipts(self) -> dict[str, str | None]:
        """The receipts as callers see them, with the bank's own hold among them as ``"held"``."""
        return dict(self.receipts) if self.held is None else {**self.receipts, "held": self.held}

    @property
    def is_readable(self) -> bool:
        """Whether it is all that is on record of the key, and not only what can be read of it."""
        return self.unread is None

    @property
    def is_amendable(self) -> bool:
        """Whether a person, or the bank's own means, gave the order's id: not if the service answered it."""
        return self.state is KeyState.CREATED and self.reply is None and self.unread is None

    def but(self, **changes: Any) -> Entry:
        """The same entry with ``changes``."""
        return msgspec.structs.replace(self, **changes)


def owed_by(entry: Entry) -> tuple[Owed, ...]:
    """What is owed if the intent of ``entry``, whose worker is gone or in doubt, ends in a certain no."""
    if entry.intent is None:
        return ()
    return tuple(
        Owed(intent=entry.intent, hook=hook, receipt=entry.receipts.get(hook)) for hook in entry.hooks
    )


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
