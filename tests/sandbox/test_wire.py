"""The sandbox's JSON: exact numbers, and the checks of a request."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from transfer_async.sandbox import CreateOrder, wire

from .wire_client import order_body


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_a_written_number_is_read_back_with_all_digits(number: Decimal):
    assert str(wire.read(wire.write(number))) == str(number)


@each(
    ("body", "reason"),
    [
        (b"", "not valid JSON"),
        (b'{"a":', "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"NaN", "NaN and infinities"),
        (b"[-Infinity]", "NaN and infinities"),
        (b"1" * 1_000_000, "longer than 100"),
        (b"0." + b"1" * 1_000_000, "longer than 100"),
        (b"1e99999999999999999999999999", "not valid JSON"),
        (b"[" * 60_000, "nested too deep"),
        (b'{"a":' * 10_000, "nested too deep"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": [1, {"b": "\\ud83d"}]}', "surrogate"),
    ],
)
def test_invalid_json_is_refused_with_a_reason(body: bytes, reason: str):
    with pytest.raises(wire.BadJson, match=reason):
        wire.read(body)


def test_complete_surrogate_pairs_are_text():
    assert wire.read(b'{"a": ["\\ud83d\\ude00", null]}') == {"a": ["\N{GRINNING FACE}", None]}


@each(
    ("moment", "text"),
    [
        (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "2024-05-06T07:08:09.000Z"),
        (datetime(2024, 5, 6, 7, 8, 9, 999_999, tzinfo=UTC), "2024-05-06T07:08:09.999Z"),
        (datetime(2024, 5, 6, 1, tzinfo=timezone(timedelta(hours=2))), "2024-05-05T23:00:00.000Z"),
    ],
)
def test_timestamps_are_utc_with_milliseconds(moment: datetime, text: str):
    assert wire.timestamp(moment) == text


# --- the checks of a request --------------------------------------------------------------------


def parsed(body: object) -> tuple[CreateOrder | None, dict[str, list[str]]]:
    return wire.parse(wire.read(wire.write(body)))


def changed(path: str, value: object) -> dict[str, Any]:
    body = deepcopy(order_body())
    outer, _, name = path.rpartition(".")
    (body[outer] if outer else body)[name] = value
    return body


@each("body", [None, 7, "text", [], [order_body()]])
def test_a_body_that_is_not_an_object_is_a_problem(body: object):
    assert parsed(body) == (None, {"body": ["must be a JSON object"]})


def test_all_problems_are_reported_at_once():
    _, problems = parsed({"poster_currency": "ngn", "external_order": []})

    assert len(problems) == 13
    assert problems["poster_currency"] == ["must be an upper-case currency code"]
    assert problems["poster_username"] == ["is required"]
    assert problems["external_order.transaction_fee"] == ["is required"]


def test_unknown_fields_are_ignored():
    assert parsed(order_body(note="hello"))[1] == {}


@each(
    ("path", "values"),
    {
        "poster_username": ["ada", "ada@example", "a b@example.com", "a\x00b@example.com", None],
        "poster_recipient_username": [["ben.okri@example.com"]],
        "poster_currency": ["N", "NGN\n"],
        "poster_country": ["NGA", "ng"],
        "poster_amount": ["1e3", "NaN", " 1", "٣", "0", -1, True, None, {}, Decimal("0e999999999")],
        "poster_payment_method_type": [""],
        "matcher_currency": [840],
        "matcher_country": [""],
        "matcher_amount": ["1" * 21, *map(Decimal, ("0." + "1" * 19, "1e999999999", "1e-999999999"))],
        "exchange_rate": [Decimal("1550.25"), "0"],
        "external_order": ["none"],
        "external_order.current_account_balance": [False],
        "external_order.transaction_fee": ["250", -1],
        "external_order.transaction_fee_currency": ["naira"],
    }.items(),
)
def test_an_invalid_field_is_named(path: str, values: list[object]):
    for value in values:
        request, problems = parsed(changed(path, value))

        assert request is None, value
        assert problems, value
        assert all(name.startswith(path) for name in problems), value


@each(
    ("poster", "matcher", "rate", "agree"),
    [
        ("155025.00", "100", "1550.25", True),
        ("0.33", "1", "0.3349", True),
        ("0.33", "1", "0.335", True),
        ("0.34", "1", "0.335", True),
        ("0.33", "1", "0.3351", False),
        ("0.34", "1", "0.3349", False),
        ("1", "1", "1.5", True),
        ("1", "1", "1.51", False),
        ("12345678901234567.89", "12345678901234567.89", "1", True),
        ("12345678901234567.90", "12345678901234567.89", "1", False),
    ],
)
def test_amounts_agree_to_half_a_unit_of_the_last_place(poster: str, matcher: str, rate: str, agree: bool):
    body = order_body(poster_amount=poster, matcher_amount=matcher, exchange_rate=rate)

    assert ("poster_amount" not in parsed(body)[1]) is agree


@given(st.decimals("0.01", "1000000", places=2), st.decimals("0.0001", "10000", places=4))
def test_a_rounded_product_agrees_in_any_decimal_context(matcher: Decimal, rate: Decimal):
    request, _ = parsed(order_body())
    poster = (matcher * rate).quantize(Decimal("0.01"))
    good = evolve(request, poster_amount=poster, matcher_amount=matcher, exchange_rate=rate)
    bad = evolve(good, poster_amount=poster + Decimal("0.02"))

    with localcontext(prec=2):
        assert wire.amounts_agree(good)
        assert not wire.amounts_agree(bad)
