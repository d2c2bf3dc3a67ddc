from copy import deepcopy
from decimal import Decimal, localcontext
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox.wire_client import order_body
from tests.support.cases import each
from transfer_async.sandbox import CreateOrder, wire
from transfer_async.sandbox.wire import amounts_agree, parse


def parsed(body: object) -> tuple[CreateOrder | None, dict[str, list[str]]]:
    return parse(wire.read(wire.write(body)))


def changed(path: str, value: object) -> dict[str, Any]:
    body = deepcopy(order_body())
    *parents, name = path.split(".")
    place = body[parents[0]] if parents else body
    place[name] = value
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
    ("path", "value"),
    [
        ("poster_username", "ada"),
        ("poster_username", "ada@example"),
        ("poster_username", "a b@example.com"),
        ("poster_username", "a\x00b@example.com"),
        ("poster_username", None),
        ("poster_recipient_username", ["ben.okri@example.com"]),
        ("poster_currency", "N"),
        ("poster_currency", "NGN\n"),
        ("poster_country", "NGA"),
        ("poster_country", "ng"),
        ("poster_amount", "1e3"),
        ("poster_amount", "NaN"),
        ("poster_amount", " 1"),
        ("poster_amount", "٣"),
        ("poster_amount", "0"),
        ("poster_amount", -1),
        ("poster_amount", True),
        ("poster_amount", None),
        ("poster_amount", {}),
        ("poster_amount", Decimal("1e999999999")),
        ("poster_amount", Decimal("1e-999999999")),
        ("poster_amount", Decimal("0e999999999")),
        ("poster_payment_method_type", ""),
        ("matcher_currency", 840),
        ("matcher_country", ""),
        ("matcher_amount", "1" * 21),
        ("matcher_amount", Decimal("0." + "1" * 19)),
        ("exchange_rate", Decimal("1550.25")),
        ("exchange_rate", "0"),
        ("external_order", "none"),
        ("external_order.current_account_balance", False),
        ("external_order.transaction_fee", "250"),
        ("external_order.transaction_fee", -1),
        ("external_order.transaction_fee_currency", "naira"),
    ],
)
def test_an_invalid_field_is_named(path: str, value: object):
    request, problems = parsed(changed(path, value))

    assert request is None
    assert problems
    assert all(name.startswith(path) for name in problems)


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
    _, problems = parsed(body)

    assert ("poster_amount" not in problems) is agree


@given(st.decimals("0.01", "1000000", places=2), st.decimals("0.0001", "10000", places=4))
def test_a_rounded_product_agrees_in_any_decimal_context(matcher: Decimal, rate: Decimal):
    request, _ = parsed(order_body())
    assert request is not None
    poster = (matcher * rate).quantize(Decimal("0.01"))
    good = evolve(request, poster_amount=poster, matcher_amount=matcher, exchange_rate=rate)
    bad = evolve(good, poster_amount=poster + Decimal("0.02"))

    with localcontext(prec=2):
        assert amounts_agree(good)
        assert not amounts_agree(bad)
