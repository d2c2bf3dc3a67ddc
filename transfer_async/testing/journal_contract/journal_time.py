"""The time of a journal on trial."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from transfer_async._support.clock import Clock

LetPass = Callable[[float], None]
"""Lets so many seconds pass."""

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


class JournalTime:
    """Time that stands still until a trial moves it, back as well: a machine's clock is set right sometimes.

    Attributes:
        clock: the same, for what takes a `Clock`.
    """

    def __init__(self) -> None:
        self._passed = 0.0
        self.clock: Clock = Clock(now=self.now, utc=self.utc)

    def now(self) -> float:
        """Seconds on a clock of its own."""
        return 1000.0 + self._passed

    def utc(self) -> datetime:
        """The aware wall-clock time."""
        return NOON + timedelta(seconds=self._passed)

    def pass_(self, seconds: float) -> None:
        """Let so many seconds pass; less than 0 set it back."""
        self._passed += seconds
