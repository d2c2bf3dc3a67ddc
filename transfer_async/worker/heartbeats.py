"""Signs of life for the messages in hand, so that their broker gives none of them to anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from attrs import define

from transfer_async._support.clock import Clock
from transfer_async._support.log import log
from transfer_async._support.periodic import Periodic


class Beating(Protocol):
    """What can give a sign of life."""

    async def beat(self) -> None:
        """Work on it goes on: it is not to be delivered to anybody else."""


@define(eq=False)
class _InHand:
    """One message, and its sign of life that is on the way."""

    beat: Callable[[], Awaitable[None]]
    under_way: asyncio.Task[None] | None = None


class Heartbeats:
    """One task for all messages in hand: each is beaten for every so many seconds, or sooner.

    Args:
        every: seconds between two beats.
        clock: of the waiting.
    """

    def __init__(self, *, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._in_hand: set[_InHand] = set()
        self._ticking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, message: Beating) -> AsyncIterator[None]:
        """Beat for ``message`` as long as this is open, and not after."""
        one = _InHand(message.beat)
        self._in_hand.add(one)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._ticks().run())
        try:
            yield
        finally:
            self._in_hand.discard(one)
            if not self._in_hand:
                self._ticking.cancel()
                self._ticking = None
            if one.under_way is not None:
                one.under_way.cancel()
                await asyncio.wait([one.under_way])

    def _ticks(self) -> Periodic:
        return Periodic(
            self._beat_all,
            every=self._every,
            first=self._every,
            until=lambda: False,
            failed=_beat_failed,
            clock=self._clock,
        )

    async def _beat_all(self) -> None:
        for one in self._in_hand:
            # One that hangs keeps none of the others waiting.
            if one.under_way is None or one.under_way.done():
                one.under_way = asyncio.create_task(_beaten(one.beat))


async def _beaten(beat: Callable[[], Awaitable[None]]) -> None:
    try:
        await beat()
    except Exception as error:  # noqa: BLE001 - the work goes on anyhow
        _beat_failed(error)


def _beat_failed(error: Exception) -> None:
    log.warning("a heart-beat did not arrive (%s)", type(error).__name__)
