"""What the desk says in words: plain text, which the templates escape like any other."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from transfer_async._models.doubt_cause import Cause
from transfer_async._models.errors import CauseKind
from transfer_async._pipeline.key_views import KeyView
from transfer_async.journal.entries import KeyState
from transfer_async.journal.proposal import FOUR_EYES

KINDS = {
    "doubt": "in doubt",
    "proposed": "proposed",
    "owed": "undo owed",
    "abandoned": "left behind",
    "untold": "to tell",
    "unreadable": "unreadable",
}
"""Why a key waits."""

KINDS_EXPLAINED = {
    "doubt": "The order may exist, and the hold is kept. Find out, then say how it ended.",
    "proposed": "One person has proposed how it ends; another one approves.",
    "owed": "A certain no is on record, but a hook is not undone yet: the next recovery tries again.",
    "abandoned": "A worker took it and is gone: the next recovery takes it up.",
    "untold": "A doubt has ended, and whoever waits for that has not heard: a worker tells them.",
    "unreadable": "What is stored of the key cannot be read: undo its hooks by hand.",
}

_CAUSES = {
    CauseKind.NO_ANSWER: "no answer",
    CauseKind.CUT_ANSWER: "answer cut off",
    CauseKind.STATUS: "unclear status",
    CauseKind.UNREADABLE_ANSWER: "unreadable answer",
    CauseKind.SECOND_ANSWER: "a second answer",
    CauseKind.ABANDONED: "worker gone",
    CauseKind.CLOSED: "cut off at close",
    CauseKind.TAKEN_BACK: "taken back",
}

_MOVES = {
    "claim": "a worker took the key",
    "keep": "the worker was still at it",
    "takeover": "another worker took over, to undo it",
    "mark": "the request was about to be sent",
    "create": "the service answered with the order",
    "free": "it ended in a certain no",
    "doubt": "it became unknown whether the order exists",
    "expire": "its worker was found gone; the request may have arrived",
    "resolve": "the order was said to exist",
    "refute": "the order was said not to exist",
    "amend": "the order's id was corrected",
    "takeback": "the order's id was taken back",
    "propose": "an end was proposed",
    "withdraw": "the proposal was withdrawn",
    "demand": "four eyes were demanded",
    "waive": "four eyes were no longer demanded",
    "look": "the parties were looked at",
    "paid": "what its hooks did was undone",
    "owe": "an undo became due late",
    "suspect": "an order turned up against the record",
    "layaside": "what could not be read was laid aside",
    "promise": "somebody was told that it is unknown",
    "told": "somebody was told how it ended",
}
"""What the history calls a move, in words; one of a later version keeps its name."""


DECISIONS = {
    "resolve": "the order exists",
    "refute": "no order exists, and none can appear",
    "amend": "what was said before is corrected",
    "waive": "four eyes are no longer demanded",
}
"""What may be proposed."""

DONE = {
    "resolved": "Kept: the order exists. The key gives it back from now on.",
    "refuted": "Kept: no order exists. The next recovery releases the hold.",
    "amended": "Kept: the key has the other order now.",
    "takenback": "Kept: the key is in doubt again.",
    "proposed": "Proposed. It waits for somebody else to approve it.",
    "approved": "Approved: it is done.",
    "withdrawn": "The proposal is withdrawn.",
}
"""What is told after a change."""


def nothing_to_do(view: KeyView) -> str:
    """Why nothing can be done about a key by hand."""
    if view.key == FOUR_EYES:
        return "Nothing here: transfer-async journal demands it, and proposes to end it."
    if view.owed:
        return "Nothing by hand: the next recovery undoes what is owed."
    if view.state is KeyState.CLAIMED:
        return "Nothing by hand, for nothing was sent: a new delivery or the next recovery takes it up."
    return "Nothing: it has come to its end."


def sentence(error: Exception) -> str:
    """What a journal's no says, without the name of the argument that it begins with."""
    told = str(error)
    argument, _, rest = told.partition(": ")
    told = rest if rest and argument in ("key", "by") else told
    return told[:1].upper() + told[1:].replace("_", " ")


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


def cause_in_short(cause: Cause | None) -> str:
    """Why a key is in doubt, in two or three words; empty if it is not known."""
    if cause is None:
        return ""
    if cause.kind is CauseKind.STATUS and cause.status is not None:
        return f"status {cause.status}"
    return _CAUSES[cause.kind]


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


def age(seconds: float) -> str:
    """An age in its two largest units."""
    left = max(0, int(seconds))
    told: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or told or unit == "s":
            told.append(f"{number} {unit}")
    return " ".join(told[:2])
