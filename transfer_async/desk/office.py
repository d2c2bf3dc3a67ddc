"""What every page of the desk has at hand."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from attrs import frozen

from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock
from transfer_async.desk import pages, words
from transfer_async.desk.board import Board, began_at, kinds_of
from transfer_async.desk.deeds import deeds, effects_of_proposal
from transfer_async.desk.listing import next_after
from transfer_async.desk.stamp import stamp_of
from transfer_async.desk.who import Operator, Role
from transfer_async.journal.proposal import is_same_person

OPERATOR: Any = getattr(web, "RequestKey", lambda name, _: name)("operator", Operator)
"""Where a request has who asks; an older aiohttp takes plain names."""

SHOWN_STEPS = 200
"""The last moves of a key are shown; the command line shows all."""

LONGEST_FIELD = 10_000
"""Characters."""


@frozen(kw_only=True)
class Office:
    """The journal's operators' side, and what was read of it.

    Args:
        operators: reads and changes the journal.
        board: what waits.
        clock: for ages.
        holds: names of hooks that place the hold on a customer's funds.
    """

    operators: Operators
    board: Board
    clock: Clock
    holds: frozenset[str]


def operator_at(request: web.Request) -> Operator:
    """Who asks; the door has let nobody else in."""
    found: Operator = request[OPERATOR]
    return found


def answered(template: str, *, status: int = 200, **given: Any) -> web.Response:
    """A page."""
    return web.Response(text=pages.page(template, **given), content_type="text/html", status=status)


def address(key: str, **more: str) -> str:
    """The address of a key's page, within the desk: keys may hold anything that a path may not."""
    return f"key?{urlencode({'key': key, **more})}"


async def fields_of(request: web.Request) -> dict[str, str]:
    """The fields of a form.

    Raises:
        HTTPUnsupportedMediaType: it is not the desk's own kind of form.
        HTTPBadRequest: it cannot be read, a field came twice, or is longer than any that the desk asks for.
    """
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType
    try:
        given = await request.post()
    except (ValueError, LookupError):  # bytes that are no text, in a character set that is none
        raise web.HTTPBadRequest from None
    fields = {name: value for name, value in given.items() if isinstance(value, str)}
    if len(fields) != len(given) or any(len(value) > LONGEST_FIELD for value in fields.values()):
        raise web.HTTPBadRequest
    return fields


async def key_page(
    office: Office, operator: Operator, view: KeyView, *, status: int = 200, **more: Any
) -> web.Response:
    """The page of one key, as it stands now.

    Args:
        office: what is at hand.
        operator: who asks.
        view: the key.
        status: of the answer.
        more: what came of what was tried: ``problem``, ``since``, ``tried``, ``done``, ``parties`` …
    """
    four_eyes = (await office.operators.four_eyes()).demanded
    snapshot = await office.board.shown()
    todo = deeds(view, four_eyes=four_eyes, holds=office.holds, now=office.clock.utc())
    is_own = view.proposal is not None and is_same_person(view.proposal.by, operator.name)
    steps = await office.operators.history(view.key)
    given = {
        "operator": operator,
        "view": view,
        "why": kinds_of(view),
        "steps": steps[-SHOWN_STEPS:],
        "earlier": len(steps[:-SHOWN_STEPS]),
        "stamp": stamp_of(view, operator.name),
        "deeds": todo,
        "proposal_effects": effects_of_proposal(view, holds=office.holds),
        "decisions": words.DECISIONS,
        "nothing_to_do": words.nothing_to_do(view),
        "is_own": is_own,
        "may_change": operator.may(Role.CHANGE),
        "may_approve": operator.may(Role.APPROVE) and not is_own,
        "may_withdraw": operator.may(Role.APPROVE) or operator.may(Role.CHANGE),
        "may_see": operator.may(Role.PARTIES),
        "has_parties": view.order is not None or view.entry.reply is not None,
        "name": words.name_of(view.key),
        "next": next_after(snapshot, view.key, since=began_at(view)),
        "at": words.moment,
        "address": address,
        **dict.fromkeys(("problem", "since", "tried", "done", "parties")),
        **dict.fromkeys(("reason", "order_id"), ""),
        **more,
    }
    return answered("key", status=status, **given)
