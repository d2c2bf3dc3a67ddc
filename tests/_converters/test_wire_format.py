"""What all readers of the service's JSON have in common: exact decoding, field names, and leaves."""

import attrs
import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._converters import wire_format
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._models import responses

NINES = b"9" * 20


@each(
    "raw",
    [
        *(b"", b" ", b"{", b"[1,]", b"{]", b"nul", b"NaN", b"Infinity", b"01", b"1.", b".5", b"+1"),
        *(b"1_0", b"'a'", b"{}{}", '{"a":1}'.encode("utf-16")),
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\x00"', b"\xef\xbb\xbf{}"),
        *(b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000),
        *(b"1" * 5000, b"1" * 1_000_000),
        *(b"1e" + NINES, b"-1e" + NINES, b"1e-" + NINES, b"0e" + NINES),
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
def test_each_model_has_exactly_the_fields_of_the_specification_and_unread(model, tree):
    fields = wire_format.fields_of(model)

    assert sorted(field.wire_name for field in fields) == sorted(tree)
    assert {*attrs.fields_dict(model)} - {field.name for field in fields} <= {"unread"}
