"""What a form carries to say on which page it stood: of which key, for whom, and after which of its moves."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from transfer_async._pipeline.key_views import KeyView
from transfer_async.journal.entries import Step

LOOK = "look"
"""Of the history: somebody saw the parties. It changes nothing, and makes no page stale."""


def stamp_of(view: KeyView, name: str) -> str:
    """The stamp of a page that shows ``view`` to the operator of that name.

    Whoever has not seen the page cannot guess it: ids of intents and attempts are drawn at random. No
    secret of this process is in it, so that any of several, behind one address, can read it.
    """
    entry = view.entry
    about = (view.key, name, entry.state.value, entry.intent_id, entry.epoch, entry.attempt, view.moves)
    return f"{view.moves}.{hashlib.sha256(repr(about).encode()).hexdigest()}"


def is_current(stamp: str, view: KeyView, name: str) -> bool:
    """Whether the key has not moved since the page was made."""
    return hmac.compare_digest(stamp.encode(), stamp_of(view, name).encode())


def since(stamp: str, view: KeyView, steps: Sequence[Step]) -> tuple[Step, ...]:
    """What happened since the page with ``stamp`` was made; empty if that cannot be told."""
    moves = [step for step in steps if step.move != LOOK]
    number = stamp.partition(".")[0]
    seen = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else view.moves
    new = max(0, view.moves - seen)
    return tuple(moves[-new:]) if new else ()
