"""The recorded behaviour of a service: `transfer-async probe` writes it, and the sandbox imitates it.

A profile contains no personal data and no token. From each response's body, a profile records only the names
of well-known fields. You can commit a profile with your code.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from attrs import evolve, field, frozen

from transfer_async.sandbox.accounts import Account, currency_for
from transfer_async.sandbox.service import (
    CREATE_ORDER_PATH,
    WHO_AM_I_PATH,
    Call,
    Reply,
    Service,
    read_json,
    unprocessable,
)
from transfer_async.sandbox.wire import (
    EXAMPLE,
    FIELDS,
    BadJson,
    CreateOrder,
    JsonObject,
    Problems,
    decimal_of,
    filled,
    parse,
    read,
    write,
)

VERSION = 1

TIME_STEPS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""The times in seconds to which response times are rounded up, because exact times differ in each run."""

IDLE = (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 180.0, 300.0)
"""The idle times in seconds after which the probe checks whether a connection is still open."""

IGNORED_HEADERS = frozenset(
    {"date", "content-length", "content-type", "content-encoding", "transfer-encoding", "trailer", "upgrade"}
)
"""Headers that differ in each response and do not characterise the service. They are not recorded."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,200}")
_WORD = re.compile(r"[A-Za-z_]{1,40}")

BodyKind = Literal["json", "html", "text", "empty"]

OrderSeen = Literal["none", "new", "same", "unknown"]
"""The order in a response: no order, a new order, the same order as before, or unknown."""


def _checked_status(_: object, __: object, status: int | None) -> None:
    if status is not None and not 200 <= status <= 599:
        raise ValueError(f"status: must be from 200 to 599, not {status}")


def _checked_headers(_: object, __: object, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name in IGNORED_HEADERS or not _HEADER_VALUE.fullmatch(value):
            raise ValueError("headers: must have lower-case names and printable ASCII values")


def _all_match(pattern: re.Pattern[str], rule: str) -> Callable[[object, Any, Any], None]:
    """Return a validator for a string, or a tuple of strings, that must match ``pattern``."""

    def check(_: object, attribute: Any, value: str | tuple[str, ...] | None) -> None:
        texts = (value,) if isinstance(value, str) else value or ()
        if not all(map(pattern.fullmatch, texts)):
            raise ValueError(f"{attribute.name}: must be {rule}")

    return check


@frozen(kw_only=True)
class SeenAnswer:
    """The recorded response to one request of the probe.

    Args:
        status: the status; None if no complete response arrived.
        body: what kind of body the response has.
        fields: the names of the well-known fields in the JSON object, without values.
        unauthorized: whether the body was exactly the body shown in section 7 of the specification.
        headers: the headers by lower-case name, without `IGNORED_HEADERS`. Values that may be secret are left
            empty.
        within: the response time in seconds, rounded up to one of `TIME_STEPS`; None if no complete response
            arrived.
        order: which order the response contains, if any; see `OrderSeen`.
        unreadable: why the client cannot read the order in a successful response; contains no values.
        amount: the poster's amount in the response, if it is larger than the amount sent.
    """

    status: int | None = field(default=None, validator=_checked_status)
    body: BodyKind = "empty"
    fields: tuple[str, ...] = field(default=(), validator=_all_match(_WORD, "names of fields"))
    unauthorized: bool = False
    headers: Mapping[str, str] = field(factory=dict, validator=_checked_headers)
    within: float | None = None
    order: OrderSeen = "none"
    unreadable: str | None = field(default=None, validator=_all_match(_HEADER_VALUE, "one line of text"))
    amount: Decimal | None = None


@frozen(kw_only=True)
class SeenConnection:
    """The recorded limits of the service's connections.

    Args:
        asked: the maximum number of requests that the probe sent on one connection.
        requests: the number of requests after which the service closed a connection; None if the connection
            stayed open.
        announced: whether the last response announced the close (``Connection: close``, or HTTP/1.0). An
            unannounced close may happen just as the next request is sent.
        open_after: the longest idle time, in seconds, after which the probe found the connection open.
        closed_by: the idle time, in seconds, after which the probe found the connection closed, or None.
    """

    asked: int
    requests: int | None = None
    announced: bool = False
    open_after: float = 0.0
    closed_by: float | None = None


@frozen(kw_only=True)
class SeenLimits:
    """A currency's smallest and largest amount, from who-am-i (specification, section 2.5)."""

    least: Decimal
    greatest: Decimal


@frozen(kw_only=True)
class ServiceProfile:
    """The recorded behaviour of a service.

    Args:
        version: the version of the file format, which is 1.
        levels: the probe levels that were completed.
        answers: the responses by request name.
        request_ids: the headers whose names and changing values suggest that they contain a request id.
        connection: the limits of connections; None if the probe did not check them.
        limits: the limits of amounts, by currency code.
    """

    version: int = VERSION
    levels: tuple[int, ...] = ()
    answers: Mapping[str, SeenAnswer] = field(factory=dict)
    request_ids: tuple[str, ...] = field(default=(), validator=_all_match(_HEADER_NAME, "names of headers"))
    connection: SeenConnection | None = None
    limits: Mapping[str, SeenLimits] = field(factory=dict)

    def to_json(self) -> bytes:
        """Return the profile as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def save(self, path: str | Path) -> None:
        """Write the profile to a file. If writing fails, an existing file stays unchanged.

        Raises:
            OSError: the file cannot be written.
        """
        path = Path(path)
        part = path.with_name(f"{path.name}.part")
        try:
            with part.open("wb") as out:
                out.write(self.to_json())
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def load_profile(path: str | Path) -> ServiceProfile:
    """Read a profile that `transfer-async probe` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a profile, or uses a different version of the file format.
    """
    document = Path(path).read_bytes()
    try:
        known: Any = msgspec.json.decode(document)
        version = known.get("version") if isinstance(known, dict) else None
        if version != VERSION:
            raise ValueError(f"profile: must have version {VERSION}: run transfer-async probe again")
        return msgspec.json.decode(document, type=ServiceProfile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"profile: {error}") from error


def time_step(seconds: float) -> float:
    """Return the first of `TIME_STEPS` that is at least `seconds`, or the last one if there is none."""
    return next((step for step in TIME_STEPS if seconds <= step), TIME_STEPS[-1])


def midpoint(step: float, steps: tuple[float, ...]) -> float:
    """Return the mean of `step` and the next lower step in `steps`."""
    below = next((low for low, high in pairwise((0.0, *steps)) if high == step), 0.0)
    return (below + step) / 2


# --- the probe's requests ----------------------------------------------------------------------------
# Each request and order of the probe has a name. Functions build it and recognise it.

WHO_AM_I = "who-am-i"
WRONG_TOKEN = "wrong-token"  # noqa: S105 - the name of a request
NO_TOKEN = "no-token"  # noqa: S105 - the same
UNKNOWN_PATH = "unknown-path"
WRONG_METHOD = "wrong-method"
TURNED_AWAY = "turned-away"
"""The name of the response of a busy service (429 or 503), which may follow any request."""
READS = (WHO_AM_I, WRONG_TOKEN, NO_TOKEN, UNKNOWN_PATH, WRONG_METHOD)

ORDER = "order"
SAME_AGAIN = "same-body-again"
CUT = "cut-after-body"
CUT_AGAIN = "cut-again"
BELOW, LEAST, GREATEST, ABOVE = "below-least", "least-amount", "greatest-amount", "above-greatest"

NOT_JSON, DISAGREE = "not-json", "amounts-disagree"

Document = dict[str, Any]


def _changed(**changes: object) -> Callable[[Document], bytes]:
    return lambda document: write({**document, **changes})


def _without(*paths: str) -> Callable[[Document], bytes]:
    def change(document: Document) -> bytes:
        copy = {**document, "external_order": dict(document["external_order"])}
        for path in paths:
            outer, _, inner = path.rpartition(".")
            (copy[outer] if outer else copy).pop(inner)
        return write(copy)

    return change


def _lacks(*paths: str) -> Callable[[Document], bool]:
    return lambda document: all(_value(document, path) is None for path in paths)


def _value(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _amount(document: Document) -> Decimal:
    number = decimal_of(_value(document, "poster_amount"))
    return Decimal(0) if number is None else number


def _halved(document: Document) -> bytes:
    # Smaller than the order's amount, so that an accepted order costs no more than planned.
    return write({**document, "poster_amount": str(Decimal(document["poster_amount"]) / 2)})


def _disagrees(document: Document) -> bool:
    request, problems = parse(document)
    return request is not None and bool(problems)


def _to_self(document: Document) -> bytes:
    return write({**document, "poster_recipient_username": document["poster_username"]})


def _is_to_self(document: Document) -> bool:
    poster = _value(document, "poster_username")
    return poster is not None and poster == _value(document, "poster_recipient_username")


NOBODY = "nobody.is.called.so@example.com"
NO_CURRENCY = "XXX"  # ISO 4217's code for no currency


@frozen
class Special:
    """An invalid order that the probe sends.

    Args:
        why: what is wrong with the order, in a few words.
        made: a function that makes the invalid body from the JSON of a valid order.
        fits: a function that returns whether a JSON object contains the same error as this order.
    """

    why: str
    made: Callable[[Document], bytes]
    fits: Callable[[Document], bool]


USERS = ("poster_username", "poster_recipient_username")

MUST_BE_REFUSED: Mapping[str, Special] = {
    NOT_JSON: Special("the body is not JSON", lambda _: b"an order", lambda _: False),
    "empty-object": Special("the order has no fields", lambda _: b"{}", lambda document: document == {}),
    "no-users": Special("the order has neither poster nor beneficiary", _without(*USERS), _lacks(*USERS)),
    "same-users": Special("poster and beneficiary are the same", _to_self, _is_to_self),
    "unknown-beneficiary": Special(
        "the beneficiary is not registered (specification 4.1, rule 2)",
        _changed(poster_recipient_username=NOBODY),
        lambda document: _value(document, "poster_recipient_username") == NOBODY,
    ),
    "unknown-currency": Special(
        "matcher_currency does not exist",
        _changed(matcher_currency=NO_CURRENCY),
        lambda document: _value(document, "matcher_currency") == NO_CURRENCY,
    ),
    "negative-amount": Special(
        "the amounts are negative",
        _changed(poster_amount="-15.00", matcher_amount="-10.00", exchange_rate="1.5"),
        lambda document: _amount(document) < 0,
    ),
    "zero-amount": Special(
        "the amounts are 0",
        _changed(poster_amount="0", matcher_amount="0"),
        lambda document: str(_value(document, "poster_amount")) == "0",
    ),
    DISAGREE: Special("poster_amount is not matcher_amount times exchange_rate", _halved, _disagrees),
}
"""The invalid orders by name. A body gets the name of the first order whose `fits` returns true.

The probe assumes that a service refuses these orders. The specification does not say so.
"""

WITHOUT: Mapping[str, Special] = {
    f"without-{path}": Special(f"{path} is missing", _without(path), _lacks(path)) for path in FIELDS
}
"""Orders without one field. The specification does not say which fields are required."""


_AMOUNTS = ("poster_amount", "matcher_amount")
_WAIVED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((NOT_JSON, "empty-object"), tuple(FIELDS)),
    "no-users": USERS,
    **dict.fromkeys(("same-users", "unknown-beneficiary"), USERS[1:]),
    "unknown-currency": ("matcher_currency", *USERS[1:]),
    **dict.fromkeys(("negative-amount", "zero-amount"), (*_AMOUNTS, "exchange_rate")),
    **dict.fromkeys((BELOW, LEAST, GREATEST, ABOVE), _AMOUNTS),
}


def waived_fields(name: str) -> frozenset[str]:
    """Return the fields that a service does not check if it accepts the probe's order ``name``."""
    return frozenset(_WAIVED.get(name, (name.removeprefix("without-"),)))


def _matching_names(document: Any, limits: Mapping[str, SeenLimits]) -> Iterator[str]:
    """Yield the name of each invalid order of the probe whose error also occurs in ``document``."""
    if not isinstance(document, dict):
        yield NOT_JSON
        return
    yield from (name for name, special in MUST_BE_REFUSED.items() if special.fits(document))
    yield from (name for name, special in WITHOUT.items() if special.fits(document))
    yield from _limit_names(document, limits)


def _limit_names(document: Any, limits: Mapping[str, SeenLimits]) -> list[str]:
    """Return the names of the limits that the order's amount reaches or exceeds."""
    amount, code = _amount(document), _value(document, "poster_currency")
    if not isinstance(code, str) or code not in limits or amount <= 0:
        return []
    least, greatest = limits[code].least, limits[code].greatest
    rate = decimal_of(_value(document, "exchange_rate")) or Decimal(0)
    nearby = rate * NEAR
    if amount < least:
        return [BELOW]
    if amount > greatest:
        return [ABOVE]
    return [LEAST] * (amount - least < nearby) + [GREATEST] * (greatest - amount < nearby)


NEAR = Decimal("0.01")
"""The step of matcher_amount. An amount within one step of a limit counts as equal to the limit."""


# --- imitation ---------------------------------------------------------------------------------------
# The sandbox imitates another service: it responds as recorded in a profile.

_OK, _NOT_JSON = 200, 400
"""The sandbox's own statuses for success and for a body that is not JSON."""

_KINDS = {"html": "text/html", "text": "text/plain", "json": "application/json"}

_DEFAULTS: JsonObject = read(
    write(
        {
            **EXAMPLE,
            "poster_username": "somebody@example.com",
            "poster_recipient_username": "somebody.else@example.com",
        }
    )
)
"""The default values of missing fields, used if the profile says that an order without them is created."""


class ImitatingService(Service):
    """A `Service` that responds as recorded in a profile, or like the sandbox if nothing is recorded.

    If the recorded service accepts orders in which a certain field is missing or invalid, this service uses a
    default value for that field. All other fields must pass the sandbox's own checks.
    """

    def __init__(self, profile: ServiceProfile, **settings: Any) -> None:
        super().__init__(**settings)
        self._profile = profile
        self._taken: dict[bytes, Reply] = {}

    def answer(self, call: Call) -> Reply:
        """Return the response to one request. Never raise."""
        name = self._name_of(call)
        seen = self._profile.answers.get(name)
        if seen is None:
            return super().answer(call)
        if name == WHO_AM_I and (status := _success_status(seen)) is not None:
            own = super().answer(call)
            return self._with_recorded_headers(evolve(own, status=status), seen) if own.status == _OK else own
        if name in READS or seen.order == "none":
            return self._with_recorded_headers(_as_seen(seen), seen)
        reply = self._reply_to_order(name, call, seen)
        return reply if reply.order is None else self._with_recorded_headers(reply, seen)

    def _name_of(self, call: Call) -> str:
        if call.path not in (CREATE_ORDER_PATH, WHO_AM_I_PATH):
            return UNKNOWN_PATH
        if call.method != ("POST" if call.path == CREATE_ORDER_PATH else "GET"):
            return WRONG_METHOD
        if "Authorization" not in call.headers:
            return NO_TOKEN
        if not self.has_token(call):
            return WRONG_TOKEN
        if call.path == WHO_AM_I_PATH:
            return WHO_AM_I
        body = call.body or b""
        try:
            document = read(body)
        except BadJson:
            document = None
        names = [*_matching_names(document, self._profile.limits)]
        if body in self._taken:
            names.append(SAME_AGAIN)
        return next((name for name in names if name in self._profile.answers), ORDER)

    def _reply_to_order(self, name: str, call: Call, seen: SeenAnswer) -> Reply:
        """Create the order or refuse it, or return the order that was created for an identical body."""
        body = call.body or b""
        made = self._taken.get(body) if seen.order == "same" else None
        if made is None:
            made = self._create_as(name, call)
            if made.order is None:
                return made
            self._taken[body] = made
        if seen.order != "unknown" and (status := _success_status(seen)) is not None:
            return evolve(made, status=status)
        return evolve(_as_seen(seen, order_id=made.order.id if made.order else ""), order=made.order)

    def _create_as(self, name: str, call: Call) -> Reply:
        """Create the order, skipping only the checks that the recorded service does not make."""
        document = self.head_refusal(call) or read_json(call)
        if isinstance(document, Reply):
            if name != NOT_JSON or document.status != _NOT_JSON:
                return document
            document = {}
        document = document if isinstance(document, dict) else {}
        waived = waived_fields(name)
        request, problems = parse(document)
        if request is None and not _not_waived(problems, waived):
            # The default values and the amounts that were sent may contradict each other.
            request, problems = parse(filled(document, problems, _DEFAULTS))[0], {}
        if name == DISAGREE:
            problems = {}
        if request is None or problems:
            return unprocessable(_not_waived(problems, waived) or problems)
        if refused := _not_waived(self._shown_limits(request) | self.problems(request), waived):
            return unprocessable(refused)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        if beneficiary is None:
            username = request.poster_recipient_username
            held = currency_for(request.matcher_currency, name=username, email=username)
            currencies = (held,) if held else ()
            beneficiary = Account(username=username, firstname="-", lastname="-", currencies=currencies)
        return self.create(request, beneficiary=beneficiary)

    def _shown_limits(self, request: CreateOrder) -> Problems:
        problems = {}
        for name, amount, code in (
            ("poster_amount", request.poster_amount, request.poster_currency),
            ("matcher_amount", request.matcher_amount, request.matcher_currency),
        ):
            limits = self._profile.limits.get(code)
            if limits and not limits.least <= amount <= limits.greatest:
                rule = f"must be between {limits.least} and {limits.greatest}: see the limits of the profile"
                problems[name] = [rule]
        return problems

    def _with_recorded_headers(self, reply: Reply, seen: SeenAnswer) -> Reply:
        """Return the reply with the recorded headers and delay.

        The reply is lost if the recorded reply was lost.
        """
        ids = self._profile.request_ids
        headers = {
            name: secrets.token_hex(8) if name in ids else value or "-"
            for name, value in seen.headers.items()
        }
        late = seen.within is not None and seen.within > TIME_STEPS[0]
        seconds = midpoint(seen.within, TIME_STEPS) if seen.within is not None and late else 0.0
        return evolve(
            reply, headers={**reply.headers, **headers}, seconds=seconds, is_lost=seen.status is None
        )


def _not_waived(problems: Problems, waived: frozenset[str]) -> Problems:
    return {name: why for name, why in problems.items() if name not in waived}


def _success_status(seen: SeenAnswer) -> int | None:
    return seen.status if seen.body == "json" and (seen.status or 0) // 100 == 2 else None


def _as_seen(seen: SeenAnswer, *, order_id: str = "") -> Reply:
    headers = {"Content-Type": _KINDS[seen.body]} if seen.body in _KINDS else {}
    return Reply(status=seen.status or 500, body=_body(seen, order_id), headers=headers)


def _body(seen: SeenAnswer, order_id: str) -> bytes:
    if seen.body == "html":
        return f"<html><body>{order_id}</body></html>".encode()
    if seen.body != "json":
        return b"" if seen.body == "empty" else f"Recorded response. {order_id}".encode()
    document: Mapping[str, object] = {name: {} for name in seen.fields}
    if "message" in seen.fields:
        document = {**document, "message": "Unauthorized" if seen.unauthorized else "Recorded response."}
    return write({**document, "id": order_id} if order_id else document)


def keep_alive_of(connection: SeenConnection | None, otherwise: float) -> float:
    """Return the seconds after which an idle connection is closed: the recorded value, or `otherwise`."""
    if connection is None:
        return otherwise
    if connection.closed_by is None:
        return max(otherwise, 2 * connection.open_after)
    return midpoint(connection.closed_by, IDLE)
