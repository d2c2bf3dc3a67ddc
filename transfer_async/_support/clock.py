"""Time and chance, in one place, so that a test can hold both in its hands."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

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


def in_two_units(seconds: float, units: Sequence[str] = (" d", " h", " min", " s")) -> str:
    """``seconds`` in the two largest of the units that they fill: ``1 d 0 h``, ``3 min 20 s``, ``0 s``."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in zip(units, (86_400, 3_600, 60, 1), strict=True):
        count, left = divmod(left, size)
        if count or parts or size == 1:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


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


# --- deadlines ---------------------------------------------------------------------------------------
# When a caller's patience ends: a moment of the wall clock, as a time on a clock that nobody sets.
#
# It only shortens. Whoever has no deadline pays for none: nothing here asks for the time then.


NEVER: Final = float("inf")
"""The deadline of a caller that has none."""


def on_clock(clock: Clock, moment: datetime | None) -> float:
    """``moment`` on ``clock``: whoever sets the wall clock later changes nothing of it."""
    if moment is None:
        return NEVER
    return clock.now() + (moment - clock.utc()).total_seconds()


def is_over(clock: Clock, deadline: float, ahead: float = 0.0) -> bool:
    """Whether ``deadline`` has passed, or will have in ``ahead`` seconds."""
    return deadline != NEVER and clock.now() + ahead >= deadline


def seconds_left(clock: Clock, deadline: float) -> float | None:
    """Seconds until ``deadline``, as `asyncio.timeout` takes them: None if there is none."""
    return None if deadline == NEVER else max(0.0, deadline - clock.now())


def within(limit: float, clock: Clock, deadline: float) -> float:
    """The seconds of ``limit``, or fewer: those until ``deadline``."""
    return limit if deadline == NEVER else min(limit, max(0.0, deadline - clock.now()))


# --- periodic ----------------------------------------------------------------------------------------
# What is done again and again beside everything else: one loop, whatever is done in it.


class Periodic:
    """Does something again and again; a time that fails is told, and does not keep the next one away.

    Args:
        do: what is done.
        every: seconds from the end of one time to the beginning of the next.
        until: whether it is to end; asked before each time.
        failed: is told what a time raised.
        clock: of the waiting, and of the chance.
        first: seconds before the first time. By default a random share of ``every``: many processes are
            started at once, and would march in step.

    Attributes:
        resting: between two times, so that nothing is lost if `run` is cancelled.
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
        """Go on until the end."""
        pause = self._every * self._clock.chance() if self._first is None else self._first
        while not self._until():
            self.resting = True
            await self._clock.sleep(pause)
            self.resting = False
            try:
                await self._do()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next time may go well
                self._failed(error)
            pause = self._every
