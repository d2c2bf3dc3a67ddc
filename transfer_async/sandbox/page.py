"""The sandbox's page under `/sandbox/`: orders, requests and faults in a browser, with buttons.

| method and path | response |
| --- | --- |
| `GET /sandbox/` | orders, requests and faults; without the cookie, a form that asks for the token |
| `GET /sandbox/live` | the same; the browser reloads it every two seconds |
| `GET /sandbox/page.css` | the style sheet |
| `POST /sandbox/enter` | exchange the token for the cookie |
| `POST /sandbox/page/match` | run the matcher bot |
| `POST /sandbox/page/arm` | apply the named fault to the next order |
| `POST /sandbox/page/forget` | remove all faults |
| `POST /sandbox/page/release` | release the requests that stall |

The page needs Jinja2, which the extra `desk` installs; the service itself does not. It needs no script, and
refuses a form that another page sent.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from transfer_async.sandbox.faults import FAULTS, Faults, Status, StatusAfterProcessing
from transfer_async.sandbox.service import Call, Fault, Reply, RequestRecord, Service

HOME, LIVE, STYLE, ENTER = "/sandbox/", "/sandbox/live", "/sandbox/page.css", "/sandbox/enter"
FORMS = "/sandbox/page/"
NEEDS_JINJA = "The sandbox's page needs Jinja2: pip install 'transfer_async[desk]'"

MAX_ROWS = 100
"""The largest number of orders, and of requests, that the page shows: the newest."""

MAX_BODY_CHARACTERS = 2_000
"""The largest part of a request's body that the page shows."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # not `no-referrer`: a browser would hide the origin of its forms
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

# Read on import: they are files, and requests are answered inside an event loop.
_STYLE, _TEMPLATE = (Path(__file__).with_name("templates") / name for name in ("page.css", "page.html"))
_STYLE_BYTES, _TEMPLATE_TEXT = _STYLE.read_bytes(), _TEMPLATE.read_text(encoding="utf-8")


class Page:
    """The page and its forms.

    Args:
        service: has the orders.
        faults: the faults to show and change.
        requests: what the sandbox received, oldest first.
        token: opens the page.
        match: runs the matcher bot.
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
        self._cookie = f"transfer_sandbox_{secrets.token_hex(8)}"  # cookies ignore ports: two may run at once
        self._actions: Mapping[str, Callable[[], object]] = {
            "match": match,
            "forget": faults.clear,
            "release": faults.release,
        }

    @staticmethod
    def answers(path: str) -> bool:
        """Whether a path belongs to the page."""
        return path in (HOME, LIVE, STYLE, ENTER) or path.startswith(FORMS)

    def answer(self, call: Call) -> Reply:
        """Answer one call for the page; never raises."""
        if call.path == STYLE:
            return Reply(status=200, body=_STYLE_BYTES, headers={**HEADERS, "Content-Type": "text/css"})
        method = "GET" if call.path in (HOME, LIVE) else "POST"
        if call.method not in (method, "HEAD" if method == "GET" else ""):
            return _problem(405, f"This path takes {method} only.", {"Allow": method})
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
                "token", status=403, problem="This is not the token. Copy it from the sandbox's output."
            )
        cookie = f"{self._cookie}={self._session}; Path=/sandbox/; HttpOnly; SameSite=Strict"
        return _to_home({"Set-Cookie": cookie})

    def _has_session(self, call: Call) -> bool:
        # By hand: the cookies of other programs on this host may break rules that http.cookies insists on.
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
        return _to_home()


def _field(call: Call, name: str) -> str:
    text = (call.body or b"").decode("utf-8", "replace")
    try:
        return parse_qs(text, max_num_fields=10).get(name, [""])[0]
    except ValueError:
        return ""


def _is_own_form(call: Call) -> bool:
    """Whether it is certain that the sandbox's own page sent a form."""
    site = call.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    try:
        return urlsplit(call.headers.get("Origin", "")).netloc == call.headers.get("Host", "?")
    except ValueError:
        return False


def _to_home(headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=303, body=b"", headers={**HEADERS, "Location": HOME, **(headers or {})})


def _problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> Reply:
    return _page("problem", status=status, headers=headers or {}, problem=text)


def _page(view: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Reply:
    text, kind = _rendered(view, values), "text/html"
    if text is None:
        text, kind, status = NEEDS_JINJA, "text/plain", 404
    given = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **(headers or {})}
    return Reply(status=status, body=text.encode("utf-8", "replace"), headers=given)


def _rendered(view: str, values: Mapping[str, Any]) -> str | None:
    """Return the HTML of a view; None if Jinja2 is not installed."""
    try:
        template = _template()
    except ModuleNotFoundError:
        return None
    text: str = template.render(view=view, max_body=MAX_BODY_CHARACTERS, **values)
    return text


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined  # an extra; and 100 ms that most sandboxes do not need

    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_TEMPLATE_TEXT)


def _printable(value: object) -> object:
    """Replace control characters, which must not stand in a page."""
    if type(value) is not str:  # markup of the template itself is left as it is
        return value
    return "".join(item if item.isprintable() or item in "\n\t " else "\ufffd" for item in value)
