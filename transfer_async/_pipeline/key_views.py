"""What is on record of a key, as people see it who have to end it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from attrs import field, frozen

from transfer_async._models import requests
from transfer_async._models.errors import Cause
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.outcomes import order_id_of
from transfer_async._support.clock import Duration, duration
from transfer_async.journal.model import (
    ABANDONED_SETTLE_AFTER,
    Decision,
    Entry,
    KeyState,
    Proposal,
    Rejection,
    TransitionResult,
)
from transfer_async.journal.protocol import order_on_record
from transfer_async.journal.transitions import Move


@frozen(kw_only=True)
class Doubt:
    """A key in doubt, as an operator needs it to find out what became of its order.

    Args:
        key: the key.
        intent_id: the intent's id, under which the bank's hooks know it.
        summary: amounts, currencies and countries; nothing about a person.
        claimed_at: when work on the intent began, in UTC; if that is damaged, the nearest time that there is.
        sent_until: no request was to be sent after it, in UTC; the same. A sender that is stopped between its
            last check and the write sends later, when it continues: see ``sender_reported``.
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

    @property
    def sender_reported(self) -> bool:
        """Whether the sender itself reported the doubt, and sends no more.

        Otherwise find its process before you refute: if it is only stopped, its request may still leave.
        """
        return self.cause is not None and self.cause.is_from_sender


@frozen(kw_only=True)
class KeyView:
    """What is on record of one key, with its times as people read them.

    Args:
        key: the key.
        entry: all of it.
        began: when work on its intent began, in UTC; None where what is on record is no time.
        age: seconds since then; None as well.
        sent_until: as for `Doubt`; None where nothing was sent, or that is no time.
        lease_until: until when a worker has the key, in UTC; None where none is at work on it.
        refutable_at: when a refutation is believed, at the earliest; None where never, or not in doubt.
    """

    key: str
    entry: Entry = field(repr=False)
    began: datetime | None
    age: float | None
    sent_until: datetime | None
    lease_until: datetime | None
    refutable_at: datetime | None

    @property
    def state(self) -> KeyState:
        """Where the key stands."""
        return self.entry.state

    @property
    def order(self) -> NewOrder | Order | None:
        """What was to be created, as long as it is kept; then the order as the service answered it."""
        intent = self.entry.intent or next((undo.intent for undo in self.entry.pending_undos), None)
        return order_on_record(self.entry) if intent is None else intent.order

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
        return tuple(undo.hook for undo in self.entry.pending_undos)

    @property
    def untold(self) -> tuple[str, ...]:
        """The outcomes that must still be told."""
        return tuple(item.outcome.value for item in self.entry.pending_notifications)

    @property
    def cause(self) -> Cause | None:
        """Why it is, or was, in doubt."""
        return self.entry.cause

    @property
    def sender_reported(self) -> bool:
        """As for `Doubt`."""
        return self.entry.sender_reported

    @property
    def proposal(self) -> Proposal | None:
        """What one person has proposed, for another to approve."""
        return self.entry.proposal

    @property
    def moves(self) -> int:
        """Counts the key's moves: what is decided of it can be bound to it, as ``seen``."""
        return self.entry.version

    @property
    def readable(self) -> bool:
        """Whether it is all that is on record, and not only what can be read of it."""
        return self.entry.is_readable

    @property
    def is_sealed(self) -> bool:
        """Whether it is sealed with keys that are not here: whoever has them can read it."""
        return self.entry.unread is not None and self.entry.unread.is_sealed

    @property
    def amendable(self) -> bool:
        """Whether the order's id may be amended: it was given by a person, or by the bank's own means."""
        return self.entry.is_amendable


@frozen(kw_only=True)
class FourEyes:
    """Whether a scope demands that what one person decides is approved by another.

    Args:
        demanded: whether it does.
        proposal: that one person shall be enough, for another to approve.
    """

    demanded: bool
    proposal: Proposal | None = None


def summary_of(order: NewOrder | Order | None) -> str:
    """``order`` in a line that names nobody."""
    if order is None:
        return "an order that is no longer on record"
    return (
        f"{order.poster_amount:f} {order.poster_currency} ({order.poster_country or '-'})"
        f" for {order.matcher_amount:f} {order.matcher_currency} ({order.matcher_country or '-'})"
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
        moves=entry.version,
    )


_AT_WORK = (KeyState.CLAIMED, KeyState.SENDING)

Calendar = Callable[[float], datetime | None]
"""Turns the journal's seconds into times; None where there is no such time."""


def view_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> KeyView:
    """The view of ``entry``."""
    # Of a damaged record, zero stands for a time that cannot be read; it stays there when that is put aside.
    was_damaged = not entry.is_readable or bool(entry.quarantined)
    began = None if was_damaged and not entry.claimed_at else utc(entry.claimed_at)
    is_sent = entry.attempt is not None and not (was_damaged and not entry.sent_until)
    is_leased = entry.state in _AT_WORK and not (was_damaged and not entry.lease_until)
    return KeyView(
        key=key,
        entry=entry,
        began=began,
        age=None if began is None else (now - began).total_seconds(),
        sent_until=utc(entry.sent_until) if is_sent else None,
        lease_until=utc(entry.lease_until) if is_leased else None,
        refutable_at=_refutable_at(entry, utc, settle_after=settle_after),
    )


def _refutable_at(entry: Entry, utc: Calendar, *, settle_after: float) -> datetime | None:
    if entry.state is not KeyState.IN_DOUBT:
        return None
    return utc(entry.settled_at(settle_after))  # never, if `settle_after` is infinite


def parties_of(entry: Entry) -> OrderIntent | Order | None:
    """What tells who the parties of the order are; None if nothing on record does."""
    return entry.intent or order_on_record(entry) or next((undo.intent for undo in entry.pending_undos), None)


@frozen
class Sentence:
    """A sentence for people about a key.

    Args:
        text: the sentence, with ``{}`` for each of the values.
        values: texts from elsewhere, such as references: whoever shows them makes them fit to be shown.
    """

    text: str
    values: tuple[str, ...] = ()

    def shown(self, fit: Callable[[str], str]) -> str:
        """The whole sentence, with every value made ``fit``."""
        return self.text.format(*map(fit, self.values))


MOST_SCOPES = 10
"""So many other scopes are named."""


def only_scopes(names: Sequence[str]) -> Sentence:
    """Return the end of a sentence: the journal has keys of these scopes only."""
    shown = tuple(names[:MOST_SCOPES])
    more = f" and {len(names) - MOST_SCOPES:,} more" if len(names) > MOST_SCOPES else ""
    return Sentence(f"only keys of {', '.join(['{}'] * len(shown))}{more}", shown)


# --- refusals ----------------------------------------------------------------------------------------
# What an operator hears where something is no good, or the journal says no.


def nothing_on_record(key: str) -> ValueError:
    """What an operator hears who names a key that the journal does not have."""
    why = requests.problem(key)
    return ValueError(f"key: {why}" if why else "key: nothing is on record of it in this scope")


def told(entry: Entry) -> str:
    """Where a key stands, in words."""
    state = entry.state.value.replace("_", " ")
    return f"{state} ({entry.order_id})" if entry.order_id else state


class ApprovalRequired(ValueError):
    """The scope demands four eyes: one person proposes it, and another approves."""

    def __init__(self) -> None:
        super().__init__("four_eyes: are demanded in this scope: propose it, and another person approves")


class ApproverIsProposer(ValueError):
    """Whoever proposed it may not approve it, nor anybody whose name looks the same."""

    def __init__(self) -> None:
        super().__init__(
            "by: proposed it, or has a name that looks like the proposer's; another person must approve it, "
            "under a name that nobody can take for the proposer's"
        )


class RecordSetAside(ValueError):
    """A damaged record was set aside for a decision, which was then refused: the key is as it was left."""


class KeyChanged(ValueError):
    """The key has moved since it was looked at, or the proposal that was seen is void.

    Args:
        entry: as it is now.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"key: has moved since it was looked at; it is {told(entry)}")
        self.state: KeyState = entry.state
        self.moves: int = entry.version

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its arguments, and these are not the ones it was made with.
        return _key_changed, (str(self), self.state, self.moves)


def _key_changed(text: str, state: KeyState, moves: int) -> KeyChanged:
    made = KeyChanged.__new__(KeyChanged, text)
    made.args, made.state, made.moves = (text,), state, moves
    return made


FOR_EVER = 1e10
"""Seconds after which nobody asks again: three hundred years."""


def refusal(verdict: TransitionResult, move: Move | None = None) -> ValueError:
    """What is raised where the journal said no to ``move``."""
    entry, denial = verdict.entry, verdict.denial
    if denial is Rejection.ALONE:
        return ApprovalRequired()
    if denial in (Rejection.MOVED, Rejection.VOID) or _is_stale(entry, move):
        return KeyChanged(entry)
    if denial is Rejection.SAME_PERSON:
        return ApproverIsProposer()
    if denial is Rejection.ANSWERED:
        return ValueError("key: the service itself answered with its order: it is not to be amended")
    if denial is Rejection.TOO_EARLY:
        return too_early(entry.settled_at(getattr(move, "settle_after", 0.0)) - verdict.now)
    if denial is Rejection.FOREIGN:
        return ValueError("order_id: is the order of another key")
    return ValueError(f"key: was changed by somebody else just now; it is {told(entry)}")


def too_early(wait: float) -> ValueError:
    """Return what is raised where a refutation is believed in ``wait`` seconds only."""
    left = math.ceil(wait) if wait < FOR_EVER else math.inf
    return ValueError(f"key: it is too early, a request may still take effect; ask again in {left} s")


def _is_stale(entry: Entry, move: Move | None) -> bool:
    """Whether ``move`` is about the key as it was, and so was denied whatever else speaks against it."""
    seen, proposal = getattr(move, "seen", None), getattr(move, "proposal", None)
    if seen is not None and entry.version != seen:
        return True
    return proposal is not None and (entry.proposal is None or entry.proposal.id != proposal)


def checked_settle_after(settle_after: Duration) -> float:
    """``settle_after`` in seconds.

    Raises:
        ValueError: it is no duration, or less than 0.
    """
    seconds = duration("settle_after", settle_after)
    if not seconds >= 0:
        raise ValueError("settle_after: must be 0 seconds or more")
    return seconds


def checked_abandoned_settle_after(given: Duration | None, *, settle_after: float) -> float:
    """``abandoned_settle_after`` in seconds; by default a day, or ``settle_after`` where that is longer.

    Raises:
        ValueError: it is no duration, or less than ``settle_after``.
    """
    if given is None:
        return max(ABANDONED_SETTLE_AFTER, settle_after)
    seconds = duration("abandoned_settle_after", given)
    if not seconds >= settle_after:
        raise ValueError(f"abandoned_settle_after: must be at least settle_after, {settle_after:g} seconds")
    return seconds


def checked_order_id(order_id: str) -> str:
    """``order_id``, trimmed.

    Raises:
        ValueError: it does not look like an order's id.
    """
    checked = order_id_of(order_id)
    if checked is None:
        raise ValueError("order_id: must look like 'tx-…'")
    return checked


_SPACES = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def checked_text(name: str, text: str) -> str:
    """``text``, which goes into the history, trimmed.

    Raises:
        ValueError: there is nothing in it, or what would spoil a line.
    """
    # Copied from a web page or a statement, a space may be one that does not break.
    line = _SPACES.sub(" ", requests.to_text(text)).strip() if isinstance(text, str) else ""
    if not (line and line.isprintable()):
        raise ValueError(f"{name}: must be a line of text with something in it; it is kept in the history")
    if len(line) > requests.REFERENCE:
        raise ValueError(f"{name}: must be no longer than {requests.REFERENCE:,} characters")
    return line


def checked_name(name: str, text: str) -> str:
    """``text``, the name of a person, trimmed.

    Raises:
        ValueError: see `checked_text`; or it holds what renders as nothing.
    """
    line = checked_text(name, text)
    if requests.UNSEEN.search(line):
        raise ValueError(
            f"{name}: holds a character that renders as nothing, so that two names look the same"
        )
    return line


def checked_decision(decision: Decision) -> Decision:
    """``decision``, if it is one.

    Raises:
        ValueError: it is not.
    """
    try:
        return Decision(decision)
    except ValueError:
        raise ValueError(f"decision: must be one of {', '.join(item.value for item in Decision)}") from None


def checked_flag(name: str, flag: bool) -> bool:
    """``flag``, if it is one.

    Raises:
        ValueError: it is neither true nor false.
    """
    if flag is not True and flag is not False:
        raise ValueError(f"{name}: must be True or False")
    return flag
