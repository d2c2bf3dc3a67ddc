"""The record of a key for operators: `KeyView`, the errors of decisions, and the checks of arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from attrs import field, frozen

from transfer_async._models import requests
from transfer_async._models.errors import Cause, CauseKind
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.outcomes import order_id_of
from transfer_async._support.clock import MAX_TIME, MIN_TIME, Duration, duration
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

CAUSES = {
    CauseKind.NO_ANSWER: "no answer",
    CauseKind.CUT_ANSWER: "answer cut off",
    CauseKind.STATUS: "unclear status",
    CauseKind.UNREADABLE_ANSWER: "unreadable answer",
    CauseKind.SECOND_ANSWER: "a second answer",
    CauseKind.ABANDONED: "abandoned",
    CauseKind.CLOSED: "cut off at close",
    CauseKind.TAKEN_BACK: "taken back",
    CauseKind.SUPERSEDED: "an earlier order may exist",
}
"""Each cause of a doubt, in two or three words."""


@frozen(kw_only=True)
class KeyView:
    """The record of a key for operators, with its times in UTC.

    Args:
        key: the key.
        entry: the whole record; not in the ``repr``.
        began: when work on the intent began; None if the record has no valid time.
        age: seconds since then; None likewise.
        sent_until: no request was to be sent after this time; None if none was sent, or the time is invalid.
            A sender that is stopped between its last check and the write sends later: see `sender_reported`.
        lease_until: when the lease of the worker that uses the key expires; None without such a worker.
        refutable_at: the earliest time for a refutation; None if never, or if the key is not in doubt.
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
        """The state of the key."""
        return self.entry.state

    @property
    def intent_id(self) -> str:
        """The intent's id, under which the bank's hooks know it."""
        return self.entry.intent_id

    @property
    def attempt_id(self) -> str | None:
        """The id of the attempt to send the order, which the service received if the client sends it."""
        return self.entry.attempt

    @property
    def order(self) -> NewOrder | Order | None:
        """The requested order, as long as it is kept; then the order as the service answered it."""
        intent = self.entry.intent or next((undo.intent for undo in self.entry.pending_undos), None)
        return order_on_record(self.entry) if intent is None else intent.order

    @property
    def summary(self) -> str:
        """Amounts, currencies and countries; nothing about a person."""
        return "-" if self.order is None else summary_of(self.order)

    @property
    def order_id(self) -> str | None:
        """The order's id, once the order exists."""
        return self.entry.order_id

    @property
    def receipts(self) -> dict[str, str | None]:
        """The receipts that the hooks returned, by hook name; ``"held"`` for the bank's own hold."""
        return self.entry.all_receipts

    @property
    def held(self) -> str | None:
        """The reference of a hold that the bank placed itself."""
        return self.entry.held

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids of orders that responses named although they could not be read; look for them first."""
        return self.entry.candidates if self.state is KeyState.IN_DOUBT else ()

    @property
    def owed(self) -> tuple[str, ...]:
        """The hooks with pending undos."""
        return tuple(undo.hook for undo in self.entry.pending_undos)

    @property
    def untold(self) -> tuple[str, ...]:
        """The outcomes with pending notifications."""
        return tuple(item.outcome.value for item in self.entry.pending_notifications)

    @property
    def cause(self) -> Cause | None:
        """Why the key is, or was, in doubt, with the HTTP attempts; None if that was not recorded."""
        return self.entry.cause

    @property
    def cause_in_short(self) -> str:
        """The same in two or three words; empty if there is none."""
        cause = self.cause
        if cause is not None and cause.kind is CauseKind.STATUS and cause.status is not None:
            return f"status {cause.status}"
        return "" if cause is None else CAUSES[cause.kind]

    @property
    def sender_reported(self) -> bool:
        """Whether the sender itself reported the doubt, and sends no more.

        Otherwise find its process before you refute: if it is only stopped, it may still send the request.
        """
        return self.entry.sender_reported

    @property
    def proposal(self) -> Proposal | None:
        """A person's proposal that waits for approval."""
        return self.entry.proposal

    @property
    def moves(self) -> int:
        """The key's version; pass it as ``seen`` to bind a decision to what was seen."""
        return self.entry.version

    @property
    def readable(self) -> bool:
        """Whether the whole record could be read, and not only a part of a corrupt one."""
        return self.entry.is_readable

    @property
    def is_sealed(self) -> bool:
        """Whether the record is encrypted with a key that is not available here."""
        return self.entry.unread is not None and self.entry.unread.is_sealed

    @property
    def amendable(self) -> bool:
        """Whether the order's id can be amended: a person, or the bank's own ``resolve``, gave it."""
        return self.entry.is_amendable


@frozen(kw_only=True)
class Doubt(KeyView):
    """The `KeyView` of a key in doubt, with what an operator needs to look for its order.

    Args:
        claimed_at: when work on the intent began; for an invalid time the nearest possible one.
        sent_until: as for `KeyView`, but never None; likewise.
        summary: amounts, currencies and countries; nothing about a person.
    """

    claimed_at: datetime
    sent_until: datetime
    summary: str

    @property
    def order(self) -> NewOrder | None:
        """The requested order; None if the record of it cannot be read."""
        return None if self.entry.intent is None else self.entry.intent.order


@frozen(kw_only=True)
class FourEyes:
    """Whether a scope requires dual control.

    Args:
        demanded: whether it does.
        proposal: the proposal to end it, if there is one.
    """

    demanded: bool
    proposal: Proposal | None = None


def summary_of(order: NewOrder | Order | None) -> str:
    """Return one line about ``order`` that names no person."""
    if order is None:
        return "an order that is no longer on record"
    return (
        f"{order.poster_amount:f} {order.poster_currency} ({order.poster_country or '-'})"
        f" for {order.matcher_amount:f} {order.matcher_currency} ({order.matcher_country or '-'})"
    )


Calendar = Callable[[float], datetime | None]
"""A function from the journal's seconds to UTC times; it returns None for an impossible time."""


def nearest_time(utc: Calendar, seconds: float) -> datetime:
    """Return ``seconds`` as a time, or the nearest possible time."""
    return utc(seconds) or (MIN_TIME if seconds < 0 else MAX_TIME)


def view_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> KeyView:
    """Return the view of ``entry``."""
    return KeyView(key=key, entry=entry, **_times(entry, utc, now, settle_after))


def doubt_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> Doubt:
    """Return the view of ``entry``, which is in doubt."""
    times = _times(entry, utc, now, settle_after) | {"sent_until": nearest_time(utc, entry.sent_until)}
    order = None if entry.intent is None else entry.intent.order
    return Doubt(
        key=key,
        entry=entry,
        claimed_at=nearest_time(utc, entry.claimed_at),
        summary=summary_of(order) if entry.is_readable else "an order whose record cannot be read",
        **times,
    )


def _times(entry: Entry, utc: Calendar, now: datetime, settle_after: float) -> dict[str, Any]:
    # In a corrupt record, zero stands for a time that cannot be read; it stays in the entry after quarantine.
    was_corrupt = not entry.is_readable or bool(entry.quarantined)
    began = None if was_corrupt and not entry.claimed_at else utc(entry.claimed_at)
    is_sent = entry.attempt is not None and not (was_corrupt and not entry.sent_until)
    is_in_use = entry.state in (KeyState.CLAIMED, KeyState.SENDING)
    is_leased = is_in_use and not (was_corrupt and not entry.lease_until)
    is_in_doubt = entry.state is KeyState.IN_DOUBT
    return {
        "began": began,
        "age": None if began is None else (now - began).total_seconds(),
        "sent_until": utc(entry.sent_until) if is_sent else None,
        "lease_until": utc(entry.lease_until) if is_leased else None,
        # An infinite ``settle_after`` gives None: never.
        "refutable_at": utc(entry.settled_at(settle_after)) if is_in_doubt else None,
    }


def parties_of(entry: Entry) -> OrderIntent | Order | None:
    """Return what names the parties of the order; None if nothing on record does."""
    undos = entry.pending_undos
    return entry.intent or order_on_record(entry) or next((undo.intent for undo in undos), None)


@frozen
class Sentence:
    """A sentence about a key.

    Args:
        text: the sentence, with ``{}`` for each of the values.
        values: texts from elsewhere, such as references; they must be sanitized before they are shown.
    """

    text: str
    values: tuple[str, ...] = ()

    def shown(self, sanitized: Callable[[str], str]) -> str:
        """Return the whole sentence, with every value ``sanitized``."""
        return self.text.format(*map(sanitized, self.values))


NAMED_SCOPES = 10
"""The maximum number of other scopes that a message names."""


def only_scopes(names: Sequence[str]) -> Sentence:
    """Return the end of a sentence: the journal has keys of these scopes only."""
    shown = tuple(names[:NAMED_SCOPES])
    more = f" and {len(names) - NAMED_SCOPES:,} more" if len(names) > NAMED_SCOPES else ""
    return Sentence(f"only keys of {', '.join(['{}'] * len(shown))}{more}", shown)


# --- refusals ----------------------------------------------------------------------------------------
# The errors for a decision that cannot be made.


def nothing_on_record(key: str) -> ValueError:
    """Return the error for a key without a record."""
    why = requests.problem(key)
    return ValueError(f"key: {why}" if why else "key: has no record in this scope")


def state_text(entry: Entry) -> str:
    """Return the state of a key as text, with its order's id."""
    state = entry.state.value.replace("_", " ")
    return f"{state} ({entry.order_id})" if entry.order_id else state


class ApprovalRequired(ValueError):
    """The scope requires dual control: one person proposes a decision, and another approves it."""

    def __init__(self) -> None:
        super().__init__(
            "four_eyes: this scope requires dual control: propose it, and another person approves it"
        )


class ApproverIsProposer(ValueError):
    """The proposer may not approve it, and neither may a person whose name looks the same."""

    def __init__(self) -> None:
        super().__init__(
            "by: is the proposer, or has a name that looks like the proposer's; another person must approve "
            "it, under a clearly different name"
        )


class RecordSetAside(ValueError):
    """A corrupt record was put into quarantine for a decision, and then the decision was refused."""


class KeyChanged(ValueError):
    """The key has changed since the person saw it, or the proposal that they saw is void.

    Args:
        entry: the entry as it is now.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"key: has changed since it was read; it is {state_text(entry)}")
        self.state: KeyState = entry.state
        self.moves: int = entry.version

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its arguments, and these are not the ones it was made with.
        return _key_changed, (str(self), self.state, self.moves)


def _key_changed(text: str, state: KeyState, moves: int) -> KeyChanged:
    made = KeyChanged.__new__(KeyChanged, text)
    made.args, made.state, made.moves = (text,), state, moves
    return made


_LONGEST_WAIT = 1e10
"""Seconds: three hundred years. A longer wait is shown as infinite."""


def refusal(verdict: TransitionResult, move: Move | None = None) -> ValueError:
    """Return the error for a transition that the journal rejected."""
    entry, denial = verdict.entry, verdict.denial
    if denial is Rejection.ALONE:
        return ApprovalRequired()
    if denial in (Rejection.MOVED, Rejection.VOID) or _is_stale(entry, move):
        return KeyChanged(entry)
    if denial is Rejection.SAME_PERSON:
        return ApproverIsProposer()
    if denial is Rejection.ANSWERED:
        return ValueError("key: cannot be amended: the service itself answered with its order")
    if denial is Rejection.TOO_EARLY:
        return too_early(entry.settled_at(getattr(move, "settle_after", 0.0)) - verdict.now)
    if denial is Rejection.FOREIGN:
        return ValueError("order_id: is the order of another key")
    return ValueError(f"key: was changed by another person or worker just now; it is {state_text(entry)}")


def too_early(wait: float) -> ValueError:
    """Return the error for a refutation that is ``wait`` seconds too early."""
    left = math.ceil(wait) if wait < _LONGEST_WAIT else math.inf
    return ValueError(f"key: it is too early, a request may still take effect; try again in {left} s")


def _is_stale(entry: Entry, move: Move | None) -> bool:
    """Return whether ``move`` is about an earlier version of the key, whatever else is against it."""
    seen, proposal = getattr(move, "seen", None), getattr(move, "proposal", None)
    if seen is not None and entry.version != seen:
        return True
    return proposal is not None and (entry.proposal is None or entry.proposal.id != proposal)


def checked_settle_after(settle_after: Duration) -> float:
    """Return ``settle_after`` in seconds.

    Raises:
        ValueError: it is not a duration, or less than 0.
    """
    seconds = duration("settle_after", settle_after)
    if not seconds >= 0:
        raise ValueError("settle_after: must be 0 seconds or more")
    return seconds


def checked_abandoned_settle_after(given: Duration | None, *, settle_after: float) -> float:
    """Return ``abandoned_settle_after`` in seconds; by default a day, or ``settle_after`` if that is longer.

    Raises:
        ValueError: it is not a duration, or less than ``settle_after``.
    """
    if given is None:
        return max(ABANDONED_SETTLE_AFTER, settle_after)
    seconds = duration("abandoned_settle_after", given)
    if not seconds >= settle_after:
        raise ValueError(f"abandoned_settle_after: must be at least settle_after, {settle_after:g} seconds")
    return seconds


def checked_order_id(order_id: str) -> str:
    """Return ``order_id``, trimmed.

    Raises:
        ValueError: it does not look like an order's id.
    """
    checked = order_id_of(order_id)
    if checked is None:
        raise ValueError("order_id: must look like 'tx-…'")
    return checked


_SPACES = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def checked_text(name: str, text: str) -> str:
    """Return ``text`` for the history, trimmed.

    Raises:
        ValueError: it is empty or too long, or holds characters that are not printable.
    """
    # Text that is copied from a web page or a statement may hold no-break spaces.
    line = _SPACES.sub(" ", requests.to_text(text)).strip() if isinstance(text, str) else ""
    if not (line and line.isprintable()):
        raise ValueError(f"{name}: must be a line of text with something in it; it is kept in the history")
    if len(line) > requests.REFERENCE:
        raise ValueError(f"{name}: must be no longer than {requests.REFERENCE:,} characters")
    return line


def checked_name(name: str, text: str) -> str:
    """Return ``text``, the name of a person, trimmed.

    Raises:
        ValueError: see `checked_text`; or it contains an invisible character.
    """
    line = checked_text(name, text)
    if requests.UNSEEN.search(line):
        raise ValueError(f"{name}: contains an invisible character, so that two names look the same")
    return line


def checked_decision(decision: Decision) -> Decision:
    """Return ``decision`` as a `Decision`.

    Raises:
        ValueError: it is not a decision.
    """
    try:
        return Decision(decision)
    except ValueError:
        raise ValueError(f"decision: must be one of {', '.join(item.value for item in Decision)}") from None


def checked_flag(name: str, flag: bool) -> bool:
    """Return ``flag``, if it is true or false.

    Raises:
        ValueError: it is neither true nor false.
    """
    if flag is not True and flag is not False:
        raise ValueError(f"{name}: must be True or False")
    return flag
