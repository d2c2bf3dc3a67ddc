"""Opens the journal for the journal commands, and formats their output: tables, JSON, text and times."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from transfer_async._cli import options
from transfer_async._cli.options import as_typed
from transfer_async._cli.output import in_one_line, shown, shown_json
from transfer_async._http import urls
from transfer_async._models import errors
from transfer_async._models.errors import Attempt, Cause, TransferError
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.decisions import approved_proposal, proposed_row
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._support import util
from transfer_async._support.clock import in_two_units, time_after
from transfer_async.journal.model import FOUR_EYES, SETTLE_AFTER, Ending, HistoryEvent, KeyState, Proposal
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import AuditLine, Journal, NotToBeForgotten, forgettable
from transfer_async.journal.sqlite import SQLiteJournal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# --- times --------------------------------------------------------------------------------------


def iso(time: datetime | None) -> str | None:
    """Return ``time`` in ISO 8601, in UTC."""
    if time is None:
        return None
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_time(step: HistoryEvent) -> str:
    """Return the time of an event in the history, or a dash if the time is invalid."""
    return iso(time_after(_EPOCH, step.at)) or "-"


def age_text(seconds: float | None) -> str:
    """Format an age in its two largest units."""
    return "-" if seconds is None else in_two_units(seconds, ("d", "h", "m", "s"))


def time_given(option: str, text: str) -> datetime:
    """Parse a time, which is in UTC unless ``text`` contains a time zone.

    Raises:
        ValueError: the text is not a time; the message names the option.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option}: must be a date or a time, as in 2026-01-01") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


_AGES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def time_named(before: str | None, older_than: str | None, *, now: datetime) -> datetime:
    """Return the time from ``--before`` or ``--older-than``.

    Raises:
        ValueError: the time is invalid or in the future, or neither or both options are given.
    """
    if (before is None) == (older_than is None):
        raise ValueError("pass either --before or --older-than")
    if before is not None:
        time = time_given("--before", before)
    elif age := re.fullmatch(r"(\d{1,5})([mhdw])", older_than or ""):
        time = now - timedelta(**{_AGES[age[2]]: int(age[1])})
    else:
        raise ValueError("--older-than: must be a number of minutes, hours, days or weeks, as in 90d")
    try:
        forgettable(time, now=now.timestamp())
    except NotToBeForgotten as error:
        raise ValueError(f"--{error}") from None
    return time


# --- keys ---------------------------------------------------------------------------------------


def _left(view: KeyView) -> list[str]:
    """Return texts for a key's pending undos, its pending notifications, and the proposal to approve."""
    left = [*map(shown, view.pending_undos), *(f"notification: {end}" for end in view.pending_notifications)]
    return left if view.proposal is None else [*left, f"to approve: {view.proposal.decision.value}"]


def state_of(view: KeyView) -> str:
    """Return the state of a key in words."""
    state = view.entry.state.value.replace("_", " ")
    return state if view.entry.is_readable else f"{state} (unreadable)"


WAITING: dict[str, Callable[[KeyView], str]] = {
    "key": lambda view: shown(view.key),
    "state": state_of,
    "age": lambda view: age_text(view.age),
    "order": lambda view: view.summary,
    "order id": lambda view: shown(view.order_id),
    "pending": lambda view: ", ".join(_left(view)) or "-",
}
"""The columns of ``journal list``, each with the function that returns a cell's text."""


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, such as ``3 keys``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def record_lines(view: KeyView, parties: Mapping[str, str | None] | None = None) -> list[str]:
    """Return a key's record, one field per line, including the parties if given."""
    entry = view.entry
    cause, proposal, ending = view.cause, view.proposal, entry.ending
    attempts = () if cause is None else cause.attempts
    fields = {
        "key": view.key,
        "state": state_of(view),
        "intent": entry.intent_id,
        "attempt id": view.attempt_id,
        "order": view.summary,
        "order id": entry.order_id,
        **(parties or {}),
        "candidates": ", ".join(view.candidates) or None,
        "cause": None if cause is None else cause.told,
        **{f"attempt {attempt.number}": _attempt_text(attempt) for attempt in attempts},
        "next step": view.next_step,
        "proposed": None
        if proposal is None
        else f"{proposed(proposal)}, by {proposal.by}: {proposal.reason} ({proposal.id})",
        "began": None if view.began is None else f"{iso(view.began)}, {age_text(view.age)} ago",
        "sent until": iso(view.sent_until),
        "lease until": iso(view.lease_until),
        "ended in": None if ending is None else _ending_text(ending),
        "receipts": ", ".join(f"{name}: {receipt}" for name, receipt in entry.all_receipts.items()) or None,
        "pending": ", ".join(view.pending_undos) or None,
        "to publish": ", ".join(view.pending_notifications) or None,
    }
    return [f"{name:<12}{shown(value)}" for name, value in fields.items()]


def _attempt_text(attempt: Attempt) -> str:
    facts = [f"{iso(attempt.began) or '-'}, {attempt.seconds:.3f} s"]
    facts += [] if attempt.status is None else [f"status {attempt.status}"]
    facts += [] if attempt.request_id is None else [f"request {attempt.request_id}"]
    return ", ".join(facts if attempt.error is None else [*facts, attempt.error])


def proposed(proposal: Proposal) -> str:
    """Return the proposed decision in a few words, such as ``resolve as tx-1``."""
    return proposed_row(proposal).in_short(proposal.order_id)


def parties(seen: OrderIntent | Order) -> dict[str, str | None]:
    """Return the recorded parties of an order, by label."""
    if isinstance(seen, OrderIntent):
        name, order = seen.beneficiary, seen.order
        words = () if name is None else (name.first, name.middle, name.last)
        return {
            "poster": order.poster_username,
            "beneficiary": order.poster_recipient_username,
            "said to be": " ".join(filter(None, words)) or None,
        }
    poster, beneficiary = seen.user, seen.posters_beneficiary
    return {
        "poster": None if poster is None else poster.username,
        "beneficiary": None if beneficiary is None else beneficiary.username,
    }


def _ending_text(ending: Ending) -> str:
    named = f"; fields named by the service: {', '.join(ending.fields)}" if ending.fields else ""
    return f"{ending.error} ({ending.outcome.value.replace('_', ' ')}){named}"


HISTORY: dict[str, Callable[[HistoryEvent], str]] = {
    "at": step_time,
    "move": lambda step: step.move,
    "state": lambda step: step.state.value.replace("_", " "),
    "epoch": lambda step: str(step.epoch),
    "order id": lambda step: shown(step.order_id),
    "ended in": lambda step: shown(step.ending.error if step.ending else None),
    "by": lambda step: shown(step.by),
    "reason": lambda step: shown(step.reason),
}
"""The columns of a key's history, each with the function that returns a cell's text."""


AUDIT: dict[str, Callable[[AuditLine], str]] = {
    "at": lambda line: step_time(line[1]),
    "key": lambda line: "the dual-control rule" if line[0] == FOUR_EYES else shown(line[0]),
    "move": lambda line: line[1].move,
    "order id": lambda line: shown(line[1].order_id),
    "by": lambda line: shown(line[1].by),
    "proposed by": lambda line: shown(getattr(approved_proposal(line), "by", None)),
    "reason": lambda line: shown(line[1].reason),
}
"""The columns of ``journal audit``, each with the function that returns a cell's text."""


# --- for machines -------------------------------------------------------------------------------


def as_json(value: Any) -> str:
    """Return a value as one JSON document. The value may contain times, amounts and states."""
    return shown_json(json.dumps(value, indent=2, ensure_ascii=False, default=_simple))


def _simple(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return iso(value) if isinstance(value, datetime) else f"{value:f}"


def _fields(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def view_json(view: KeyView) -> dict[str, Any]:
    """Return a key's record for JSON, with null for unknown values."""
    entry, cause, proposal = view.entry, view.cause, view.proposal
    amounts = ("poster_amount", "poster_currency", "matcher_amount", "matcher_currency")
    return {
        **_fields(view, "key", "state", "intent_id", "attempt_id", "order_id", "candidates"),
        "readable": entry.is_readable,
        **(dict.fromkeys(amounts) if view.order is None else _fields(view.order, *amounts)),
        "began": view.began,
        "age_seconds": None if view.age is None else round(view.age, 3),
        **_fields(view, "sent_until", "lease_until"),
        "owed": view.pending_undos,
        "untold": view.pending_notifications,
        "ended_in": None if entry.ending is None else entry.ending.error,
        "cause": None if cause is None else _cause_json(cause),
        "proposal": None if proposal is None else proposal_json(proposal),
        "moves": view.version,
    }


def _cause_json(cause: Cause) -> dict[str, Any]:
    attempts = [
        {
            **_fields(attempt, "number", "began"),
            "seconds": round(attempt.seconds, 3),
            **_fields(attempt, "status", "error", "request_id"),
        }
        for attempt in cause.attempts
    ]
    return {**_fields(cause, "kind", "status", "error"), "attempts": attempts}


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as a dict for JSON output."""
    return _fields(proposal, "id", "decision", "order_id", "by", "reason")


def step_json(step: HistoryEvent) -> dict[str, Any]:
    """Return a history event as a dict for JSON output."""
    return {
        "at": time_after(_EPOCH, step.at),
        **_fields(step, "move", "state", "intent_id", "epoch", "attempt", "order_id"),
        "ended_in": None if step.ending is None else step.ending.error,
        **_fields(step, "by", "reason"),
    }


def audit_json(line: AuditLine) -> dict[str, Any]:
    """Return an audit line as a dict for JSON output."""
    key, step, _ = line
    proposal = approved_proposal(line)
    approved = None if proposal is None else {"by": proposal.by, "at": time_after(_EPOCH, proposal.at)}
    return {"key": key, **step_json(step), "approved_proposal": approved}


# --- sums ---------------------------------------------------------------------------------------


def totals(views: Sequence[KeyView]) -> dict[str, Any]:
    """Return the number of keys by state, the pending undos and the amounts in doubt, for JSON output."""
    amounts: dict[str, Decimal] = {}
    for view in views:
        if view.entry.state is KeyState.IN_DOUBT and view.order is not None:
            currency = view.order.poster_currency
            amounts[currency] = amounts.get(currency, Decimal(0)) + view.order.poster_amount
    return {
        "keys": len(views),
        "states": Counter(view.entry.state.value for view in views),
        "undos_owed": sum(len(view.pending_undos) for view in views),
        "in_doubt": amounts,
    }


def totals_text(totals: Mapping[str, Any]) -> str:
    """Return the result of `totals` as one line of text."""
    if not totals["keys"]:
        return "no key needs attention: nothing in doubt, no undo pending, nothing abandoned"
    counts = [f"{count} {state.replace('_', ' ')}" for state, count in sorted(totals["states"].items())]
    if totals["undos_owed"]:
        counts.append(f"{counted(totals['undos_owed'], 'undo')} pending")
    line = f"{counted(totals['keys'], 'key')}: {', '.join(counts)}"
    amounts = [f"{amount:f} {currency}" for currency, amount in sorted(totals["in_doubt"].items())]
    return f"{line}; in doubt: {', '.join(amounts)}" if amounts else line


# --- opening ------------------------------------------------------------------------------------


def scope_of(scope: str | None, base_url: str | None) -> str:
    """Return the given scope, or the normalised base URL if there is none.

    Raises:
        ValueError: neither a scope nor a base URL is given, or the URL is invalid.
    """
    if scope:
        return scope
    if not base_url:
        raise ValueError("--scope, --base-url or TRANSFER_BASE_URL is required")
    try:
        return urls.normalised(base_url)
    except ValueError as error:
        why = as_typed(str(error))
    raise ValueError(why)


def journal_named(address: str) -> SQLiteJournal | PostgresJournal:
    """Return the journal at ``address``.

    A journal's file must exist, because a mistyped path would otherwise open an empty journal.

    Raises:
        ValueError: the address is invalid, or the file does not exist.
    """
    if "://" not in address and not Path(address).is_file():
        raise ValueError(f"--journal: the file {shown(util.public(address))} does not exist")
    return options.journal_named(address)


@asynccontextmanager
async def opened(
    journal: Journal, scope: str, *, settle_after: float = SETTLE_AFTER
) -> AsyncIterator[Operators]:
    """Yield the `Operators` of one scope of a journal, and close the journal at the end."""
    try:
        yield Operators(journal, scope, settle_after=settle_after)
    finally:
        await journal.close()


def explained(error: Exception) -> str:
    """Return the text of ``error``.

    For a `TransferError`, add the error's type and, if safe, its cause's message.
    """
    if not isinstance(error, TransferError):
        return as_typed(str(error))
    cause = "" if error.__cause__ is None else errors.safe_line(error.__cause__)
    return in_one_line(error) + (f": {cause}" if cause else "")
