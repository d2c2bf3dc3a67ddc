"""The paths under `/sandbox/`, with which a person or a test controls the sandbox.

The paths under `/sandbox/` are not part of the specification. Because they may show personal data, all paths
except `openapi.json` require the token that the sandbox prints.

| method and path | response |
| --- | --- |
| `GET /sandbox/openapi.json` | an OpenAPI 3.1 document of the two specified operations |
| `GET /sandbox/users/{username}` | the user object (specification, section 2.2), or 404 |
| `GET /sandbox/orders` | `{"orders": [...]}`, a few fields of each order, oldest order first |
| `GET /sandbox/orders.jsonl` | every order object, one per line, as an export for `journal reconcile` |
| `GET /sandbox/orders/{id}` | the order object as it is now, or 404 |
| `POST /sandbox/match` | run the matcher bot: `{"matched": [ids]}` |
| `GET /sandbox/faults` | `{"faults": [...], "mix": [...]}`: the faults in the queue, and those in the mix |
| `POST /sandbox/faults` | add the fault of a `FaultRequest`, or 422 if it is not valid |
| `DELETE /sandbox/faults` | remove all faults |
| `POST /sandbox/release` | release the stalled requests: `{"released": n}` |

`GET /sandbox/` returns a page for a browser. It needs Jinja.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import msgspec

from transfer_async.sandbox import wire
from transfer_async.sandbox.faults import FAULTS, Faults, Rule, Status, StatusAfterProcessing
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
from transfer_async.sandbox.wire import Order

PREFIX = "/sandbox/"
USERS = "/sandbox/users/"
ORDERS = "/sandbox/orders/"
USER_PATH = USERS + "{username}"
OPENAPI = "/sandbox/openapi.json"


def _openapi() -> bytes:
    """Return the OpenAPI document, with the request fields, the example and the who-am-i response added."""
    document = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
    schemas = document["components"]["schemas"]
    for name, inside in (("NewOrder", ""), ("NewExternalOrder", "external_order")):
        known = wire.request_schema(inside)
        properties = known["properties"] | schemas[name].get("properties", {})
        schemas[name] |= {"required": [*properties], "properties": properties}
    shown = {name: schemas["User"]["properties"][name] for name in wire.WHO_AM_I_FIELDS}
    schemas["WhoAmI"] |= {"required": [*shown], "properties": shown}
    body = document["paths"][CREATE_ORDER_PATH]["post"]["requestBody"]["content"]["application/json"]
    body["examples"]["order"]["value"] = wire.EXAMPLE
    return msgspec.json.format(wire.write(document), indent=2) + b"\n"


# Read on import, because reading a file would block the event loop that answers requests.
DOCUMENT: bytes = _openapi()


class FaultRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A fault to add: its name in `FAULTS`, its settings (`options`), and the arguments of `Faults.add`."""

    fault: str
    options: dict[str, Any] = {}
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None


class Control:
    """Responds to requests to the service, and to the sandbox's own paths."""

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
            "/sandbox/orders.jsonl": {"GET": self._export},
            "/sandbox/match": {"POST": self._match_now},
            "/sandbox/release": {"POST": self._release},
            "/sandbox/faults": {
                "GET": self._list_faults,
                "POST": self._add_fault,
                "DELETE": self._clear_faults,
            },
        }

    def is_control_path(self, path: str) -> bool:
        """Return whether a path is a control path of the sandbox. Faults never apply to control paths."""
        return path.startswith(PREFIX) and not path.startswith(USERS)

    def answer(self, call: Call) -> Reply:
        """Answer a request, whether it is for the service or for the sandbox's controls. Never raise."""
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
            return message(404, "No such user.")
        return _ok(wire.user_object(account))

    def _order(self, call: Call) -> Reply:
        order = self._service.orders.get(call.path.removeprefix(ORDERS))
        if order is None:
            return message(404, "No such order.")
        return Reply(status=200, body=order.to_json())

    def _orders(self, _: Call) -> Reply:
        return _ok({"orders": [_summary(order) for order in self._service.orders.values()]})

    def _export(self, _: Call) -> Reply:
        lines = b"".join(order.to_json() + b"\n" for order in self._service.orders.values())
        return Reply(status=200, body=lines, headers={"Content-Type": "application/x-ndjson"})

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
            request = msgspec.json.decode(call.body or b"", type=FaultRequest)
            settings = msgspec.structs.asdict(request)
            self._faults.add(make_fault(settings.pop("fault"), settings.pop("options")), **settings)
        except (msgspec.MsgspecError, ValueError) as error:
            return message(422, f"The fault was refused: {error}")
        return self._list_faults(call)


def make_fault(name: str, options: Mapping[str, Any]) -> Fault:
    """Create a fault from its name in `FAULTS` and its settings.

    Raises:
        ValueError: the name or a setting is unknown, or a value is out of range.
        msgspec.MsgspecError: a setting has the wrong type.
    """
    kind = FAULTS.get(name)
    if kind is None:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}")
    known = set(attrs.fields_dict(kind))
    if not known.issuperset(options):
        raise ValueError(f"{name} accepts only these options: {', '.join(sorted(known)) or 'none'}")
    made: Fault = msgspec.convert(options, kind)
    return made


def _ok(value: object) -> Reply:
    return Reply(status=200, body=wire.write(value))


def _summary(order: Order) -> wire.JsonObject:
    return {
        "id": order.id,
        "poster_username": order.poster_username,
        "poster_amount": order.poster_amount,
        "poster_currency": order.request.poster_currency,
        "is_matched": int(order.is_matched),
        "posted_at": wire.timestamp(order.posted_at),
    }


def _show_fault(fault: Fault) -> wire.JsonObject:
    options = {name: repr(getattr(fault, name)) for name in attrs.fields_dict(type(fault))}
    return {"fault": fault.name, "options": options}


def settings_text(fault: Fault, rule: Rule | None = None) -> str:
    """Describe a fault: its name, its settings, and any settings of its rule that are not the default."""
    given = {name: getattr(fault, name) for name in attrs.fields_dict(type(fault))}
    options = ", ".join(f"{name} {_text(value)}" for name, value in given.items() if value not in (None, {}))
    parts = [f"{fault.name} ({options})" if options else fault.name]
    if rule is not None:
        if rule.times != 1:
            parts.append(f"{rule.times or 'any number of'} times")
        parts += (
            f"{item.name} {value}"
            for item in attrs.fields(Rule)
            if item.name not in ("fault", "times") and (value := getattr(rule, item.name)) != item.default
        )
    return ", ".join(parts)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {item}" for name, item in value.items())
    return str(value)


def indented(body: bytes) -> str:
    """Return a JSON body with each member on its own line. A body that is not JSON is returned unchanged.

    A body longer than `MAX_INDENTED`, or nested deeper than `MAX_DEPTH`, is also returned unchanged, because
    indentation could make it a thousand times longer.
    """
    text = body.decode("utf-8", "replace")
    if len(text) > MAX_INDENTED or _depth(text) > MAX_DEPTH:
        return text
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return text


def _depth(text: str) -> int:
    return max(accumulate((sign in "[{") - (sign in "]}") for sign in text), default=0)


def _show(rule: Rule) -> wire.JsonObject:
    settings = {name: getattr(rule, name) for name in attrs.fields_dict(Rule) if name != "fault"}
    return _show_fault(rule.fault) | settings


# --- the page -----------------------------------------------------------------------------------------


HOME, LIVE, STYLE, ENTER = "/sandbox/", "/sandbox/live", "/sandbox/page.css", "/sandbox/enter"
FORMS = "/sandbox/page/"
NEEDS_JINJA = "The sandbox's page needs Jinja2: pip install 'transfer_async[desk]'"

MAX_ROWS = 100
"""The maximum number of orders, and of requests, on the page, which shows the newest."""

MAX_BODY_CHARACTERS = 2_000
"""The maximum length of a request's body on the page."""

MAX_INDENTED = 20_000
"""The maximum number of characters of a body that the page indents."""

MAX_DEPTH = 20
"""The maximum nesting of a body that the page indents."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # With `no-referrer`, a browser would hide the origin of its forms.
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

FAULT_BUTTONS: Mapping[str, Fault] = {
    **{name: kind() for name, kind in FAULTS.items() if not issubclass(kind, Status)},
    **{f"{Status.name} {status}": Status(status) for status in (401, 422, 429, 503)},
    **{f"{StatusAfterProcessing.name} {status}": StatusAfterProcessing(status) for status in (500, 503)},
}
"""The fault of each button, by the button's label."""

_NO_ORDER_YET = frozenset({"close-before-reading", "stall-before-processing", "status", "redirect"})

# Read on import, because reading files would block the event loop that answers requests.
_STYLE, _TEMPLATE = (Path(__file__).with_name("templates") / name for name in ("page.css", "page.html"))
_STYLE_BYTES, _TEMPLATE_TEXT = _STYLE.read_bytes(), _TEMPLATE.read_text(encoding="utf-8")


class Page:
    """The sandbox's web page and its forms.

    Args:
        service: the service whose orders the page shows.
        faults: the faults to show and change.
        requests: the received requests, oldest first.
        token: the token that a person enters to open the page.
        match: a function that runs the matcher bot.
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
        self._token = token
        self._session = secrets.token_urlsafe(32)
        # Two sandboxes on one host need different names, because cookies ignore ports.
        self._cookie = f"transfer_sandbox_{secrets.token_hex(8)}"
        self._actions: Mapping[str, Callable[[], object]] = {
            "match": match,
            "forget": faults.clear,
            "release": faults.release,
        }

    @staticmethod
    def answers(path: str) -> bool:
        """Return whether a path belongs to the sandbox's web page."""
        return path in (HOME, LIVE, STYLE, ENTER) or path.startswith(FORMS)

    def answer(self, call: Call) -> Reply:
        """Return the response to a request for the page. Never raise."""
        if call.path == STYLE:
            return Reply(status=200, body=_STYLE_BYTES, headers={**HEADERS, "Content-Type": "text/css"})
        method = "GET" if call.path in (HOME, LIVE) else "POST"
        if call.method not in (method, "HEAD" if method == "GET" else ""):
            return _problem(405, f"Only {method} is allowed for this path.", {"Allow": method})
        if method == "GET":
            return self._show(call)
        if not _is_own_form(call):
            return _problem(
                403, "This form was not sent by the sandbox's own page. Open the page and try again."
            )
        if call.path == ENTER:
            return self._enter(call)
        if not self._has_session(call):
            return _problem(403, "Enter the token first.")
        return self._act(call)

    def _show(self, call: Call) -> Reply:
        if not self._has_session(call):
            return _page("token")
        is_live = call.path == LIVE
        received = [record for record in self._requests if not record.path.startswith(HOME)]
        return _page(
            "sandbox",
            headers={"Refresh": "2"} if is_live else {},
            is_live=is_live,
            rules=self._faults.rules,
            shares=self._faults.shares,
            stalled=len(self._faults.stalled),
            buttons=FAULT_BUTTONS,
            no_order_yet=_NO_ORDER_YET,
            orders=list(islice(reversed(self._service.orders.values()), MAX_ROWS)),
            requests=received[: -MAX_ROWS - 1 : -1],
        )

    def _enter(self, call: Call) -> Reply:
        sent = _field(call, "token").strip()
        if not hmac.compare_digest(sent.encode("utf-8", "replace"), self._token.encode("utf-8", "replace")):
            return _page(
                "token",
                status=403,
                problem="This is not the sandbox's token. Copy the token from the sandbox's output.",
            )
        cookie = f"{self._cookie}={self._session}; Path=/sandbox/; HttpOnly; SameSite=Strict"
        return _see(HOME, {"Set-Cookie": cookie})

    def _has_session(self, call: Call) -> bool:
        # http.cookies would reject the whole header if another program's cookie is invalid.
        pairs = (item.strip().partition("=") for item in call.headers.get("Cookie", "").split(";"))
        sent = next((value for name, _, value in pairs if name == self._cookie), "")
        return hmac.compare_digest(sent.encode("utf-8", "replace"), self._session.encode())

    def _act(self, call: Call) -> Reply:
        form = call.path.removeprefix(FORMS)
        if form in self._actions:
            self._actions[form]()
        elif form == "arm" and (fault := FAULT_BUTTONS.get(_field(call, "fault"))) is not None:
            self._faults.add(fault)
        else:
            return _problem(404, "No such form or fault. Reload the page and try again.")
        return _see(LIVE if _field(call, "live") else HOME)


def _field(call: Call, name: str) -> str:
    text = (call.body or b"").decode("utf-8", "replace")
    try:
        return parse_qs(text, max_num_fields=10).get(name, [""])[0]
    except ValueError:
        return ""


def _is_own_form(call: Call) -> bool:
    """Return whether it is certain that a form came from the sandbox's own page."""
    site = call.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    try:
        return urlsplit(call.headers.get("Origin", "")).netloc == call.headers.get("Host", "?")
    except ValueError:
        return False


def _see(path: str, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=303, body=b"", headers={**HEADERS, "Location": path, **(headers or {})})


def _problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> Reply:
    return _page("problem", status=status, headers=headers or {}, problem=text)


def _page(view: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Reply:
    text, kind = _rendered(view, values), "text/html"
    if text is None:
        text, kind, status = NEEDS_JINJA, "text/plain", 404
    given = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **(headers or {})}
    return Reply(status=status, body=text.encode("utf-8", "replace"), headers=given)


def _rendered(view: str, values: Mapping[str, Any]) -> str | None:
    """Return the HTML of a view, or None if Jinja2 is not installed."""
    try:
        template = _template()
    except ModuleNotFoundError:
        return None
    text: str = template.render(view=view, max_body=MAX_BODY_CHARACTERS, **values)
    return text


@cache
def _template() -> Any:
    # Jinja2 is an extra, and importing it takes 100 ms that most sandboxes do not need.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(indented=indented, settings_text=settings_text)
    return environment.from_string(_TEMPLATE_TEXT)


def _printable(value: object) -> object:
    """Replace control characters, which are not allowed in a page."""
    if type(value) is not str:  # The template's own markup stays unchanged.
        return value
    return "".join(item if item.isprintable() or item in "\n\t " else "\ufffd" for item in value)
