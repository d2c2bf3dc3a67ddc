"""The paths under `/sandbox/`, by which a person or a test controls the sandbox itself.

They are not part of the specification. All but the first need the token: the sandbox prints it, and
people's data stay behind it.

| method and path | response |
| --- | --- |
| `GET /sandbox/openapi.json` | the two specified operations as an OpenAPI 3.1 document |
| `GET /sandbox/users/{username}` | the user object (specification, section 2.2), or 404 |
| `GET /sandbox/orders` | `{"orders": [...]}`, a few fields of each, in the order of creation |
| `GET /sandbox/orders/{id}` | the order object as it is now, or 404 |
| `POST /sandbox/match` | run the matcher bot: `{"matched": [ids]}` |
| `GET /sandbox/faults` | `{"faults": [...], "mix": [...]}`: the queue of faults, and the shares |
| `POST /sandbox/faults` | add a fault, as in `FaultRequest`; 422 if it is not valid |
| `DELETE /sandbox/faults` | remove all faults |
| `POST /sandbox/release` | release the requests that stall: `{"released": n}` |

The page for a browser, `GET /sandbox/`, is in `page`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import msgspec

from transfer_async.sandbox import rendering, validation
from transfer_async.sandbox.faults import FAULTS, Faults, Rule
from transfer_async.sandbox.page import Page
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


def _openapi() -> bytes:
    """Complete the OpenAPI document with what the code knows: request fields, the example, who-am-i."""
    document = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
    schemas = document["components"]["schemas"]
    for name, inside in (("NewOrder", ""), ("NewExternalOrder", "external_order")):
        known = validation.request_schema(inside)
        properties = known["properties"] | schemas[name].get("properties", {})
        schemas[name] |= {"required": [*properties], "properties": properties}
    shown = {name: schemas["User"]["properties"][name] for name in rendering.WHO_AM_I_FIELDS}
    schemas["WhoAmI"] |= {"required": [*shown], "properties": shown}
    body = document["paths"][CREATE_ORDER_PATH]["post"]["requestBody"]["content"]["application/json"]
    body["examples"]["order"]["value"] = validation.EXAMPLE
    return msgspec.json.format(validation.write(document), indent=2) + b"\n"


# Made on import: it needs a file, and requests are answered inside an event loop.
DOCUMENT: bytes = _openapi()


class FaultRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A fault to add: its name in `FAULTS`, its settings as `options`; the rest as in `Faults.add`."""

    fault: str
    options: dict[str, Any] = {}
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None


class Control:
    """The service and the sandbox's own paths."""

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

    def is_control_path(self, path: str) -> bool:
        """Whether a path controls the sandbox. No fault applies to such a path."""
        return path.startswith(PREFIX) and not path.startswith(USERS)

    def answer(self, call: Call) -> Reply:
        """Answer one call to the service or to the sandbox; never raises."""
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
        return _ok(rendering.user_object(account))

    def _order(self, call: Call) -> Reply:
        order = self._service.orders.get(call.path.removeprefix(ORDERS))
        if order is None:
            return message(404, "No such order.")
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
            request = msgspec.json.decode(call.body or b"", type=FaultRequest)
            settings = msgspec.structs.asdict(request)
            self._faults.add(make_fault(settings.pop("fault"), settings.pop("options")), **settings)
        except (msgspec.MsgspecError, ValueError) as error:
            return message(422, f"The fault was refused: {error}")
        return self._list_faults(call)


def make_fault(name: str, options: Mapping[str, Any]) -> Fault:
    """Make a fault from its name in `FAULTS` and its settings.

    Raises:
        ValueError: the name or a setting is unknown, or a value is out of range.
        msgspec.MsgspecError: a setting has the wrong type.
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
    settings = {name: getattr(rule, name) for name in attrs.fields_dict(Rule) if name != "fault"}
    return _show_fault(rule.fault) | settings
