"""Who sits at the desk, and what they may do."""

from __future__ import annotations

import enum
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

from aiohttp import web
from attrs import field, frozen

from transfer_async._pipeline.key_views import LOOK, KeyView, Sentence, checked_name
from transfer_async._support.clock import LATEST
from transfer_async._support.util import refuse_class
from transfer_async.desk.labels import deeds, effects_of_proposal
from transfer_async.journal.model import HistoryEvent

LONGEST_NAME = 200
"""Characters: a name stands in a column of every key's history."""


class Role(enum.Enum):
    """What an operator may do beside looking at what waits."""

    PARTIES = "parties"
    """See who pays whom; each look is asked for."""

    CHANGE = "change"
    """End doubts; where four eyes are demanded, propose how they end."""

    APPROVE = "approve"
    """Approve what another has proposed."""


def _checked_roles(given: Iterable[Role | str]) -> frozenset[Role]:
    known = ", ".join(repr(role.value) for role in Role)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"roles: must be a set of roles: {known}")  # noqa: TRY004 - as every wrong setting
    try:
        return frozenset(Role(role) for role in given)
    except ValueError:
        raise ValueError(f"roles: must be among {known}") from None


@frozen
class Operator:
    """Somebody at the desk.

    Args:
        name: under which the journal keeps what they do: one line of at most 200 characters.
        roles: what they may do, as `Role` or as its value; nothing but look by default.

    Raises:
        ValueError: names the argument and the rule.
    """

    name: str = field()
    roles: frozenset[Role] = field(default=frozenset(), converter=_checked_roles)

    @name.validator
    def _check_name(self, _: object, name: str) -> None:
        if checked_name("name", name) != name or len(name) > LONGEST_NAME:
            raise ValueError(f"name: must be a line of 1 to {LONGEST_NAME} characters, not ending in a blank")

    def may(self, role: Role) -> bool:
        """Whether they have ``role``."""
        return role in self.roles


Who = Callable[[web.Request], Operator | Awaitable[Operator | None] | None]
"""Tells who asks: an `Operator`, or None for nobody that it knows. It may be async.

It may raise one of aiohttp's own answers, as ``HTTPFound`` to where people sign in, or ``HTTPUnauthorized``
with ``WWW-Authenticate``. Its headers and cookies are kept.
"""


def checked_who(who: object) -> Who:
    """``who``, if it can be asked.

    Raises:
        ValueError: it cannot.
    """
    refuse_class(who, name="who")
    if not callable(who):
        raise ValueError("who: must be a function of the request that returns an Operator, or None")  # noqa: TRY004 - as every wrong setting
    return who


async def operator_of(who: Who, request: web.Request) -> Operator | None:
    """Who asks.

    Raises:
        TypeError: it returned something else.
    """
    found = who(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Operator):
        raise TypeError(f"who returned a {type(found).__name__}, and must return an Operator, or None")
    return found


# --- stamp -------------------------------------------------------------------------------------------
# What a form carries to say on which page it stood: of which key, for whom, and what it promised.


def stamp_of(view: KeyView, name: str, *, four_eyes: bool, holds: frozenset[str]) -> str:
    """The stamp of a page that shows ``view`` to the operator of that name.

    It covers what the forms of the page promise: whether they propose or decide, and all that they cause. So
    a form never does anything else than what was read on it. When a thing can be done at the earliest is no
    promise: a page does not become stale because time passes.

    Whoever has not seen the page cannot guess it: ids of intents and attempts are drawn at random. No
    secret of this process is in it, so that any of several, behind one address, can read it.
    """
    entry = view.entry
    offered = deeds(view, four_eyes=four_eyes, holds=holds, now=LATEST)
    promised = [
        (four_eyes, item.name, item.button, *_read(item.effects), item.asks_undone) for item in offered
    ]
    approving = _read(effects_of_proposal(view, holds=holds))
    state = (entry.state.value, entry.intent_id, entry.epoch, entry.attempt, view.moves)
    about = (view.key, name, *state, promised, approving)
    return f"{view.moves}.{hashlib.sha256(repr(about).encode()).hexdigest()}"


def _read(effects: Sequence[Sentence]) -> list[str]:
    return [effect.shown(str) for effect in effects]


def is_current(stamp: str, view: KeyView, name: str, *, four_eyes: bool, holds: frozenset[str]) -> bool:
    """Whether a page that is made now would promise the same as the page with ``stamp``."""
    current = stamp_of(view, name, four_eyes=four_eyes, holds=holds)
    return hmac.compare_digest(stamp.encode(), current.encode())


def since(stamp: str, view: KeyView, steps: Sequence[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """What happened since the page with ``stamp`` was made; empty if that cannot be told."""
    moves = [step for step in steps if step.move != LOOK]
    number = stamp.partition(".")[0]
    seen = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else view.moves
    new = max(0, view.moves - seen)
    return tuple(moves[-new:]) if new else ()
