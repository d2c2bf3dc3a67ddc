"""The desk's operators, their roles, and the forms that a key's page offers to each operator."""

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
"""The maximum length of an operator's name, in characters. The name is part of every history line."""


class Role(enum.Enum):
    """An operator's permissions.

    Every operator, with or without a role, may see the list and the keys' pages.
    """

    PARTIES = "parties"
    """View the names of an order's parties. The history records each access."""

    CHANGE = "change"
    """Make decisions. Under dual control, only propose them."""

    APPROVE = "approve"
    """Approve other people's proposals."""


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
    """A person who uses the desk.

    Args:
        name: the name that the history records, a single line of at most 200 characters.
        roles: the person's roles, as `Role` members or their values. By default, the person has no role, and
            can only view the list and the keys' pages.

    Raises:
        ValueError: an argument is invalid. The message names the argument and the rule.
    """

    name: str = field()
    roles: frozenset[Role] = field(default=frozenset(), converter=_checked_roles)

    @name.validator
    def _check_name(self, _: object, name: str) -> None:
        if checked_name("name", name) != name or len(name) > LONGEST_NAME:
            raise ValueError(
                f"name: must be a single line of 1 to {LONGEST_NAME} characters, without a space at the end"
            )

    def may(self, role: Role) -> bool:
        """Return whether the operator has ``role``."""
        return role in self.roles


Who = Callable[[web.Request], Operator | Awaitable[Operator | None] | None]
"""A plain or async function that returns the operator of a request, or None for an unknown person.

It may raise one of aiohttp's HTTP exceptions, such as ``HTTPFound`` to a sign-in page, or
``HTTPUnauthorized`` with a ``WWW-Authenticate`` header. The exception's headers and cookies are added to the
response.
"""


def checked_who(who: object) -> Who:
    """Check that ``who`` is a function, and return it unchanged."""
    refuse_class(who, name="who")
    if not callable(who):
        raise ValueError("who: must be a function of the request that returns an Operator, or None")  # noqa: TRY004 - as every wrong setting
    return who


async def operator_of(who: Who, request: web.Request) -> Operator | None:
    """Return the operator of a request, or None for an unknown person."""
    found = who(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Operator):
        raise TypeError(f"who: must return an Operator or None, not a {type(found).__name__}")
    return found


# --- forms and their token --------------------------------------------------------------------------
# The forms on a key's page, and the token that ensures that a form does only what its page showed.


@frozen(kw_only=True)
class DecisionForm:
    """A form on a key's page that makes or proposes one decision."""

    row: DecisionRow
    button: str  # the text of its button
    effects: tuple[Sentence, ...]  # the effects of the decision
    not_before: datetime | None = None  # the earliest time of the decision, if that is in the future
    asks_undone: bool = False  # whether hooks must first be undone manually
    is_reviewed: bool = False  # whether the operator must confirm the decision on a review page

    @property
    def name(self) -> str:
        """The name of the form."""
        return self.row.name


def forms_for(view: KeyView, *, four_eyes: bool, holds: frozenset[str], now: datetime) -> list[DecisionForm]:
    """Return the forms for all decisions that an operator can currently make about the key."""
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
    """Return the form for making a decision about the key or, under dual control, for proposing it."""
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
    """Return the decision made by submitting the form ``name``, or None if it needs no review.

    A decision that no order exists requires a review, because it releases holds and cannot be undone. Under
    dual control, only the approval is reviewed, because a proposal can still be withdrawn.
    """
    if name == "approve":
        row = None if view.proposal is None else proposed_row(view.proposal)
    else:
        row = None if four_eyes else next((row for row in DECISIONS if row.name == name), None)
    return row if row is not None and row.frees_key else None


def token_of(view: KeyView, name: str, *, four_eyes: bool, holds: frozenset[str]) -> str:
    """Return the form token for a page that shows ``view`` to the operator ``name``.

    The token is a hash of the key's state and of the forms on the page, including their buttons and effects.
    A form whose effects have changed in the meantime is therefore refused. The token excludes the earliest
    time of a decision, so a page does not become outdated merely because time passes. The token cannot be
    guessed, because the ids of intents and attempts are random. Any process behind the same address can check
    the token, which depends on no secret.
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
    """Return whether the key's page would still contain the same forms as the page with ``token``."""
    current = token_of(view, name, four_eyes=four_eyes, holds=holds)
    return hmac.compare_digest(token.encode(), current.encode())
