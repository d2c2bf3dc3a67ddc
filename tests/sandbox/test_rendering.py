"""Users and orders are rendered as the JSON objects of the specification."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CurrencyAccount, Order, wire

from .wire_client import order_body

ACCOUNTS = Accounts(DEFAULT_ACCOUNTS)
ADA, BEN = ACCOUNTS["ada.eze@example.com"], ACCOUNTS["ben.okri@example.com"]
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

WHO_AM_I_FIELDS = """
    id email username firstname lastname phone two_factor_verified avatar address role country timezone
    joined_at updated_at verified_at verification_started_at email_verified_at is_active dob gender city
    state zipcode mxuid can_post_offers can_accept_offers has_valid_address currencies
"""


@each("account", DEFAULT_ACCOUNTS)
def test_a_user_object_has_the_fields_and_the_types_of_the_specification(account: Account):
    user = wire.user_object(account)
    times = {name: value for name, value in user.items() if name == "dob" or name.endswith("_at")}
    flags = [user[name] for name in ("is_active", "can_post_offers", "can_accept_offers")]

    assert set(user) == set(samples.user_json())
    assert len(times) == 9
    assert all(value is None or TIMESTAMP.fullmatch(value) for value in times.values())
    assert all(type(flag) is int for flag in flags)
    assert user["has_valid_address"] is True


def test_who_am_i_has_the_specified_subset():
    assert set(wire.who_am_i_object(ACCOUNTS.bank)) == set(WHO_AM_I_FIELDS.split())


def test_derived_details_are_stable_and_differ_between_people():
    assert wire.user_object(ADA) == wire.user_object(ADA)
    assert wire.user_object(ADA)["dob"] != wire.user_object(BEN)["dob"]


def test_a_currency_object_shows_limits_and_payment_types():
    currency = wire.user_object(BEN)["currencies"][0]

    assert set(currency) == set(samples.currency_json())
    assert currency["currency_name"] == "us dollar"
    assert set(currency["payment_types"]["zelle_payment"]) == {"email", "phone", "name"}


def test_a_currency_of_an_unknown_code_is_shown_by_its_code():
    held = CurrencyAccount(code="XYZ")
    account = Account(username="x@example.com", firstname="X", lastname="Y", currencies=(held,))
    currency = wire.user_object(account)["currencies"][0]

    assert (currency["currency_name"], currency["symbol"], currency["flag"]) == ("xyz", "XYZ", "xyz.png")


# --- orders -------------------------------------------------------------------------------------


@pytest.fixture
def order() -> Order:
    request, _ = wire.parse(wire.read(wire.write(order_body())))
    assert request is not None
    return Order(
        id="tx-abc123",
        number=7,
        request=request,
        bank=ACCOUNTS.bank,
        poster=ADA,
        beneficiary=BEN,
        matcher_payment_method_type="zelle_payment",
        posted_at=NOON,
        updated_at=NOON,
    )


@pytest.fixture
def fields(order: Order) -> dict[str, Any]:
    return order.to_object()


def test_a_fresh_order_has_the_fields_and_values_of_the_specification(fields: dict[str, Any]):
    lists = ("confirmedMatches", "extraOrderDetails")
    wanted = samples.order_json()

    assert set(fields) == set(wanted)
    for name in ("can_cancel_order", *lists, *samples.FLAGS, *samples.ORDER_LATER):
        assert repr(fields[name]) == repr(wanted[name]), name  # a flag is 0, not False


def test_the_poster_has_the_external_user(fields: dict[str, Any]):
    external = fields["user"]["externalUser"]

    assert set(external) == set(samples.external_user_json())
    assert external["created_by"] == external["createdBy"]["id"] == ACCOUNTS.bank.id
    assert external["user_id"] == fields["user"]["id"] == fields["user_id"]
    assert external["username"] == "ada.eze@example.com"
    assert re.fullmatch(r"\d{11}", external["bvn"])
    assert "externalUser" not in fields["postersBeneficiary"]


def test_the_external_order_has_the_banks_data(fields: dict[str, Any]):
    external = fields["external_order"]

    assert set(external) == set(samples.external_order_json())
    assert external["order_id"] == fields["id"]
    assert external["createdBy"]["username"] == "lagoon-bank"
    assert external["bank_logo"] == "lagoon-bank.png"
    assert fields["poster_fee"] == external["transaction_fee"] == 250


def test_an_order_as_json_keeps_all_digits_of_the_request(order: Order):
    document = json.loads(order.to_json(), parse_float=str)
    sent = order_body()

    assert order.to_json() == wire.write(order.to_object())
    for name in ("poster_amount", "matcher_amount", "exchange_rate"):
        assert document[name] == sent[name], name
    assert document["external_order"]["current_account_balance"] == "900000.10"


def test_a_changed_order_object_does_not_change_the_order(order: Order):
    order.to_object()["user"]["firstname"] = "Eve"

    assert json.loads(order.to_json())["user"]["firstname"] == "Ada"


def test_matching_an_order_changes_these_fields_only(order: Order, fields: dict[str, Any]):
    later = order.matched(match_id="tx-other", at=NOON + timedelta(minutes=5)).to_object()
    changed = {name: value for name, value in later.items() if value != fields[name]}

    assert changed == {
        "is_matched": 1,
        "is_processing": 0,
        "can_cancel_order": False,
        "match_id": "tx-other",
        "matched_at": "2024-05-06T12:05:00.000Z",
        "updated_at": "2024-05-06T12:05:00.000Z",
    }
