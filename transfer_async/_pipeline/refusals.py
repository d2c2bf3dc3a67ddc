"""What an operator hears where something is no good, or the journal says no."""

from __future__ import annotations

import math
from typing import Any

from transfer_async._models import keys, texts
from transfer_async._pipeline.doubt import order_id_of
from transfer_async._support.clock import Duration, duration
from transfer_async.journal.entries import Denial, Entry, KeyState, Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.proposal import Decision


def nothing_on_record(key: str) -> ValueError:
    """What an operator hears who names a key that the journal does not have."""
    why = keys.problem(key)
    return ValueError(f"key: {why}" if why else "key: nothing is on record of it in this scope")


def told(entry: Entry) -> str:
    """Where a key stands, in words."""
    state = entry.state.value.replace("_", " ")
    return f"{state} ({entry.order_id})" if entry.order_id else state


class FourEyesNeeded(ValueError):
    """The scope demands four eyes: one person proposes it, and another approves."""

    def __init__(self) -> None:
        super().__init__("four_eyes: are demanded in this scope: propose it, and another person approves")


class SamePerson(ValueError):
    """Whoever proposed it may not approve it."""

    def __init__(self) -> None:
        super().__init__("by: proposed it, and another person must approve it")


class Moved(ValueError):
    """The key has moved since it was looked at, or the proposal that was seen is void.

    Args:
        entry: as it is now.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"key: has moved since it was looked at; it is {told(entry)}")
        self.state: KeyState = entry.state
        self.moves: int = entry.moves

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its arguments, and these are not the ones it was made with.
        return _moved, (str(self), self.state, self.moves)


def _moved(text: str, state: KeyState, moves: int) -> Moved:
    made = Moved.__new__(Moved, text)
    made.args, made.state, made.moves = (text,), state, moves
    return made


FOR_EVER = 1e10
"""Seconds after which nobody asks again: three hundred years."""


def refusal(verdict: Verdict, move: Move | None = None) -> ValueError:
    """What is raised where the journal said no to ``move``."""
    entry, denial = verdict.entry, verdict.denial
    if denial in (Denial.MOVED, Denial.VOID) or _is_stale(entry, move):
        return Moved(entry)
    if denial is Denial.SAME_PERSON:
        return SamePerson()
    if denial is Denial.ANSWERED:
        return ValueError("key: the service itself answered with its order: it is not to be amended")
    if denial is Denial.TOO_EARLY:
        wait = entry.sent_until + getattr(move, "settle_after", 0.0) - verdict.now
        left = math.ceil(wait) if wait < FOR_EVER else math.inf
        return ValueError(f"key: it is too early, a request may still take effect; ask again in {left} s")
    if denial is Denial.FOREIGN:
        return ValueError("order_id: is the order of another key")
    return ValueError(f"key: was changed by somebody else just now; it is {told(entry)}")


def _is_stale(entry: Entry, move: Move | None) -> bool:
    """Whether ``move`` is about the key as it was, and so was denied whatever else speaks against it."""
    seen, proposal = getattr(move, "seen", None), getattr(move, "proposal", None)
    if seen is not None and entry.moves != seen:
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


def checked_decision(decision: Decision) -> Decision:
    """``decision``, if it is one.

    Raises:
        ValueError: it is not.
    """
    try:
        return Decision(decision)
    except ValueError:
        raise ValueError(f"decision: must be one of {', '.join(one.value for one in Decision)}") from None


def checked_flag(name: str, flag: bool) -> bool:
    """``flag``, if it is one.

    Raises:
        ValueError: it is neither true nor false.
    """
    if flag is not True and flag is not False:
        raise ValueError(f"{name}: must be True or False")
    return flag
