"""What is on record of a key, as people see it who have to end it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from attrs import field, frozen

from transfer_async._models.base import ByValue
from transfer_async._models.doubt_cause import Cause
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async.journal.entries import Entry, KeyState
from transfer_async.journal.proposal import Proposal
from transfer_async.journal.protocol import order_on_record


@frozen(kw_only=True, eq=False, repr=False)
class Doubt(ByValue):
    """A key in doubt, as an operator needs it to find out what became of its order.

    Args:
        key: the key.
        intent_id: the intent's id, under which the bank's hooks know it.
        summary: amounts, currencies and countries; nothing about a person.
        claimed_at: when work on the intent began, in UTC; if that is damaged, the nearest time that there is.
        sent_until: no request can have been sent after it, in UTC; the same.
        order: what was to be created; not in the ``repr``.
        receipts: what the hooks handed back, by hook name; not in the ``repr``.
        held: the reference of a hold that the bank placed itself; not in the ``repr``.
        candidates: ids of orders that answers named which were not readably ours: look for them first.
        cause: why it is in doubt, with the HTTP attempts; None where that was not kept yet.
        readable: false where this is only what can be read of what is on record.
        proposal: what one person has proposed, for another to approve.
        moves: counts the key's moves: what is decided of it can be bound to it, as ``seen``.
    """

    key: str
    intent_id: str
    summary: str
    claimed_at: datetime
    sent_until: datetime
    order: NewOrder | None = field(default=None, repr=False)
    receipts: dict[str, str | None] = field(factory=dict, repr=False)
    held: str | None = field(default=None, repr=False)
    candidates: tuple[str, ...] = ()
    cause: Cause | None = None
    readable: bool = True
    proposal: Proposal | None = None
    moves: int = 0


@frozen(kw_only=True, eq=False, repr=False)
class KeyView(ByValue):
    """What is on record of one key, with its times as people read them.

    Args:
        key: the key.
        entry: all of it.
        began: when work on its intent began, in UTC; None where what is on record is no time.
        age: seconds since then; None as well.
        sent_until: no request can have been sent after it; None where none was, or that is no time.
        refutable_at: when a refutation is believed, at the earliest; None where never, or not in doubt.
    """

    key: str
    entry: Entry = field(repr=False)
    began: datetime | None
    age: float | None
    sent_until: datetime | None
    refutable_at: datetime | None

    @property
    def state(self) -> KeyState:
        """Where the key stands."""
        return self.entry.state

    @property
    def order(self) -> NewOrder | None:
        """What was to be created, as long as it is kept."""
        intent = self.entry.intent or next((one.intent for one in self.entry.owed), None)
        return None if intent is None else intent.order

    @property
    def summary(self) -> str:
        """Amounts, currencies and countries; nothing about a person."""
        return "-" if self.order is None else summary_of(self.order)

    @property
    def order_id(self) -> str | None:
        """The order's id, once it exists."""
        return self.entry.order_id

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids of orders that may be the one that is looked for."""
        return self.entry.candidates if self.state is KeyState.IN_DOUBT else ()

    @property
    def owed(self) -> tuple[str, ...]:
        """The hooks that must still be undone."""
        return tuple(one.hook for one in self.entry.owed)

    @property
    def untold(self) -> tuple[str, ...]:
        """The outcomes that must still be told."""
        return tuple(one.outcome.value for one in self.entry.untold)

    @property
    def cause(self) -> Cause | None:
        """Why it is, or was, in doubt."""
        return self.entry.cause

    @property
    def proposal(self) -> Proposal | None:
        """What one person has proposed, for another to approve."""
        return self.entry.proposal

    @property
    def moves(self) -> int:
        """Counts the key's moves: what is decided of it can be bound to it, as ``seen``."""
        return self.entry.moves

    @property
    def readable(self) -> bool:
        """Whether it is all that is on record, and not only what can be read of it."""
        return self.entry.is_readable

    @property
    def amendable(self) -> bool:
        """Whether the order's id may be amended: it was given by a person, or by the bank's own means."""
        return self.entry.is_amendable


@frozen(kw_only=True, eq=False, repr=False)
class FourEyes(ByValue):
    """Whether a scope demands that what one person decides is approved by another.

    Args:
        demanded: whether it does.
        proposal: that one person shall be enough, for another to approve.
    """

    demanded: bool
    proposal: Proposal | None = None


def summary_of(order: NewOrder | None) -> str:
    """``order`` in a line that names nobody."""
    if order is None:
        return "an order that is no longer on record"
    return (
        f"{order.poster_amount:f} {order.poster_currency} ({order.poster_country})"
        f" for {order.matcher_amount:f} {order.matcher_currency} ({order.matcher_country})"
    )


def doubt_of(key: str, entry: Entry, utc: Callable[[float], datetime]) -> Doubt:
    """The doubt that ``entry`` is; ``utc`` turns the journal's seconds into times."""
    order = None if entry.intent is None else entry.intent.order
    return Doubt(
        key=key,
        intent_id=entry.intent_id,
        summary=summary_of(order) if entry.is_readable else "an order whose record cannot be read",
        claimed_at=utc(entry.claimed_at),
        sent_until=utc(entry.sent_until),
        order=order,
        receipts=entry.all_receipts,
        held=entry.held,
        candidates=entry.candidates,
        cause=entry.cause,
        readable=entry.is_readable,
        proposal=entry.proposal,
        moves=entry.moves,
    )


Calendar = Callable[[float], datetime | None]
"""Turns the journal's seconds into times; None where there is no such time."""


def view_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> KeyView:
    """The view of ``entry``."""
    began = utc(entry.claimed_at)
    return KeyView(
        key=key,
        entry=entry,
        began=began,
        age=None if began is None else (now - began).total_seconds(),
        sent_until=utc(entry.sent_until) if entry.attempt is not None else None,
        refutable_at=_refutable_at(entry, utc, settle_after=settle_after),
    )


def _refutable_at(entry: Entry, utc: Calendar, *, settle_after: float) -> datetime | None:
    if entry.state is not KeyState.IN_DOUBT:
        return None
    return utc(entry.sent_until + settle_after)  # never, if `settle_after` is infinite


def parties_of(entry: Entry) -> OrderIntent | Order | None:
    """What tells who the parties of the order are; None if nothing on record does."""
    return entry.intent or order_on_record(entry) or next((one.intent for one in entry.owed), None)
