"""What one person proposes, for another to approve: the nouns of the rule of four eyes."""

from __future__ import annotations

import enum
import unicodedata

from attrs import frozen

from transfer_async._models.base import ByValue
from transfer_async._models.texts import UNSEEN

FOUR_EYES = "\tfour eyes"
"""The key under which a scope's demand for four eyes stands, with its history: no order's key can be it."""


class Decision(enum.Enum):
    """What a person decides of a key."""

    RESOLVE = "resolve"
    """The order of a doubt exists."""

    REFUTE = "refute"
    """The order of a doubt does not exist, and can no longer appear."""

    AMEND = "amend"
    """An id that a person gave is the wrong one: another is, or nobody knows."""

    WAIVE = "waive"
    """From now on one person is enough."""


@frozen(kw_only=True, eq=False, repr=False)
class Proposal(ByValue):
    """What a person has proposed, as long as the key has made no move since.

    Args:
        id: what an approval names, so that it is for what was seen, and nothing else.
        decision: see `Decision`.
        order_id: of the order, for `RESOLVE` and `AMEND`; None with `AMEND` takes the key back into doubt.
        by: who proposes it.
        reason: how they know.
        at: when, in seconds on the journal's clock.
        undone: for `REFUTE`: what hooks did that no recovery could undo is undone by hand.
    """

    id: str
    decision: Decision
    order_id: str | None = None
    by: str
    reason: str
    at: float
    undone: bool = False


def is_same_person(one: str, other: str) -> bool:
    """Whether two names are one person's, however they are written."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    # Case-folding takes some letters apart and NFKC puts them together again, so each once more.
    for _ in range(2):
        name = unicodedata.normalize("NFKC", UNSEEN.sub("", name)).casefold()
    return "".join(unicodedata.normalize("NFKC", name).split())
