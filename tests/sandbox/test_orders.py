import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from transfer_async.sandbox import DEFAULT_ACCOUNTS, Accounts, Order, exact_json
from transfer_async.sandbox.validation import parse

from .wire_client import names, order_body

ACCOUNTS = Accounts(DEFAULT_ACCOUNTS)
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)

# The specification's section 2.1, as a list.
ORDER_FIELDS = names("""
    id user_id poster_fee poster_amount poster_currency poster_country poster_payment_method_type
    posters_beneficiary_user_id matcher_amount matcher_currency matcher_country matcher_payment_method_type
    exchange_rate is_matched is_confirmed is_completed is_accepted is_cancelled is_processing
    can_cancel_order posted_at updated_at expires_at parent_id match_id notified_is_about_to_expire_at
    published_at confirmed_at matched_at completed_at cancelled_at matcher_payment_completed_at
    probably_paid poster_payment_purpose matcher_payment_purpose user postersBeneficiary confirmedMatches
    extraOrderDetails external_order
""")


@pytest.fixture
def order() -> Order:
    request, _ = parse(exact_json.read(exact_json.write(order_body())))
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
    assert set(fields) == ORDER_FIELDS


def test_a_fresh_order_has_the_specifications_values(fields: dict[str, Any]):
    zeros = ("is_matched", "is_confirmed", "is_completed", "is_accepted", "is_cancelled")
    nulls = (
        *("parent_id", "match_id", "notified_is_about_to_expire_at", "published_at", "confirmed_at"),
        *("matched_at", "completed_at", "cancelled_at", "matcher_payment_completed_at", "probably_paid"),
        *("poster_payment_purpose", "matcher_payment_purpose"),
    )

    assert [fields[name] for name in zeros] == [0] * 5
    assert fields["is_processing"] == 1
    assert all(type(fields[name]) is int for name in (*zeros, "is_processing"))
    assert fields["can_cancel_order"] is True
    assert [fields[name] for name in nulls] == [None] * 12
    assert fields["confirmedMatches"] == fields["extraOrderDetails"] == []


def test_the_poster_carries_the_external_user(order: Order, fields: dict[str, Any]):
    external = fields["user"]["externalUser"]

    assert set(external) == {
        *("id", "created_by", "user_id", "username", "bvn", "created_at", "updated_at", "createdBy")
    }
    assert external["created_by"] == external["createdBy"]["id"] == ACCOUNTS.bank.id
    assert external["user_id"] == fields["user"]["id"] == fields["user_id"]
    assert external["username"] == "ada.eze@example.com"
    assert re.fullmatch(r"\d{11}", external["bvn"])
    assert "externalUser" not in fields["postersBeneficiary"]


def test_the_external_order_carries_the_banks_data(fields: dict[str, Any]):
    external = fields["external_order"]

    assert set(external) == {
        *("id", "created_by", "order_id", "current_account_balance", "transaction_fee"),
        *("transaction_fee_currency", "created_at", "updated_at", "createdBy", "bank_logo"),
    }
    assert external["order_id"] == fields["id"]
    assert external["createdBy"]["username"] == "lagoon-bank"
    assert external["bank_logo"] == "lagoon-bank.png"
    assert fields["poster_fee"] == external["transaction_fee"] == 250


def test_the_written_order_has_numbers_with_the_digits_that_were_sent(order: Order):
    document = json.loads(order.to_json(), parse_float=str)

    assert document["poster_amount"] == "155025.00"
    assert document["matcher_amount"] == "100.00"
    assert document["exchange_rate"] == "1550.25"
    assert document["external_order"]["current_account_balance"] == "900000.10"


def test_a_matched_order_says_so_and_nothing_else_changes(order: Order, fields: dict[str, Any]):
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
