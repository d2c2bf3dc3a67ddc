"""The pages for the list, a key and its parties, and also the texts and templates of all pages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, product
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from zoneinfo import ZoneInfo

from aiohttp import web
from attrs import evolve, field, frozen
from jinja2 import DictLoader, Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from multidict import MultiDict

from transfer_async._models.requests import UNSEEN, OrderIntent
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.decisions import (
    DECISIONS,
    DecisionRow,
    approval,
    effects_of_proposal,
    pending,
    proposed_in,
    proposed_row,
)
from transfer_async._pipeline.key_views import KeyView, Sentence, amount_in, money, only_scopes
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock, in_two_units, machine_time, moment, time_text
from transfer_async.desk.auth import Operator, Role, form_for, forms_for, token_of
from transfer_async.desk.pending_keys import (
    AGES,
    AMOUNTS,
    COLUMNS,
    KINDS,
    PER_PAGE,
    PROPOSALS,
    Choice,
    PendingKeysCache,
    PendingKeysSnapshot,
    as_csv,
    began_at,
    found_by_text,
    kinds_of,
    listing,
    next_after,
    pending_row,
    time_of,
)
from transfer_async.journal.model import FOUR_EYES, HistoryEvent, KeyState, is_same_person
from transfer_async.journal.operator_transitions import WITHOUT_CHANGE, Note, latest

REFRESH = 30
"""The seconds after which the browser reloads an automatically refreshed list."""

LONGEST_ADDRESS = 4_000
"""The maximum length of a URL that contains found keys.

Some proxies accept only 8,000 characters, headers included.
"""


def is_list(request: web.Request) -> bool:
    """Return whether ``request`` is for the list, which an unattended display may show for days."""
    return request.method == "GET" and request.path.endswith("/")


@frozen
class Views:
    """The pages that only show data.

    The pages record nothing in the journal, except each access to the parties.
    """

    _shared: Shared

    async def waiting(self, request: web.Request) -> web.Response:
        """Return the list of keys that need attention."""
        snapshot = await self._shared.cache.shown()
        me, now = operator_at(request), self._shared.clock.utc().timestamp()
        choice = Choice.of(request.query, snapshot, me=me, now=now)
        page = listing(snapshot, choice)
        choice = evolve(choice, page=page.page)
        response = await self._list(
            request,
            is_empty=not snapshot.rows,
            heading="Keys that need attention",
            nothing="No key needs attention." if snapshot.is_complete else "No key has been found so far.",
            snapshot=snapshot,
            choice=choice,
            page=page,
            rows=page.rows,
            shown_kinds=[kind for kind in KINDS if snapshot.totals.counts[kind]],
            proposals=_proposals_for(snapshot, me),
            four_eyes=await self._shared.operators.four_eyes(),
            four_eyes_key=FOUR_EYES,
            every=REFRESH,
            live=choice.live,
            wall=choice.wall,
        )
        if choice.live:  # Such a page has no form fields, because a reload would erase them.
            response.headers["Refresh"] = str(REFRESH)
        return response

    async def csv(self, request: web.Request) -> web.Response:
        """Return all rows of the chosen list as a CSV file."""
        snapshot, me = await self._shared.cache.shown(), operator_at(request)
        if snapshot.beyond or not snapshot.is_complete:
            text = (
                "There are too many keys for the list: use transfer-async journal list --json."
                if snapshot.beyond
                else "The journal is still being read: try again in a minute."
            )
            title = "The file would not contain all keys"
            return self._shared.answer("message", status=503, title=title, text=text, operator=me)
        choice = Choice.of(request.query, snapshot, me=me, now=self._shared.clock.utc().timestamp())
        return as_csv(snapshot, choice)

    async def key(self, request: web.Request) -> web.Response:
        """Return a key's page."""
        try:
            view = await self._shared.operators.view(request.query.get("key", ""))
        except ValueError:
            return await self._nothing(request)
        done = request.query.get("done", "")
        return await key_page(self._shared, operator_at(request), view, done=done, listed=request.query)

    async def find(self, request: web.Request) -> web.Response:
        """Redirect to the key that equals the search text, or to a list of the keys that match it.

        URLs are stored in logs, so they never contain the search text: a hold reference may be an account
        number, and an amount together with a date can identify a payment. The URL of the result contains the
        keys that were found. The browser can therefore go back to the result, and a colleague can open it,
        whichever process responds.
        """
        text = (await fields_of(request)).get("text", "").strip()
        try:
            view = await self._shared.operators.view(text)
        except ValueError:
            snapshot = await self._shared.cache.shown()
            keys = [row.key for row in found_by_text(snapshot, text)]
            raise web.HTTPSeeOther(address_of_found(keys, is_partial=not snapshot.is_complete)) from None
        raise web.HTTPSeeOther(address(view.key))

    async def found(self, request: web.Request) -> web.Response:
        """List the keys in the URL, with only a link for those that no longer need attention."""
        wanted = set(request.query.getall("key", [])[:PER_PAGE]) - {FOUR_EYES}
        rows = [row for row in found_by_text(await self._shared.cache.shown(), "") if row.key in wanted]
        ended: list[str] = []
        for key in sorted(wanted - {row.key for row in rows}):  # not in the list, or not read yet
            with contextlib.suppress(ValueError):  # An address may contain a key without a record.
                row = pending_row(await self._shared.operators.view(key))
                ended += [key] if row is None else []
                rows += [] if row is None else [row]
        rows.sort(key=attrgetter("since"))
        is_partial = "partial" in request.query
        more = request.query.get("more", "")
        beyond = int(more) if more.isascii() and more.isdigit() and len(more) < 7 else 0
        caption = count(len(rows), "key")
        if beyond:
            caption = f"The oldest {len(rows)} of {count(len(rows) + beyond, 'key')}"
        return await self._list(
            request,
            is_empty=not (rows or ended),
            heading="Found",
            choice=None,
            rows=rows,
            ended=ended,
            is_partial=is_partial,
            caption=caption,
            nothing="" if ended or is_partial else NOTHING_FOUND,
        )

    async def _list(self, request: web.Request, *, is_empty: bool, **given: Any) -> web.Response:
        """Return a page with a list. If the list is empty, warn about keys in other scopes."""
        others = await self._shared.operators.other_scopes() if is_empty else ()
        return self._shared.answer(
            "list",
            operator=(operator := operator_at(request)),
            selects=operator.may(Role.CHANGE) and not given.get("live"),
            other_scopes=other_scopes_text(others) if others else "",
            now=self._shared.clock.utc().timestamp(),
            **given,
        )

    async def parties(self, request: web.Request) -> web.Response:
        """Record that the operator views a key's parties, and return the key's page with the parties."""
        operator = operator_at(request)
        if not operator.may(Role.PARTIES):
            raise web.HTTPForbidden
        fields = await fields_of(request)
        listed = dict(parse_qsl(fields.get("list", "")))
        try:
            view = await self._shared.operators.view(fields.get("key", ""))
        except ValueError:
            return await self._nothing(request)
        try:
            found = await self._shared.operators.look(
                view.key, by=operator.name, reason=fields.get("reason", "")
            )
        except ValueError as error:
            tried: dict[str, Any] = {"tried": "parties", "wrong": field_of(error)}
            tried |= {"problem": problem_text(error), "reason": fields.get("reason", "")}
            return await key_page(self._shared, operator, view, status=422, listed=listed, **tried)
        return await key_page(self._shared, operator, view, listed=listed, parties=list(_parties(found)))

    async def _nothing(self, request: web.Request) -> web.Response:
        others = await self._shared.operators.other_scopes()
        text = other_scopes_text(others) if others else NO_RECORD
        operator = operator_at(request)
        return self._shared.answer("message", status=404, title="No such key", text=text, operator=operator)


def _proposals_for(snapshot: PendingKeysSnapshot, me: Operator) -> dict[str, int]:
    """Return how many proposals the operator may approve, and how many the operator has made."""
    totals = snapshot.totals
    mine = sum(totals.proposals[by] for by in totals.by_me(me.name))
    others = totals.proposals.total() - mine
    return {"mine": mine} | ({"approve": others} if me.may(Role.APPROVE) else {})


def address_of_found(keys: list[str], *, is_partial: bool = False) -> str:
    """Return the URL of a page that lists as many of ``keys`` as fit.

    If ``is_partial`` is true, more keys may match, because the journal is still being read.
    """
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


# --- shared ------------------------------------------------------------------------------------------
# The objects, limits and functions shared by all pages of the desk.


OPERATOR: Any = getattr(web, "RequestKey", lambda name, _: name)("operator", Operator)
"""The key under which a request stores its operator. Older versions of aiohttp need a plain name."""

SHOWN_STEPS = 200
"""The maximum number of history lines on a page. The command line shows all lines."""

LONGEST_FIELD = 10_000
"""The maximum length of a form field, in characters."""

LONGEST_LABEL = 40
"""The maximum length of the environment's label, in characters."""

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")

LINK_FIELDS: dict[str, Callable[[KeyView], Iterable[str | None]]] = {
    "key": lambda view: [view.key],
    "order_id": lambda view: [view.order_id] if view.order_id else view.candidates,
    "request_id": lambda view: (
        () if view.cause is None else [item.request_id for item in view.cause.attempts]
    ),
    "intent_id": lambda view: [view.intent_id],
    "attempt_id": lambda view: [view.attempt_id],
}
"""The placeholders in a link template. Each function returns the placeholder's values from a key's record."""

_LINK = re.compile(
    r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]+)?/[!-z|~]*"
    rf"(\{{({'|'.join(LINK_FIELDS)})\}}[!-z|~]*)+",
    re.IGNORECASE,
)
"""The valid link templates. No placeholder may change the link's scheme or host."""

MAX_LINKS = 10
"""The maximum number of links on a key's page."""


def _checked_zone(zone: object) -> ZoneInfo | None:
    if zone is None or isinstance(zone, ZoneInfo):
        return zone
    try:
        return ZoneInfo(zone)  # type: ignore[arg-type] # anything but a text raises a TypeError
    except (KeyError, ValueError, TypeError, OSError):
        raise ValueError(
            "zone: must be a name in the time zone database, such as Africa/Lagos; "
            "if the system has no database, install tzdata"
        ) from None


@frozen(kw_only=True)
class PageStyle:
    """The label, colour, link and time zone of an environment's pages; see `desk`."""

    label: str = ""
    colour: str | None = None
    link: str | None = None
    zone: ZoneInfo | None = field(default=None, converter=_checked_zone)

    def __attrs_post_init__(self) -> None:
        if self.link is not None and not (isinstance(self.link, str) and _LINK.fullmatch(self.link)):
            raise ValueError(
                "link: must be an http or https URL with a path and at least one of the fields "
                f"{', '.join(f'{{{name}}}' for name in LINK_FIELDS)}"
            )
        is_label = isinstance(self.label, str) and self.label.isprintable()
        if not is_label or len(self.label) > LONGEST_LABEL:
            raise ValueError(f"label: must be at most {LONGEST_LABEL} printable characters")
        if self.colour is None:
            return
        if not isinstance(self.colour, str) or not _COLOUR.fullmatch(self.colour):
            raise ValueError("colour: must have the form #rrggbb, such as #8a0000")

    @property
    def sheet(self) -> str:
        """The style sheet. The band's text is black or white, for the best contrast."""
        if self.colour is None:
            return _STYLE
        parts = [int(self.colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]  # as WCAG 2 defines it
        text = "#000000" if luminance > 0.179 else "#ffffff"
        return f"{_STYLE}\n:root {{ --band: {self.colour}; --on-band: {text}; }}\n"


def links_of(link: str | None, view: KeyView) -> list[tuple[str, str]]:
    """Return a key's links to the bank's own order search, as pairs: the URL, and the key's values in it.

    If the record lacks a value for a placeholder in ``link``, there are no links. A value that consists only
    of dots is skipped, because a browser would treat it as a relative path.
    """
    if link is None:
        return []
    names = dict.fromkeys(re.findall(r"{(\w+)}", link))
    found = [[value for value in dict.fromkeys(LINK_FIELDS[name](view)) if value] for name in names]
    usable = [[value for value in values if value.strip(".")] for values in found]
    chosen = islice(product(*usable), MAX_LINKS)
    return [
        (
            link.format(**{name: quote(value, safe="") for name, value in zip(names, values, strict=True)}),
            ", ".join(values),
        )
        for values in chosen
    ]


@frozen(kw_only=True)
class Shared:
    """The objects and settings shared by all pages."""

    operators: Operators  # reads the journal and writes decisions
    cache: PendingKeysCache  # the list of keys that need attention
    clock: Clock  # the clock for ages
    holds: frozenset[str]  # the names of hooks that place a hold
    style: PageStyle  # the environment's label, colour, link and time zone
    signs_out: bool = False  # whether the pages have a sign-out button

    def answer(self, template: str, *, status: int = 200, **given: Any) -> web.Response:
        """Return a page as a response. Every page shows the scope, the label and the number of keys."""
        where: dict[str, Any] = {"scope": self.operators.scope, "label": self.style.label}
        where |= {"waiting": self.cache.waiting, "signs_out": self.signs_out}
        where |= {"zone": self.style.zone, "made_at": self.clock.utc()}
        return web.Response(
            text=TEMPLATES[template].render(where, **given), content_type="text/html", status=status
        )

    def time(self, seconds: float) -> str:
        """Format a time in seconds since 1970 for display."""
        return time_text(moment(seconds), self.style.zone)


def operator_at(request: web.Request) -> Operator:
    """Return the operator that the middleware stored in a request."""
    found: Operator = request[OPERATOR]
    return found


def address(key: str, **more: str) -> str:
    """Return the relative URL of a key's page.

    The key is a query parameter, because not every key is valid in a path.
    """
    return f"key?{urlencode({'key': key, **more})}"


async def form_of(request: web.Request) -> MultiDict[str]:
    """Return a form's fields, including repeated ones. An unreadable form raises an HTTP error."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType
    try:
        given = MultiDict((name, str(value)) for name, value in (await request.post()).items())
        "".join([*given, *given.values()]).encode()
    except (ValueError, LookupError):  # The body is not valid in its character set.
        raise web.HTTPBadRequest from None
    if any(len(value) > LONGEST_FIELD for value in given.values()):
        raise web.HTTPBadRequest
    return given


async def fields_of(request: web.Request) -> dict[str, str]:
    """Return a form's fields. A form with repeated fields raises an HTTP error."""
    given = await form_of(request)
    fields = dict(given)
    if len(fields) != len(given):
        raise web.HTTPBadRequest
    return fields


_NOTHING_TRIED = {
    **dict.fromkeys(("problem", "since", "tried", "wrong", "parties")),
    **dict.fromkeys(("reason", "order_id", "ticked"), ""),
}
"""The template's values for a key's page if no form was refused."""


async def key_page(
    shared: Shared,
    operator: Operator,
    view: KeyView,
    *,
    status: int = 200,
    done: str = "",
    listed: Mapping[str, str] | None = None,
    **more: Any,
) -> web.Response:
    """Return a key's page with its current record.

    ``done`` names a change, which the page confirms if the history contains it. ``listed`` is the URL of the
    list that the operator came from. ``more`` contains the result of a form, such as ``problem``.
    """
    steps = await shared.operators.history(view.key)
    shown = latest(steps, SHOWN_STEPS)
    confirmed = confirmation(done, view, steps, by=operator.name, zone=shared.style.zone)
    given = {
        "operator": operator,
        "view": view,
        "name": name_of(view.key),
        "why": kinds_of(view),
        "reasons": reasons_of(view),
        "note": next((step for step in reversed(steps) if step.move == Note.name), None),
        "steps": shown[::-1],
        "earlier": len(steps) - len(shown),
        "pending": pending(view, holds=shared.holds),
        "nothing_to_do": nothing_to_do(view),
        "next_step": view.next_step,
        "links": links_of(shared.style.link, view),
        "has_parties": view.readable and (view.order is not None or view.entry.reply is not None),
        "done": confirmed,
        **await _following(shared, operator, view, listed or {}, is_done=confirmed is not None),
        "at": moment,
        **_forms(shared, operator, view, four_eyes=(await shared.operators.four_eyes()).demanded),
        **_NOTHING_TRIED,
        **more,
    }
    return shared.answer("key", status=status, **given)


async def _following(
    shared: Shared, operator: Operator, view: KeyView, listed: Mapping[str, str], *, is_done: bool
) -> dict[str, Any]:
    """Return the list that the operator came from, and the next key in it.

    If the filtered list contains no other key, take the next key from the list of all keys.
    """
    choice, following, is_last = Choice(), None, False
    if is_done or shared.cache.waiting is not None:  # Otherwise do not wait until the journal has been read.
        snapshot, since = await shared.cache.at_hand(), began_at(view)
        choice = Choice.of(listed, snapshot, me=operator, now=shared.clock.utc().timestamp())
        noted = listed.get("next", "")
        following = next_after(snapshot, view.key, since=since, choice=choice, noted=noted)
        is_last = is_done and following is None and bool(choice.for_a_key)
        if is_last:
            choice = Choice()
            following = next_after(snapshot, view.key, since=since)
    query = urlencode(choice.for_a_key)
    return {"next": following, "is_last": is_last, "choice": choice, "list_query": query}


_CARRIED = ("key", "stamp", "list", "proposal", "reason", "undone")
"""The fields of a decision's form that its review page sends again."""


def review_page(
    shared: Shared,
    view: KeyView,
    row: DecisionRow,
    *,
    operator: Operator,
    name: str,
    fields: Mapping[str, str],
) -> web.Response:
    """Return the review page of a decision that cannot be undone.

    The review page shows the effects and asks for confirmation. The page sends the form ``name`` again, with
    the ``fields`` of the first step. If ``fields`` already contains ``typed``, the page says that the
    confirmation was wrong.
    """
    form = form_for(row, view, four_eyes=False, holds=shared.holds, now=shared.clock.utc())
    is_approval = view.proposal is not None
    return shared.answer(
        "review",
        status=422 if "typed" in fields else 200,
        operator=operator,
        view=view,
        row=row,
        name=name,
        button=f"Approve: {row.explained}" if is_approval else form.button,
        effects=effects_of_proposal(view, holds=shared.holds) if is_approval else form.effects,
        carried={field: fields[field] for field in _CARRIED if field in fields},
        typed=fields.get("typed"),
        reason=fields["reason"],
    )


def is_confirmed(text: str, view: KeyView) -> bool:
    """Return whether ``text`` is the key or the exact amount of its order, with or without the currency."""
    text = text.strip()
    # The text may have been copied from the page, which marks the key's invisible characters.
    if text in (view.key.strip(), marked(view.key).strip()):
        return True
    amount, currency = amount_in(text)
    order = view.order
    return order is not None and amount == order.poster_amount and currency in ("", order.poster_currency)


def _forms(shared: Shared, operator: Operator, view: KeyView, *, four_eyes: bool) -> dict[str, Any]:
    proposal = view.proposal
    is_own = proposal is not None and is_same_person(proposal.by, operator.name)
    return {
        "forms": forms_for(view, four_eyes=four_eyes, holds=shared.holds, now=shared.clock.utc()),
        "token": token_of(view, operator.name, four_eyes=four_eyes, holds=shared.holds),
        "proposed": None if proposal is None else proposed_row(proposal),
        "proposal_effects": effects_of_proposal(view, holds=shared.holds),
        "is_own": is_own,
        "may_change": operator.may(Role.CHANGE),
        "may_approve": operator.may(Role.APPROVE) and not is_own,
        "may_withdraw": operator.may(Role.APPROVE) or operator.may(Role.CHANGE),
        "may_see": operator.may(Role.PARTIES),
        "may_note": view.readable and (operator.may(Role.APPROVE) or operator.may(Role.CHANGE)),
        "watched_for": shared.clock.utc().timestamp() - time_of(view, view.watcher),
    }


# --- labels -----------------------------------------------------------------------------------------
# The texts of the pages, as plain text. The templates escape them like all other values.


NOTHING_FOUND = "No such key, and no listed key contains this text, id or amount."

NO_RECORD = "The journal has no record of this key in this scope."

KIND_LABELS = {
    "doubt": "in doubt",
    "proposed": "proposed",
    "owed": "undo pending",
    "abandoned": "abandoned",
    "untold": "notification pending",
    "unreadable": "unreadable",
}
"""The labels of the reasons why a key needs attention."""

KIND_HELP = {
    "doubt": "The order may exist, and its hold is kept. Find out whether the order exists, then "
    "record the result.",
    "proposed": "One person has proposed a decision, and another must approve it.",
    "owed": "A call with this key ended in a definite failure, but its hook has not been undone yet. "
    "The next recovery tries again.",
    "abandoned": ("The worker never reported how its attempt ended. The next recovery continues the call."),
    "untold": (
        "The order was resolved or refuted, but its outcome has not been published "
        "yet. A worker will publish it."
    ),
    "unreadable": "The key's record is corrupt, so recovery cannot process the key.",
}

ENCRYPTED = "The key's record is encrypted with a key that is not available here."
"""Replaces ``KIND_HELP["unreadable"]`` if the record is not corrupt but encrypted."""

OWN_PROPOSAL = (
    "You proposed this decision, so another person must approve it. Similar-looking names count as the same "
    "person."
)


def reasons_of(view: KeyView) -> list[str]:
    """Return consistent texts for the reasons why a key needs attention."""
    texts = KIND_HELP | ({"unreadable": ENCRYPTED} if view.is_sealed else {})
    if not view.readable:  # No recovery and no worker continues such a key.
        texts = {kind: texts[kind] for kind in ("doubt", "proposed", "unreadable")}
    return [texts[kind] for kind in kinds_of(view) if kind in texts]


_MOVES = {
    "claim": "a worker took the key",
    "keep": "the worker was still processing the order",
    "takeover": "another worker took over the key to undo its hooks",
    "mark": "the request was about to be sent",
    "create": "the service responded with the order",
    "free": "the call ended in a definite failure",
    "doubt": "the outcome of the order became unknown",
    "expire": ("abandoned: the worker never reported how its attempt ended; the request may have arrived"),
    "propose": "a decision was proposed",
    "withdraw": "the proposal was withdrawn",
    "demand": "dual control was demanded",
    "look": "the parties were shown",
    "note": "a note was written",
    "watch": "an operator began to look at the key",
    "unwatch": "the operator stopped looking at the key",
    "paid": "the hooks were undone",
    "owe": "an undo became pending after the outcome had been recorded",
    "suspect": "an order was found that contradicts the record",
    "layaside": "the corrupt record was quarantined",
    "promise": "the outcome was published as unknown",
    "told": "the final outcome was published",
} | {row.name: f"decided: {row.explained}" for row in DECISIONS}
"""The text for each transition in the history. A transition from a later version is shown by name."""


_DONE = {row.done: (row.name, row.saved) for row in DECISIONS if row.done} | {
    "setaside": ("layaside", "Saved: the corrupt record was quarantined."),
    "proposed": ("propose", "Proposed. Another person must approve it."),
    "withdrawn": ("withdraw", "The proposal is withdrawn."),
    "noted": ("note", "Saved: your note is in the history."),
    "watched": ("watch", "The list shows that you are looking at this key, until the key changes."),
    "unwatched": ("unwatch", "The list no longer shows that anyone is looking at this key."),
}
"""The changes that the URL of a key's page may contain, each with its transition and confirmation."""


def confirmation(
    name: str, view: KeyView, steps: Sequence[HistoryEvent], *, by: str, zone: ZoneInfo | None = None
) -> str | None:
    """Return the text that confirms the change ``name``, or None if it is not in the history.

    A forged URL may name a change that was never made, so check the history.
    """
    wanted, text = _DONE.get(name, ("", ""))
    changes = [step for step in steps if step.move == wanted or step.move not in WITHOUT_CHANGE]
    if name == "approved":
        made, text = approval(steps), "Approved: the decision is recorded."
        made = made if made is not None and made.by == by else None
    else:
        made = next((step for step in reversed(changes) if (step.move, step.by) == (wanted, by)), None)
    if made is None:
        return None
    if made is not changes[-1] or made.state is not view.state:
        return (
            f"Saved at {time_text(moment(made.at), zone)}. The key has changed since then: see its history."
        )
    return text


def other_scopes_text(names: tuple[str, ...]) -> Sentence:
    """Return a warning that the journal contains only keys in other scopes."""
    found = only_scopes(names)
    return Sentence(
        f"The journal contains no keys in this scope, {found.text}. Start the page for the right scope.",
        found.values,
    )


def nothing_to_do(view: KeyView) -> str:
    """Return a message that explains why no decision can currently be made about a key."""
    if view.key == FOUR_EYES and not view.readable:
        return (
            "No action is possible here. The dual-control rule cannot be read, so dual control "
            "stays required: to repair the rule, run transfer-async journal four-eyes "
            "demand."
        )
    if view.key == FOUR_EYES:
        return "No action is possible here: use transfer-async journal four-eyes."
    if view.is_sealed:
        return "No action is possible yet: the record is encrypted. Restart the desk with the encryption key."
    if view.pending_undos:
        return "No action is needed: the next recovery runs the pending undos."
    if view.state is KeyState.CLAIMED:
        return (
            "No action is needed: nothing was sent, and a redelivery or the next recovery continues the call."
        )
    return "No action is needed: the call has ended."


def problem_text(error: Exception) -> str:
    """Return the text of an error as a sentence.

    The returned sentence names form fields instead of Python arguments.
    """
    text = str(error)
    argument, _, rest = text.partition(": ")
    if rest and argument in ("key", "by"):
        return rest[:1].upper() + rest[1:]
    if rest and argument.isidentifier():  # a form field; the rest may be the name of a hook
        text = f"{argument.replace('_', ' ')}: {rest}"
    return text[:1].upper() + text[1:]


def field_of(error: ValueError) -> str | None:
    """Return the form field that an error refers to, or None if it refers to none."""
    name = str(error).partition(": ")[0]
    return name if name in ("reason", "order_id", "undone", "certain") else None


def name_of(key: str) -> str:
    """Return the title of a key's page."""
    return "The dual-control rule" if key == FOUR_EYES else key


def did(step: HistoryEvent) -> tuple[str, str | None]:
    """Return a history line's description, in the same words as the forms, and its reason."""
    if (proposed := proposed_in(step)) is not None:
        return f"proposed: {proposed[0]}", proposed[1]
    return _MOVES.get(step.move, step.move), step.reason


def count(number: int, thing: str) -> str:
    """Return a number with its noun, such as ``2 keys``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


@pass_context
def _time(context: Context, when: datetime) -> str:
    return time_text(when, context.get("zone"))


# --- pages -------------------------------------------------------------------------------------------
# The templates and their filters. Every value is escaped, and invisible characters are marked.
#
# A reference that contains right-to-left letters or direction-control characters would reverse the amount
# beside it. Therefore `shown` marks invisible characters, and texts from outside are put into a ``bdi``
# element.


_FOLDER = Path(__file__).with_name("templates")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def marked(text: str) -> str:
    """Return ``text`` with each invisible character replaced by a mark such as ``[U+202E]``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        item if item == "\n" or (item.isprintable() and not UNSEEN.match(item)) else f"[U+{ord(item):04X}]"
        for item in text
    )


def isolated(text: str) -> Markup:
    """Wrap external text in an element, so that it cannot change the direction of other text."""
    return Markup("<bdi>{}</bdi>").format(marked(text))


def shown(value: object) -> object:
    """Return the text that a template outputs for ``value``.

    The templates call `shown` for every value.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, Sentence):
        return Markup(value.shown(isolated))  # noqa: S704 - only the package itself creates such texts
    return marked(value) if isinstance(value, str) else value


# Read once, on import, because reading files would block the event loop.
_STYLE = _read("desk.css")
ICON = _read("icon.svg")

_NAMES = ("base.html", "list.html", "key.html", "review.html", "message.html", "audit.html", "bulk.html")

_environment = Environment(
    loader=DictLoader({name: _read(name) for name in _NAMES}),
    autoescape=True,
    finalize=shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    age=in_two_units,
    bdi=isolated,
    count=count,
    exact=escape,  # without marks, for a field that the browser must send back unchanged
    machine_time=machine_time,
    time=_time,
)
_environment.globals.update(
    address=address,
    did=did,
    own_proposal=OWN_PROPOSAL,
    ages=AGES,
    amounts=AMOUNTS,
    proposal_texts=PROPOSALS,
    columns=COLUMNS,
    money=money,
    kinds=KIND_LABELS,
    kinds_explained=KIND_HELP,
)
TEMPLATES = {name.removesuffix(".html"): _environment.get_template(name) for name in _NAMES[1:]}
