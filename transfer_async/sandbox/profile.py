"""What a service was seen to do: written by `transfer-async probe`, and imitated by the sandbox.

A profile has no person, no token and nothing of a body but the names of a few fields that many services
use: it may lie beside the code.
"""

import os
import re
import secrets
from collections.abc import Callable, Container, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from attrs import evolve, field, frozen

from transfer_async.sandbox import validation
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
from transfer_async.sandbox.validation import FIELDS, CreateOrder, Problems, decimal_of, filled, parse

VERSION = 1

WITHIN = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Seconds: an answer is said to have come within one of these. To the millisecond no two runs agree."""

IDLE = (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 180.0, 300.0)
"""Seconds of idleness after which a connection is looked at."""

NOT_KEPT = frozenset(
    {"date", "content-length", "content-type", "content-encoding", "transfer-encoding", "trailer", "upgrade"}
)
"""Headers that belong to one answer, and say nothing of the service."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,200}")
_WORD = re.compile(r"[A-Za-z_]{1,40}")

BodyKind = Literal["json", "html", "text", "empty"]

OrderSeen = Literal["none", "new", "same", "unknown"]
"""What an answer says of an order: that there is none, a new one, one known before, or nothing certain."""


def _checked_status(_: object, __: object, status: int | None) -> None:
    if status is not None and not 200 <= status <= 599:
        raise ValueError(f"status: {status} is no status of an answer")


def _checked_headers(_: object, __: object, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name in NOT_KEPT or not _HEADER_VALUE.fullmatch(value):
            raise ValueError("headers: hold what HTTP does not allow in a header")


def _checked_text(_: object, __: object, text: str | None) -> None:
    if text is not None and not _HEADER_VALUE.fullmatch(text):
        raise ValueError("unreadable: holds what is no line of text")


def _checked_fields(_: object, __: object, names: tuple[str, ...]) -> None:
    if not all(map(_WORD.fullmatch, names)):
        raise ValueError("fields: hold what is no name of a field")


def _checked_names(_: object, __: object, names: tuple[str, ...]) -> None:
    if not all(map(_HEADER_NAME.fullmatch, names)):
        raise ValueError("request_ids: hold what is no name of a header")


@frozen(kw_only=True)
class SeenAnswer:
    """How one question was answered.

    Args:
        status: None where no whole answer came.
        body: of which kind it was.
        fields: those of a JSON object's fields that many services use; never a value.
        unauthorized: the body was exactly the one of the specification's section 7.
        headers: by lower-case name, but `NOT_KEPT`; a value is left
            out ("") where it may say more than how the service works.
        within: seconds, of `WITHIN`; None where no whole answer came.
        order: see `OrderSeen`; "none" also where none was asked for.
        unreadable: why the client cannot read the order in an answer that says yes; never a value of it.
        amount: what the order amounts to for the poster, where the service worked out more than was sent.
    """

    status: int | None = field(default=None, validator=_checked_status)
    body: BodyKind = "empty"
    fields: tuple[str, ...] = field(default=(), validator=_checked_fields)
    unauthorized: bool = False
    headers: Mapping[str, str] = field(factory=dict, validator=_checked_headers)
    within: float | None = None
    order: OrderSeen = "none"
    unreadable: str | None = field(default=None, validator=_checked_text)
    amount: Decimal | None = None


@frozen(kw_only=True)
class SeenConnection:
    """How long a connection is kept.

    Args:
        asked: how many requests were sent on one connection at most.
        requests: after how many it was closed; None: not after ``asked``.
        announced: whether the last answer before that said so (``Connection: close``, or HTTP/1.0). A close
            that is not announced may meet the next request.
        open_after: seconds of idleness after which it was still open.
        closed_by: after so many it was closed; None: no longer was waited.
    """

    asked: int
    requests: int | None = None
    announced: bool = False
    open_after: float = 0.0
    closed_by: float | None = None


@frozen(kw_only=True)
class SeenLimits:
    """The limits of amounts in a currency that who-am-i shows (specification, section 2.5)."""

    least: Decimal
    greatest: Decimal


@frozen(kw_only=True)
class ServiceProfile:
    """What a service was seen to do.

    Args:
        version: of this form; 1.
        levels: of the probe that have been run to their end.
        answers: by the name of the question, or of the order, that was asked.
        request_ids: headers whose value was another in each answer, and whose name says that it is an id.
        connection: None where it was not looked at.
        limits: by currency code.
    """

    version: int = VERSION
    levels: tuple[int, ...] = ()
    answers: Mapping[str, SeenAnswer] = field(factory=dict)
    request_ids: tuple[str, ...] = field(default=(), validator=_checked_names)
    connection: SeenConnection | None = None
    limits: Mapping[str, SeenLimits] = field(factory=dict)

    def to_json(self) -> bytes:
        """Write it, for people to read and to compare, too."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all.

        Raises:
            OSError: it cannot be written.
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
        ValueError: it holds something else.
    """
    document = Path(path).read_bytes()
    try:
        known: Any = msgspec.json.decode(document)
        version = known.get("version") if isinstance(known, dict) else None
        if version != VERSION:
            raise ValueError(f"profile: is not of version {VERSION}, the one that is read here")
        return msgspec.json.decode(document, type=ServiceProfile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"profile: {error}") from error


def rung(seconds: float) -> float:
    """The least of `WITHIN` that is not less."""
    return next((step for step in WITHIN if seconds <= step), WITHIN[-1])


def amid(step: float, ladder: tuple[float, ...]) -> float:
    """Seconds that lie between a step of a ladder and the one below it."""
    below = next((low for low, high in pairwise((0.0, *ladder)) if high == step), 0.0)
    return (below + step) / 2


# --- ask cases ---------------------------------------------------------------------------------------
# The questions and the orders of the probe by name: how each is made, and by what it is known again.


WHO_AM_I = "who-am-i"
WRONG_TOKEN = "wrong-token"  # noqa: S105 - the name of a question
NO_TOKEN = "no-token"  # noqa: S105 - the same
UNKNOWN_PATH = "unknown-path"
WRONG_METHOD = "wrong-method"
TURNED_AWAY = "turned-away"
"""No question: how the service answers when it has no time for one (429, 503)."""
READS = (WHO_AM_I, WRONG_TOKEN, NO_TOKEN, UNKNOWN_PATH, WRONG_METHOD)

ORDER = "order"
SAME_AGAIN = "same-body-again"
CUT = "cut-after-body"
CUT_AGAIN = "cut-again"
BELOW, LEAST, GREATEST, ABOVE = "below-least", "least-amount", "greatest-amount", "above-greatest"

NOT_JSON, DISAGREE = "not-json", "amounts-disagree"

Document = dict[str, Any]


def _changed(**changes: object) -> Callable[[Document], bytes]:
    return lambda document: written({**document, **changes})


def _without(*paths: str) -> Callable[[Document], bytes]:
    def change(document: Document) -> bytes:
        copy = {**document, "external_order": dict(document["external_order"])}
        for path in paths:
            outer, _, inner = path.rpartition(".")
            (copy[outer] if outer else copy).pop(inner)
        return written(copy)

    return change


def _lacks(*paths: str) -> Callable[[Document], bool]:
    return lambda document: all(_value(document, path) is None for path in paths)


def written(document: Document) -> bytes:
    """A document as a body, its fields in the same order, and every number with its digits."""
    return validation.write(document)


def _value(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _amount(document: Document) -> Decimal:
    number = decimal_of(_value(document, "poster_amount"))
    return Decimal(0) if number is None else number


def _halved(document: Document) -> bytes:
    # Less than the order says, so that it costs no more than what is said, should it be taken.
    return written({**document, "poster_amount": str(Decimal(document["poster_amount"]) / 2)})


def _disagrees(document: Document) -> bool:
    request, problems = parse(document)
    return request is not None and bool(problems)


def _to_self(document: Document) -> bytes:
    return written({**document, "poster_recipient_username": document["poster_username"]})


def _is_to_self(document: Document) -> bool:
    poster = _value(document, "poster_username")
    return poster is not None and poster == _value(document, "poster_recipient_username")


NOBODY = "nobody.is.called.so@example.com"
NO_CURRENCY = "XXX"  # ISO 4217's own code for none


@frozen
class Special:
    """An order that is not as it should be.

    Args:
        why: what is wrong with it, in a few words.
        made: its body, from a good order's.
        fits: whether a JSON object is such a one.
    """

    why: str
    made: Callable[[Document], bytes]
    fits: Callable[[Document], bool]


USERS = ("poster_username", "poster_recipient_username")

MUST_BE_REFUSED: Mapping[str, Special] = {
    NOT_JSON: Special("its body is no JSON", lambda _: b"an order", lambda _: False),
    "empty-object": Special("has no fields", lambda _: b"{}", lambda document: document == {}),
    "no-users": Special("has neither poster nor beneficiary", _without(*USERS), _lacks(*USERS)),
    "same-users": Special("poster and beneficiary are one", _to_self, _is_to_self),
    "unknown-beneficiary": Special(
        "its beneficiary is not registered (specification 4.1, rule 2)",
        _changed(poster_recipient_username=NOBODY),
        lambda document: _value(document, "poster_recipient_username") == NOBODY,
    ),
    "unknown-currency": Special(
        "its matcher_currency is none",
        _changed(matcher_currency=NO_CURRENCY),
        lambda document: _value(document, "matcher_currency") == NO_CURRENCY,
    ),
    "negative-amount": Special(
        "its amounts are negative",
        _changed(poster_amount="-15.00", matcher_amount="-10.00", exchange_rate="1.5"),
        lambda document: _amount(document) < 0,
    ),
    "zero-amount": Special(
        "its amounts are 0",
        _changed(poster_amount="0", matcher_amount="0"),
        lambda document: str(_value(document, "poster_amount")) == "0",
    ),
    DISAGREE: Special("poster_amount is not matcher_amount times exchange_rate", _halved, _disagrees),
}
"""By name; that they must be refused is an assumption. The first that fits is what a body is taken for."""

WITHOUT: Mapping[str, Special] = {
    f"without-{path}": Special(f"{path} is left out", _without(path), _lacks(path)) for path in FIELDS
}
"""Orders that lack one field: which are required, the specification does not show."""


_AMOUNTS = ("poster_amount", "matcher_amount")
_WAIVED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((NOT_JSON, "empty-object"), tuple(FIELDS)),
    "no-users": USERS,
    **dict.fromkeys(("same-users", "unknown-beneficiary"), USERS[1:]),
    "unknown-currency": ("matcher_currency", *USERS[1:]),
    **dict.fromkeys(("negative-amount", "zero-amount"), (*_AMOUNTS, "exchange_rate")),
    **dict.fromkeys((BELOW, LEAST, GREATEST, ABOVE), _AMOUNTS),
}


def waived_field(name: str) -> frozenset[str]:
    """The fields whose rules a service does not have that creates an order of that name."""
    return frozenset(_WAIVED.get(name, (name.removeprefix("without-"),)))


@frozen(kw_only=True)
class Situation:
    """What else is to be known in order to tell which order a body is.

    Args:
        asked: the names of the orders that the profile speaks of.
        limits: the least and greatest amounts by currency code, where they are known.
        taken: the bodies of which orders were made.
    """

    asked: Container[str]
    limits: Mapping[str, tuple[Decimal, Decimal]]
    taken: Container[bytes]


def name_of(body: bytes, situation: Situation) -> str:
    """Which of the probe's orders a body is like; `ORDER` if it is like none of the others."""
    try:
        document = validation.read(body)
    except validation.BadJson:
        document = None
    return next((name for name in _fitting(body, document, situation) if name in situation.asked), ORDER)


def _fitting(body: bytes, document: Any, situation: Situation) -> Iterator[str]:
    if not isinstance(document, dict):
        yield NOT_JSON
        return
    yield from (name for name, one in MUST_BE_REFUSED.items() if one.fits(document))
    yield from (name for name, one in WITHOUT.items() if one.fits(document))
    yield from _beyond(document, situation.limits)
    if body in situation.taken:
        yield SAME_AGAIN


def _beyond(document: Any, limits: Mapping[str, tuple[Decimal, Decimal]]) -> list[str]:
    """Which limit an amount lies at, or beyond."""
    amount, code = _amount(document), _value(document, "poster_currency")
    if not isinstance(code, str) or code not in limits or amount <= 0:
        return []
    least, greatest = limits[code]
    rate = decimal_of(_value(document, "exchange_rate")) or Decimal(0)
    nearby = rate * NEAR
    if amount < least:
        return [BELOW]
    if amount > greatest:
        return [ABOVE]
    return [LEAST] * (amount - least < nearby) + [GREATEST] * (greatest - amount < nearby)


NEAR = Decimal("0.01")
"""The step in matcher_amount by which an amount comes as near to a limit as the rate lets it."""


# --- imitation ---------------------------------------------------------------------------------------
# The sandbox as another service: it answers as a profile says that the service was seen to answer.


_GIVEN, _NOT_JSON = 200, 400
"""The sandbox's own statuses, of what is given and of a body that is no JSON."""

_KINDS = {"html": "text/html", "text": "text/plain", "json": "application/json"}

_GOOD: validation.JsonObject = {
    "poster_username": "somebody@example.com",
    "poster_recipient_username": "somebody.else@example.com",
    "poster_currency": "NGN",
    "poster_country": "NG",
    "poster_amount": "155025.00",
    "poster_payment_method_type": "nigerian_bank_payment",
    "matcher_currency": "USD",
    "matcher_country": "US",
    "matcher_amount": "100.00",
    "exchange_rate": "1550.25",
    "external_order": {
        "current_account_balance": "900000.10",
        "transaction_fee": validation.read(b"250"),
        "transaction_fee_currency": "NGN",
    },
}
"""What an order has in the place of what it lacks, where the profile says that it is created all the same."""


class ImitatingService(Service):
    """A `Service` that answers as a profile says; what the profile does not speak of, it answers as its own.

    An order that the service was seen to create although a field is missing, or unfit, has a value of ours
    there. All other fields must be as the sandbox wants them: nothing else was seen to be created.
    """

    def __init__(self, profile: ServiceProfile, **settings: Any) -> None:
        super().__init__(**settings)
        self._profile = profile
        self._limits = {code: (one.least, one.greatest) for code, one in profile.limits.items()}
        self._taken: dict[bytes, Reply] = {}

    def answer(self, call: Call) -> Reply:
        """Answer one call; never raises, whatever was sent."""
        name = self._name_of(call)
        seen = self._profile.answers.get(name)
        if seen is None:
            return super().answer(call)
        if name == WHO_AM_I and (status := _success(seen)) is not None:
            own = super().answer(call)
            return self._dressed(evolve(own, status=status), seen) if own.status == _GIVEN else own
        if name in READS or seen.order == "none":
            return self._dressed(_as_seen(seen), seen)
        reply = self._ordered(name, call, seen)
        return reply if reply.order is None else self._dressed(reply, seen)

    def _name_of(self, call: Call) -> str:
        if call.path not in (CREATE_ORDER_PATH, WHO_AM_I_PATH):
            return UNKNOWN_PATH
        if call.method != ("POST" if call.path == CREATE_ORDER_PATH else "GET"):
            return WRONG_METHOD
        if "Authorization" not in call.headers:
            return NO_TOKEN
        if not self.knows(call):
            return WRONG_TOKEN
        if call.path == WHO_AM_I_PATH:
            return WHO_AM_I
        asked = self._profile.answers
        return name_of(call.body or b"", Situation(asked=asked, limits=self._limits, taken=self._taken))

    def _ordered(self, name: str, call: Call, seen: SeenAnswer) -> Reply:
        """Make the order, find the one that was made of the same body, or refuse it as the sandbox does."""
        body = call.body or b""
        made = self._taken.get(body) if seen.order == "same" else None
        if made is None:
            made = self._made_as(name, call)
            if made.order is None:
                return made
            self._taken[body] = made
        if seen.order != "unknown" and (status := _success(seen)) is not None:
            return evolve(made, status=status)
        return evolve(_as_seen(seen, order_id=made.order.id if made.order else ""), order=made.order)

    def _made_as(self, name: str, call: Call) -> Reply:
        """Make the order of a call, with nothing waived but what an order of that name was seen to lack."""
        document = self.refused_head(call) or read_json(call)
        if isinstance(document, Reply):
            if name != NOT_JSON or document.status != _NOT_JSON:
                return document
            document = {}
        document = document if isinstance(document, dict) else {}
        waived = waived_field(name)
        request, problems = parse(document)
        if request is None and not _other(problems, waived):
            request, problems = (
                parse(filled(document, problems, _GOOD))[0],
                {},
            )  # ours need not agree with theirs
        if name == DISAGREE:
            problems = {}
        if request is None or problems:
            return unprocessable(_other(problems, waived) or problems)
        if refused := _other(self._shown_limits(request) | self.problems(request), waived):
            return unprocessable(refused)
        beneficiary = self.accounts.get(request.poster_recipient_username)
        if beneficiary is None:
            beneficiary = _registered(request.poster_recipient_username, request.matcher_currency)
        return self.recorded(request, beneficiary=beneficiary)

    def _shown_limits(self, request: CreateOrder) -> Problems:
        """The amounts that are outside the limits that the service shows."""
        amounts = {
            "poster_amount": (request.poster_amount, request.poster_currency),
            "matcher_amount": (request.matcher_amount, request.matcher_currency),
        }
        limits = {name: (amount, self._limits.get(code)) for name, (amount, code) in amounts.items()}
        return {
            name: [f"must be between {limit[0]} and {limit[1]}, as the profile shows"]
            for name, (amount, limit) in limits.items()
            if limit is not None and not limit[0] <= amount <= limit[1]
        }

    def _dressed(self, reply: Reply, seen: SeenAnswer) -> Reply:
        """Give a reply the headers, the time and the loss that were seen."""
        ids = self._profile.request_ids
        headers = {
            name: secrets.token_hex(8) if name in ids else value or "-"
            for name, value in seen.headers.items()
        }
        late = seen.within is not None and seen.within > WITHIN[0]
        seconds = amid(seen.within, WITHIN) if seen.within is not None and late else 0.0
        return evolve(
            reply, headers={**reply.headers, **headers}, seconds=seconds, is_lost=seen.status is None
        )


def _other(problems: Problems, waived: frozenset[str]) -> Problems:
    return {name: why for name, why in problems.items() if name not in waived}


def _success(seen: SeenAnswer) -> int | None:
    """The status of an answer that gives what was asked for; None if it is no such answer."""
    return seen.status if seen.body == "json" and (seen.status or 0) // 100 == 2 else None


def _as_seen(seen: SeenAnswer, *, order_id: str = "") -> Reply:
    headers = {"Content-Type": _KINDS[seen.body]} if seen.body in _KINDS else {}
    return Reply(status=seen.status or 500, body=_body(seen, order_id), headers=headers)


def _body(seen: SeenAnswer, order_id: str) -> bytes:
    if seen.body == "html":
        return f"<html><body>{order_id}</body></html>".encode()
    if seen.body != "json":
        return b"" if seen.body == "empty" else f"As a profile says. {order_id}".encode()
    words: Mapping[str, object] = {name: {} for name in seen.fields}
    if "message" in seen.fields:
        words = {**words, "message": "Unauthorized" if seen.unauthorized else "As a profile says."}
    return validation.write({**words, "id": order_id} if order_id else words)


def _registered(username: str, code: str) -> Account:
    held = currency_for(code, name=username, email=username)
    return Account(username=username, firstname="-", lastname="-", currencies=(held,) if held else ())


def keep_alive_of(connection: SeenConnection | None, otherwise: float) -> float:
    """Seconds for which an idle connection is kept open, as a profile says."""
    if connection is None:
        return otherwise
    if connection.closed_by is None:
        return max(otherwise, 2 * connection.open_after)
    return amid(connection.closed_by, IDLE)
