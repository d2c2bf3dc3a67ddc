"""Commands and outcomes as JSON: exact and complete. A message with an unknown part is refused."""

import json
from datetime import timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bank import new_order
from tests.support.cases import each
from tests.support.strategies import new_order_fields
from transfer_async import InvalidOrder, NewOrder, OrderRequest, Outcome, PersonName, Refused
from transfer_async._converters.messages import OrderCommand, OrderOutcome


def command(**changes: Any) -> OrderCommand:
    return OrderCommand(**{"key": "payment-1", "order": new_order(), **changes})


def tree(**changes: Any) -> dict[str, Any]:
    return json.loads(command().to_json()) | changes


def duplicated(name: str, value: str, within: str = "{") -> bytes:
    """Return a command in which a field has a duplicate before the original."""
    written = json.dumps(tree(beneficiary={"first": "Ben", "last": "Okri"}))
    return written.replace(within, f'{within}"{name}": "{value}", ', 1).encode()


def problems_of(data: Any) -> dict[str, str]:
    with pytest.raises(InvalidOrder) as invalid:
        OrderCommand.from_json(data if isinstance(data, bytes) else json.dumps(data))
    return dict(invalid.value.problems)


# --- commands -----------------------------------------------------------------------------------


@given(
    order=new_order_fields().map(lambda fields: NewOrder.quote(**fields, places=8)),
    key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200),
    held=st.none() | st.just("hold-17"),
    name=st.none() | st.just(PersonName("Ben", "Okri")) | st.just(PersonName("Ben", "Okri", "J.")),
    moments=st.tuples(*[st.none() | st.datetimes(timezones=st.just(timezone(timedelta(hours=-5))))] * 2),
)
def test_a_command_is_read_as_it_was_written(order, key, held, name, moments):
    send_before, deadline = moments
    made = OrderCommand(
        key=key, order=order, beneficiary=name, held=held, send_before=send_before, deadline=deadline
    )

    assert OrderCommand.from_json(made.to_json()) == made
    assert made.request == OrderRequest(order, key, name, held, send_before, deadline)


def test_amounts_are_exact_whether_they_are_strings_or_numbers():
    written = tree()
    written["order"] |= {"poster_amount": "0.1000", "matcher_amount": "1", "exchange_rate": "0.1"}
    raw = json.dumps(written).replace('"0.1000"', "0.1000")
    read = OrderCommand.from_json(raw)

    assert str(read.order.poster_amount) == "0.1000"
    assert OrderCommand.from_json(read.to_json()) == read


def test_all_faults_of_a_command_are_reported_together():
    bad = tree(key="", held=7, send_before="tomorrow", beneficiary={"first": "Ben"})
    bad["order"] |= {"poster_currency": "naira", "matcher_amount": "1e3"}
    del bad["order"]["exchange_rate"]
    del bad["order"]["external_order"]["transaction_fee"]

    assert set(problems_of(bad)) == {
        *("key", "held", "send_before", "beneficiary.last", "order.poster_currency", "order.matcher_amount"),
        *("order.exchange_rate", "order.external_order.transaction_fee"),
    }


NOT_UNDERSTOOD = {
    "$": [
        *(b"", b"not json", b"\xff\xfe", b"[]", b"null", b'{"a":' * 100 + b"1" + b"}" * 100),
        *(
            duplicated("key", "payment-2"),
            duplicated("key", "payment-1"),
            duplicated("k\\u0065y", "payment-2"),
        ),
        duplicated("exchange_rate", "1", within='"order": {'),
        duplicated("first", "Ada", within='"beneficiary": {'),
        tree(heldd="hold-17"),
    ],
    "version": [tree(version=wrong) for wrong in (2, 1.0, True, None)],
    "key": [tree(key=wrong) for wrong in (None, 8731, "x" * 201)],
    "order": [tree(order=wrong) for wrong in (None, [1], tree()["order"] | {"exchange_rat": "1"})],
    "beneficiary": [
        *(tree(beneficiary={"first": "Ben", "last": "Okri", "bvn": "1"}), tree(beneficiary="Ben Okri")),
    ],
    "beneficiary.first": [tree(beneficiary={"first": "", "last": "Okri"})],
    "beneficiary.last": [tree(beneficiary={"first": "Ben", "last": "Okri\npayment-9,ada"})],
    "held": [tree(held=wrong) for wrong in ("h" * 10_001, "  ")],
    "send_before": [tree(send_before="2026-05-06T12:00:00")],
    "deadline": [tree(deadline=30)],
}


@each(("field", "data"), [(field, data) for field, found in NOT_UNDERSTOOD.items() for data in found])
def test_an_unknown_part_of_a_command_is_refused_by_name(field: str, data: Any):
    assert set(problems_of(data)) == {field}


@each(
    ("name", "hint"),
    [
        ("heldd", "field number 4 is unknown; did you mean 'held'"),
        ("zzz", "; the known fields are beneficiary, deadline, held, key, order"),
    ],
)
def test_an_unknown_field_is_reported_with_its_number_and_the_known_fields(name: str, hint: str):
    assert hint in problems_of(tree(**{name: "hold-17"}))["$"]


@each(
    ("data", "key"),
    [
        *((data, None) for data in ("{", "[]", "null", '"k"', b"\xff", '{"version":1,"key":"k","key":"l"}')),
        *((json.dumps(tree(order=wrong)), "payment-1") for wrong in (None, {}, "x", [])),
        *((json.dumps(tree(key=wrong)), None) for wrong in ("", 7, "k" * 201)),
        (json.dumps(tree(version=7)), "payment-1"),
    ],
)
def test_a_refused_command_never_releases_the_hold_of_a_created_key(data: Any, key: str | None):
    with pytest.raises(InvalidOrder) as invalid:
        OrderCommand.from_json(data)

    assert (invalid.value.key, invalid.value.order_may_exist) == (key, True)


def test_a_command_that_has_no_key_has_no_order():
    with pytest.raises(InvalidOrder) as invalid:
        OrderCommand.from_json(json.dumps(tree(key=None)))

    assert not invalid.value.order_may_exist


@each(
    ("changes", "key", "order_may_exist"),
    [
        ({"key": None}, None, False),
        ({"key": ""}, "", True),
        ({"order": "x"}, "payment-1", True),
        ({"order": {}}, "payment-1", True),
        ({"held": ""}, "payment-1", True),
    ],
)
def test_a_command_is_checked_when_it_is_created(
    changes: dict[str, Any], key: str | None, order_may_exist: bool
):
    with pytest.raises(InvalidOrder) as invalid:
        command(**changes)

    assert (invalid.value.key, invalid.value.order_may_exist) == (key, order_may_exist)


# --- outcomes -----------------------------------------------------------------------------------


def test_an_outcome_without_an_order_has_the_error_message():
    no = Refused("no", status=422, key="k", order_may_exist=False, receipts={"hold": "h-1"})
    written = json.loads(OrderOutcome.of(no, key="k", intent_id="i").to_json())

    assert written == {
        "version": 1,
        "key": "k",
        "intent_id": "i",
        "outcome": "refused",
        "order_may_exist": False,
        "error": "Refused",
        "status": 422,
        "receipts": {"hold": "h-1"},
    }


@each("fee", ["1E+5000000", "1E-5000000"])
def test_an_amount_with_a_huge_exponent_keeps_its_exponent(fee: str):
    outcome = OrderOutcome(
        key="k", intent_id="i", outcome=Outcome.CREATED, order_may_exist=True, poster_fee=Decimal(fee)
    )

    assert len(outcome.to_json()) < 200
    assert OrderOutcome.from_json(outcome.to_json()) == outcome


def test_an_outcome_may_have_unknown_fields_but_not_another_version():
    outcome = OrderOutcome(key="k", intent_id="i", outcome=Outcome.UNKNOWN, order_may_exist=True)
    written = json.loads(outcome.to_json()) | {"more": 1}

    assert OrderOutcome.from_json(json.dumps(written)) == outcome
    with pytest.raises(ValueError, match="version 2"):
        OrderOutcome.from_json(json.dumps(written | {"version": 2}))


@each("data", [b"", b"{}", b'{"version": 2}', b"[]"])
def test_an_invalid_outcome_is_refused(data: bytes):
    with pytest.raises(ValueError):
        OrderOutcome.from_json(data)


def test_an_outcome_or_order_with_a_duplicate_field_is_refused():
    """Without this, a reader that uses the other outcome releases the hold of an existing order."""
    outcome = b'{"version":1,"key":"k","intent_id":"i","outcome":"refused","order_may_exist":false}'
    outcome = outcome.replace(b"{", b'{"outcome":"created",')
    with pytest.raises(ValueError, match="duplicate"):
        OrderOutcome.from_json(outcome)
    with pytest.raises(InvalidOrder, match="duplicate field"):
        NewOrder.from_json(new_order().to_json()[:-1] + b',"poster_amount":"1"}')
