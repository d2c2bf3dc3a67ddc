"""What an operator reads: tables by rich on a terminal, plain columns elsewhere, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from transfer_async._cli.console.output import shown, shown_json
from transfer_async._cli.journal.desk import Totals
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async.journal.entries import Ending, Step

WAITING = ("key", "state", "age", "order", "order id", "owed")
HISTORY = ("at", "move", "state", "epoch", "order id", "ended in", "by", "reason")


# --- keys ---------------------------------------------------------------------------------------


def waiting_rows(views: Sequence[KeyView]) -> list[tuple[str, ...]]:
    """One row a key."""
    return [
        (
            shown(view.key),
            state_of(view),
            age_told(view.age),
            view.summary,
            shown(view.entry.order_id),
            ", ".join([*map(shown, view.owed), *(f"to tell: {end}" for end in view.untold)]) or "-",
        )
        for view in views
    ]


def state_of(view: KeyView) -> str:
    """Where the key stands, in words."""
    state = view.entry.state.value.replace("_", " ")
    return state if view.entry.is_readable else f"{state} (unreadable)"


def total_told(totals: Totals) -> str:
    """The sums, in one line."""
    if not totals.keys:
        return "nothing waits: nothing in doubt, nothing owed, nothing left behind"
    told = [f"{count} {state.replace('_', ' ')}" for state, count in sorted(totals.states.items())]
    if totals.undos_owed:
        told.append(f"{counted(totals.undos_owed, 'undo')} owed")
    line = f"{counted(totals.keys, 'key')}: {', '.join(told)}"
    if totals.in_doubt:
        amounts = ", ".join(f"{amount:f} {currency}" for currency, amount in sorted(totals.in_doubt.items()))
        line += f"; in doubt: {amounts}"
    return line


def counted(number: int, thing: str) -> str:
    """How many of them."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def record_lines(view: KeyView) -> list[str]:
    """What is on record of a key, one thing a line."""
    entry = view.entry
    told = {
        "key": view.key,
        "state": state_of(view),
        "intent": entry.intent_id,
        "order": view.summary,
        "order id": entry.order_id,
        "candidates": ", ".join(view.candidates) or None,
        "began": f"{iso(view.began)}, {age_told(view.age)} ago",
        "sent until": iso(view.sent_until),
        "ended in": None if entry.ending is None else _ended_in(entry.ending),
        "receipts": ", ".join(f"{name}: {receipt}" for name, receipt in entry.all_receipts.items()) or None,
        "owed": ", ".join(view.owed) or None,
        "to tell": ", ".join(view.untold) or None,
    }
    return [f"{name:<12}{shown(value)}" for name, value in told.items()]


def _ended_in(ending: Ending) -> str:
    named = f"; the service names: {', '.join(ending.fields)}" if ending.fields else ""
    return f"{ending.error} ({ending.outcome.value.replace('_', ' ')}){named}"


def history_rows(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """One row a move."""
    return [
        (
            iso(_utc(step.at)) or "-",
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
    """What a recovery did, one number a line."""
    return [f"{name.replace('_', ' '):<12}{count:>6}" for name, count in attrs.asdict(report).items()]


# --- for machines -------------------------------------------------------------------------------


def as_json(told: Any) -> str:
    """``told`` as one JSON document."""
    return shown_json(json.dumps(told, indent=2, ensure_ascii=False))


def view_json(view: KeyView) -> dict[str, Any]:
    """What is on record of a key; what is not known is null."""
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
        "age_seconds": round(view.age, 3),
        "sent_until": iso(view.sent_until),
        "owed": list(view.owed),
        "untold": list(view.untold),
        "ended_in": None if entry.ending is None else entry.ending.error,
    }


def report_json(report: RecoveryReport) -> dict[str, Any]:
    """What a recovery did."""
    return attrs.asdict(report)


def totals_json(totals: Totals) -> dict[str, Any]:
    """The sums."""
    return {
        "keys": totals.keys,
        "states": dict(totals.states),
        "undos_owed": totals.undos_owed,
        "in_doubt": {currency: f"{amount:f}" for currency, amount in totals.in_doubt.items()},
    }


def step_json(step: Step) -> dict[str, Any]:
    """One move of a key."""
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
    """``time`` as ISO 8601 in UTC."""
    if time is None:
        return None
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def age_told(seconds: float) -> str:
    """An age in its two largest units."""
    left = max(0, int(seconds))
    told: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or told or unit == "s":
            told.append(f"{count}{unit}")
    return " ".join(told[:2])
