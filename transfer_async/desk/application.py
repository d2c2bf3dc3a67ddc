"""The operators' desk as an aiohttp application: its routes, request checks and actions."""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

from aiohttp import web
from attrs import field, frozen

from transfer_async._client import TransferClient
from transfer_async._http.urls import checked_origin
from transfer_async._models.errors import ClientClosed, JournalFailed
from transfer_async._pipeline.decisions import DECISIONS, DecisionRow, approval, checked_undone, row_of, since
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
    token_of,
)
from transfer_async.desk.pending_keys import CSV, PER_PAGE, Choice, PendingKeysCache, began_at, next_after
from transfer_async.desk.views import (
    OPERATOR,
    REFRESH,
    PageStyle,
    Shared,
    Views,
    address,
    fields_of,
    form_of,
    is_confirmed,
    is_list,
    key_page,
    operator_at,
    problem_text,
    review_page,
)
from transfer_async.journal.model import FOUR_EYES, Decision, HistoryEvent, KeyState, is_same_person
from transfer_async.journal.operator_transitions import Demand, Waive

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_FILES = web.AppKey("files", dict[str, tuple[str, str]])
"""The contents and content types of the style sheet and the icon, which contain none of the bank's data."""


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
    """Return the operators' web page. Mount the page with ``app.add_subapp("/desk", desk(client, who=who))``.

    The page shows the journal of ``client``, and writes operators' decisions to it. The page sends nothing to
    the transfer service, stores no sessions, and uses no scripts. Only an operator that ``who`` returns can
    see data, and every change requires a role.

    Args:
        client: the client whose journal to show. The page does not close the client.
        who: a plain or async function that takes a request and returns its `Operator`, or None for an unknown
            person.
        origin: the page's origin, such as ``https://desk.bank.example``. If ``origin`` is set, the page
            accepts only forms from this origin. ``origin`` is required if a proxy changes the ``Host``
            header.
        label: the name of the environment, such as ``live`` or ``test``, at most 40 characters. Each page
            shows the label in a band at the top and in the title.
        colour: the colour of the band, such as ``#8a0000``.
        link: the URL of the bank's own order search, such as
            ``https://office.bank.example/orders?id={order_id}``. The URL may contain the placeholders
            ``{key}``, ``{order_id}``, ``{request_id}``, ``{intent_id}`` and ``{attempt_id}``, whose values
            are percent-encoded. A key's page contains a link for each recorded combination of values, up to
            10 links.
        zone: the bank's time zone, such as ``Africa/Lagos``. Times are shown both in UTC and in the bank's
            time zone.

    Raises:
        ValueError: an argument is invalid. The message names the argument and the rule.
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
    """Return the operators' web page for an `Operators` object; see `desk`.

    ``holds`` contains the names of the hooks that place a hold. ``sign_out`` ends the page's only session and
    returns a text to show in the browser. Without ``sign_out``, there is no sign-out button, and the bank
    manages the sessions itself.
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
    """Redirect the mount point to the same path with a trailing slash, because links are relative."""
    query = f"?{request.rel_url.raw_query_string}" if request.query_string else ""
    raise web.HTTPSeeOther(f"./{request.rel_url.raw_path.rpartition('/')[2]}/{query}")


@frozen
class _AuthMiddleware:
    """Rejects unknown people and forms from other sites, and adds `HEADERS` to every response."""

    _shared: Shared
    _who: Who = field(kw_only=True)
    _origin: str | None = field(kw_only=True)

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, and add `HEADERS` to its response."""
        try:
            response = await self._answered(request, handler)
        except web.HTTPException as error:
            if error.status < 400:  # a redirect, for example to a sign-in page
                error.headers.update(HEADERS)
                raise
            response = self._as_page(request, error)
        response.headers.update(HEADERS)
        if response.status >= 500 and is_list(request):
            response.headers["Refresh"] = str(REFRESH)  # An unattended display must recover by itself.
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if is_from_elsewhere(request, origin=self._origin):
                return self._message(
                    request, 403, "Form refused", "This form was not sent from a page of this site."
                )
            if handler is not _file:
                request[OPERATOR] = operator = await operator_of(self._who, request)
                if operator is None:
                    return self._message(
                        request, 403, "Not signed in", "You are not signed in as an operator."
                    )
            return await handler(request)
        except (JournalFailed, ClientClosed) as error:
            return self._message(request, 503, "The journal failed", f"{error}. Open the page again.")
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - its text may contain personal data, so it is never shown
            log.error("the desk failed on %s %s (%s)", request.method, request.path, type(error).__name__)
            return self._message(request, 500, "Internal error", "See the log for the type of error.")

    def _as_page(self, request: web.Request, error: web.HTTPException) -> web.Response:
        titles = {401: "Sign in first", 404: "There is no such page", 405: "Method not allowed"}
        title = titles.get(error.status, "Request refused")
        text = {404: "Go back to the list."}.get(error.status, error.reason)
        response = self._message(request, error.status, title, text)
        keep_headers(error, response)  # for example those that tell how to sign in, or when to retry
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
# The forms that change data. They require a role, and they fail if the key has changed since the page was
# rendered.


@frozen(kw_only=True)
class Form:
    """A submitted form, with its fields and the operator."""

    name: str
    operator: Operator
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        """Return the value of a field, or an empty string if the field was not sent."""
        return self.fields.get(name, "")

    @property
    def attribution(self) -> dict[str, str]:
        """The operator's name and reason, as the arguments ``by`` and ``reason`` of a decision."""
        return {"by": self.operator.name, "reason": self["reason"]}


@frozen
class Action:
    """Handles a form that changes data. The operator must have one of the form's roles."""

    _shared: Shared
    _name: str
    _roles: frozenset[Role]
    _change: _Change

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Make the change and redirect to the key's page, or explain there why the change was refused."""
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
        if "back" in form.fields:  # "Go back" on the review page: show the form again, as it was filled in
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
        with contextlib.suppress(JournalFailed, ValueError):  # The change is recorded, even if this fails.
            self._shared.cache.changed(await operators.view(view.key))
        raise web.HTTPSeeOther(address(view.key, done=done, **listed))

    def _review(self, form: Form, view: KeyView, row: DecisionRow) -> web.Response:
        """Return the review page of a decision that cannot be undone. This writes nothing."""
        checked_text("reason", form["reason"])
        if view.proposal is None:
            checked_undone(view.entry, refuting=row.frees_key, undone="undone" in form.fields)
        elif is_same_person(view.proposal.by, form.operator.name):
            raise ApproverIsProposer
        return review_page(
            self._shared, view, row, operator=form.operator, name=form.name, fields=form.fields
        )

    async def _listed(self, form: Form, view: KeyView) -> dict[str, Any]:
        """Return query parameters for the list from which the operator came, and for the next key in it."""
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
        problem = Sentence("Nothing was changed: the key has changed in the meantime")
        if not steps:
            problem = Sentence(
                "Nothing was changed. This page is out of date, or was rendered for another operator."
            )
        time, decided = self._shared.time, {row.name: row.explained for row in DECISIONS}
        for step in steps:
            if step.move in decided:
                text = f"{problem.text}. At {time(step.at)} {{}} decided: {decided[step.move]}"
                problem = Sentence(text, (*problem.values, _who(step, form)))
        approved = approval(history)
        if form.name in ("approve", "withdraw") and approved in steps and approved is not None:
            text = f"Nothing was changed: {{}} approved the proposal at {time(approved.at)}"
            problem = Sentence(text, (_who(approved, form),))
        four_eyes = (await operators.four_eyes()).demanded
        if self._is_current(form, view, four_eyes=not four_eyes):
            why = "dual control is now required" if four_eyes else "a single person may now decide alone"
            problem = Sentence(f"Nothing was changed: {why}")
            rule = await operators.history(FOUR_EYES)
            steps = tuple(step for step in rule if step.move in (Demand.name, Waive.name))[-1:]
        return await self._refused(form, problem, status=409, since=steps)

    async def _refused(
        self, form: Form, problem: str | Sentence | None, *, status: int, **more: Any
    ) -> web.Response:
        view = await self._shared.operators.view(form["key"])
        tried: dict[str, Any] = {"tried": form.name, "reason": form["reason"], "order_id": form["order_id"]}
        if status != 409:  # After a change the boxes are empty again, because the effects may differ.
            tried["ticked"] = form.fields
        listed = dict(parse_qsl(form["list"]))
        return await key_page(
            self._shared, form.operator, view, status=status, problem=problem, listed=listed, **tried, **more
        )


def _who(step: HistoryEvent, form: Form) -> str:
    return "you" if step.by == form.operator.name else step.by or "a program"


# --- what each form does ------------------------------------------------------------------------

_Change = Callable[[Operators, KeyView, Form, bool], Awaitable[str]]
"""A function that makes a change, and returns the change's name for `views.confirmation`."""


def _deciding(row: DecisionRow) -> _Change:
    """Return a function that makes the decision in ``row``, or proposes it under dual control."""

    async def decide(operators: Operators, view: KeyView, form: Form, four_eyes: bool) -> str:
        if row.frees_key and four_eyes and "certain" not in form.fields:  # Otherwise the review page asks.
            raise ValueError("certain: tick the box to confirm that you are certain")
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
        # If the record was corrupt but the key had ended, the decision only put the record into quarantine.
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
"""The roles and the function of each form, by the form's name. An operator must have one of the roles."""


# --- proposals for several keys ---------------------------------------------------------------------
# Each proposal states that a key's order exists, and another person must approve it. These pages never make a
# decision themselves.


_RESOLVE = row_of(Decision.RESOLVE, "")


@frozen
class BulkProposals:
    """Proposes decisions for several keys in two steps: enter an order id for each key, then submit all
    ids."""

    _shared: Shared

    async def select(self, request: web.Request) -> web.Response:
        """Show a field for the order id of each selected key, and fill in the ids from pasted text."""
        operator, form = _may_propose(request), await form_of(request)
        found = dict(_pasted(form.get("found", "")))
        typed = dict(zip(form.getall("key", []), form.getall("order_id", []), strict=False))
        keys = list(dict.fromkeys(form.getall("key", [])))
        ids = {key: found.get(key) or typed.get(key, "") for key in keys}
        return await self._page(operator, ids, reason=form.get("reason", ""))

    async def propose(self, request: web.Request) -> web.Response:
        """Propose each order id that was entered, and show again the keys whose proposals were refused."""
        operator, form = _may_propose(request), await form_of(request)
        columns = [form.getall(name, []) for name in ("key", "stamp", "order_id")]
        reason = form.get("reason", "")
        if len({len(column) for column in columns}) > 1:
            raise web.HTTPBadRequest
        rows = [(key, stamp, order_id.strip()) for key, stamp, order_id in zip(*columns, strict=True)]
        ids = {key: order_id for key, _, order_id in rows}
        try:
            reason = checked_text("reason", reason)
        except ValueError as error:
            return await self._page(operator, ids, reason=reason, wrong=problem_text(error))
        twice = {order_id for order_id, number in Counter(ids.values()).items() if number > 1}
        problems: dict[str, str] = {}
        for key, stamp, order_id in rows:
            try:
                if order_id in twice and order_id:
                    raise ValueError("order_id: several keys have the same order id")  # noqa: TRY301 - as `propose` refuses it
                if order_id:
                    await self._propose(operator, key, stamp, order_id, reason)
            except JournalFailed as error:
                problems[key] = f"{error}. Look at the key before you propose a decision again."
            except ValueError as error:
                problems[key] = problem_text(error)
        if not problems:
            raise web.HTTPSeeOther("./?proposal=mine")
        made = [(key, order_id) for key, order_id in ids.items() if order_id and key not in problems]
        left = {key: ids[key] for key in problems}
        return await self._page(operator, left, reason=reason, problems=problems, made=made)

    async def _propose(self, operator: Operator, key: str, stamp: str, order_id: str, reason: str) -> None:
        operators, holds = self._shared.operators, self._shared.holds
        view, four_eyes = await operators.view(key), (await operators.four_eyes()).demanded
        if not is_current(stamp, view, operator.name, four_eyes=four_eyes, holds=holds):
            raise ValueError("key: has changed since this page was rendered, so nothing was proposed")
        by, seen = operator.name, view.version
        await operators.propose(key, Decision.RESOLVE, order_id=order_id, by=by, reason=reason, seen=seen)
        with contextlib.suppress(JournalFailed, ValueError):  # the proposal is on record, even if this fails
            self._shared.cache.changed(await operators.view(key))

    async def _page(
        self, operator: Operator, ids: dict[str, str], *, problems: dict[str, str] | None = None, **more: Any
    ) -> web.Response:
        if len(ids) > PER_PAGE:
            raise web.HTTPBadRequest
        operators, four_eyes = self._shared.operators, (await self._shared.operators.four_eyes()).demanded
        rows, left_out = [], []
        for key, order_id in ids.items():
            problem = (problems or {}).get(key)
            try:
                view = await operators.view(key)
            except ValueError:
                continue
            if view.proposal is not None or view.is_sealed or not _RESOLVE.is_offered(view):
                left_out.append((key, problem))
                continue
            token = token_of(view, operator.name, four_eyes=four_eyes, holds=self._shared.holds)
            rows.append({"view": view, "token": token, "order_id": order_id, "problem": problem})
        given = {"rows": rows, "left_out": left_out, "wrong": None, "made": (), **more}
        status = 422 if problems or given["wrong"] else 200
        return self._shared.answer("bulk", status=status, operator=operator, **given)


def _may_propose(request: web.Request) -> Operator:
    operator = operator_at(request)
    if not operator.may(Role.CHANGE):
        raise web.HTTPForbidden
    return operator


def _pasted(text: str) -> Iterable[tuple[str, str]]:
    """Yield the keys and order ids from lines such as ``payment-1,tx-1``, ignoring further columns."""
    for row in csv.reader(text.replace("\t", ",").splitlines()):
        cells = [cell.strip() for cell in row]
        order_id = next((cell for cell in cells[1:] if cell.startswith("tx-")), None)
        if order_id is not None:
            yield cells[0], order_id


# --- defences ----------------------------------------------------------------------------------------
# Protection against other sites open in the same browser.
#
# A browser sends the operator's cookie or authentication header even with a form from another site. The desk
# therefore accepts forms only from its own pages, and no other site may embed or script these pages.


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With `no-referrer`, browsers would also hide the origin of the desk's own forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}
"""The headers of every response."""

_OF_THE_BODY = frozenset({"transfer-encoding", "etag", "last-modified"})
"""Names of headers that describe the body of a response, besides those that begin with ``Content-``."""


def keep_headers(error: web.HTTPException, response: web.Response) -> None:
    """Copy the cookies and headers of ``error`` to ``response``, except headers that describe the body."""
    for name, value in error.headers.items():
        if name.lower() not in _OF_THE_BODY and not name.lower().startswith("content-"):
            response.headers.add(name, value)
    for name, cookie in error.cookies.items():
        response.cookies[name] = cookie


def is_from_elsewhere(request: web.Request, *, origin: str | None) -> bool:
    """Return whether ``request`` may change data and was sent from another site's page.

    Without ``origin``, the request's ``Origin`` is compared with its ``Host``.
    """
    if request.method in ("GET", "HEAD"):
        return False
    site = request.headers.getall("Sec-Fetch-Site", [])
    if site and site != ["same-origin"]:  # The browser sets this header, and pages cannot change it.
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
