"""The paths under `/sandbox/`: what a person or a test asks of the sandbox itself, not of the service.

They are no part of the specification. All but the first need the token: it is at hand wherever the
sandbox is, and people's data stay behind it.

| method and path | answer |
| --- | --- |
| `GET /sandbox/openapi.json` | the two specified operations as an OpenAPI 3.1 document |
| `GET /sandbox/users/{username}` | the user object (specification, section 2.2), or 404 |
| `GET /sandbox/orders` | `{"orders": [...]}`, a few fields of each, in the order of creation |
| `GET /sandbox/orders/{id}` | the order object as it is now, or 404 |
| `POST /sandbox/match` | `{"matched": [ids]}`: the matcher bot has run |
| `GET /sandbox/faults` | `{"faults": [...], "mix": [...]}`: what is still to be played, and shares |
| `POST /sandbox/faults` | a fault is added: `FaultRequest` says how; 422 if it is none |
| `DELETE /sandbox/faults` | all are forgotten |
| `POST /sandbox/release` | `{"released": n}`: requests that stalled go on |

What a browser asks for, `GET /sandbox/` first of all, is in `web_page`.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import attrs
import msgspec

from transfer_async.sandbox import rendering, validation
from transfer_async.sandbox.faults import FAULTS, Faults, Rule, Status, StatusAfterProcessing
from transfer_async.sandbox.rendering import Order
from transfer_async.sandbox.service import (
    CREATE_ORDER_PATH,
    Call,
    Fault,
    Reply,
    RequestRecord,
    Service,
    message,
    read_json,
    refuse_head,
)

PREFIX = "/sandbox/"
USERS = "/sandbox/users/"
ORDERS = "/sandbox/orders/"
USER_PATH = USERS + "{username}"
OPENAPI = "/sandbox/openapi.json"

# Read once, on import: it is a file, and requests are answered within a loop.
DOCUMENT: bytes = Path(__file__).with_name("openapi.json").read_bytes()


class FaultRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A fault to add: its name in `FAULTS`, its own settings as `options`, and the rest as `Faults.add`."""

    fault: str
    options: dict[str, Any] = {}
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None


class Control:
    """The service, with the sandbox's own paths beside it."""

    def __init__(
        self,
        service: Service,
        faults: Faults,
        requests: Iterable[RequestRecord],
        *,
        token: str,
        match: Callable[[], list[str]],
    ) -> None:
        self._service = service
        self._faults = faults
        self._token = token
        self._match = match
        self._page = Page(service, faults, requests, token=token, match=match)
        self._routes: dict[str, dict[str, Callable[[Call], Reply]]] = {
            OPENAPI: {"GET": lambda _: Reply(status=200, body=DOCUMENT)},
            "/sandbox/orders": {"GET": self._orders},
            "/sandbox/match": {"POST": self._match_now},
            "/sandbox/release": {"POST": self._release},
            "/sandbox/faults": {
                "GET": self._list_faults,
                "POST": self._add_fault,
                "DELETE": self._clear_faults,
            },
        }

    def steers(self, path: str) -> bool:
        """Tell whether a path is for steering the sandbox: no fault ever reaches it."""
        return path.startswith(PREFIX) and not path.startswith(USERS)

    def answer(self, call: Call) -> Reply:
        """Answer one call, to the service or to the sandbox; never raises."""
        if not call.path.startswith(PREFIX):
            return self._service.answer(call)
        if self._page.answers(call.path):
            return self._page.answer(call)
        handlers = self._find(call.path)
        if not handlers:
            return message(404, "Not Found")
        token = None if call.path == OPENAPI else self._token
        refusal = refuse_head(call, methods=handlers, token=token)
        return refusal or handlers[call.method](call)

    def _find(self, path: str) -> Mapping[str, Callable[[Call], Reply]]:
        if path.startswith(USERS):
            return {"GET": self._user}
        if path.startswith(ORDERS):
            return {"GET": self._order}
        return self._routes.get(path, {})

    def _user(self, call: Call) -> Reply:
        account = self._service.accounts.get(call.path.removeprefix(USERS))
        if account is None:
            return message(404, "There is no such user.")
        return _ok(rendering.user_object(account))

    def _order(self, call: Call) -> Reply:
        order = self._service.orders.get(call.path.removeprefix(ORDERS))
        if order is None:
            return message(404, "There is no such order.")
        return Reply(status=200, body=order.to_json())

    def _orders(self, _: Call) -> Reply:
        return _ok({"orders": [_summary(order) for order in self._service.orders.values()]})

    def _match_now(self, _: Call) -> Reply:
        return _ok({"matched": self._match()})

    def _release(self, _: Call) -> Reply:
        return _ok({"released": self._faults.release()})

    def _list_faults(self, _: Call) -> Reply:
        mix = [{**_show_fault(fault), "share": share} for fault, share in self._faults.shares.items()]
        return _ok({"faults": [_show(rule) for rule in self._faults.rules], "mix": mix})

    def _clear_faults(self, call: Call) -> Reply:
        self._faults.clear()
        return self._list_faults(call)

    def _add_fault(self, call: Call) -> Reply:
        document = read_json(call)
        if isinstance(document, Reply):
            return document
        try:
            self._add(msgspec.json.decode(call.body or b"", type=FaultRequest))
        except (msgspec.MsgspecError, ValueError) as error:
            return message(422, f"The fault was refused: {error}")
        return self._list_faults(call)

    def _add(self, request: FaultRequest) -> None:
        self._faults.add(
            make_fault(request.fault, request.options),
            times=request.times,
            probability=request.probability,
            path=request.path,
            username=request.username,
            amount=request.amount,
        )


def make_fault(name: str, options: Mapping[str, Any]) -> Fault:
    """Make a fault from its name in `FAULTS` and its settings.

    Raises:
        ValueError: there is none of that name, or not with these settings.
        msgspec.MsgspecError: a setting is of the wrong type.
    """
    kind = FAULTS.get(name)
    if kind is None:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}")
    known = set(attrs.fields_dict(kind))
    if not known.issuperset(options):
        raise ValueError(f"options of {name} are {', '.join(sorted(known)) or 'none'}")
    made: Fault = msgspec.convert(options, kind)
    return made


def _ok(value: object) -> Reply:
    return Reply(status=200, body=validation.write(value))


def _summary(order: Order) -> validation.JsonObject:
    return {
        "id": order.id,
        "poster_username": order.poster_username,
        "poster_amount": order.poster_amount,
        "poster_currency": order.request.poster_currency,
        "is_matched": int(order.is_matched),
        "posted_at": validation.timestamp(order.posted_at),
    }


def _show_fault(fault: Fault) -> validation.JsonObject:
    options = {name: repr(getattr(fault, name)) for name in attrs.fields_dict(type(fault))}
    return {"fault": fault.name, "options": options}


def _show(rule: Rule) -> validation.JsonObject:
    return {
        **_show_fault(rule.fault),
        "times": rule.times,
        "probability": rule.probability,
        "path": rule.path,
        "username": rule.username,
        "amount": rule.amount,
    }


# --- web page ----------------------------------------------------------------------------------------
# The sandbox's page, under `/sandbox/`: what the client did, as a developer sees it in a browser.
#
# | method and path | answer |
# | --- | --- |
# | `GET /sandbox/` | orders, requests and faults; without the cookie, a form that asks for the token |
# | `GET /sandbox/live` | the same, which a browser asks for again every two seconds |
# | `GET /sandbox/page.css` | how it looks |
# | `POST /sandbox/enter` | the token, for the cookie |
# | `POST /sandbox/page/match` | the matcher bot comes by now |
# | `POST /sandbox/page/arm` | the next order meets the fault that is named |
# | `POST /sandbox/page/forget` | all faults are forgotten |
# | `POST /sandbox/page/release` | requests that stall go on |
#
# A page is a tree of elements, which is written as HTML in the end: whatever was sent is text in it.
# It needs no script, and a form of another page is refused.


HOME, LIVE, STYLE, ENTER = "/sandbox/", "/sandbox/live", "/sandbox/page.css", "/sandbox/enter"
FORMS = "/sandbox/page/"

SHOWN = 100
"""The newest orders and requests are shown."""

LONGEST_BODY = 2_000
"""Characters of a request's body that are shown."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # not `no-referrer`: a browser would hide the origin of its forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_STYLE: bytes = Path(__file__).with_name("page.css").read_bytes()
_NEED_A_STATUS = (Status, StatusAfterProcessing)
CLICKS: Mapping[str, Fault] = {
    **{name: kind() for name, kind in FAULTS.items() if kind not in _NEED_A_STATUS},
    **{f"{Status.name} {status}": Status(status) for status in (401, 422, 429, 503)},
    **{f"{StatusAfterProcessing.name} {status}": StatusAfterProcessing(status) for status in (500, 503)},
}
"""What a click arms, by what stands on its button."""

Element = ElementTree.Element
Part = Element | str


class Page:
    """The page, and the forms on it.

    Args:
        service: what has orders.
        faults: what is to go wrong.
        requests: what was received, oldest first.
        token: lets a browser in.
        match: the matcher bot.
    """

    def __init__(
        self,
        service: Service,
        faults: Faults,
        requests: Iterable[RequestRecord],
        *,
        token: str,
        match: Callable[[], list[str]],
    ) -> None:
        self._service, self._faults, self._requests = service, faults, requests
        self._token, self._match = token, match
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"transfer_sandbox_{secrets.token_hex(8)}"  # cookies ignore ports: two may run at once

    @staticmethod
    def answers(path: str) -> bool:
        """Whether a path is one of the page's."""
        return path in (HOME, LIVE, STYLE, ENTER) or path.startswith(FORMS)

    def answer(self, call: Call) -> Reply:
        """Answer one call for the page; never raises."""
        if call.path == STYLE:
            return Reply(status=200, body=_STYLE, headers={**HEADERS, "Content-Type": "text/css"})
        if call.path in (HOME, LIVE):
            return self._shown(call)
        if call.method != "POST":
            return _told(405, "A form is sent by POST.", allow="POST")
        if _is_from_elsewhere(call):
            return _told(403, "This was not asked for on the sandbox's own page.")
        if call.path == ENTER:
            return self._enter(call)
        if not self._is_let_in(call):
            return _told(403, "Give the token first.")
        return self._done(call)

    def _shown(self, call: Call) -> Reply:
        if call.method not in ("GET", "HEAD"):
            return _told(405, "The page is asked for by GET.", allow="GET")
        if not self._is_let_in(call):
            return _page(_form_of_entrance())
        is_live = call.path == LIVE
        more = {"Refresh": "2"} if is_live else {}
        return _page(*self._parts(is_live=is_live), headers=more)

    def _parts(self, *, is_live: bool) -> Iterable[Part]:
        yield _steering(is_live=is_live)
        yield _faults(self._faults.rules, stalled=len(self._faults.stalled))
        yield _orders(list(self._service.orders.values()))
        yield _received(record for record in self._requests if not record.path.startswith(HOME))

    def _enter(self, call: Call) -> Reply:
        given = _fields(call).get("token", "").strip()
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode("utf-8", "replace")):
            return _page(_form_of_entrance("This is not the token."), status=403)
        cookie = f"{self._cookie}={self._session}; Path=/sandbox/; HttpOnly; SameSite=Strict"
        return _to_home({"Set-Cookie": cookie})

    def _is_let_in(self, call: Call) -> bool:
        # By hand: the cookies of others on this host may break rules that http.cookies insists on.
        pairs = (item.strip().partition("=") for item in call.headers.get("Cookie", "").split(";"))
        given = next((value for name, _, value in pairs if name == self._cookie), "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._session.encode())

    def _done(self, call: Call) -> Reply:
        wish = call.path.removeprefix(FORMS)
        if wish == "match":
            self._match()
        elif wish == "forget":
            self._faults.clear()
        elif wish == "release":
            self._faults.release()
        elif wish == "arm" and (fault := CLICKS.get(_fields(call).get("fault", ""))) is not None:
            self._faults.add(fault)
        else:
            return _told(404, "There is no such form, or no such fault.")
        return _to_home()


# --- what is asked ------------------------------------------------------------------------------


def _fields(call: Call) -> Mapping[str, str]:
    text = (call.body or b"").decode("utf-8", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=10).items()}
    except ValueError:
        return {}


def _is_from_elsewhere(call: Call) -> bool:
    """Whether a form does not come, for certain, from the sandbox's own page."""
    site = call.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site != "same-origin"
    try:
        return urlsplit(call.headers.get("Origin", "")).netloc != call.headers.get("Host", "?")
    except ValueError:
        return True


# --- what is answered ---------------------------------------------------------------------------


def _to_home(headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=303, body=b"", headers={**HEADERS, "Location": HOME, **(headers or {})})


def _told(status: int, text: str, *, allow: str | None = None) -> Reply:
    parts = _tag("p", text, role="alert"), _tag("p", _tag("a", "The sandbox", href=HOME))
    return _page(*parts, status=status, headers={} if allow is None else {"Allow": allow})


def _page(*parts: Part, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    banner = _tag(
        "header", _tag("p", "SANDBOX", class_="big"), _tag("p", "This is not the service. No money moves.")
    )
    head = _tag(
        "head",
        _tag("meta", charset="utf-8"),
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("title", "Sandbox: not the service"),
        _tag("link", rel="stylesheet", href=STYLE),
    )
    tree = _tag(
        "html", head, _tag("body", banner, _tag("main", _tag("h1", "What the client did"), *parts)), lang="en"
    )
    text = "<!doctype html>" + ElementTree.tostring(tree, encoding="unicode", method="html")
    given = {**HEADERS, "Content-Type": "text/html; charset=utf-8", **(headers or {})}
    return Reply(status=status, body=text.encode("utf-8", "replace"), headers=given)


def _tag(kind: str, /, *parts: Part, **attributes: str) -> Element:
    """An element; what stands in it is text, or elements."""
    made = Element(kind, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    last: Element | None = None
    for part in parts:
        if isinstance(part, str):
            if last is None:
                made.text = (made.text or "") + _seen(part)
            else:
                last.tail = (last.tail or "") + _seen(part)
        else:
            made.append(part)
            last = part
    return made


def _seen(text: str) -> str:
    """``text`` with nothing in it that could not be in a page: control characters are shown as marks."""
    return "".join(item if item.isprintable() or item in "\n\t " else "\ufffd" for item in text)


def _form(path: str, *parts: Part) -> Element:
    return _tag("form", *parts, method="post", action=path)


def _button(text: str, **attributes: str) -> Element:
    return _tag("button", text, **attributes)


def _form_of_entrance(problem: str = "") -> Element:
    told = [_tag("p", problem, role="alert")] if problem else []
    return _tag(
        "section",
        *told,
        _form(
            ENTER,
            _tag("p", _tag("label", "The token that the sandbox printed", for_="token")),
            _tag(
                "p",
                _tag("input", id="token", name="token", required="", autocomplete="off"),
                " ",
                _button("Look"),
            ),
        ),
    )


def _steering(*, is_live: bool) -> Element:
    other = ("Keep it still", HOME) if is_live else ("Refresh it every 2 seconds", LIVE)
    return _tag(
        "div",
        _form(FORMS + "match", _button("Run the matcher bot now")),
        _form(FORMS + "release", _button("Let stalled requests go on")),
        _form(FORMS + "forget", _button("Forget all faults")),
        _tag("p", _tag("a", other[0], href=other[1])),
        class_="steering",
    )


_NO_ORDER_YET = frozenset({"close-before-reading", "stall-before-processing", "status", "redirect"})


def _section(title: str, *parts: Part) -> Element:
    name = title.lower().replace(" ", "-")
    return _tag("section", _tag("h2", title, id=name), *parts, aria_labelledby=name)


def _faults(rules: tuple[Rule, ...], *, stalled: int) -> Element:
    others = [name for name, fault in CLICKS.items() if fault.name in _NO_ORDER_YET]
    exists = [name for name in CLICKS if name not in others]
    told = [
        _tag("li", rule.fault.name, "" if rule.times == 1 else f", {rule.times or 'any number of'} times")
        for rule in rules
    ]
    return _section(
        "Faults",
        _tag("p", "Armed: ", _tag("ul", *told) if told else "none", f" Requests that stall: {stalled}."),
        _tag("p", "The next order exists, and its answer is lost or spoiled:"),
        _form(FORMS + "arm", *(_button(name, name="fault", value=name) for name in exists)),
        _tag("p", "The next order does not exist, or not yet:"),
        _form(FORMS + "arm", *(_button(name, name="fault", value=name) for name in others)),
    )


def _table(title: str, names: tuple[str, ...], rows: list[list[Part]]) -> Element:
    head = _tag("thead", _tag("tr", *(_tag("th", name, scope="col") for name in names)))
    body = _tag("tbody", *(_tag("tr", *(_tag("td", cell) for cell in row)) for row in rows))
    return _section(
        title,
        _tag("div", _tag("table", head, body), class_="wide", tabindex="0") if rows else _tag("p", "None."),
    )


def _orders(orders: list[Order]) -> Element:
    newest = orders[: -SHOWN - 1 : -1]
    rows: list[list[Part]] = [
        [
            _tag("code", order.id),
            f"{order.poster_amount:,f} {order.request.poster_currency}",
            _tag(
                "span",
                _tag("bdi", order.poster_username),
                " to ",
                _tag("bdi", order.request.poster_recipient_username),
            ),
            "matched" if order.is_matched else "processing",
            f"{order.posted_at:%H:%M:%S}",
        ]
        for order in newest
    ]
    return _table("Orders", ("id", "amount", "who", "state", "posted"), rows)


def _received(records: Iterable[RequestRecord]) -> Element:
    newest = list(islice(reversed(list(records)), SHOWN))
    rows: list[list[Part]] = [
        [
            f"{record.received_at:%H:%M:%S}",
            f"{record.method} {record.path}",
            str(record.status or "no answer"),
            record.fault.name if record.fault else "–",
            record.order_id or "–",
            _body_of(record),
        ]
        for record in newest
    ]
    return _table("Requests", ("at", "request", "status", "fault", "order", "body"), rows)


def _body_of(record: RequestRecord) -> Part:
    if not record.body:
        return "–"
    text = record.body.decode("utf-8", "replace")[:LONGEST_BODY]
    return _tag("details", _tag("summary", f"{len(record.body):,} bytes"), _tag("pre", text))
