"""Time and chance, in one place, so that a test can hold both in its hands."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

from attrs import frozen

Duration = float | timedelta
"""Seconds, or a ``timedelta``."""


def seconds(value: Duration) -> float:
    """``value`` in seconds.

    Raises:
        ValueError: it is no duration.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 - NaN
        with contextlib.suppress(OverflowError):
            return float(value)
    raise ValueError("is not a number of seconds or a timedelta")


def duration(name: str, value: Duration) -> float:
    """``value`` in seconds, as the argument ``name``.

    Raises:
        ValueError: it is no duration; names the argument.
    """
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def in_seconds(value: Duration) -> float:
    """``value`` in seconds; what is no duration is left as it is, for a setting's validator to name."""
    try:
        return seconds(value)
    except ValueError:
        return cast("float", value)


EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The times between which a calendar has any."""

_FIRST, _LAST = EARLIEST.timestamp(), LATEST.timestamp()


def time_after(time: datetime, seconds: float) -> datetime | None:
    """The time so many seconds after ``time``; None if no calendar has it: what is stored may be damaged."""
    try:
        return time + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def is_a_time(since_1970: float) -> bool:
    """Whether a calendar has the time so many seconds after 1970 began."""
    return _FIRST <= since_1970 <= _LAST


# A deadline must pass while the machine is suspended: CLOCK_MONOTONIC stands still then.
_NOW: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def _utc() -> datetime:
    return datetime.now(UTC)


@frozen(kw_only=True)
class Clock:
    """Where the time, the waiting and the randomness of a client come from.

    Args:
        now: seconds on a clock that never goes back and counts suspension.
        utc: the aware wall-clock time.
        sleep: waits that many seconds.
        chance: a random number from 0 to below 1.
    """

    now: Callable[[], float] = _NOW
    utc: Callable[[], datetime] = _utc
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
