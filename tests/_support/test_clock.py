"""The clock, which provides time and randomness, and durations in seconds or as ``timedelta``."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.cases import each
from transfer_async import Clock
from transfer_async._support.clock import duration, seconds


@each(
    ("value", "expected"),
    [
        *((2, 2.0), (0.25, 0.25), (-1.5, -1.5), (float("inf"), float("inf"))),
        (timedelta(minutes=1, milliseconds=5), 60.005),
    ],
)
def test_numbers_and_timedeltas_are_seconds(value, expected):
    read = seconds(value)

    assert (read, type(read)) == (expected, float)


@each("value", [True, "2", None, float("nan"), b"1", 1j, [2], 10**400])
def test_a_value_that_is_not_a_duration_is_refused_with_the_name_of_the_argument(value):
    with pytest.raises(ValueError, match=r"^lease: is not a number of seconds or a timedelta$"):
        duration("lease", value)


@pytest.mark.skipif(  # this clock exists only on Linux
    not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts suspension"
)
def test_the_clock_counts_suspension():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = Clock().now()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= now <= after


def test_the_wall_clock_is_aware_and_in_utc():
    before = datetime.now(UTC)
    utc = Clock().utc()

    assert utc.tzinfo is UTC
    assert before <= utc <= datetime.now(UTC)


def test_random_numbers_are_from_0_to_below_1():
    clock = Clock()

    drawn = {clock.chance() for _ in range(1000)}

    assert all(0 <= number < 1 for number in drawn)
    assert len(drawn) > 900
