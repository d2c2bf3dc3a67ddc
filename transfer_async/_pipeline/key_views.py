"""Key records for operators (`KeyView`), the errors of refused decisions, and argument checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from transfer_async._models import requests
from transfer_async._models.errors import Cause, CauseKind
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.outcomes import order_id_of
from transfer_async._support.clock import MAX_TIME, MIN_TIME
from transfer_async.journal.model import (
    Decision,
    Entry,
    KeyState,
    Proposal,
    Rejection,
    TransitionResult,
    Watcher,
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
    CauseKind.CLOSED: "client closed",
    CauseKind.TAKEN_BACK: "taken back",
    CauseKind.SUPERSEDED: "an earlier order may exist",
}
"""A short text for each cause of a doubt."""

NEXT_STEPS = {
    CauseKind.NO_ANSWER: "The order probably exists: ask the service about it",
    CauseKind.CUT_ANSWER: "The order probably exists: ask the service about it",
    CauseKind.STATUS: "Ask the service about the order, quoting the request id",
    CauseKind.UNREADABLE_ANSWER: "Ask the service about the candidate order",
    CauseKind.SECOND_ANSWER: "Ask the service about the order, quoting the request id",
    CauseKind.ABANDONED: "Make sure that the sender's process has ended: a suspended process may still send "
    "the order. Then ask the service about the order",
    CauseKind.CLOSED: "The order probably exists: ask the service about it",
    CauseKind.TAKEN_BACK: "Read in the history why the order id was withdrawn, then ask the service for "
    "the right one",
    CauseKind.SUPERSEDED: "Ask the service about the order. Check the holds of both calls: the hold of the "
    "first call may be released or still open",
}
"""The operator's first step for each cause of a doubt. `docs/operations.md` contains the same texts."""


@frozen(kw_only=True)
class KeyView:
    """The record of a key as operators see it, with times in UTC.

    Args:
        entry: the complete record, which ``repr`` omits.
        began: when work on the intent began, or None if the recorded time is missing or invalid.
        age: the number of seconds since ``began``, or None if ``began`` is None.
        sent_until: the end of the period in which the sender may send; None if no attempt is recorded, or its
            time is invalid. A suspended process may still send the order after ``sent_until``; see
            `sender_reported`.
        lease_until: when the lease on the key expires, or None if no worker is using the key.
        refutable_at: the earliest time at which a refutation is accepted, or None if the key is not in doubt
            or a refutation is never accepted.
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
        """The id of the intent. The bank's hooks received this id as ``intent.id``."""
        return self.entry.intent_id

    @property
    def attempt_id(self) -> str | None:
        """The id of the attempt to send the order.

        The id is sent to the service if ``request_id_header`` is set.
        """
        return self.entry.attempt

    @property
    def order(self) -> NewOrder | Order | None:
        """The requested order as long as it is stored; afterwards, the order from the service's response."""
        intent = self.entry.intent or next((undo.intent for undo in self.entry.pending_undos), None)
        return order_on_record(self.entry) if intent is None else intent.order

    @property
    def summary(self) -> str:
        """The order's amounts, currencies and countries, without personal data."""
        return "-" if self.order is None else summary_of(self.order)

    @property
    def order_id(self) -> str | None:
        """The order's id, or None until the id is known."""
        return self.entry.order_id

    @property
    def receipts(self) -> dict[str, str | None]:
        """The receipts by hook name; ``"held"`` stands for a hold that the bank itself placed."""
        return self.entry.all_receipts

    @property
    def held(self) -> str | None:
        """The reference of a hold that the bank itself placed."""
        return self.entry.held

    @property
    def candidates(self) -> tuple[str, ...]:
        """Order ids from unreadable responses. Ask the service first about the orders with these ids."""
        return self.entry.candidates if self.state is KeyState.IN_DOUBT else ()

    @property
    def pending_undos(self) -> tuple[str, ...]:
        """The names of the hooks with pending undos."""
        return tuple(undo.hook for undo in self.entry.pending_undos)

    @property
    def pending_notifications(self) -> tuple[str, ...]:
        """The outcomes that have not been published yet."""
        return tuple(item.outcome.value for item in self.entry.pending_notifications)

    @property
    def cause(self) -> Cause | None:
        """The recorded reason for the doubt, with the HTTP attempts; None if no reason was recorded."""
        return self.entry.cause

    @property
    def cause_in_short(self) -> str:
        """The recorded reason for the doubt, as a short text; empty if no reason was recorded."""
        cause = self.cause
        if cause is not None and cause.kind is CauseKind.STATUS and cause.status is not None:
            return f"status {cause.status}"
        return "" if cause is None else CAUSES[cause.kind]

    @property
    def next_step(self) -> str | None:
        """The first thing an operator should do; None if the key is not in doubt or cannot be decrypted."""
        if self.state is not KeyState.IN_DOUBT or self.is_sealed:
            return None
        cause = self.cause
        return "Ask the service whether the order exists" if cause is None else NEXT_STEPS[cause.kind]

    @property
    def sender_reported(self) -> bool:
        """Whether the sender itself reported that the outcome is unknown.

        A sender that has reported an unknown outcome sends nothing more. If the sender did not report, make
        sure that its process has ended before you refute the order: a suspended process may still send the
        order.
        """
        return self.entry.sender_reported

    @property
    def proposal(self) -> Proposal | None:
        """The proposal that is waiting for another person's approval, or None."""
        return self.entry.proposal

    @property
    def watcher(self) -> Watcher | None:
        """The person looking at the key, or None. Any change of the key removes the watcher."""
        return self.entry.watched_by

    @property
    def version(self) -> int:
        """The key's version.

        Pass the version as ``seen``, so that your decision applies only to this version.
        """
        return self.entry.version

    @property
    def readable(self) -> bool:
        """Whether the complete record could be read; false for a corrupt record."""
        return self.entry.is_readable

    @property
    def is_sealed(self) -> bool:
        """Whether the record is encrypted with an encryption key that this process does not have."""
        return self.entry.unread is not None and self.entry.unread.is_sealed

    @property
    def amendable(self) -> bool:
        """Whether the order id can be amended, because a person or the bank's ``resolve`` supplied it."""
        return self.entry.is_amendable

    if not TYPE_CHECKING:
        # The former names, which remain usable until version 1.0.
        owed = property(attrgetter("pending_undos"))
        untold = property(attrgetter("pending_notifications"))
        moves = property(attrgetter("version"))


@frozen(kw_only=True)
class Doubt(KeyView):
    """The `KeyView` of a key in doubt, with the data that an operator needs to find its order.

    Args:
        claimed_at: when work on the intent began. An invalid time is replaced by the nearest valid time.
        sent_until: the end of the period in which the sender may send. An invalid time is replaced by the
            nearest valid time.
        summary: the order's amounts, currencies and countries, without personal data.
    """

    claimed_at: datetime
    sent_until: datetime
    summary: str

    @property
    def order(self) -> NewOrder | None:
        """The requested order; None if it cannot be read."""
        return None if self.entry.intent is None else self.entry.intent.order


@frozen(kw_only=True)
class FourEyes:
    """The dual-control rule of one scope.

    Args:
        demanded: whether the scope requires dual control.
        proposal: the pending proposal to end dual control, or None.
    """

    demanded: bool
    proposal: Proposal | None = None


def summary_of(order: NewOrder | Order | None) -> str:
    """Return one line about ``order`` without personal data."""
    if order is None:
        return "an order that is no longer on record"
    return (
        f"{order.poster_amount:f} {order.poster_currency} ({order.poster_country or '-'})"
        f" for {order.matcher_amount:f} {order.matcher_currency} ({order.matcher_country or '-'})"
    )


_AMOUNT = re.compile(
    r"(?P<before>[A-Za-z]{3,10})?\s*(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)"
    r"\s*(?P<after>[A-Za-z]{3,10})?",
    re.ASCII,
)

_CODES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_DECIMALS = {code: places for places, codes in _CODES.items() for code in codes.split()}
"""The number of decimals of each ISO 4217 currency that does not have two decimals."""


def money(amount: Decimal, currency: str) -> str:
    """Format an amount with thousands separators and at least the currency's usual number of decimals."""
    _, _, digits = f"{amount:f}".partition(".")
    places = max(_DECIMALS.get(currency, 2), len(digits.rstrip("0"))) if currency else len(digits)
    return f"{amount:,.{places}f} {currency}".rstrip()


def amount_in(text: str) -> tuple[Decimal | None, str]:
    """Return the amount in ``text`` (or None) and its currency (or an empty string)."""
    match = _AMOUNT.fullmatch(text)
    if match is None or (match["before"] and match["after"]):
        return None, ""
    return Decimal(match["number"].replace(",", "")), (match["before"] or match["after"] or "").upper()


Calendar = Callable[[float], datetime | None]
"""A function that converts the journal's seconds to UTC, or to None if no such time exists."""


def nearest_time(utc: Calendar, seconds: float) -> datetime:
    """Convert ``seconds`` on the journal's clock to UTC, limited to the range of ``datetime``."""
    return utc(seconds) or (MIN_TIME if seconds < 0 else MAX_TIME)


def view_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> KeyView:
    """Return the `KeyView` of ``entry``."""
    return KeyView(key=key, entry=entry, **_times(entry, utc, now, settle_after))


def doubt_of(key: str, entry: Entry, utc: Calendar, *, now: datetime, settle_after: float) -> Doubt:
    """Return the `Doubt` of ``entry``, which must be in doubt."""
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
    # In a corrupt record, a time of 0 means that it could not be read. Quarantine does not change it.
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
        # If ``settle_after`` is infinite, this is None: a refutation is never accepted.
        "refutable_at": utc(entry.settled_at(settle_after)) if is_in_doubt else None,
    }


def parties_of(entry: Entry) -> OrderIntent | Order | None:
    """Return the stored intent or order, which names the parties; None if neither is stored."""
    undos = entry.pending_undos
    return entry.intent or order_on_record(entry) or next((undo.intent for undo in undos), None)


def order_of_intent(entry: Entry, intent_id: str) -> NewOrder | Order | None:
    """Return the order that one of the key's intents requested, or None if it is no longer stored."""
    intents = [entry.intent, *(undo.intent for undo in entry.pending_undos)]
    found = next((item.order for item in intents if item is not None and item.id == intent_id), None)
    return order_on_record(entry) if found is None and entry.intent_id == intent_id else found


@frozen
class Sentence:
    """A sentence about a key, with values that must be sanitized before they are shown.

    Args:
        text: the sentence, with ``{}`` in place of each value.
        values: strings from outside this package, such as the references of holds.
    """

    text: str
    values: tuple[str, ...] = ()

    def shown(self, sanitized: Callable[[str], str]) -> str:
        """Return the complete sentence, applying the function ``sanitized`` to each value."""
        return self.text.format(*map(sanitized, self.values))


NAMED_SCOPES = 10
"""The maximum number of scopes that a message names."""


def only_scopes(names: Sequence[str]) -> Sentence:
    """Return a clause that names the scopes with keys, such as ``only keys in live and test``."""
    shown = tuple(names[:NAMED_SCOPES])
    more = f" and {len(names) - NAMED_SCOPES:,} more" if len(names) > NAMED_SCOPES else ""
    return Sentence(f"only keys in {', '.join(['{}'] * len(shown))}{more}", shown)


# --- refusals ----------------------------------------------------------------------------------------
# These errors are raised if a decision cannot be made.


def nothing_on_record(key: str) -> ValueError:
    """Create the error for a key that has no record."""
    why = requests.problem(key)
    return ValueError(f"key: {why}" if why else "key: has no record in this scope")


def state_text(entry: Entry) -> str:
    """Return a key's state as text, with its order id."""
    state = entry.state.value.replace("_", " ")
    return f"{state} ({entry.order_id})" if entry.order_id else state


class ApprovalRequired(ValueError):
    """The scope requires dual control: one person proposes a decision, and another approves it."""

    def __init__(self) -> None:
        super().__init__(
            "four_eyes: this scope requires dual control: propose the decision, and let another person "
            "approve it"
        )


class ApproverIsProposer(ValueError):
    """The approver is the proposer, or the two names look the same."""

    def __init__(self) -> None:
        super().__init__(
            "by: is the proposer's name, or looks like it; another person must approve the proposal, under a "
            "clearly different name"
        )


class RecordSetAside(ValueError):
    """The decision was refused, but the key's corrupt record had already been put into quarantine."""


class KeyChanged(ValueError):
    """The key has changed since the person saw it, or the proposal that they saw is void.

    Args:
        entry: the current entry.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"key: has changed since it was read; it is now {state_text(entry)}")
        self.state: KeyState = entry.state
        self.version: int = entry.version

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their `args`, which here differ from the arguments of `__init__`.
        return _key_changed, (str(self), self.state, self.version)

    if not TYPE_CHECKING:
        moves = property(attrgetter("version"))  # The former name, until version 1.0.


def _key_changed(text: str, state: KeyState, version: int) -> KeyChanged:
    made = KeyChanged.__new__(KeyChanged, text)
    made.args, made.state, made.version = (text,), state, version
    return made


_LONGEST_WAIT = 1e10
"""The longest wait to show, in seconds: about 300 years. A longer wait is shown as infinite."""


def refusal(verdict: TransitionResult, move: Move | None = None) -> ValueError:
    """Create the error for a transition that the journal rejected."""
    entry, denial = verdict.entry, verdict.denial
    if denial is Rejection.ALONE:
        return ApprovalRequired()
    if denial in (Rejection.MOVED, Rejection.VOID) or _is_stale(entry, move):
        return KeyChanged(entry)
    if denial is Rejection.SAME_PERSON:
        return ApproverIsProposer()
    if denial is Rejection.ANSWERED:
        return ValueError("key: cannot be amended: the order comes from the service's own response")
    if denial is Rejection.TOO_EARLY:
        return too_early(entry.settled_at(getattr(move, "settle_after", 0.0)) - verdict.now)
    if denial is Rejection.FOREIGN:
        return ValueError("order_id: belongs to another key")
    return ValueError(f"key: another person or worker has just changed it; it is now {state_text(entry)}")


def too_early(wait: float) -> ValueError:
    """Create the error for a refutation that is ``wait`` seconds too early."""
    left = math.ceil(wait) if wait < _LONGEST_WAIT else math.inf
    return ValueError(f"key: it is too early, because a request may still take effect; try again in {left} s")


def _is_stale(entry: Entry, move: Move | None) -> bool:
    """Return whether ``move`` refers to an earlier version of the key or to a void proposal."""
    seen, proposal = getattr(move, "seen", None), getattr(move, "proposal", None)
    if seen is not None and entry.version != seen:
        return True
    return proposal is not None and (entry.proposal is None or entry.proposal.id != proposal)


def checked_order_id(order_id: str) -> str:
    """Return ``order_id`` without surrounding whitespace.

    Raises:
        ValueError: ``order_id`` does not look like an order id.
    """
    checked = order_id_of(order_id)
    if checked is None:
        raise ValueError("order_id: must look like 'tx-…'")
    return checked


_SPACES = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def checked_text(name: str, text: str) -> str:
    """Return ``text``, a line for the history, with surrounding whitespace removed.

    Raises:
        ValueError: the text is empty or too long, or contains characters that are not printable.
    """
    # Text copied from a web page or a bank statement may contain no-break spaces.
    line = _SPACES.sub(" ", requests.to_text(text)).strip() if isinstance(text, str) else ""
    if not (line and line.isprintable()):
        raise ValueError(f"{name}: must be a non-empty line of text, which is kept in the history")
    if len(line) > requests.LONGEST_REFERENCE:
        raise ValueError(f"{name}: must be no longer than {requests.LONGEST_REFERENCE:,} characters")
    return line


def checked_name(name: str, text: str) -> str:
    """Return ``text``, a person's name, with surrounding whitespace removed.

    Raises:
        ValueError: the name is empty or too long, or contains an invisible or unprintable character.
    """
    line = checked_text(name, text)
    if requests.UNSEEN.search(line):
        raise ValueError(f"{name}: contains an invisible character, so two different names may look the same")
    return line


def checked_decision(decision: Decision) -> Decision:
    """Return ``decision`` as a `Decision`.

    Raises:
        ValueError: ``decision`` is not a valid `Decision`.
    """
    try:
        return Decision(decision)
    except ValueError:
        raise ValueError(f"decision: must be one of {', '.join(item.value for item in Decision)}") from None
