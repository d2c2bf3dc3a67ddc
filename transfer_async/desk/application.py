"""The operators' page as an aiohttp application: its routes, its checks of each request, its changes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

from aiohttp import web
from attrs import field, frozen

from transfer_async._client import TransferClient
from transfer_async._http.urls import checked_origin
from transfer_async._models.errors import ClientClosed, JournalFailed
from transfer_async._pipeline.decisions import DECISIONS, DecisionRow, approval, checked_undone, since
from transfer_async._pipeline.hooks import USUAL_HOLD, is_hold
from transfer_async._pipeline.key_views import (
    ApprovalRequired,
    ApproverIsProposer,
    KeyChanged,
    KeyView,
    RecordSetAside,
    Sentence,
    checked_text,
)
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock
from transfer_async._support.util import log
from transfer_async.desk import views
from transfer_async.desk.audit_views import AUDIT_CSV, AuditViews
from transfer_async.desk.auth import (
    Operator,
    Role,
    Who,
    checked_who,
    is_current,
    operator_of,
    reviewed_row,
)
from transfer_async.desk.bulk import BulkProposals
from transfer_async.desk.pending_keys import CSV, Choice, PendingKeysCache, began_at, next_after
from transfer_async.desk.views import (
    OPERATOR,
    REFRESH,
    PageStyle,
    Shared,
    Views,
    address,
    fields_of,
    is_confirmed,
    is_list,
    key_page,
    operator_at,
    review_page,
)
from transfer_async.journal.model import FOUR_EYES, HistoryEvent, KeyState, is_same_person
from transfer_async.journal.operator_transitions import Demand, Waive

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_FILES = web.AppKey("files", dict[str, tuple[str, str]])
"""Files that are the same for everybody and show no data: their texts and content types."""


def desk(
    client: TransferClient,
    *,
    who: Who,
    origin: str | None = None,
    label: str = "",
    colour: str | None = None,
    link: str | None = None,
    zone: str | ZoneInfo | None = None,
) -> web.Application:
    """Make the operators' page: mount it with ``app.add_subapp("/desk", desk(client, who=who))``.

    It shows the journal of ``client``, and writes operators' decisions to it. It sends nothing to the
    service, keeps no session, and uses no script. Only people whom ``who`` knows see anything, and every
    change requires a role.

    Args:
        client: the client whose journal is shown; it is not closed with the page.
        who: called with every request, plain or async; returns the `Operator`, or None for an unknown person.
        origin: the page's origin, as ``https://desk.bank.example``. If given, every form must come from it.
            Give it if a proxy changes the ``Host``.
        label: the environment, as ``live`` or ``test``, of at most 40 characters; it stands on a band above
            each page, and in its title.
        colour: the band's colour, as ``#8a0000``.
        link: the address of the bank's own look-up, as ``https://office.bank.example/orders?id={order_id}``.
            Its fields are ``{key}``, ``{order_id}``, ``{request_id}``, ``{intent_id}`` and ``{attempt_id}``;
            their values are quoted. A key's page has a link for each value on record, at most 10, in a new
            tab; without a value it has none.
        zone: the bank's time zone, as ``Africa/Lagos``. Every time is shown in UTC and in this zone.

    Raises:
        ValueError: names the argument and the rule.
        ClientClosed: the client is closed.
    """
    if not isinstance(client, TransferClient):
        raise ValueError(f"client: must be a TransferClient, not a {type(client).__name__}")  # noqa: TRY004 - as every wrong setting
    context = client._context
    holds = frozenset(hook.name for hook in context.hooks if is_hold(hook))
    style = PageStyle(label=label, colour=colour, link=link, zone=zone)
    return application(
        client.operators, who=who, origin=origin, style=style, holds=holds, clock=context.clock
    )


def application(
    operators: Operators,
    *,
    who: Who,
    origin: str | None = None,
    style: PageStyle | None = None,
    holds: frozenset[str] = frozenset(),
    clock: Clock | None = None,
    sign_out: Callable[[], str] | None = None,
) -> web.Application:
    """Make the same page for `Operators`.

    ``holds`` are the names of hooks that place a hold. ``sign_out`` ends the only session and returns a text
    for the browser; without it, the page offers no sign-out, because the session belongs to the bank.
    """
    clock = clock or Clock()
    cache = PendingKeysCache(operators, clock)
    style = style or PageStyle()
    shared = Shared(
        operators=operators,
        cache=cache,
        clock=clock,
        holds=holds | {USUAL_HOLD},
        style=style,
        signs_out=sign_out is not None,
    )
    auth = _AuthMiddleware(shared, who=checked_who(who), origin=checked_origin(origin))

    app = web.Application(middlewares=[auth.answer])
    pages = Views(shared)
    app.router.add_get("", _with_slash)
    app.router.add_get("/", pages.waiting)
    app.router.add_get(f"/{CSV}", pages.csv)
    app.router.add_get("/key", pages.key)
    app.router.add_post("/find", pages.find)
    app.router.add_get("/found", pages.found)
    app.router.add_post("/parties", pages.parties)
    bulk = BulkProposals(shared)
    app.router.add_post("/select", bulk.select)
    app.router.add_post("/propose", bulk.propose)
    audit = AuditViews(shared)
    app.router.add_get("/audit", audit.show)
    app.router.add_post("/audit", audit.search)
    app.router.add_get(f"/{AUDIT_CSV}", audit.csv)
    if sign_out is not None:
        app.router.add_post("/sign-out", _signing_out(shared, sign_out))
    for name, (roles, change) in _CHANGES.items():
        app.router.add_post(f"/{name}", Action(shared, name, roles, change).answer)
    app[_FILES] = {
        "desk.css": (style.sheet, "text/css"),
        "icon.svg": (views.ICON, "image/svg+xml"),
    }
    for name in app[_FILES]:
        app.router.add_get(f"/{name}", _file)
    app.on_cleanup.append(lambda _: cache.close())
    return app


def _signing_out(shared: Shared, end: Callable[[], str]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return shared.answer("message", title="Signed out", text=end(), operator=None)

    return answer


async def _file(request: web.Request) -> web.Response:
    text, kind = request.app[_FILES][request.path.rpartition("/")[2]]
    return web.Response(text=text, content_type=kind)


async def _with_slash(request: web.Request) -> web.Response:
    """Send the browser from the mount point to the list: relative links need the slash."""
    query = f"?{request.rel_url.raw_query_string}" if request.query_string else ""
    raise web.HTTPSeeOther(f"./{request.rel_url.raw_path.rpartition('/')[2]}/{query}")


@frozen
class _AuthMiddleware:
    """Refuses forms of other pages and unknown people, and adds the headers of every response."""

    _shared: Shared
    _who: Who = field(kw_only=True)
    _origin: str | None = field(kw_only=True)

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, and return its response with all headers."""
        try:
            response = await self._answered(request, handler)
        except web.HTTPException as error:
            if error.status < 400:  # a redirect to another page, or to sign in
                error.headers.update(HEADERS)
                raise
            response = self._as_page(request, error)
        response.headers.update(HEADERS)
        if response.status >= 500 and is_list(request):
            response.headers["Refresh"] = str(REFRESH)  # an unattended display must recover by itself
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if is_from_elsewhere(request, origin=self._origin):
                return self._message(
                    request, 403, "Not from here", "This form was not sent from a page of this site."
                )
            if handler is not _file:
                request[OPERATOR] = operator = await operator_of(self._who, request)
                if operator is None:
                    return self._message(
                        request, 403, "Who are you?", "You are not signed in as an operator."
                    )
            return await handler(request)
        except (JournalFailed, ClientClosed) as error:
            return self._message(request, 503, "The journal failed", f"{error}. Look again.")
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - its text may name people, so it is never shown
            log.error("the desk failed on %s %s (%s)", request.method, request.path, type(error).__name__)
            return self._message(request, 500, "That went wrong", "The log says what kind of error it was.")

    def _as_page(self, request: web.Request, error: web.HTTPException) -> web.Response:
        titles = {401: "Sign in first", 404: "There is no such page", 405: "Not this way"}
        title = titles.get(error.status, "That cannot be")
        text = {404: "Go back to the list."}.get(error.status, error.reason)
        response = self._message(request, error.status, title, text)
        keep_headers(error, response)  # such as how to sign in, and when to try again
        return response

    def _message(self, request: web.Request, status: int, title: str, text: str) -> web.Response:
        return self._shared.answer(
            "message",
            status=status,
            title=title,
            text=text,
            operator=request.get(OPERATOR),
            live=status >= 500,
        )


# --- changes ----------------------------------------------------------------------------------------
# The forms that change something: by an operator with the role, if the key has not changed since.


@frozen(kw_only=True)
class Form:
    """A form that an operator sent."""

    name: str  # the form's name
    operator: Operator
    fields: dict[str, str]  # its fields

    def __getitem__(self, name: str) -> str:
        """Return a field; empty if it was not sent."""
        return self.fields.get(name, "")

    @property
    def attribution(self) -> dict[str, str]:
        """The arguments ``by`` and ``reason`` of a decision."""
        return {"by": self.operator.name, "reason": self["reason"]}


@frozen
class Action:
    """A form that changes something, with its name, the roles (one is required), and its function."""

    _shared: Shared
    _name: str
    _roles: frozenset[Role]
    _change: _Change

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Make the change, and send the browser to the key's page; show the page again if it is refused."""
        operator = operator_at(request)
        if not operator.roles & self._roles:
            raise web.HTTPForbidden
        form = Form(name=self._name, operator=operator, fields=await fields_of(request))
        operators = self._shared.operators
        try:
            view = await operators.view(form["key"])
        except ValueError:
            raise web.HTTPNotFound from None
        four_eyes = (await operators.four_eyes()).demanded
        if not self._is_current(form, view, four_eyes=four_eyes):
            return await self._stale(form)
        if "back" in form.fields:  # from the review, with what was typed
            return await self._refused(form, None, status=200)
        listed = await self._listed(form, view)
        try:
            row = reviewed_row(form.name, view, four_eyes=four_eyes)
            if row is not None and not is_confirmed(form["typed"], view):
                return self._review(form, view, row)
            done = await self._change(operators, view, form, four_eyes)
        except (KeyChanged, ApprovalRequired):
            return await self._stale(form)
        except RecordSetAside as error:
            self._shared.cache.changed(await operators.view(form["key"]))
            return await self._refused(form, views.problem_text(error), status=409)
        except ApproverIsProposer:
            return await self._refused(form, views.OWN_PROPOSAL, status=403)
        except ValueError as error:
            wrong = views.field_of(error)
            return await self._refused(form, views.problem_text(error), status=422, wrong=wrong)
        with contextlib.suppress(JournalFailed, ValueError):  # the change is on record, even if this fails
            self._shared.cache.changed(await operators.view(view.key))
        raise web.HTTPSeeOther(address(view.key, done=done, **listed))

    def _review(self, form: Form, view: KeyView, row: DecisionRow) -> web.Response:
        """Return the page that shows a final decision once more; it decides and writes nothing.

        Raises:
            ApproverIsProposer: the operator approves their own proposal.
            ValueError: a field of the first form is invalid.
        """
        checked_text("reason", form["reason"])
        if view.proposal is None:
            checked_undone(view.entry, refuting=row.frees_key, undone="undone" in form.fields)
        elif is_same_person(view.proposal.by, form.operator.name):
            raise ApproverIsProposer
        return review_page(
            self._shared, view, row, operator=form.operator, name=form.name, fields=form.fields
        )

    async def _listed(self, form: Form, view: KeyView) -> dict[str, Any]:
        """Return address fields: those of the list that the operator came from, and the next key in it."""
        if not form["list"]:
            return {}
        snapshot = await self._shared.cache.at_hand()
        now = self._shared.clock.utc().timestamp()
        choice = Choice.of(dict(parse_qsl(form["list"])), snapshot, me=form.operator, now=now)
        following = next_after(snapshot, view.key, since=began_at(view), choice=choice)
        return choice.for_a_key | ({} if following is None else {"next": following.key})

    def _is_current(self, form: Form, view: KeyView, *, four_eyes: bool) -> bool:
        name, holds = form.operator.name, self._shared.holds
        return is_current(form["stamp"], view, name, four_eyes=four_eyes, holds=holds)

    async def _stale(self, form: Form) -> web.Response:
        operators = self._shared.operators
        view = await operators.view(form["key"])
        self._shared.cache.changed(view)
        history = await operators.history(view.key)
        steps = since(form["stamp"], view, history)
        problem = Sentence("Nothing was changed: the key has changed meanwhile")
        if not steps:
            problem = Sentence(
                "Nothing was changed. This page is out of date, or was made for another operator."
            )
        time, decided = self._shared.time, {row.name: row.explained for row in DECISIONS}
        for step in steps:
            if step.move in decided:
                text = f"{problem.text}. At {time(step.at)} {{}} decided: {decided[step.move]}"
                problem = Sentence(text, (*problem.values, _who(step, form)))
        approved = approval(history)
        if form.name in ("approve", "withdraw") and approved in steps and approved is not None:
            text = f"Nothing was changed: {{}} approved it at {time(approved.at)}"
            problem = Sentence(text, (_who(approved, form),))
        four_eyes = (await operators.four_eyes()).demanded
        if self._is_current(form, view, four_eyes=not four_eyes):
            why = "dual control is required now" if four_eyes else "one person is enough now"
            problem = Sentence(f"Nothing was changed: {why}")
            rule = await operators.history(FOUR_EYES)
            steps = tuple(step for step in rule if step.move in (Demand.name, Waive.name))[-1:]
        return await self._refused(form, problem, status=409, since=steps)

    async def _refused(
        self, form: Form, problem: str | Sentence | None, *, status: int, **more: Any
    ) -> web.Response:
        view = await self._shared.operators.view(form["key"])
        if status == 422:
            four_eyes = (await self._shared.operators.four_eyes()).demanded
            if not self._is_current(form, view, four_eyes=four_eyes):
                return await self._stale(form)  # that is why it was refused
        tried: dict[str, Any] = {"tried": form.name, "reason": form["reason"], "order_id": form["order_id"]}
        if status != 409:  # after a change the boxes are ticked anew, because the effects may differ
            tried["ticked"] = form.fields
        listed = dict(parse_qsl(form["list"]))
        return await key_page(
            self._shared, form.operator, view, status=status, problem=problem, listed=listed, **tried, **more
        )


def _who(step: HistoryEvent, form: Form) -> str:
    return "you" if step.by == form.operator.name else step.by or "a program"


# --- what each form does ------------------------------------------------------------------------

_Change = Callable[[Operators, KeyView, Form, bool], Awaitable[str]]
"""Makes one change, as a proposal under dual control; returns its name for `views.confirmation`."""


def _deciding(row: DecisionRow) -> _Change:
    """Return a function that makes a decision from its form; under dual control it proposes it instead."""

    async def decide(operators: Operators, view: KeyView, form: Form, four_eyes: bool) -> str:
        if row.frees_key and four_eyes and "certain" not in form.fields:  # alone, it is reviewed
            raise ValueError("certain: must be ticked: propose this only if you are certain")
        arguments: dict[str, Any] = {
            "seen": view.version,
            **form.attribution,
            "undone": "undone" in form.fields,
        }
        order_id = form["order_id"] if row.names_order else None
        if four_eyes:
            await operators.propose(view.key, row.decision, order_id=order_id, **arguments)
            return "proposed"
        await operators.decide(view.key, row.decision, order_id=order_id, **arguments)
        # Nothing else was to be done for a corrupt record whose key has ended.
        ended = KeyState.FREE if row.frees_key else KeyState.CREATED
        is_ended = row.applies_to is KeyState.IN_DOUBT and view.state is ended
        return "setaside" if is_ended else row.done

    return decide


async def _approve(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.approve(view.key, proposal=form["proposal"], **form.attribution)
    return "approved"


async def _withdraw(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.withdraw(view.key, proposal=form["proposal"], **form.attribution)
    return "withdrawn"


async def _note(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.note(view.key, **form.attribution)
    return "noted"


async def _watch(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.watch(view.key, by=form.operator.name, ends=form.name == "unwatch")
    return f"{form.name}ed"


_CHANGING, _APPROVING = frozenset({Role.CHANGE}), frozenset({Role.APPROVE})

_CHANGES: dict[str, tuple[frozenset[Role], _Change]] = {
    **{row.name: (_CHANGING, _deciding(row)) for row in DECISIONS if row.title},
    "approve": (_APPROVING, _approve),
    "withdraw": (_CHANGING | _APPROVING, _withdraw),
    "note": (_CHANGING | _APPROVING, _note),
    **dict.fromkeys(("watch", "unwatch"), (_CHANGING | _APPROVING, _watch)),
}
"""The forms by name, each with its roles, of which an operator needs one, and the function it calls."""


# --- defences ----------------------------------------------------------------------------------------
# What protects the page against other sites in the same browser.
#
# A browser sends the cookie or the header that identifies the operator with any site's form. So a change is
# accepted only from a page of this application. No other site may frame, store or script a page.


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not `no-referrer`: a browser would then hide the origin of the desk's own forms, too.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}
"""The headers of every response."""

_OF_THE_BODY = frozenset({"transfer-encoding", "etag", "last-modified"})
"""Headers that describe the body of a response, like all that begin with ``Content-``."""

READING = frozenset({"GET", "HEAD"})


def keep_headers(error: web.HTTPException, response: web.Response) -> None:
    """Copy the headers and cookies of ``error`` to ``response``, which has another body."""
    for name, value in error.headers.items():
        if name.lower() not in _OF_THE_BODY and not name.lower().startswith("content-"):
            response.headers.add(name, value)
    for name, cookie in error.cookies.items():
        response.cookies[name] = cookie


def is_from_elsewhere(request: web.Request, *, origin: str | None) -> bool:
    """Return whether a ``request`` that changes data may come from another site's page.

    Without the page's ``origin``, the ``Host`` of the request counts.
    """
    if request.method in READING:
        return False
    site = request.headers.getall("Sec-Fetch-Site", [])
    if site and site != ["same-origin"]:  # sent by the browser; a page cannot change it
        return True
    if site and origin is None:
        return False
    given = request.headers.getall("Origin", [])
    if len(given) != 1:
        return True
    if origin is not None:
        return given[0].lower() != origin
    try:
        return urlsplit(given[0]).netloc.lower() != request.host.lower()
    except ValueError:
        return True
