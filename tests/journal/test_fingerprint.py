from decimal import ROUND_UP, Decimal, localcontext
from typing import Any, cast

import attrs
import pytest
from attrs import field, frozen

from tests.support.bank import external_order, new_order
from tests.support.cases import each
from tests.support.samples import TWO_PEOPLE
from transfer_async import NewExternalOrder, NewOrder
from transfer_async._models import requests
from transfer_async._models.requests import fingerprint


@each(
    "changes",
    [
        {"poster_username": "ADA.EZE@EXAMPLE.COM"},
        {"poster_recipient_username": "Ben.Okri@example.com"},
        {"poster_amount": Decimal("155025.000")},
        {"poster_amount": 155025},
        {"matcher_amount": Decimal("1E+2")},
        {"exchange_rate": "1550.2500"},
        {"external_order": external_order(transaction_fee="250.00")},
        {"external_order": external_order(current_account_balance="-3")},
    ],
)
def test_equal_orders_have_equal_fingerprints_in_any_notation(changes: dict[str, Any]):
    assert fingerprint(new_order(**changes)) == fingerprint(new_order())


@each(
    "changes",
    [
        {"poster_username": "tunde.bello@example.com"},
        {"poster_recipient_username": "maria.silva.santos@example.com"},
        {"poster_currency": "GHS"},
        {"poster_country": "GH"},
        {"poster_payment_method_type": "paypal_payment"},
        {"matcher_currency": "GBP"},
        {"matcher_country": "GB"},
        {"matcher_amount": "200", "exchange_rate": "775.125"},
        {"external_order": external_order(transaction_fee=251)},
        {"external_order": external_order(transaction_fee_currency="USD")},
    ],
)
def test_every_field_of_the_request_except_the_balance_changes_the_fingerprint(changes: dict[str, Any]):
    assert fingerprint(new_order(**changes)) != fingerprint(new_order())


@each("pair", TWO_PEOPLE)
@each("name", ["poster_username", "poster_recipient_username"])
def test_an_order_to_another_person_has_another_fingerprint_even_if_unicode_folds_the_names(
    name: str, pair: tuple[str, str]
):
    """Without this, a key bound to one order returns it for the other, which is then never paid."""
    assert len({fingerprint(new_order(**{name: username})) for username in pair}) == 2


def test_stored_fingerprints_of_ascii_usernames_do_not_change():
    """Without this, every redelivery of an existing order is a conflict."""
    known = "d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562"
    louder = new_order(
        poster_username="ADA.EZE@EXAMPLE.COM", poster_recipient_username="BEN.OKRI@EXAMPLE.COM"
    )

    assert fingerprint(new_order()) == fingerprint(louder) == known


@frozen(kw_only=True)
class LongerOrder(NewOrder):
    purpose: str | None = field(default=None, metadata={"problem": lambda _: None})


def test_a_new_optional_field_changes_no_stored_fingerprint(monkeypatch: pytest.MonkeyPatch):
    """Without this, each key with an order raises `KeyConflict` after an update."""
    known = fingerprint(new_order())
    monkeypatch.setattr(requests, "NewOrder", LongerOrder)
    order = attrs.asdict(new_order(), recurse=False)

    assert fingerprint(LongerOrder(**order)) == known
    assert len({known, *(fingerprint(LongerOrder(**order, purpose=text)) for text in ("gift", "rent"))}) == 3


class Watched:
    """A stand-in for a model that records which of its fields are read."""

    def __init__(self, model: Any, seen: set[str]) -> None:
        self._model, self._seen = model, seen

    def __getattr__(self, name: str) -> Any:
        self._seen.add(name)
        value = getattr(self._model, name)
        return Watched(value, self._seen) if attrs.has(type(value)) else value


def test_a_new_field_changes_the_fingerprint():
    """Without this, two orders that differ only in this field count as one, and the second is never paid."""
    fields = {one.name for kind in (NewOrder, NewExternalOrder) for one in attrs.fields(kind)}
    seen: set[str] = set()

    assert fingerprint(cast("NewOrder", Watched(new_order(), seen))) == fingerprint(new_order())
    assert seen == fields - {"current_account_balance"}


def test_moving_a_character_between_adjacent_fields_changes_the_fingerprint():
    one = new_order(poster_country="NG", poster_payment_method_type="1x")
    other = new_order(poster_country="NG", poster_payment_method_type="x")

    assert fingerprint(one) != fingerprint(other)


def test_a_long_amount_is_not_rounded():
    rates = ["1550.25" + "0" * 40 + digit for digit in "12"]

    assert len({fingerprint(new_order(exchange_rate=rate)) for rate in rates}) == 2


def test_the_decimal_context_does_not_change_the_fingerprint():
    order = new_order(poster_amount=Decimal("155025.000"), matcher_amount=Decimal("1E+2"))
    known = fingerprint(order)

    with localcontext(capitals=0, prec=3, rounding=ROUND_UP):
        assert fingerprint(order) == known
