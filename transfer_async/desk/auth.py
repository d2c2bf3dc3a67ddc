"""The operators of the page, their roles, and the forms that a page offers them."""

from __future__ import annotations

import enum
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime

from aiohttp import web
from attrs import field, frozen

from transfer_async._pipeline.decisions import (
    DECISIONS,
    DecisionRow,
    effects_of,
    effects_of_proposal,
    proposed_row,
)
from transfer_async._pipeline.key_views import KeyView, Sentence, checked_name
from transfer_async._support.clock import MAX_TIME
from transfer_async._support.util import refuse_class

LONGEST_NAME = 200
"""The maximum length of a name, in characters: it stands in a column of every key's history."""


class Role(enum.Enum):
    """What an operator may do besides seeing the list and the keys."""

    PARTIES = "parties"
    """See the parties of an order; each look-up is recorded."""

    CHANGE = "change"
    """Make decisions; under dual control, propose them."""

    APPROVE = "approve"
    """Approve another person's proposal."""


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
    """A person who uses the page.

    Args:
        name: the name that the history records: one line of at most 200 characters.
        roles: what they may do, as `Role` or as its value; by default they only see the list and the keys.

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
        """Return whether they have ``role``."""
        return role in self.roles


Who = Callable[[web.Request], Operator | Awaitable[Operator | None] | None]
"""Returns the operator of a request, or None for an unknown person. It may be async.

It may raise one of aiohttp's HTTP exceptions, such as ``HTTPFound`` to a sign-in page, or
``HTTPUnauthorized`` with ``WWW-Authenticate``. Its headers and cookies are kept.
"""


def checked_who(who: object) -> Who:
    """Return ``who`` if it is a function.

    Raises:
        ValueError: ``who`` is not a function.
    """
    refuse_class(who, name="who")
    if not callable(who):
        raise ValueError("who: must be a function of the request that returns an Operator, or None")  # noqa: TRY004 - as every wrong setting
    return who


async def operator_of(who: Who, request: web.Request) -> Operator | None:
    """Return the operator of a request.

    Raises:
        TypeError: ``who`` returned neither an `Operator` nor None.
    """
    found = who(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Operator):
        raise TypeError(f"who returned a {type(found).__name__}, and must return an Operator, or None")
    return found


# --- forms and their token --------------------------------------------------------------------------
# The forms that a key's page offers, and the token that binds each to what the page showed.


@frozen(kw_only=True)
class DecisionForm:
    """A form of a key's page, for one decision."""

    row: DecisionRow
    button: str  # the text of its button
    effects: tuple[Sentence, ...]  # what it will cause
    not_before: datetime | None = None  # the earliest time for it, if that is in the future
    asks_undone: bool = False  # whether hooks must be undone manually first
    is_reviewed: bool = False  # whether it leads to a review, where the decision is confirmed

    @property
    def name(self) -> str:
        """The name of the form."""
        return self.row.name


def forms_for(view: KeyView, *, four_eyes: bool, holds: frozenset[str], now: datetime) -> list[DecisionForm]:
    """Return the forms for the decisions that can be made about the key now; none if only a recovery helps.

    ``holds`` are the names of hooks that place the hold.
    """
    if view.proposal is not None or view.is_sealed:
        return []
    return [
        form_for(row, view, four_eyes=four_eyes, holds=holds, now=now)
        for row in DECISIONS
        if row.is_offered(view)
    ]


def form_for(
    row: DecisionRow, view: KeyView, *, four_eyes: bool, holds: frozenset[str], now: datetime
) -> DecisionForm:
    """Return the form for a decision about the key; it proposes the decision under dual control."""
    button = row.propose if four_eyes else row.button
    at = view.refutable_at if row.frees_key else None
    return DecisionForm(
        row=row,
        button=button if isinstance(button, str) else button(view, holds),
        effects=effects_of(view, row, holds=holds, verb="Approving this" if four_eyes else ""),
        not_before=at if at is not None and at > now else None,
        asks_undone=row.asks_undone(view),
        is_reviewed=reviewed_row(row.name, view, four_eyes=four_eyes) is not None,
    )


def reviewed_row(name: str, view: KeyView, *, four_eyes: bool) -> DecisionRow | None:
    """Return the decision that the form ``name`` makes, if it cannot be undone; otherwise None.

    A refutation releases holds. A proposal to refute can be withdrawn, so its approval is reviewed instead.
    """
    if name == "approve":
        row = None if view.proposal is None else proposed_row(view.proposal)
    else:
        row = None if four_eyes else next((row for row in DECISIONS if row.name == name), None)
    return row if row is not None and row.frees_key else None


def token_of(view: KeyView, name: str, *, four_eyes: bool, holds: frozenset[str]) -> str:
    """Return the form token of a page that shows ``view`` to the operator of that name.

    It covers what the page's forms promise: whether they propose or decide, and all their effects. So a form
    never does anything else than what its page showed. The earliest time of a decision is not part of it, so
    that a page does not become out of date because time passes.

    The token cannot be guessed without the page, because the ids of intents and attempts are random. It holds
    no secret of this process, so that any of several processes behind one address can check it.
    """
    entry = view.entry
    forms = forms_for(view, four_eyes=four_eyes, holds=holds, now=MAX_TIME)
    promised = [(four_eyes, form.name, form.button, *_read(form.effects), form.asks_undone) for form in forms]
    approving = _read(effects_of_proposal(view, holds=holds))
    state = (entry.state.value, entry.intent_id, entry.epoch, entry.attempt, view.version)
    about = (view.key, name, *state, promised, approving)
    return f"{view.version}.{hashlib.sha256(repr(about).encode()).hexdigest()}"


def _read(effects: Sequence[Sentence]) -> list[str]:
    return [effect.shown(str) for effect in effects]


def is_current(token: str, view: KeyView, name: str, *, four_eyes: bool, holds: frozenset[str]) -> bool:
    """Return whether a page that is made now would promise the same as the page with ``token``."""
    current = token_of(view, name, four_eyes=four_eyes, holds=holds)
    return hmac.compare_digest(token.encode(), current.encode())
