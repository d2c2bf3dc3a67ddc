import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import samples
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Accounts, Order, validation
from transfer_async.sandbox.validation import parse

from .wire_client import order_body

ACCOUNTS = Accounts(DEFAULT_ACCOUNTS)
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@pytest.fixture
def order() -> Order:
    request, _ = parse(validation.read(validation.write(order_body())))
    assert request is not None
    return Order(
        id="tx-abc123",
        number=7,
        request=request,
        bank=ACCOUNTS.bank,
        poster=ACCOUNTS["ada.eze@example.com"],
        beneficiary=ACCOUNTS["ben.okri@example.com"],
        matcher_payment_method_type="zelle_payment",
        posted_at=NOON,
        updated_at=NOON,
    )


@pytest.fixture
def fields(order: Order) -> dict[str, Any]:
    return order.to_object()


def test_an_order_has_every_field_of_the_specification(fields: dict[str, Any]):
    assert set(fields) == set(samples.order_json())


def test_a_fresh_order_has_the_specifications_values(fields: dict[str, Any]):
    values = (
        "can_cancel_order",
        "confirmedMatches",
        "extraOrderDetails",
        *samples.FLAGS,
        *samples.ORDER_LATER,
    )

    for name in values:
        assert repr(fields[name]) == repr(samples.order_json()[name]), name  # a flag is 0, and not False


def test_the_poster_has_the_external_user(order: Order, fields: dict[str, Any]):
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

    assert document["poster_amount"] == "155025.00"
    assert document["matcher_amount"] == "100.00"
    assert document["exchange_rate"] == "1550.25"
    assert document["external_order"]["current_account_balance"] == "900000.10"


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
