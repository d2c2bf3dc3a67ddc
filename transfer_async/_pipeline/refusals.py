"""What an operator hears where something is no good, or the journal says no."""

from __future__ import annotations

import math

from transfer_async._models import keys, texts
from transfer_async._pipeline.doubt import order_id_of
from transfer_async._support.clock import Duration, duration
from transfer_async.journal.entries import Denial, Entry, Verdict
from transfer_async.journal.moves import Refute, Resolve


def nothing_on_record(key: str) -> ValueError:
    """What an operator hears who names a key that the journal does not have."""
    why = keys.problem(key)
    return ValueError(f"key: {why}" if why else "key: nothing is on record of it in this scope")


def told(entry: Entry) -> str:
    """Where a key stands, in words."""
    state = entry.state.value.replace("_", " ")
    return f"{state} ({entry.order_id})" if entry.order_id else state


def why_not(verdict: Verdict, move: Resolve | Refute) -> str:
    """Why the journal said no to ``move``."""
    if verdict.denial is Denial.TOO_EARLY and isinstance(move, Refute):
        wait = verdict.entry.sent_until + move.settle_after - verdict.now
        left = math.ceil(wait) if math.isfinite(wait) else wait
        return f"key: it is too early, a request may still take effect; ask again in {left} s"
    if verdict.denial is Denial.FOREIGN:
        return "order_id: is the order of another key"
    return f"key: was changed by somebody else just now; it is {told(verdict.entry)}"


def checked_settle_after(settle_after: Duration) -> float:
    """``settle_after`` in seconds.

    Raises:
        ValueError: it is no duration, or less than 0.
    """
    seconds = duration("settle_after", settle_after)
    if not seconds >= 0:
        raise ValueError("settle_after: must be 0 seconds or more")
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


def checked_text(name: str, text: str) -> str:
    """``text``, which goes into the history, trimmed.

    Raises:
        ValueError: there is nothing in it, or what would spoil a line.
    """
    line = texts.to_text(text).strip() if isinstance(text, str) else ""
    if not (line and line.isprintable()):
        raise ValueError(f"{name}: must be a line of text with something in it; it is kept in the history")
    if len(line) > texts.REFERENCE:
        raise ValueError(f"{name}: must be no longer than {texts.REFERENCE:,} characters")
    return line
