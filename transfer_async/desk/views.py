"""What is looked at: what waits, one key, and, where somebody asks for it, who pays whom."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from attrs import frozen
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from transfer_async._models.requests import UNSEEN, OrderIntent
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.decisions import pending, row_of
from transfer_async._pipeline.key_views import KeyView, Sentence
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock, in_two_units
from transfer_async.desk import labels
from transfer_async.desk.auth import Operator, Role, effects_of_proposal, forms_for, token_of
from transfer_async.desk.pending_keys import (
    KINDS,
    PER_PAGE,
    Choice,
    PendingKeysCache,
    began_at,
    found_by_text,
    kinds_of,
    line_of,
    listing,
    next_after,
)
from transfer_async.journal.model import FOUR_EYES, is_same_person
from transfer_async.journal.state_machine import latest

REFRESH = 30
"""Seconds after which a live list is asked for again, by the browser itself."""

LONGEST_ADDRESS = 4_000
"""Characters of the address of what was found: proxies take 8,000, and some of a browser's headers count."""


def looks_again(request: web.Request) -> bool:
    """Whether ``request`` asks for the list, which a display on a wall may show for days."""
    return request.method == "GET" and request.path.endswith("/")


class Views:
    """The pages that change nothing; but that somebody saw the parties is kept in the history."""

    def __init__(self, office: SharedHandlers) -> None:
        self._office = office

    async def waiting(self, request: web.Request) -> web.Response:
        """The list of what waits."""
        snapshot = await self._office.board.shown()
        choice = Choice.of(request.query, snapshot)
        page = listing(snapshot, choice)
        choice = choice.at(page.page)
        others = () if snapshot.lines else await self._office.operators.other_scopes()
        response = answered(
            "list",
            operator=operator_at(request),
            scope=self._office.operators.scope,
            heading="What waits",
            caption="Keys that wait for somebody",
            nothing="Nothing waits." if snapshot.is_complete else "Nothing so far.",
            other_scopes=labels.other_scopes(others) if others else "",
            snapshot=snapshot,
            choice=choice,
            page=page,
            lines=page.lines,
            shown_kinds=[kind for kind in KINDS if snapshot.counts[kind]],
            four_eyes=await self._office.operators.four_eyes(),
            four_eyes_key=FOUR_EYES,
            now=self._office.clock.utc().timestamp(),
            every=REFRESH,
            address=address,
            live=choice.live,
        )
        if choice.live:  # such a page has no field: what somebody types would be lost
            response.headers["Refresh"] = str(REFRESH)
        return response

    async def key(self, request: web.Request) -> web.Response:
        """One key."""
        try:
            view = await self._office.operators.view(request.query.get("key", ""))
        except ValueError:
            return await self._nothing(request)
        done = request.query.get("done", "")
        return await key_page(self._office, operator_at(request), view, done=done)

    async def find(self, request: web.Request) -> web.Response:
        """Send the browser to the key of that name, or to those that contain the text and wait.

        The text is in no address. The browser is always sent on: what answers a form cannot be gone back to.
        """
        text = (await fields_of(request)).get("text", "").strip()
        try:
            view = await self._office.operators.view(text)
        except ValueError:
            snapshot = await self._office.board.shown()
            keys = [line.key for line in found_by_text(snapshot, text)]
            raise web.HTTPSeeOther(address_of_found(keys, is_partial=not snapshot.is_complete)) from None
        raise web.HTTPSeeOther(address(view.key))

    async def found(self, request: web.Request) -> web.Response:
        """The keys that are in the address; those that no longer wait are linked beside the list."""
        wanted = set(request.query.getall("key", [])[:PER_PAGE]) - {FOUR_EYES}
        lines = [line for line in found_by_text(await self._office.board.shown(), "") if line.key in wanted]
        ended: list[str] = []
        for key in sorted(wanted - {line.key for line in lines}):  # not listed, or not read yet
            with contextlib.suppress(ValueError):  # an address may name what nobody has ever used
                line = line_of(await self._office.operators.view(key))
                ended += [key] if line is None else []
                lines += [] if line is None else [line]
        lines.sort(key=attrgetter("since"))
        is_partial = "partial" in request.query
        more = request.query.get("more", "")
        beyond = int(more) if more.isascii() and more.isdigit() and len(more) < 7 else 0
        caption = labels.count(len(lines), "key")
        if beyond:
            caption = f"The oldest {len(lines)} of {labels.count(len(lines) + beyond, 'key')}"
        others = () if lines or ended else await self._office.operators.other_scopes()
        return answered(
            "list",
            operator=operator_at(request),
            scope=self._office.operators.scope,
            heading="Found",
            choice=None,
            lines=lines,
            ended=ended,
            is_partial=is_partial,
            caption=caption,
            nothing="" if ended or is_partial else "No such key, and no key that waits contains this text.",
            other_scopes=labels.other_scopes(others) if others else "",
            now=self._office.clock.utc().timestamp(),
            address=address,
        )

    async def parties(self, request: web.Request) -> web.Response:
        """One key, with who pays whom."""
        operator = operator_at(request)
        if not operator.may(Role.PARTIES):
            raise web.HTTPForbidden
        fields = await fields_of(request)
        try:
            view = await self._office.operators.view(fields.get("key", ""))
        except ValueError:
            return await self._nothing(request)
        try:
            found = await self._office.operators.look(
                view.key, by=operator.name, reason=fields.get("reason", "")
            )
        except ValueError as error:
            more = {"problem": labels.sentence(error), "tried": "parties", "reason": fields.get("reason", "")}
            return await key_page(self._office, operator, view, status=422, **more)
        return await key_page(self._office, operator, view, parties=list(_parties(found)))

    async def _nothing(self, request: web.Request) -> web.Response:
        others = await self._office.operators.other_scopes()
        told = labels.other_scopes(others) if others else labels.NOTHING_ON_RECORD
        operator, scope = operator_at(request), self._office.operators.scope
        return answered("message", status=404, title="No such key", told=told, operator=operator, scope=scope)


def address_of_found(keys: list[str], *, is_partial: bool = False) -> str:
    """The address, within the desk, of a list of the first of ``keys``; partial while the journal is read."""
    length, shown = 0, 0
    for key in keys[:PER_PAGE]:
        length += len(urlencode({"key": key})) + 1
        if length > LONGEST_ADDRESS and shown:
            break
        shown += 1
    query = [("key", key) for key in keys[:shown]]
    more = [("more", str(len(keys) - shown))] if len(keys) > shown else []
    partial = [("partial", "1")] if is_partial else []
    return f"found?{urlencode(query + more + partial)}"


def _parties(found: OrderIntent | Order) -> Iterator[tuple[str, str]]:
    if isinstance(found, Order):
        yield from _person("Poster", found.user)
        yield from _person("Beneficiary", found.posters_beneficiary)
        return
    yield "Poster", found.order.poster_username
    yield "Beneficiary", found.order.poster_recipient_username
    if (name := found.beneficiary) is not None:
        yield "The customer's words", " ".join(part for part in (name.first, name.middle, name.last) if part)


def _person(role: str, user: User | None) -> Iterator[tuple[str, str]]:
    if user is not None:
        names = " ".join(part for part in (user.firstname, user.middlename, user.lastname) if part)
        yield role, ", ".join(part for part in (user.username, names) if part)


# --- office ------------------------------------------------------------------------------------------
# What every page of the desk has at hand.


OPERATOR: Any = getattr(web, "RequestKey", lambda name, _: name)("operator", Operator)
"""Where a request has who asks; an older aiohttp takes plain names."""

SHOWN_STEPS = 200
"""So many moves of a key are shown; the command line shows all."""

LONGEST_FIELD = 10_000
"""Characters."""


@frozen(kw_only=True)
class SharedHandlers:
    """The journal's operators' side, and what was read of it.

    Args:
        operators: reads and changes the journal.
        board: what waits.
        clock: for ages.
        holds: names of hooks that place the hold on a customer's funds.
    """

    operators: Operators
    board: PendingKeysCache
    clock: Clock
    holds: frozenset[str]


def operator_at(request: web.Request) -> Operator:
    """Who asks; the door has let nobody else in."""
    found: Operator = request[OPERATOR]
    return found


def answered(template: str, *, status: int = 200, **given: Any) -> web.Response:
    """A page."""
    return web.Response(text=page(template, **given), content_type="text/html", status=status)


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
        fields = {name: value for name, value in given.items() if isinstance(value, str)}
        "".join([*fields, *fields.values()]).encode()
    except (ValueError, LookupError):  # no text: of another character set than it says, or of none
        raise web.HTTPBadRequest from None
    if len(fields) != len(given) or any(len(value) > LONGEST_FIELD for value in fields.values()):
        raise web.HTTPBadRequest
    return fields


async def key_page(
    office: SharedHandlers,
    operator: Operator,
    view: KeyView,
    *,
    status: int = 200,
    done: str = "",
    **more: Any,
) -> web.Response:
    """Return the page of one key, as it is now.

    Args:
        office: what the pages share.
        operator: the operator who asks.
        view: the key.
        status: the HTTP status.
        done: what the address says was done; it is shown only if it is on record.
        more: the result of what the operator tried: ``problem``, ``since``, ``tried``, ``parties`` …
    """
    steps = await office.operators.history(view.key)
    shown = latest(steps, SHOWN_STEPS)
    told, following = labels.notice(done, view, steps, by=operator.name), None
    if told is not None:
        following = next_after(await office.board.at_hand(), view.key, since=began_at(view))
    given = {
        "operator": operator,
        "scope": office.operators.scope,
        "view": view,
        "name": labels.name_of(view.key),
        "why": kinds_of(view),
        "sealed": labels.SEALED if view.is_sealed else None,
        "steps": shown,
        "earlier": len(steps) - len(shown),
        "pending": pending(view, holds=office.holds),
        "nothing_to_do": labels.nothing_to_do(view),
        "has_parties": view.readable and (view.order is not None or view.entry.reply is not None),
        "done": told,
        "next": following,
        "at": labels.moment,
        "address": address,
        **_forms(office, operator, view, four_eyes=(await office.operators.four_eyes()).demanded),
        **dict.fromkeys(("problem", "since", "tried", "parties")),
        **dict.fromkeys(("reason", "order_id"), ""),
        **more,
    }
    return answered("key", status=status, **given)


def _forms(office: SharedHandlers, operator: Operator, view: KeyView, *, four_eyes: bool) -> dict[str, Any]:
    """Return what the page's forms show, and what the operator may do with them."""
    proposal = view.proposal
    is_own = proposal is not None and is_same_person(proposal.by, operator.name)
    return {
        "forms": forms_for(view, four_eyes=four_eyes, holds=office.holds, now=office.clock.utc()),
        "token": token_of(view, operator.name, four_eyes=four_eyes, holds=office.holds),
        "proposed": None if proposal is None else row_of(proposal.decision, proposal.order_id).explained,
        "proposal_effects": effects_of_proposal(view, holds=office.holds),
        "is_own": is_own,
        "may_change": operator.may(Role.CHANGE),
        "may_approve": operator.may(Role.APPROVE) and not is_own,
        "may_withdraw": operator.may(Role.APPROVE) or operator.may(Role.CHANGE),
        "may_see": operator.may(Role.PARTIES),
    }


# --- pages -------------------------------------------------------------------------------------------
# The templates, and what they may use: whatever comes into them is escaped, and marked where it is unseen.
#
# A reference with letters from right to left, or with characters that steer the direction, would turn round
# the amount beside it. So `shown` marks what is not printable, and texts from elsewhere stand in a ``bdi``.


_FOLDER = Path(__file__).with_name("templates")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def marked(text: str) -> str:
    """``text`` with a mark such as ``[U+202E]`` for each character that is not printable, or not seen."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        item if item == "\n" or (item.isprintable() and not UNSEEN.match(item)) else f"[U+{ord(item):04X}]"
        for item in text
    )


def isolated(text: str) -> Markup:
    """``text`` from elsewhere, so that its direction turns nothing round beside it."""
    return Markup("<bdi>{}</bdi>").format(marked(text))


def exact(text: str) -> Markup:
    """``text`` without marks, for a field that the browser sends back as it is."""
    return escape(text)


def shown(value: object) -> object:
    """What a template writes for ``value``; it is asked for every one."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Sentence):
        return Markup(value.shown(isolated))  # noqa: S704 - its text is the package's own
    return marked(value) if isinstance(value, str) else value


# Read once, on import: they are files, and requests are answered within a loop.
STYLE = _read("desk.css")
ICON = _read("icon.svg")

_environment = Environment(
    loader=DictLoader({name: _read(name) for name in ("base.html", "list.html", "key.html", "message.html")}),
    autoescape=True,
    finalize=shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    age=in_two_units,
    bdi=isolated,
    count=labels.count,
    exact=exact,
    machine_time=labels.machine_time,
    move=labels.move,
    time=labels.time,
)
_environment.globals.update(money=labels.money, kinds=labels.KINDS, kinds_explained=labels.KINDS_EXPLAINED)
_TEMPLATES = {name: _environment.get_template(f"{name}.html") for name in ("list", "key", "message")}


def page(template: str, **given: Any) -> str:
    """A page of HTML.

    Args:
        template: ``list``, ``key`` or ``message``.
        given: what it shows.
    """
    return _TEMPLATES[template].render(given)
