"""Time and chance come from one place, and a duration is a number of seconds or a ``timedelta``."""

import time
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from tests.support.cases import each
from transfer_async import Clock
from transfer_async._support.clock import duration, in_seconds, seconds


@each(
    ("value", "expected"),
    [
        (2, 2.0),
        (0.25, 0.25),
        (-1.5, -1.5),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (float("inf"), float("inf")),
    ],
)
def test_numbers_and_timedeltas_are_seconds(value, expected):
    read = seconds(value)

    assert read == expected
    assert type(read) is float


@each("value", [True, "2", None, float("nan"), b"1", 1j, [2], 10**400])
def test_nothing_else_is_a_duration(value):
    with pytest.raises(ValueError, match="is not a number of seconds or a timedelta"):
        seconds(value)


def test_a_duration_says_which_argument_is_none():
    with pytest.raises(ValueError, match=r"^lease: is not a number of seconds or a timedelta$"):
        duration("lease", "60")


def test_a_duration_that_is_one_is_in_seconds():
    assert duration("lease", timedelta(minutes=1)) == 60.0


def test_what_is_no_duration_is_left_for_a_settings_validator_to_name():
    assert in_seconds("soon") == "soon"
    assert in_seconds(timedelta(seconds=3)) == 3.0


def test_the_clock_never_goes_back():
    clock = Clock()

    seen = [clock.now() for _ in range(1000)]

    assert seen == sorted(seen)


@pytest.mark.skipif(  # only Linux has such a clock
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


def test_chance_is_from_0_to_below_1():
    clock = Clock()

    drawn = {clock.chance() for _ in range(1000)}

    assert all(0 <= one < 1 for one in drawn)
    assert len(drawn) > 900


async def test_sleeping_gives_the_loop_its_turn():
    assert await Clock().sleep(0) is None


def test_a_clock_is_frozen_and_keyword_only():
    clock = Clock()

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        clock.now = time.time
    with pytest.raises(TypeError):
        Clock(time.time)


def test_each_part_of_a_clock_may_be_given():
    clock = Clock(now=lambda: 5.0, chance=lambda: 0.5)

    assert (clock.now(), clock.chance()) == (5.0, 0.5)
