"""Services that differ from the sandbox in one quirk each, written independently of service profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from attrs import evolve, frozen

from transfer_async.sandbox import Sandbox, ServiceProfile
from transfer_async.sandbox.service import CREATE_ORDER_PATH, Call, Reply, message
from transfer_async.sandbox.wire import BadJson, parse, read

HTML = {"Content-Type": "text/html"}

Own = Callable[[Call], Reply]
Answering = Callable[["Quirky", Call, Own], Reply]


@frozen(kw_only=True)
class Quirk:
    """A quirk of a service, and how to recognize it in a profile.

    Args:
        answer: returns the service's response.
        shows: returns whether a profile shows the quirk.
        levels: the levels of the probe that find the quirk.
        orders: how many orders are enough to find it.
        last: the number of requests after which the service closes a connection.
        stops: whether the quirk must stop the probe.
        watched: the probe's limits for requests on one connection, and for idle seconds.
    """

    answer: Answering = lambda _, call, own: own(call)
    shows: Callable[[ServiceProfile], bool] = lambda _: True
    levels: tuple[int, ...] = (0,)
    orders: int = 100
    last: int | None = None
    stops: bool = False
    watched: tuple[int, float] = (2, 1.0)


class Quirky(Sandbox):
    """A sandbox with one quirk."""

    def __init__(self, quirk: Quirk, **settings: Any) -> None:
        super().__init__(**settings)
        self.quirk = quirk
        self.bodies: dict[bytes, Reply] = {}
        self._last_on_connection = quirk.last

    def _process(self, call: Call) -> Reply:
        return self.quirk.answer(self, call, super()._process)


def html(status: int) -> Reply:
    return Reply(status=status, body=b"<html><h1>Oh</h1></html>", headers=HTML)


def is_create(call: Call) -> bool:
    return (call.method, call.path) == ("POST", CREATE_ORDER_PATH)


def instead(of: int, reply: Reply) -> Answering:
    """Replace all replies of the sandbox that have this status."""

    def answer(_: Quirky, call: Call, own: Own) -> Reply:
        given = own(call)
        return reply if given.status == of else given

    return answer


def on_repetition(reply_to: Callable[[Reply], Reply]) -> Answering:
    """Respond in another way to a request with the same body as an earlier one."""

    def answer(service: Quirky, call: Call, own: Own) -> Reply:
        body = call.body or b""
        if not is_create(call):
            return own(call)
        if (first := service.bodies.get(body)) is not None:
            return reply_to(first)
        reply = own(call)
        if reply.order is not None:
            service.bodies[body] = reply
        return reply

    return answer


def accepts_without(path: str, value: Any) -> Answering:
    """Accept orders without this field, and use ``value`` instead."""

    def answer(_: Quirky, call: Call, own: Own) -> Reply:
        document = _document(call)
        holder = document.get("external_order", {}) if "." in path else document
        name = path.rpartition(".")[2]
        if is_create(call) and document and name not in holder:
            holder[name] = value
            call = evolve(call, body=json.dumps(document, default=float).encode())
        return own(call)

    return answer


def _document(call: Call) -> dict[str, Any]:
    try:
        document = read(call.body or b"")
    except BadJson:
        return {}
    return document if isinstance(document, dict) else {}


def calculates_amounts(_: Quirky, call: Call, own: Own) -> Reply:
    """Calculate the amount instead of checking it."""
    document = _document(call)
    request, problems = parse(document)
    if is_create(call) and request is not None and problems:
        document["poster_amount"] = str(request.matcher_amount * request.exchange_rate)
        call = evolve(call, body=json.dumps(document, default=float).encode())
    return own(call)


def fails_without_json(_: Quirky, call: Call, own: Own) -> Reply:
    return html(500) if is_create(call) and not _document(call) else own(call)


def limited(_: Quirky, call: Call, own: Own) -> Reply:
    """Refuse amounts equal to the limit, too."""
    amount = _document(call).get("poster_amount")
    if is_create(call) and amount is not None and Decimal(amount) > 49_000_000:
        return message(400, "too much")
    return own(call)


def silent_without_token(_: Quirky, call: Call, own: Own) -> Reply:
    return own(call) if "Authorization" in call.headers else Reply(status=500, body=b"", is_lost=True)


def slow(_: Quirky, call: Call, own: Own) -> Reply:
    return evolve(own(call), seconds=3.0)


# --- the table ----------------------------------------------------------------------------------------


def shown(profile: ServiceProfile, name: str, *fields: str) -> tuple[Any, ...]:
    return tuple(getattr(profile.answers[name], field) for field in fields)


def status(name: str, wanted: int | None, body: str = "json") -> Callable[[ServiceProfile], bool]:
    return lambda profile: shown(profile, name, "status", "body") == (wanted, body)


def order(name: str, wanted: str) -> Callable[[ServiceProfile], bool]:
    return lambda profile: shown(profile, name, "order") == (wanted,)


QUIRKS: dict[str, Quirk] = {
    "200 for a wrong token": Quirk(
        answer=instead(401, message(200, "Unauthorized")),
        shows=lambda profile: shown(profile, "wrong-token", "status", "unauthorized") == (200, True),
    ),
    "silence without a token": Quirk(
        answer=silent_without_token, shows=status("no-token", None, body="empty")
    ),
    "a redirect from an unknown path": Quirk(
        answer=instead(404, Reply(status=302, body=b"", headers={"Location": "/secret-place"})),
        shows=lambda profile: (
            shown(profile, "unknown-path", "status") == (302,)
            and profile.answers["unknown-path"].headers["location"] == ""
        ),
    ),
    "one request a connection": Quirk(
        last=1, watched=(12, 1.0), shows=lambda profile: profile.connection.requests == 1
    ),
    "slow answers": Quirk(
        answer=slow, shows=lambda profile: {one.within for one in profile.answers.values()} == {5.0}
    ),
    "500 for a body that is not JSON": Quirk(
        answer=fails_without_json, levels=(1,), shows=status("not-json", 500, body="html"), orders=3
    ),
    "creates what must be refused": Quirk(
        answer=calculates_amounts, levels=(1,), shows=order("amounts-disagree", "new"), stops=True
    ),
    "two orders from one body": Quirk(levels=(2,), shows=order("same-body-again", "new"), orders=3),
    "409 for a repetition": Quirk(
        answer=on_repetition(lambda _: message(409, "Duplicate")),
        levels=(2,),
        orders=4,
        shows=lambda profile: (
            profile.answers["cut-again"].status == 409 and profile.answers["same-body-again"].order == "none"
        ),
    ),
    "the same order for a repetition": Quirk(
        answer=on_repetition(lambda first: first),
        levels=(2,),
        shows=order("same-body-again", "same"),
        orders=4,
    ),
    "an optional fee": Quirk(
        answer=accepts_without("external_order.transaction_fee", 0),
        levels=(2,),
        shows=lambda profile: (
            profile.answers["without-external_order.transaction_fee"].order == "new"
            and profile.answers["without-poster_country"].order == "none"
        ),
    ),
    "a limit below the one shown": Quirk(
        answer=limited,
        levels=(0, 2),
        shows=lambda profile: status("greatest-amount", 400)(profile) and status("below-least", 422)(profile),
    ),
}
