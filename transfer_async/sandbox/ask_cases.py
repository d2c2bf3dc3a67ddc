"""The questions and the orders of the probe by name: how each is made, and by what it is known again."""

from collections.abc import Callable, Container, Iterator, Mapping
from decimal import Decimal
from typing import Any

from attrs import frozen

from transfer_async.sandbox import exact_json
from transfer_async.sandbox.validation import FIELDS, decimal_of, parse

WHO_AM_I = "who-am-i"
WRONG_TOKEN = "wrong-token"  # noqa: S105 - the name of a question
NO_TOKEN = "no-token"  # noqa: S105 - the same
UNKNOWN_PATH = "unknown-path"
WRONG_METHOD = "wrong-method"
READS = (WHO_AM_I, WRONG_TOKEN, NO_TOKEN, UNKNOWN_PATH, WRONG_METHOD)

ORDER = "order"
SAME_AGAIN = "same-body-again"
CUT = "cut-after-body"
CUT_AGAIN = "cut-again"
BELOW, LEAST, GREATEST, ABOVE = "below-least", "least-amount", "greatest-amount", "above-greatest"

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
    return exact_json.write(document)


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
    "not-json": Special("its body is no JSON", lambda _: b"an order", lambda _: False),
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
    "amounts-disagree": Special(
        "poster_amount is not matcher_amount times exchange_rate", _halved, _disagrees
    ),
}
"""By name; that they must be refused is an assumption. The first that fits is what a body is taken for."""

WITHOUT: Mapping[str, Special] = {
    f"without-{path}": Special(f"{path} is left out", _without(path), _lacks(path)) for path in FIELDS
}
"""Orders that lack one field: which are required, the specification does not show."""


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
        document = exact_json.read(body)
    except exact_json.BadJson:
        document = None
    return next((name for name in _fitting(body, document, situation) if name in situation.asked), ORDER)


def _fitting(body: bytes, document: Any, situation: Situation) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "not-json"
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
