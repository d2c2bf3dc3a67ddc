"""What is on record of a key, as people see it who have to end it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from attrs import field, frozen

from transfer_async._models.doubt_cause import Cause
from transfer_async._models.requests import NewOrder
from transfer_async.journal.entries import Entry


@frozen(kw_only=True)
class Doubt:
    """A key in doubt, as an operator needs it to find out what became of its order.

    Args:
        key: the key.
        intent_id: the intent's id, under which the bank's hooks know it.
        summary: amounts, currencies and countries; nothing about a person.
        claimed_at: when work on the intent began, in UTC.
        sent_until: no request can have been sent after it, in UTC.
        order: what was to be created; not in the ``repr``.
        receipts: what the hooks handed back, by hook name; not in the ``repr``.
        held: the reference of a hold that the bank placed itself; not in the ``repr``.
        candidates: ids of orders that answers named which were not readably ours: look for them first.
        cause: why it is in doubt, with the HTTP attempts; None where that was not kept yet.
        readable: false where this is only what can be read of what is on record.
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
    )
