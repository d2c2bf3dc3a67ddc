"""A loop's time that runs ahead of the clock: what is due later is due at once, and nobody waits for it."""

import asyncio

import pytest


class LoopTime:
    """The time of the running loop, for as long as ``patch`` lasts.

    Attributes:
        passed: how many seconds went by without a wait.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        self.passed = 0.0
        patch.setattr(loop, "time", lambda: now() + self.passed)

    async def pass_(self, seconds: float) -> None:
        """Let so many seconds have gone by, and whoever waited for them act."""
        self.passed += seconds
        for _ in range(5):
            await asyncio.sleep(0)
