"""What the journal commands show: texts and tables, JSON, and times; and how they open a journal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from transfer_async._cli import options
from transfer_async._cli.options import as_typed, made_by
from transfer_async._cli.output import in_one_line, shown, shown_json
from transfer_async._http import urls
from transfer_async._models import errors
from transfer_async._models.errors import Attempt, Cause, TransferError
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.decisions import proposed_row
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support import util
from transfer_async._support.clock import in_two_units, time_after
from transfer_async.journal.model import SETTLE_AFTER, Ending, HistoryEvent, KeyState, Proposal
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import Journal, NotToBeForgotten, ScopedJournal, forgettable
from transfer_async.journal.sqlite import SQLiteJournal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NOBODY: Mapping[str, str | None] = {}
"""The default: no parties are shown."""


HISTORY = ("at", "move", "state", "epoch", "order id", "ended in", "by", "reason")


# --- keys ---------------------------------------------------------------------------------------


def waiting_rows(views: Sequence[KeyView]) -> list[tuple[str, ...]]:
    """Return one row for each key."""
    return [tuple(cell(view) for cell in WAITING.values()) for view in views]


def _left(view: KeyView) -> list[str]:
    """Return what is pending: undos, notifications, and a proposal to approve."""
    left = [*map(shown, view.owed), *(f"notification: {end}" for end in view.untold)]
    return left if view.proposal is None else [*left, f"to approve: {view.proposal.decision.value}"]


def state_of(view: KeyView) -> str:
    """Return the state of a key as text."""
    state = view.entry.state.value.replace("_", " ")
    return state if view.entry.is_readable else f"{state} (unreadable)"


WAITING: dict[str, Callable[[KeyView], str]] = {
    "key": lambda view: shown(view.key),
    "state": state_of,
    "age": lambda view: age_told(view.age),
    "order": lambda view: view.summary,
    "order id": lambda view: shown(view.order_id),
    "pending": lambda view: ", ".join(_left(view)) or "-",
}
"""The columns of ``journal list``: for each, the text of its cell."""


def totals_text(totals: Totals) -> str:
    """Return the sums in one line."""
    if not totals.keys:
        return "no key needs attention: nothing in doubt, no undo pending, nothing left behind"
    told = [f"{count} {state.replace('_', ' ')}" for state, count in sorted(totals.states.items())]
    if totals.undos_owed:
        told.append(f"{counted(totals.undos_owed, 'undo')} pending")
    line = f"{counted(totals.keys, 'key')}: {', '.join(told)}"
    if totals.in_doubt:
        amounts = ", ".join(f"{amount:f} {currency}" for currency, amount in sorted(totals.in_doubt.items()))
        line += f"; in doubt: {amounts}"
    return line


def counted(number: int, thing: str) -> str:
    """Return a number with its noun."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def record_lines(view: KeyView, parties: Mapping[str, str | None] = NOBODY) -> list[str]:
    """Return a key's record, one field per line, with the parties if they are given."""
    entry = view.entry
    told = {
        "key": view.key,
        "state": state_of(view),
        "intent": entry.intent_id,
        "order": view.summary,
        "order id": entry.order_id,
        **parties,
        "candidates": ", ".join(view.candidates) or None,
        "cause": None if view.cause is None else view.cause.told,
        **_attempt_lines(view.cause),
        "proposed": None if view.proposal is None else _proposal_told(view.proposal),
        "began": None if view.began is None else f"{iso(view.began)}, {age_told(view.age)} ago",
        "sent until": iso(view.sent_until),
        "lease until": iso(view.lease_until),
        "ended in": None if entry.ending is None else _ended_in(entry.ending),
        "receipts": ", ".join(f"{name}: {receipt}" for name, receipt in entry.all_receipts.items()) or None,
        "pending": ", ".join(view.owed) or None,
        "to publish": ", ".join(view.untold) or None,
    }
    return [f"{name:<12}{shown(value)}" for name, value in told.items()]


def _attempt_lines(cause: Cause | None) -> dict[str, str]:
    attempts = () if cause is None else cause.attempts
    return {f"attempt {attempt.number}": _attempt_told(attempt) for attempt in attempts}


def _attempt_told(attempt: Attempt) -> str:
    facts = [f"{iso(attempt.began) or '-'}, {attempt.seconds:.3f} s"]
    facts += [] if attempt.status is None else [f"status {attempt.status}"]
    facts += [] if attempt.request_id is None else [f"request {attempt.request_id}"]
    return ", ".join(facts if attempt.error is None else [*facts, attempt.error])


def proposed(proposal: Proposal) -> str:
    """Return what is proposed, in a few words."""
    return proposed_row(proposal).in_short(proposal.order_id)


def _proposal_told(proposal: Proposal) -> str:
    return f"{proposed(proposal)}, by {proposal.by}: {proposal.reason} ({proposal.id})"


def parties(seen: OrderIntent | Order) -> dict[str, str | None]:
    """Return the parties of an order, as far as they are on record."""
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


def _ended_in(ending: Ending) -> str:
    named = f"; the service names: {', '.join(ending.fields)}" if ending.fields else ""
    return f"{ending.error} ({ending.outcome.value.replace('_', ' ')}){named}"


def history_rows(steps: Sequence[HistoryEvent]) -> list[tuple[str, ...]]:
    """Return one row for each line of the history."""
    return [
        (
            step_time(step),
            step.move,
            step.state.value.replace("_", " "),
            str(step.epoch),
            shown(step.order_id),
            shown(step.ending.error if step.ending else None),
            shown(step.by),
            shown(step.reason),
        )
        for step in steps
    ]


def report_lines(report: RecoveryReport) -> list[str]:
    """Return the numbers of a recovery, one per line."""
    return [f"{name.replace('_', ' '):<13}{count:>5}" for name, count in attrs.asdict(report).items()]


# --- for machines -------------------------------------------------------------------------------


def as_json(told: Any) -> str:
    """Return a value as one JSON document."""
    return shown_json(json.dumps(told, indent=2, ensure_ascii=False))


def view_json(view: KeyView) -> dict[str, Any]:
    """Return a key's record for JSON; unknown values are null."""
    entry, order = view.entry, view.order
    return {
        "key": view.key,
        "state": entry.state.value,
        "intent_id": entry.intent_id,
        "order_id": entry.order_id,
        "candidates": list(view.candidates),
        "readable": entry.is_readable,
        "poster_amount": None if order is None else f"{order.poster_amount:f}",
        "poster_currency": None if order is None else order.poster_currency,
        "matcher_amount": None if order is None else f"{order.matcher_amount:f}",
        "matcher_currency": None if order is None else order.matcher_currency,
        "began": iso(view.began),
        "age_seconds": None if view.age is None else round(view.age, 3),
        "sent_until": iso(view.sent_until),
        "lease_until": iso(view.lease_until),
        "owed": list(view.owed),
        "untold": list(view.untold),
        "ended_in": None if entry.ending is None else entry.ending.error,
        "cause": None if view.cause is None else _cause_json(view.cause),
        "proposal": None if view.proposal is None else proposal_json(view.proposal),
        "moves": view.moves,
    }


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind.value,
        "status": cause.status,
        "error": cause.error,
        "attempts": [
            {
                "number": attempt.number,
                "began": iso(attempt.began),
                "seconds": round(attempt.seconds, 3),
                "status": attempt.status,
                "error": attempt.error,
                "request_id": attempt.request_id,
            }
            for attempt in cause.attempts
        ],
    }


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal for JSON."""
    return {
        "id": proposal.id,
        "decision": proposal.decision.value,
        "order_id": proposal.order_id,
        "by": proposal.by,
        "reason": proposal.reason,
    }


def report_json(report: RecoveryReport) -> dict[str, Any]:
    """Return the numbers of a recovery for JSON."""
    return attrs.asdict(report)


def totals_json(totals: Totals) -> dict[str, Any]:
    """Return the sums for JSON."""
    return {
        "keys": totals.keys,
        "states": dict(totals.states),
        "undos_owed": totals.undos_owed,
        "in_doubt": {currency: f"{amount:f}" for currency, amount in totals.in_doubt.items()},
    }


def step_json(step: HistoryEvent) -> dict[str, Any]:
    """Return a line of the history for JSON."""
    return {
        "at": iso(_utc(step.at)),
        "move": step.move,
        "state": step.state.value,
        "intent_id": step.intent_id,
        "epoch": step.epoch,
        "attempt": step.attempt,
        "order_id": step.order_id,
        "ended_in": None if step.ending is None else step.ending.error,
        "by": step.by,
        "reason": step.reason,
    }


# --- times --------------------------------------------------------------------------------------


def iso(time: datetime | None) -> str | None:
    """Return ``time`` in ISO 8601, in UTC."""
    if time is None:
        return None
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_time(step: HistoryEvent) -> str:
    """Return the time of a line of the history; a dash if it is invalid."""
    return iso(_utc(step.at)) or "-"


def _utc(seconds: float) -> datetime | None:
    return time_after(_EPOCH, seconds)


def age_told(seconds: float | None) -> str:
    """Return an age in its two largest units."""
    if seconds is None:
        return "-"
    return in_two_units(seconds, ("d", "h", "m", "s"))


# --- an open journal ------------------------------------------------------------------------------


_AGES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@frozen(kw_only=True)
class OpenJournal:
    """An open journal for one scope, and its `Operators`."""

    journal: ScopedJournal
    operators: Operators

    async def one(self, key: str) -> tuple[KeyView, tuple[HistoryEvent, ...]]:
        """Return the record of ``key`` and its history.

        Raises:
            ValueError: the key has no record.
            JournalFailed: the journal could not be read.
        """
        return await self.operators.view(key), await self.operators.history(key)


# --- sums ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Totals:
    """The number of keys in each state, the pending undos, and the amounts in doubt."""

    keys: int
    states: Counter[str]
    undos_owed: int
    in_doubt: dict[str, Decimal]


def totals(views: Sequence[KeyView]) -> Totals:
    """Return the sums of ``views``."""
    amounts: dict[str, Decimal] = {}
    for view in views:
        if view.entry.state is KeyState.IN_DOUBT and view.order is not None:
            currency = view.order.poster_currency
            amounts[currency] = amounts.get(currency, Decimal(0)) + view.order.poster_amount
    return Totals(
        keys=len(views),
        states=Counter(view.entry.state.value for view in views),
        undos_owed=sum(len(view.owed) for view in views),
        in_doubt=amounts,
    )


# --- opening ------------------------------------------------------------------------------------


def scope_of(scope: str | None, base_url: str | None) -> str:
    """Return the given scope, or the one of the service's base URL.

    Raises:
        ValueError: neither is given, or the URL is invalid.
    """
    if scope:
        return scope
    if not base_url:
        raise ValueError("--scope: name it, or the service's address by --base-url or TRANSFER_BASE_URL")
    try:
        return urls.normalised(base_url)
    except ValueError as error:
        why = as_typed(str(error))
    raise ValueError(why)


def journal_named(address: str) -> SQLiteJournal | PostgresJournal:
    """Return the journal at ``address``; a file must exist, because a wrong path would show an empty journal.

    Raises:
        ValueError: there is no journal.
    """
    if "://" not in address and not Path(address).is_file():
        raise ValueError(f"--journal: there is no file {shown(util.public(address))}")
    return options.journal_named(address)


@asynccontextmanager
async def opened(
    journal: Journal, scope: str, *, settle_after: float = SETTLE_AFTER
) -> AsyncIterator[OpenJournal]:
    """Open a journal for one scope, and close it at the end."""
    try:
        yield OpenJournal(
            journal=ScopedJournal(journal, scope),
            operators=Operators(journal, scope, settle_after=settle_after),
        )
    finally:
        await journal.close()


async def recovered(
    journal: Journal, factory: Callable[[], object], *, base_url: str, token: str | None, **settings: Any
) -> RecoveryReport:
    """Run ``recover`` with the bank's hooks, and its token or else ``token``; then close the journal.

    Raises:
        ValueError: the hooks or the settings are invalid, or there is no token.
        TransferError: the journal failed.
    """
    try:
        async with (
            await made_by(factory) as side,
            options.client_of(base_url, token or None, side, journal=journal, **settings) as client,
        ):
            return await client.recover()
    finally:
        await journal.close()


def explained(error: Exception) -> str:
    """Return the text of ``error``; for the client's own also its kind, and the store's message if safe."""
    if not isinstance(error, TransferError):
        return as_typed(str(error))
    said = "" if error.__cause__ is None else errors.said(error.__cause__)
    return in_one_line(error) + (f": {said}" if said else "")


# --- times --------------------------------------------------------------------------------------


def time_named(before: str | None, older_than: str | None, *, now: datetime) -> datetime:
    """Return the time that ``--before`` or ``--older-than`` means.

    Raises:
        ValueError: it is invalid or in the future, or both or neither are given.
    """
    time = _time(before, older_than, now=now)
    try:
        forgettable(time, now=now.timestamp())
    except NotToBeForgotten as error:
        raise ValueError(f"--{error}") from None
    return time


def _time(before: str | None, older_than: str | None, *, now: datetime) -> datetime:
    if (before is None) == (older_than is None):
        raise ValueError("--before or --older-than: give one of them")
    if before is not None:
        try:
            time = datetime.fromisoformat(before)
        except ValueError:
            raise ValueError("--before: must be a date or a time, as in 2026-01-01") from None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    age = re.fullmatch(r"(\d{1,5})([mhdw])", older_than or "")
    if age is None:
        raise ValueError("--older-than: must be a number of minutes, hours, days or weeks, as in 90d")
    return now - timedelta(**{_AGES[age[2]]: int(age[1])})
