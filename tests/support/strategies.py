"""Hypothesis strategies for responses of the service, for arbitrary JSON, and for requests."""

import string
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from hypothesis import strategies as st

from tests.support import samples

EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN)

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All characters that UTF-8 can encode: Hypothesis's default, which takes two seconds to compute."""

TEXTS = st.text(CHARACTERS, max_size=12)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30)
TIMES = st.sampled_from(
    [
        "2024-05-01T10:20:30.123Z",
        "2024-05-01T10:20:30Z",
        "2024-05-01T10:20:30.123456Z",
        "2024-05-01T10:20:30.123+02:00",
        "1999-12-31T23:59:59-11:30",
        "2024-02-29T00:00:00.000-00:00",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)

_TIME_NAMES = {"dob"}
_TEXT_NAMES = {"parent_id", "match_id", "poster_payment_purpose", "matcher_payment_purpose"}
_NUMBER_NAMES = {"max_amount", "min_amount", "steps"}
_SHAPELESS = {"payment_types", "value", "bank_options"}
_STRICT = {"id", "poster_currency", "matcher_currency", "transaction_fee_currency"}


def _loose(name: str, sample: Any) -> st.SearchStrategy[Any] | None:
    """Return a strategy for other values that a lenient field accepts, or None."""
    if name in _STRICT or name in {"role", "confirmedMatches", "extraOrderDetails"}:
        return None
    if name.endswith("_at") or name in _TIME_NAMES:
        return st.none() | TIMES
    if name == "probably_paid":
        return JSON
    if name in _NUMBER_NAMES:
        return st.none() | NUMBERS
    if name in _SHAPELESS:
        return st.none() | OBJECTS
    if isinstance(sample, str) or name in _TEXT_NAMES:
        return st.none() | TEXTS
    return None


def paths_of(tree: Any, path: str = "$") -> list[tuple[str, Any]]:
    """Return all JSON paths of a tree with their values. Objects of unknown shape count as one value."""
    if isinstance(tree, list):
        return [found for at, one in enumerate(tree) for found in paths_of(one, f"{path}[{at}]")]
    if not isinstance(tree, dict):
        return []
    found = []
    for name, value in tree.items():
        found.append((f"{path}.{name}", value))
        if name not in _SHAPELESS:
            found += paths_of(value, f"{path}.{name}")
    return found


SAMPLE = samples.order_json()
PATHS = paths_of(SAMPLE)
CHOICES = {path: how for path, value in PATHS if (how := _loose(path.rpartition(".")[2], value)) is not None}
ORDER_NUMBERS = (
    "$.poster_fee",
    "$.poster_amount",
    "$.matcher_amount",
    "$.exchange_rate",
    "$.external_order.current_account_balance",
    "$.external_order.transaction_fee",
)


def _some(things: Iterable[str], *, at_most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(sorted(things)), max_size=at_most, unique=True)


SOME_LOOSE, SOME_NUMBERS = _some(CHOICES, at_most=6), _some(ORDER_NUMBERS, at_most=2)
SOME_FLAGS = _some(samples.FLAGS, at_most=2)


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    """Generate orders with valid fields. Only some of the fields vary."""
    tree = samples.order_json(draw(st.integers(1, 50)))
    for path in draw(SOME_LOOSE):
        tree = samples.changed(tree, path, draw(CHOICES[path]))
    for path in draw(SOME_NUMBERS):
        tree = samples.changed(tree, path, draw(NUMBERS))
    for flag in draw(SOME_FLAGS):
        tree = samples.changed(tree, f"$.{flag}", draw(st.sampled_from([0, 1, False, True])))
    return tree


def amounts(*, places: int, up_to: int = 10**9) -> st.SearchStrategy[Decimal]:
    """Generate positive amounts with this number of decimal places."""
    return st.integers(1, up_to * 10**places).map(lambda units: Decimal((0, _digits(units), -places)))


def _digits(units: int) -> tuple[int, ...]:
    return tuple(map(int, str(units)))


CURRENCIES = st.text(string.ascii_uppercase + string.digits, min_size=2, max_size=10)
COUNTRIES = st.text(string.ascii_uppercase, min_size=2, max_size=2)
MAILS = st.from_regex(
    r"[a-z]{1,8}(\.[a-z]{1,8})?@[a-z]{1,8}\.[a-z]{2,5}", fullmatch=True, alphabet=CHARACTERS
)


@st.composite
def new_order_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Generate the arguments of a valid `NewOrder`, except ``poster_amount``."""
    return {
        "poster_username": draw(MAILS),
        "poster_recipient_username": draw(MAILS),
        "poster_currency": draw(CURRENCIES),
        "poster_country": draw(COUNTRIES),
        "poster_payment_method_type": draw(st.sampled_from(["paypal_payment", "zelle_payment"])),
        "matcher_currency": draw(CURRENCIES),
        "matcher_country": draw(COUNTRIES),
        "matcher_amount": draw(amounts(places=2)),
        "exchange_rate": draw(amounts(places=6, up_to=10**4)),
        "external_order": samples.new_external_order(
            current_account_balance=draw(amounts(places=2)) - 1000,
            transaction_fee=draw(amounts(places=2)),
            transaction_fee_currency=draw(CURRENCIES),
        ),
    }
