"""Time, sleep and randomness in one place, so that tests can control them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast
from zoneinfo import ZoneInfo

from attrs import frozen

Duration = float | timedelta
"""Seconds, or a ``timedelta``."""


def seconds(value: Duration) -> float:
    """Return ``value`` in seconds.

    Raises:
        ValueError: ``value`` is not a duration.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 - NaN
        with contextlib.suppress(OverflowError):
            return float(value)
    raise ValueError("is not a number of seconds or a timedelta")


def duration(name: str, value: Duration) -> float:
    """Convert ``value``, which was passed as the argument ``name``, to seconds.

    Raises:
        ValueError: ``value`` is not a duration; the message names the argument.
    """
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def in_seconds(value: Duration) -> float:
    """Return a duration in seconds. Return any other value unchanged, for a validator to report."""
    try:
        return seconds(value)
    except ValueError:
        return cast("float", value)


def in_two_units(seconds: float, units: Sequence[str] = (" d", " h", " min", " s")) -> str:
    """Return ``seconds`` as text in two units, such as ``1 d 0 h``, ``3 min 20 s`` or ``0 s``."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in zip(units, (86_400, 3_600, 60, 1), strict=True):
        count, left = divmod(left, size)
        if count or parts or size == 1:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


MIN_TIME, MAX_TIME = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The first and the last time that a ``datetime`` can hold."""

_FIRST, _LAST = MIN_TIME.timestamp(), MAX_TIME.timestamp()


def time_after(time: datetime, seconds: float) -> datetime | None:
    """Return the time ``seconds`` after ``time``, or None if a ``datetime`` cannot hold it.

    The arguments may come from a corrupt record, and so may be out of range.
    """
    try:
        return time + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def is_a_time(since_1970: float) -> bool:
    """Return whether a ``datetime`` can hold ``since_1970``, a time in seconds since the start of 1970."""
    return _FIRST <= since_1970 <= _LAST


# A deadline must also pass while the machine is suspended; CLOCK_MONOTONIC stops during that time.
_NOW: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def _utc() -> datetime:
    return datetime.now(UTC)


@frozen(kw_only=True)
class Clock:
    """The source of a client's time, sleep and randomness.

    Args:
        now: returns the time in seconds on a clock that never goes backwards. The clock keeps running while
            the machine is suspended.
        utc: returns the wall-clock time as an aware ``datetime``.
        sleep: waits for a number of seconds.
        chance: returns a random number, at least 0 and less than 1.
    """

    now: Callable[[], float] = _NOW
    utc: Callable[[], datetime] = _utc
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


# --- deadlines ---------------------------------------------------------------------------------------
# A caller's deadline is a wall-clock time. It is converted to the client's clock, which cannot be set.
#
# A deadline only shortens other limits. Without a deadline, these functions do not read the clock.


NEVER: Final = float("inf")
"""The value that means that there is no deadline."""


def on_clock(clock: Clock, moment: datetime | None) -> float:
    """Convert ``moment`` to a time on ``clock``, so that later wall clock changes do not affect it."""
    if moment is None:
        return NEVER
    return clock.now() + (moment - clock.utc()).total_seconds()


def is_over(clock: Clock, deadline: float, ahead: float = 0.0) -> bool:
    """Return whether ``deadline`` has passed, or will have passed in ``ahead`` seconds."""
    return deadline != NEVER and clock.now() + ahead >= deadline


def seconds_left(clock: Clock, deadline: float) -> float | None:
    """Return the seconds until ``deadline`` for `asyncio.timeout`; None without a deadline."""
    return None if deadline == NEVER else max(0.0, deadline - clock.now())


def within(limit: float, clock: Clock, deadline: float) -> float:
    """Return ``limit`` or the number of seconds until ``deadline``, whichever is smaller."""
    return limit if deadline == NEVER else min(limit, max(0.0, deadline - clock.now()))


# --- periodic runs -----------------------------------------------------------------------------------


class Periodic:
    """Runs a function periodically. If a run fails, the error is reported, and later runs continue.

    Args:
        do: the function to run.
        every: the seconds from the end of one run to the start of the next.
        until: called before each run; returns whether to stop.
        failed: called with the error of a run that failed.
        clock: the source of sleep and randomness.
        first: the delay before the first run, in seconds. The default is a random fraction of ``every``, so
            that processes that start at the same time do not all run at once.

    Attributes:
        resting: whether `run` is sleeping, so that cancelling it does not interrupt the function.
    """

    def __init__(
        self,
        do: Callable[[], Awaitable[object]],
        *,
        every: float,
        until: Callable[[], bool],
        failed: Callable[[Exception], object],
        clock: Clock,
        first: float | None = None,
    ) -> None:
        self._do, self._every, self._first = do, every, first
        self._until, self._failed, self._clock = until, failed, clock
        self.resting: bool = False

    async def run(self) -> None:
        """Run the function periodically until ``until`` returns true."""
        pause = self._every * self._clock.chance() if self._first is None else self._first
        while not self._until():
            self.resting = True
            await self._clock.sleep(pause)
            self.resting = False
            try:
                await self._do()
            except Exception as error:  # noqa: BLE001 - the next run may succeed after any error
                self._failed(error)
            pause = self._every


# --- times as texts ------------------------------------------------------------------------------


def moment(since_1970: float) -> datetime:
    """Convert seconds since 1970 to a UTC time. Replace an out-of-range time with the nearest valid date."""
    try:
        return datetime.fromtimestamp(since_1970, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime(9999, 12, 31, tzinfo=UTC) if since_1970 > 0 else datetime(1, 1, 1, tzinfo=UTC)


def time_text(when: datetime, zone: ZoneInfo | None = None) -> str:
    """Return a time as text, to the second, in UTC and also in ``zone`` if given.

    The date in ``zone`` is included only if it differs from the date in UTC.
    """
    utc = when.astimezone(UTC)
    text = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    with contextlib.suppress(OverflowError):  # the first and the last day that a datetime can have
        local = when.astimezone(zone or UTC)
        day = "" if local.date() == utc.date() else f"{local:%Y-%m-%d} "
        return f"{text} ({day}{local:%H:%M:%S %Z})" if zone else text
    return text


def machine_time(when: datetime) -> str:
    """Return a time as text in ISO 8601, in UTC and to the second."""
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
