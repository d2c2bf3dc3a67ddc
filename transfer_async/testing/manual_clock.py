"""Time in a test's hands: leases, deadlines and ``settle_after`` pass in a line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from attrs import define

from transfer_async._support.clock import Clock, Duration, duration

START = datetime(2024, 5, 6, 12, tzinfo=UTC)


@define
class _Hands:
    """Where the time stands: seconds since the clock was made, and when that was."""

    began: datetime
    passed: float = 0.0

    def now(self) -> float:
        return 1000.0 + self.passed

    def utc(self) -> datetime:
        return self.began + timedelta(seconds=self.passed)

    async def sleep(self, seconds: float) -> None:
        self.passed += max(0.0, seconds)
        await asyncio.sleep(0)


class ManualClock(Clock):
    """A clock that stands still until `advance` is called, or somebody waits by it: then that time is over.

    Give the same one to the client and to a journal of your own; `PostgresJournal` keeps the database's time.
    Retries wait no real time by it, and every random share is a half, so that delays are the same each time.
    What aiohttp measures (`Timeouts`) is real time all the same.

    Args:
        start: the aware wall-clock time that it begins with; noon of 6 May 2024 UTC by default.

    Raises:
        ValueError: ``start`` is not an aware time.
    """

    _hands: _Hands

    def __init__(self, start: datetime = START) -> None:
        if start.utcoffset() is None:
            raise ValueError("start: must be an aware datetime")
        hands = _Hands(start)
        super().__init__(now=hands.now, utc=hands.utc, sleep=hands.sleep, chance=lambda: 0.5)
        object.__setattr__(self, "_hands", hands)  # a clock is frozen, and its hands are not

    def advance(self, by: Duration) -> None:
        """Let so much time have passed, in seconds or as ``timedelta``.

        Raises:
            ValueError: ``by`` is no duration, or less than 0: this clock never goes back.
        """
        if not (seconds := duration("by", by)) >= 0:
            raise ValueError("by: must be 0 seconds or more: a clock never goes back")
        self._hands.passed += seconds
