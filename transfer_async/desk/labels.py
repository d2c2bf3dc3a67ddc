"""What the desk says in words: plain text, which the templates escape like any other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from transfer_async._pipeline.decisions import DECISIONS, LOOK, approval
from transfer_async._pipeline.key_views import KeyView, Sentence, only_scopes
from transfer_async.journal.model import FOUR_EYES, HistoryEvent, KeyState

NOTHING_ON_RECORD = "The journal has nothing on record of this key in this scope."

KINDS = {
    "doubt": "in doubt",
    "proposed": "proposed",
    "owed": "undo owed",
    "abandoned": "abandoned",
    "untold": "to tell",
    "unreadable": "unreadable",
}
"""Why a key waits."""

KINDS_EXPLAINED = {
    "doubt": "The order may exist, and the hold is kept. Find out, then say how it ended.",
    "proposed": "One person has proposed how it ends; another one approves.",
    "owed": "A certain no is on record, but a hook is not undone yet: the next recovery tries again.",
    "abandoned": "Its worker never reported an end: the next recovery takes it up.",
    "untold": "A doubt has ended, and whoever waits for that has not heard: a worker tells them.",
    "unreadable": "What is stored of the key cannot be read: no recovery can end it.",
}

SEALED = "What is stored of the key cannot be read here: a desk with the keys that sealed it can."
"""In place of the last, where nothing is damaged."""

_MOVES = {
    "claim": "a worker took the key",
    "keep": "the worker was still at it",
    "takeover": "another worker took over, to undo it",
    "mark": "the request was about to be sent",
    "create": "the service answered with the order",
    "free": "it ended in a certain no",
    "doubt": "it became unknown whether the order exists",
    "expire": "abandoned: its worker never reported an end; the request may have arrived",
    "propose": "an end was proposed",
    "withdraw": "the proposal was withdrawn",
    "demand": "four eyes were demanded",
    "look": "the parties were looked at",
    "paid": "what its hooks did was undone",
    "owe": "an undo became due late",
    "suspect": "an order turned up against the record",
    "layaside": "what could not be read was laid aside",
    "promise": "somebody was told that it is unknown",
    "told": "somebody was told how it ended",
} | {row.name: row.history for row in DECISIONS}
"""What the history calls a move, in words; one of a later version keeps its name."""


_DONE = {row.done: (row.name, row.saved) for row in DECISIONS if row.done} | {
    "setaside": ("layaside", "Saved: the damaged record was set aside."),
    "proposed": ("propose", "Proposed. It waits for somebody else to approve it."),
    "withdrawn": ("withdraw", "The proposal is withdrawn."),
}
"""What the address of a key's page may say that its reader did: the move in the history, and the words."""


def notice(name: str, view: KeyView, steps: Sequence[HistoryEvent], *, by: str) -> str | None:
    """Return what a change did, as far as it is on record; None if it is not.

    Anybody can write an address, so what it says that was done proves nothing.

    Args:
        name: what the address says that was done.
        view: the key.
        steps: its history.
        by: who reads the page.
    """
    changes = [step for step in steps if step.move != LOOK]
    if name == "approved":
        made, told = approval(steps), "Approved: it is done."
        made = made if made is not None and made.by == by else None
    else:
        wanted, told = _DONE.get(name, ("", ""))
        made = next((step for step in reversed(changes) if (step.move, step.by) == (wanted, by)), None)
    if made is None:
        return None
    if made is not changes[-1] or made.state is not view.state:
        return f"Saved at {time(moment(made.at))}. The key has changed since then: see what happened."
    return told


def other_scopes(names: tuple[str, ...]) -> Sentence:
    """That a journal has keys of other scopes only: nobody may take it for good news that nothing waits."""
    found = only_scopes(names)
    return Sentence(
        f"The journal has no key of this scope, {found.text}. Start the desk for the right scope.",
        found.values,
    )


def nothing_to_do(view: KeyView) -> str:
    """Why nothing can be done about a key by hand."""
    if view.key == FOUR_EYES and not view.readable:
        return (
            "Nothing here. The rule cannot be read, so two persons are needed: "
            "transfer-async journal four-eyes demand writes it anew."
        )
    if view.key == FOUR_EYES:
        return "Nothing here: transfer-async journal demands it, and proposes to end it."
    if view.is_sealed:
        return "Nothing here: its record is sealed. Start the desk with the keys that it was sealed with."
    if view.owed:
        return "Nothing by hand: the next recovery undoes what is owed."
    if view.state is KeyState.CLAIMED:
        return "Nothing by hand, for nothing was sent: a new delivery or the next recovery takes it up."
    return "Nothing: it has come to its end."


def sentence(error: Exception) -> str:
    """What a journal's no says, without the name of the argument that it begins with."""
    told = str(error)
    argument, _, rest = told.partition(": ")
    if rest and argument in ("key", "by"):
        return rest[:1].upper() + rest[1:]
    if rest and argument.isidentifier():  # a field of the form; what follows may name a hook
        told = f"{argument.replace('_', ' ')}: {rest}"
    return told[:1].upper() + told[1:]


def moment(since_1970: float) -> datetime:
    """So many seconds since 1970 as a time in UTC; damaged ones as the nearest that there is."""
    try:
        return datetime.fromtimestamp(since_1970, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime(9999, 12, 31, tzinfo=UTC) if since_1970 > 0 else datetime(1, 1, 1, tzinfo=UTC)


def name_of(key: str) -> str:
    """What a key is called."""
    return "The rule of four eyes" if key == FOUR_EYES else key


def move(name: str) -> str:
    """A move of the history."""
    return _MOVES.get(name, name)


def money(amount: Decimal, currency: str) -> str:
    """An amount, every digit of it, with its thousands apart."""
    return f"{amount:,f} {currency}".rstrip()


def count(number: int, thing: str) -> str:
    """How many of them."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def time(when: datetime) -> str:
    """A time in UTC, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(when: datetime) -> str:
    """The same as ISO 8601."""
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
