from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from transfer_async.sandbox import wire


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


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "2024-05-06T07:08:09.000Z"),
        (datetime(2024, 5, 6, 7, 8, 9, 999_999, tzinfo=UTC), "2024-05-06T07:08:09.999Z"),
        (datetime(2024, 5, 6, 1, tzinfo=timezone(timedelta(hours=2))), "2024-05-05T23:00:00.000Z"),
    ],
)
def test_timestamps_are_utc_with_milliseconds(moment: datetime, text: str):
    assert wire.timestamp(moment) == text
