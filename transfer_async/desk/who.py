"""Who sits at the desk, and what they may do."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from attrs import field, frozen

from transfer_async._pipeline.refusals import checked_text
from transfer_async._support.callables import refuse_class

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
        if checked_text("name", name) != name or len(name) > LONGEST_NAME:
            raise ValueError(f"name: must be a line of 1 to {LONGEST_NAME} characters, not ending in a blank")

    def may(self, role: Role) -> bool:
        """Whether they have ``role``."""
        return role in self.roles


Who = Callable[[web.Request], Operator | Awaitable[Operator | None] | None]
"""Tells who asks: an `Operator`, or None for nobody that it knows. It may be async.

It may raise one of aiohttp's own answers, as ``HTTPFound`` to where people sign in.
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
