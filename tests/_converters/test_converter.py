"""Conversion between JSON bytes and models: exact in both directions, in the specification's format."""

import contextlib
import json
import pickle
import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import samples, strategies
from tests.support.cases import each
from tests.support.strategies import CHARACTERS
from transfer_async._converters import converter
from transfer_async._converters.wire_format import Number, Unreadable
from transfer_async._models.errors import InvalidOrder, ServiceFailed, UnreadableOrder
from transfer_async._models.requests import NewExternalOrder, NewOrder
from transfer_async._models.responses import Currency, ExternalOrder, ExternalUser, Order, User, UserOption

# --- requests -------------------------------------------------------------------------------------


def test_a_new_order_is_written_exactly_as_in_the_specification():
    assert samples.new_order().to_json() == samples.encode(samples.new_order_json())


@each(
    ("amount", "written"),
    [
        (Decimal("1E+3"), "1000"),
        (Decimal("1.25E+3"), "1250"),
        (Decimal("1E-9"), "0.000000001"),
        (Decimal("1E-30"), "0." + "0" * 29 + "1"),
        (Decimal("1E+30"), "1" + "0" * 30),
        (10**30, "1" + "0" * 30),
        ("1250.00", "1250.00"),
        ("12345678901234567.89", "12345678901234567.89"),
    ],
)
def test_amounts_are_written_as_plain_decimal_strings_and_the_fee_as_a_plain_number(amount, written):
    bank = samples.new_external_order(current_account_balance=amount, transaction_fee=amount)
    order = samples.new_order(
        poster_amount=amount, matcher_amount=amount, exchange_rate=1, external_order=bank
    )
    tree = json.loads(order.to_json(), parse_float=Number, parse_int=Number)

    assert (tree["poster_amount"], tree["matcher_amount"]) == (written, written)
    assert tree["external_order"]["current_account_balance"] == written
    assert tree["external_order"]["transaction_fee"] == Number(written)


@given(strategies.new_order_fields())
def test_every_new_order_round_trips_without_an_exponent(fields):
    order = NewOrder.quote(**fields, places=8)
    raw = order.to_json()
    tree = json.loads(raw, parse_float=Decimal, parse_int=Decimal)

    assert NewOrder.from_json(raw) == order
    assert NewOrder.from_json(raw).to_json() == raw
    assert Decimal(tree["poster_amount"]) == order.poster_amount
    assert str(tree["external_order"]["transaction_fee"]) == str(order.external_order.transaction_fee)
    assert not re.search(rb"[0-9][eE]", re.sub(rb'"[^"]*@[^"]*"|"[A-Z0-9]{2,10}"', b"", raw))


def test_an_unknown_field_of_a_request_is_ignored():
    tree = samples.new_order_json(brand_new={"a": 1})

    assert NewOrder.from_json(samples.encode(tree)) == samples.new_order()


def invalid(kind, raw):
    with pytest.raises(InvalidOrder) as caught:
        kind.from_json(raw)
    return [field for field, _ in caught.value.problems]


def test_all_faults_of_a_request_and_the_banks_data_are_in_one_error():
    tree = samples.new_order_json(
        poster_username=None,
        poster_currency="usd",
        matcher_amount="1e6",
        external_order={"current_account_balance": "x", "transaction_fee": -1},
    )
    del tree["matcher_country"]

    assert sorted(invalid(NewOrder, samples.encode(tree))) == [
        *("external_order.current_account_balance", "external_order.transaction_fee"),
        *("external_order.transaction_fee_currency", "matcher_amount", "matcher_country", "poster_currency"),
        "poster_username",
    ]


@each("name", sorted(samples.new_order_json()))
@each("change", [samples.without, partial(samples.changed, value=None)])
def test_a_missing_field_of_a_request_is_reported_once(name, change):
    with pytest.raises(InvalidOrder) as caught:
        NewOrder.from_json(samples.encode(change(samples.new_order_json(), name)))

    assert caught.value.problems == ((name, "is missing"),)


# --- responses ------------------------------------------------------------------------------------

TIME = datetime(2024, 5, 1, 10, 20, 30, 123000, UTC)


def test_an_order_and_its_parts_are_read_into_their_models():
    tree = samples.order_json()
    order = Order.from_json(samples.encode(tree))
    user, external = order.user, order.external_order

    assert (order.id, order.poster_amount, order.match_id) == (tree["id"], Decimal("1250.00"), None)
    assert (order.is_matched, order.is_processing, order.can_cancel_order) == (False, True, True)
    assert (order.posted_at, order.confirmed_matches, order.extra_order_details) == (TIME, (), ())
    assert isinstance(order.posters_beneficiary, User)
    assert (user.username, user.is_active, user.joined_at) == (tree["user"]["username"], True, TIME)
    assert user.currencies == (
        Currency(**tree["user"]["currencies"][0] | {"can_trade_with": ("usd", "gbp")}),
    )
    assert user.user_options[0].value == {"enabled": 1, "limit": Decimal("0.1")}
    assert user.external_user.bvn == "22200000001"
    for part, wire in (
        (user.external_user, tree["user"]["externalUser"]),
        (external, tree["external_order"]),
    ):
        assert (part.id, part.created_by) == (wire["id"], "bank-account")
        assert part.creator == User.from_json(samples.encode(wire["createdBy"]))
    assert order.unread == ()


def test_an_order_is_written_as_the_service_writes_it():
    tree = samples.order_json()
    tree["postersBeneficiary"]["externalUser"] = None
    tree["external_order"]["createdBy"]["externalUser"] = None
    tree["user"]["externalUser"]["createdBy"]["externalUser"] = None
    written = Order.from_json(samples.encode(tree)).to_json()

    assert json.loads(written, parse_float=Decimal) == tree
    assert b'"poster_amount":1250.00,' in written
    assert b'"is_processing":1,' in written
    assert b'"can_cancel_order":true' in written
    assert b'"posted_at":"2024-05-01T10:20:30.123Z"' in written
    assert b"unread" not in written


@each(
    ("time_read", "written"),
    [
        (TIME, "2024-05-01T10:20:30.123Z"),
        (TIME.replace(microsecond=0), "2024-05-01T10:20:30.000Z"),
        (TIME.replace(microsecond=123456), "2024-05-01T10:20:30.123456Z"),
        (datetime.fromisoformat("2024-05-01T12:20:30+02:00"), "2024-05-01T10:20:30.000Z"),
    ],
)
def test_a_time_is_written_in_utc_with_milliseconds_or_full_precision(time_read, written):
    raw = UserOption(created_at=time_read).to_json()

    assert json.loads(raw)["created_at"] == written
    assert UserOption.from_json(raw).created_at == time_read


@given(strategies.orders())
def test_an_order_round_trips_to_the_last_digit(tree):
    order = Order.from_json(samples.encode(tree))
    again = Order.from_json(order.to_json())

    assert again == order
    assert again.to_json() == order.to_json()
    assert order.unread == again.unread == ()
    for path in strategies.ORDER_NUMBERS:
        assert str(samples.at(again, path.removeprefix("$."))) == str(samples.inside(tree, path))


# --- a reader that never raises anything but its own errors ---------------------------------------

READERS = {
    Order: UnreadableOrder,
    **dict.fromkeys((User, ExternalUser, ExternalOrder, Currency, UserOption), ServiceFailed),
    **dict.fromkeys((NewOrder, NewExternalOrder), InvalidOrder),
}


@each(("model", "kind"), READERS.items())
@each(
    "raw",
    [
        *(b"", b"null", b"[]", b"5", b'"tx-abc"', b"{", b"\xff", b"<html>", b"\xef\xbb\xbf{}"),
        *(b"[" * 100_000, '{"id":"tx-abc"}'.encode("utf-16"), b'{"id": "\\ud800"}', b"1e" + b"9" * 20),
    ],
)
def test_a_value_that_is_not_a_json_object_is_refused_and_kept(model, kind, raw):
    with pytest.raises(kind) as caught:
        model.from_json(raw)

    error = caught.value
    if kind is InvalidOrder:
        assert [field for field, _ in error.problems] == ["$"]
    else:
        assert (error.raw if kind is UnreadableOrder else error.body) == raw
        assert f"{model.__name__.lower()}: " in str(error).lower()


def read_with_every_reader(raw):
    """Read ``raw`` with all readers and access every value. No unexpected error may be raised."""
    for model, error in READERS.items():
        with contextlib.suppress(error):
            look_at_all_of(model.from_json(raw))


def look_at_all_of(model):
    assert all(hasattr(model, name) for name in attrs.fields_dict(type(model)))
    assert repr(model)
    assert hash(model) == hash(model)
    assert pickle.loads(pickle.dumps(model)) == model
    assert type(model).from_json(model.to_json()) == model


@given(strategies.JSON)
def test_arbitrary_json_is_read_or_refused(tree):
    read_with_every_reader(samples.encode(tree))


@given(st.text(CHARACTERS, max_size=40))
@example("\ud800")
@example('{"id":"\udfff"}')
def test_arbitrary_text_with_lone_surrogates_is_read_or_refused(text):
    read_with_every_reader(text)


BOMBS = {
    "deep lists": b"[" * 20_000 + b"]" * 20_000,
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "deep lists, cut": b"[" * 20_000,
    "a bit too deep": b"[" * 700 + b"]" * 700,
    "deep enough": b"[" * 64 + b"]" * 64,
    "deep users": b'{"externalUser":{"createdBy":' * 10_000 + b"{}" + b"}}" * 10_000,
    "users, a bit too deep": b'{"externalUser":{"createdBy":' * 150 + b"{}" + b"}}" * 150,
    "a huge number": b"-1e99999999999999999999",
    "a tiny number": b"1e-99999999999999999999",
    "an odd zero": b"0e99999999999999999999",
    "the largest exponent": b"1e999999999999999999",
    "a million digits": b"7" * 1_000_000,
    "a million decimals": b"0." + b"7" * 1_000_000,
    "half a character": b'"\\ud800"',
    "both halves": b'"\\ud83d\\ude00"',
    "an escaped backslash": b'"\\\\ud800"',
    "NUL": b'"\\u0000"',
    "a raw NUL": b'"\x00"',
    "not UTF-8": b'"\xff\xfe"',
    "surrogates in UTF-8": b'"\xed\xa0\x80"',
    "NaN": b"NaN",
    "the same key twice": b'{"id":1,"id":"tx-abc","id":null}',
    "an escaped key": b'{"\\u0069d":"tx-abc"}',
    "half a character for a key": b'{"\\ud800":1}',
    "a wide list": b"[" + b",".join([b"{}"] * 21_000) + b"]",
    "a long escape": b'"' + b"\\u0041" * 150_000 + b'"',
}
PATHS = ("$.poster_amount", "$.external_order", "$.user", "$.brand_new")
"""JSON paths of a strict field, a lenient field, a lenient object and an unknown field."""


@each("path", PATHS)
@each("bomb", BOMBS)
def test_a_bomb_anywhere_in_an_order_is_read_or_refused(bomb, path):
    with contextlib.suppress(UnreadableOrder):
        look_at_all_of(Order.from_json(samples.encode(samples.changed(samples.order_json(), path, bomb))))


@each("bomb", BOMBS)
@each(
    "path", ["$.poster_amount", "$.external_order", "$.external_order.transaction_fee", "$.poster_username"]
)
def test_a_bomb_anywhere_in_a_request_is_an_invalid_order(bomb, path):
    assert invalid(NewOrder, samples.encode(samples.changed(samples.new_order_json(), path, bomb)))


# --- what the service's other operations answer ---------------------------------------------------


@attrs.frozen
class Quote:
    pair: str
    rate: Decimal
    valid: bool
    until: datetime | None = None


@each(
    ("into", "raw", "read"),
    [
        (
            Quote,
            b'{"pair":"USDNGN","rate":0.10,"valid":1,"until":"2024-05-01T10:20:30.123Z"}',
            Quote("USDNGN", Decimal("0.10"), True, TIME),
        ),
        (User, b'{"username":"ben@example.org"}', User(username="ben@example.org")),
        (None, b'{"rate":0.10}', {"rate": Decimal("0.10")}),
        (None, b" \n", None),
        (list[int], b"[1,2]", [1, 2]),
        (list[Currency], b'[{"steps":0.10}]', [Currency(steps=Decimal("0.10"))]),
    ],
)
def test_an_answer_is_read_exactly_into_a_class_or_a_list_or_as_decoded_json(into, raw, read):
    found = converter.read_into(into, raw)

    assert found == read
    assert repr(found) == repr(read)  # with the same number of digits


@each(
    ("into", "raw"),
    [
        *((Quote, raw) for raw in (b"", b"{}", b"[]", b"null", b"5", b'"s3cr3t"', b"{", b"[" * 100_000)),
        (Quote, b'{"pair":"s3cr3t","rate":"s3cr3t","valid":7}'),
        (Quote, b'{"pair":5,"rate":true,"valid":1,"until":"s3cr3t"}'),
        *((dict[str, int], raw) for raw in (b"[1]", b"5", b"null", b'{"s3cr3t":"s3cr3t"}')),
        *((list[int], raw) for raw in (b"5", b"null", b'["s3cr3t"]', b"[1.5]")),
        *((list[Order], raw) for raw in (b"[5]", b"[{}]", b'[{"id":"s3cr3t"}]', b"[null]")),
        *((int, raw) for raw in (b"null", b"1.0", b'"s3cr3t"', b"{}")),
        *((Order, raw) for raw in (b"", b"{}", b"[]", b'{"id":"s3cr3t"}')),
        (None, b"{"),
    ],
)
def test_an_answer_of_another_shape_is_unreadable_and_not_shown(into, raw):
    with pytest.raises(Unreadable) as caught:
        converter.read_into(into, raw)

    assert "s3cr3t" not in str(caught.value)


def test_any_json_value_and_any_model_in_it_can_be_encoded():
    tree = {"rate": Decimal("0.10"), "order": samples.new_external_order(), "tags": ["a", None]}

    assert converter.encode(tree) == (
        b'{"rate":0.10,"order":{"current_account_balance":"50000.00","transaction_fee":1.50,'
        b'"transaction_fee_currency":"USD"},"tags":["a",null]}'
    )
