"""The validation of a request before it is sent."""

import decimal
from datetime import UTC, datetime
from decimal import Decimal

from tests.support import samples
from tests.support.cases import each
from transfer_async._converters.converter import Answer
from transfer_async._http import classify
from transfer_async._models import requests
from transfer_async._models.requests import OrderRequest, PersonName, call_problems
from transfer_async._models.responses import Order


@each(
    ("given", "exact"),
    [
        (0, "0"),
        (1250, "1250"),
        (-3, "-3"),
        (10**30, "1" + "0" * 30),
        ("1250.00", "1250.00"),
        ("0.1", "0.1"),
        ("12345678901234567.89", "12345678901234567.89"),
        ("-0.00", "0.00"),
        (Decimal("-0"), "0"),
        (Decimal("1E+3"), "1E+3"),
        (Decimal("2.50"), "2.50"),
    ],
)
def test_an_exact_amount_keeps_every_digit(given, exact):
    taken = requests.to_decimal(given)

    assert str(taken) == exact


INVALID_AMOUNTS = {
    "is a float, which cannot represent most decimal amounts exactly": [1.5, 0.0, float("nan")],
    "is not a plain decimal": [
        *("1e3", "1E3", "1E+3", "1.5e-2", "+5", " 5", "5 ", "5\n", "1,000", "1_000", "5.", ".5", ""),
        *("NaN", "Infinity", "0x10", "٣", "５", "½", "--5", "1.2.3"),
    ],
    "is not a Decimal, an int or a plain decimal string": [True, None, b"5", [], object()],
    "is not a finite number": [Decimal(text) for text in ("NaN", "sNaN", "Infinity", "-Infinity")],
    # Overlong texts are not malformed. Converting the last number to decimal digits would take years.
    "has more than 64 digits": [
        *("9" * 200, "9" * 5000, f"1.{'0' * 5000}", f"-{'9' * 5000}.5", Decimal(-(10**64)), 1 << 400_000_000),
        *(Decimal(text) for text in ("1E+64", "1E-65", "0E+65", "0E-65", "1." + "0" * 65)),
        *(Decimal(text) for text in ("1E+999999999", "1E-999999999", "0E+999999999")),
        *(Decimal(text) for text in ("-1E+999999999999999999", "1E-999999999999999999")),
    ],
}


@each(
    ("given", "problem"),
    [(given, problem) for problem, found in INVALID_AMOUNTS.items() for given in found],
)
def test_an_invalid_amount_is_left_unchanged_and_reported(given, problem):
    taken = requests.to_decimal(given)

    assert taken is given or isinstance(given, Decimal)
    assert requests.number_problem(taken).startswith(problem)


@each(
    "number",
    [
        *(Decimal("9" * 64), Decimal("0." + "9" * 64), Decimal("1E+63"), Decimal("1E-64"), Decimal("0E-64")),
        *(Decimal(0), 10**64 - 1, -(10**64) + 1),
    ],
)
def test_at_most_64_digits_are_accepted_on_either_side_of_the_point(number):
    assert requests.number_problem(requests.to_decimal(number)) is None


def test_a_number_of_too_many_digits_is_refused_however_an_application_shows_exponents():
    with decimal.localcontext(capitals=0):
        assert requests.number_problem(Decimal("1E+70"))
        assert requests.number_problem(Decimal("1E-70"))


@each(
    ("number", "places", "unit"),
    [
        ("1250.00", 2, "0.01"),
        ("1250", 0, "1"),
        ("1E+3", 0, "1"),
        ("0.000", 3, "0.001"),
        ("1E-5", 5, "0.00001"),
    ],
)
def test_a_numbers_decimal_places_and_smallest_unit_are_found(number, places, unit):
    assert requests.places(Decimal(number)) == places
    assert requests.unit(Decimal(number)) == Decimal(unit)


@each(
    ("a", "b", "by", "apart"),
    [
        ("1.00", "1.01", "0.01", False),
        ("1.00", "1.0100000000000000000000000000000000001", "0.01", True),
        ("-1", "1", "1.9", True),
        ("1E+900000000", "1", "5", True),
        ("1E-900000000", "1", "0.5", True),
        ("1E-900000000", "1", "2", False),
        ("0E+900000000", "0", "0", False),
        ("1E+900000000", "1E+900000000", "0", False),
    ],
)
def test_a_difference_is_never_rounded_however_far_the_numbers_are_apart(a, b, by, apart):
    with decimal.localcontext(prec=3):
        found = requests.differ(Decimal(a), Decimal(b), by_more_than=Decimal(by))

    assert found is apart


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def call(**changes):
    return list(call_problems(OrderRequest(**{"order": samples.new_order()} | changes)))


@each(
    "arguments",
    [
        *({}, {"key": "k"}, {"key": "k" * 200}, {"key": "payment 8731/ü"}),
        *({"beneficiary": PersonName("Ben", "Okri")}, {"held": "hold-1"}, {"send_before": NOON}),
        {"deadline": NOON},
    ],
)
def test_valid_arguments_have_no_fault(arguments):
    assert call(**arguments) == []


@each(
    ("name", "value"),
    [
        *(("order", wrong) for wrong in (None, {}, "order")),
        *(("key", wrong) for wrong in ("", "k" * 201, "a\nb", "a\x00b", "\ud800", 5, b"key")),
        *(("beneficiary", wrong) for wrong in ("Ben Okri", ("Ben", "Okri"), 5)),
        *(("held", wrong) for wrong in ("", "  ", "a\x07b", "\udfff", 5, True)),
        *(("send_before", wrong) for wrong in (NOON.replace(tzinfo=None), "2024-05-01", 5)),
        *(("deadline", wrong) for wrong in (NOON.replace(tzinfo=None), "2024-05-01", 5, 2.5)),
    ],
)
def test_an_invalid_argument_is_reported_by_its_name(name, value):
    assert [field for field, _ in call(**{name: value})] == [name]


# --- whose order an answer is ---------------------------------------------------------------------


def answer(*, poster="ada.okafor@example.org", beneficiary="ben.okri@example.org", **changes):
    order = Order.from_json(samples.encode(samples.order_json(**changes)))
    return Answer(order=order, poster_username=poster, beneficiary_username=beneficiary)


@each(
    "changes",
    [
        {},
        {"poster_currency": "usd", "matcher_currency": "ngn"},
        {"poster": "ADA.Okafor@Example.org", "beneficiary": "BEN.OKRI@example.org"},
        {"poster": None, "beneficiary": None},
        {"poster_amount": Decimal("1250.01"), "matcher_amount": Decimal("1000000.01")},
        {"poster_amount": Decimal("1249.99"), "matcher_amount": Decimal("999999.99")},
        {"poster_amount": 1250},
        {"exchange_rate": 7, "poster_fee": 0},
    ],
)
def test_an_answer_to_our_order_is_accepted(changes):
    assert classify.other_order(samples.new_order(), answer(**changes)) is None


@each(
    ("changes", "what"),
    [
        ({"poster_currency": "NGN"}, "poster_currency"),
        ({"matcher_currency": ""}, "matcher_currency"),
        ({"poster_amount": Decimal("1250.0100001")}, "poster_amount"),
        ({"poster_amount": Decimal("1248.99")}, "poster_amount"),
        ({"poster_amount": -1250}, "poster_amount"),
        ({"poster_amount": Decimal("1E+900000000")}, "poster_amount"),
        ({"matcher_amount": Decimal("1000001.5")}, "matcher_amount"),
        ({"matcher_amount": 999999}, "matcher_amount"),
        ({"matcher_amount": Decimal("1000000.0101")}, "matcher_amount"),
        ({"matcher_amount": Decimal("1E-900000000")}, "matcher_amount"),
        ({"poster": "eve@example.org"}, "poster's username"),
        ({"beneficiary": ""}, "beneficiary's username"),
        ({"poster_currency": "uſd"}, "poster_currency"),
    ],
)
def test_an_answer_to_another_order_is_reported_with_the_differing_field(changes, what):
    assert classify.other_order(samples.new_order(), answer(**changes)) == what


@each(("sent", "shown"), samples.TWO_PEOPLE)
def test_an_answer_for_another_person_is_refused_despite_unicode_folding(sent, shown):
    """Without this, the client returns an order that pays another person."""
    order = samples.new_order(poster_username=sent, poster_recipient_username=sent)

    assert classify.other_order(order, answer(poster=shown, beneficiary=sent)) == "poster's username"
    assert classify.other_order(order, answer(poster=sent, beneficiary=shown)) == "beneficiary's username"
