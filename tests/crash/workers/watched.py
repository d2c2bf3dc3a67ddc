"""The worker's journal and transport with the points built in, and a record of all that is sent."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Any

from tests.crash.bank import Book
from tests.crash.setting import Point
from tests.crash.workers.fate import Fate, at_work
from transfer_async._http.transport import ExchangeResult, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async.journal.model import TransitionResult
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import (
    Claim,
    Create,
    Expire,
    GoInDoubt,
    MarkSending,
    MarkUndone,
    Move,
    Release,
    TakeOver,
)

_OF_RECOVERY = (TakeOver, Expire, Release, MarkUndone)


class MortalJournal:
    """A journal whose worker may die before, within and after a move."""

    def __init__(self, journal: Journal, fate: Fate, chance: random.Random) -> None:
        self._journal = journal
        self._fate = fate
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """Make a move, if this worker lives as long."""
        early = self._chance.random() < 0.5
        await self._before(move, early)
        with self._fate.writing():
            verdict = await self._journal.move(scope, key, move)
        if isinstance(move, Claim) and verdict is not None and verdict.denial is None:
            await self._fate.meet(Point.CLAIMED)
        if isinstance(move, MarkSending):
            at_work.get().attempt = move.attempt
        if isinstance(move, _OF_RECOVERY) and not early:
            await self._fate.meet(Point.RECOVERING)
        return verdict

    async def _before(self, move: Move, early: bool) -> None:
        if isinstance(move, Claim):
            await self._fate.meet(Point.BEFORE_CLAIM)
        if isinstance(move, _OF_RECOVERY) and early:
            await self._fate.meet(Point.RECOVERING)
        if isinstance(move, (Create, GoInDoubt, Release)):
            await self._fate.meet(Point.ANSWERED)
        if self._fate.awaits(Point.COMMITTING) and self._chance.random() < 0.4:
            loop = asyncio.get_running_loop()
            loop.call_later(self._chance.uniform(0, 0.003), partial(self._fate.meet_now, Point.COMMITTING))


def watch(transport: Transport, fate: Fate, sent: Book) -> None:
    """Let every order that ``transport`` sends be written down first, and its worker die around it."""
    post_order = transport.post_order

    async def posted(body: GuardedBody, **options: Any) -> ExchangeResult:
        await fate.meet(Point.MARKED)
        delivery = at_work.get()
        sent.write(delivery.key, delivery.attempt, time.time())
        watcher = None
        if fate.awaits(Point.SENT):
            watcher = asyncio.create_task(_die_once_sent(body, fate))
        try:
            return await post_order(body, **options)
        finally:
            if watcher is not None:
                watcher.cancel()

    transport.post_order = posted  # type: ignore[method-assign] # to watch it


async def _die_once_sent(body: GuardedBody, fate: Fate) -> None:
    while not body.handed_over:  # noqa: ASYNC110 - a turn of the loop, not a wait
        await asyncio.sleep(0)
    await asyncio.sleep(random.uniform(0, 0.002))
    await fate.meet(Point.SENT)
