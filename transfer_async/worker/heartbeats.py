"""Signs of life for the messages in hand, so that their broker gives none of them to anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from transfer_async._support.clock import Clock
from transfer_async._support.log import log
from transfer_async._support.periodic import Periodic
from transfer_async._support.state import State


class Beating(Protocol):
    """What can give a sign of life."""

    async def beat(self) -> None:
        """Work on it goes on: it is not to be delivered to anybody else."""


class Heartbeats:
    """One task for all messages in hand: each is beaten for every so many seconds, or sooner.

    Args:
        every: seconds between two beats.
        clock: of the waiting.
    """

    def __init__(self, *, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._in_hand: set[InHand] = set()
        self._ticking: asyncio.Task[None] | None = None

    def of(self, message: Beating) -> InHand:
        """Beat for ``message`` as long as this is open, and not after."""
        return InHand(self, message.beat)

    def begin(self, one: InHand) -> None:
        """Beat for ``one`` from the next time on."""
        self._in_hand.add(one)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._ticks().run())

    def end(self, one: InHand) -> None:
        """Beat for it no more."""
        self._in_hand.discard(one)
        if not self._in_hand and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

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


class InHand(State):
    """One message, and its sign of life that is on the way."""

    heartbeats: Heartbeats
    beat: Callable[[], Awaitable[None]]
    under_way: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self.heartbeats.begin(self)

    async def __aexit__(self, *exc: object) -> None:
        self.heartbeats.end(self)
        if self.under_way is not None:
            self.under_way.cancel()
            await asyncio.wait([self.under_way])


async def _beaten(beat: Callable[[], Awaitable[None]]) -> None:
    try:
        await beat()
    except Exception as error:  # noqa: BLE001 - the work goes on anyhow
        _beat_failed(error)


def _beat_failed(error: Exception) -> None:
    log.warning("a heart-beat did not arrive (%s)", type(error).__name__)
