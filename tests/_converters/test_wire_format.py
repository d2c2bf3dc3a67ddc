"""What all readers of the service's JSON have in common: exact decoding, field names, and leaves."""

import decimal

import attrs
import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._converters import wire_format
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._models import responses


@each(
    "text",
    [
        *("0.1", "12345678901234567.89", "1.50", "1E+400", "-0.0", "0.000", "1E-400"),
        *("123456789012345678901234567890", "-123456789012345678901234567890", "0", "-7"),
        *("3." + "14159" * 100, "9" * 1000),
    ],
)
def test_a_number_keeps_every_digit(text):
    assert str(decode(text.encode())) == text


def test_the_callers_decimal_context_does_not_affect_a_number():
    with decimal.localcontext(prec=2, Emax=3, traps=[decimal.Inexact, decimal.Rounded]):
        number = decode(b"12345678901234567.89")

    assert str(number) == "12345678901234567.89"


@each(
    "raw",
    [
        *(b"", b" ", b"{", b"[1,]", b"{]", b"nul", b"NaN", b"Infinity", b"01", b"1.", b".5", b"+1"),
        *(b"1_0", b"'a'"),
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\x00"', b"\xef\xbb\xbf{}"),
        b"{}{}",
        *('{"a":1}'.encode("utf-16"), b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000),
        *(
            b"1e99999999999999999999",
            b"-1e99999999999999999999",
            b"1e-99999999999999999999",
            b"0e99999999999999999999",
        ),
        *(b"1" * 5000, b"1" * 1_000_000),
    ],
)
def test_invalid_or_huge_json_is_unreadable_without_much_work(raw):
    with pytest.raises(Unreadable) as caught:
        decode(raw)

    assert caught.value.path == "$"


@each(
    ("levels", "fits"),
    [(1, True), (wire_format.MAX_DEPTH, True), (wire_format.MAX_DEPTH + 1, False), (900, False)],
)
@each(("opening", "closing"), [(b"[", b"]"), (b'{"a":1,"b":', b"}")])
def test_json_is_read_to_a_limited_depth(levels, fits, opening, closing):
    raw = opening * levels + b"1" + closing * levels

    if fits:
        assert decode(raw) is not None
    else:
        with pytest.raises(Unreadable, match="too deeply"):
            decode(raw)


def test_six_field_names_differ_from_the_services():
    fields = [field for model in responses.MODELS for field in wire_format.fields_of(model)]

    assert {field.name: field.wire_name for field in fields if field.name != field.wire_name} == {
        "posters_beneficiary": "postersBeneficiary",
        "external_user": "externalUser",
        "user_options": "userOptions",
        "confirmed_matches": "confirmedMatches",
        "extra_order_details": "extraOrderDetails",
        "creator": "createdBy",
    }


@each(
    ("model", "tree"),
    [
        (responses.Order, samples.order_json()),
        (responses.User, samples.user_json(externalUser={})),
        (responses.ExternalUser, samples.external_user_json()),
        (responses.ExternalOrder, samples.external_order_json()),
        (responses.Currency, samples.currency_json()),
        (responses.UserOption, samples.option_json()),
    ],
)
def test_each_model_has_exactly_the_fields_of_the_specification(model, tree):
    assert sorted(field.wire_name for field in wire_format.fields_of(model)) == sorted(tree)


def test_only_the_unread_field_is_not_in_the_specification():
    ours = {
        name
        for model in responses.MODELS
        for name in {*attrs.fields_dict(model)} - {field.name for field in wire_format.fields_of(model)}
    }

    assert ours == {"unread"}


def test_every_flag_of_the_specification_is_a_bool_in_its_model():
    flags = {
        *samples.FLAGS,
        *("is_active", "can_post_offers", "can_accept_offers", "tfa_required_for_login"),
        "two_factor_verified",
    }
    fields = [field for model in responses.MODELS for field in wire_format.fields_of(model) if field.is_flag]

    assert {field.name for field in fields} == flags
    assert {field.kind for field in fields} == {bool}
