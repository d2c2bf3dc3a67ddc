"""When a caller's patience ends: a moment of the wall clock, as a time on a clock that nobody sets.

It only shortens. Whoever has no deadline pays for none: nothing here asks for the time then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from transfer_async._support.clock import Clock

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
