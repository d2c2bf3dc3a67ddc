"""Control of the event loop's clock, so that timers fire at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

MUST_RUN_OUT = 0.01
"""A timeout in real seconds for a call that can never get a response, so it always expires."""


class LoopTime:
    """The clock of the running event loop while ``patch`` is active.

    Attributes:
        passed: the seconds by which the clock was advanced.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        self.passed = 0.0
        self._timers: list[_Timer] = []
        patch.setattr(loop, "time", lambda: now() + self.passed)
        if not isinstance(loop, asyncio.BaseEventLoop):  # uvloop's timers ignore `time`
            call_later = loop.call_later

            def call_at(when: float, act: Callable[..., object], *args: Any, context: Any = None) -> _Timer:
                timer = _Timer(when, partial(act, *args))
                timer.real = call_later(max(0.0, when - loop.time()), timer.ring, context=context)
                self._timers.append(timer)
                return timer

            patch.setattr(loop, "call_at", call_at)
            patch.setattr(
                loop, "call_later", lambda delay, *rest, **named: call_at(loop.time() + delay, *rest, **named)
            )

    async def pass_(self, seconds: float) -> None:
        """Advance the clock by ``seconds`` and run the timers that are due."""
        self.passed += seconds
        now = asyncio.get_running_loop().time()
        for timer in [timer for timer in self._timers if timer.when() <= now]:
            self._timers.remove(timer)
            timer.ring()
        for _ in range(5):
            await asyncio.sleep(0)


class _Timer:
    """The part of `asyncio.TimerHandle` that the loop needs, which calls its function once."""

    def __init__(self, when: float, act: Callable[[], object]) -> None:
        self._when = when
        self._act = act
        self._is_over = False
        self.real: asyncio.TimerHandle

    def when(self) -> float:
        return self._when

    def ring(self) -> None:
        if not self._is_over:
            self.cancel()
            self._act()

    def cancel(self) -> None:
        self._is_over = True
        self.real.cancel()

    def cancelled(self) -> bool:
        return self._is_over
