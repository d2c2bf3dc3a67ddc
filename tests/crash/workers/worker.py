"""A worker: the real client with a service, a journal and a bank, and several concurrent commands.

The harness can kill or pause it at points in its journal and its transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from attrs import define, frozen

from tests.crash.bank import Bank, Book
from tests.crash.processes import Channel
from tests.crash.setting import LEASE, POLICY, SCOPE, TIMEOUT, Place, Point, order_of
from tests.mutation.in_process import plant_for_good
from transfer_async import PostgresJournal, SQLiteJournal, TransferClient
from transfer_async._http.transport import ExchangeResult, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import (
    AlreadyCreated,
    ClientClosed,
    HoldFailed,
    JournalFailed,
    KeyBusy,
    OutcomeUnknown,
    RateLimited,
    Refused,
    TransferError,
)
from transfer_async._models.events import Claimed, Event
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

# --- at which points it ends or stops ------------------------------------------------------------


@define(eq=False)
class Delivery:
    """A command that was delivered to a worker. ``attempt`` is the token of its mark, if it has one."""

    number: int
    key: str
    point: Point | None = None
    signal: int = signal.SIGKILL
    attempt: str | None = None


at_work: ContextVar[Delivery] = ContextVar("at_work")
"""The delivery of the current task and of all tasks that it creates."""


class Fate:
    """Kills or pauses this process at the points that the harness chose."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._writing = 0
        self._nobody_writes = asyncio.Event()

    def awaits(self, point: Point) -> bool:
        """Return whether this point is the one at which the current delivery is to be killed or paused."""
        delivery = at_work.get(None)
        return delivery is not None and delivery.point is point

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count a write to the journal for the duration of the block."""
        self._writing += 1
        self._nobody_writes.clear()
        try:
            yield
        finally:
            self._writing -= 1
            if not self._writing:
                self._nobody_writes.set()

    async def meet(self, point: Point) -> None:
        """Kill or pause this process if its fate is at this point."""
        if self.awaits(point):
            # If a process were paused while it holds the journal's lock, it would stop all others.
            while at_work.get().signal == signal.SIGSTOP and self._writing:
                await self._nobody_writes.wait()
            self.meet_now(point)

    def meet_now(self, point: Point) -> None:
        """Kill or pause this process at this point, even if it is writing."""
        if self.awaits(point):
            delivery = at_work.get()
            delivery.point = None  # a paused process continues from here
            self._channel.tell(met=point, signal=delivery.signal, delivery=delivery.number)
            os.kill(os.getpid(), delivery.signal)


# --- its journal and its transport ---------------------------------------------------------------


_OF_RECOVERY = (TakeOver, Expire, Release, MarkUndone)


class MortalJournal:
    """A journal whose worker may die before, during and after a transition."""

    def __init__(self, journal: Journal, fate: Fate, chance: random.Random) -> None:
        self._journal = journal
        self._fate = fate
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """Make a transition, unless the worker dies first."""
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
    """Record every order before ``transport`` sends it, and pass the points before and after sending."""
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


# --- the worker ----------------------------------------------------------------------------------


JOURNALS = (2, 4)
"""The minimum and maximum number of journal objects of a worker, each with its own client."""

RECOVER_EVERY = 0.5
ANEW_EVERY = 1.0
LOOK_EVERY = 0.3


def work(end: socket.socket, *, place: Place, fault: str | None, seed: int) -> None:
    """Work until asked to stop."""
    plant_for_good(fault)
    asyncio.run(_Worker(Channel(end), place, seed).run())


class _Worker:
    def __init__(self, channel: Channel, place: Place, seed: int) -> None:
        self._channel = channel
        self._place = place
        self._chance = random.Random(seed)
        self._fate = Fate(channel)
        self._outcomes = Book(place.path("outcomes"))
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_recovery = Delivery(-1, "")
        self._sides: list[_Side] = []

    async def run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._broke)
        self._sides = [self._side() for _ in range(self._chance.randint(*JOURNALS))]
        others = [
            asyncio.create_task(work())
            for work in (self._recover_again_and_again, self._begin_anew_again_and_again, self._look_in)
        ]
        while (message := await self._channel.next()) is not None and "stop" not in message:
            self._begin(message)
        if self._tasks:
            await asyncio.wait(self._tasks)
        for other in others:
            other.cancel()
        await asyncio.wait(others)
        for side in self._sides:
            await side.close()

    def _side(self) -> _Side:
        place = self._place
        bank = Bank(place.path("bank"), chance=self._chance, come_by=self._fate.meet)
        journal = place.new_journal()  # it opens on first use, because its database may be down now
        client = TransferClient(
            place.base_url,
            place.token,
            scope=SCOPE,
            hooks=bank.hooks,
            journal=MortalJournal(journal, self._fate, self._chance),
            retry=POLICY,
            lease=LEASE,
            observers=[self._observe],
        )
        watch(client._context.transport, self._fate, Book(place.path("sent")))
        return _Side(client, journal)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Claimed) and event.taken_over:
            self._channel.tell(taken_over=event.key)

    def _broke(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncpg leaves a future unfinished if the server stops before its first byte.
        if "exception" in context and str(context["exception"]) != "unexpected connection_lost() call":
            self._channel.tell(broken=f"{context['message']}: {context['exception']!r}")

    def _begin(self, message: dict[str, Any]) -> None:
        if "recovery" in message:
            self._at_recovery.point, self._at_recovery.signal = Point.RECOVERING, message["recovery"]
            return
        point = message["point"]
        delivery = Delivery(
            message["delivery"], message["key"], point and Point(point), signal=message["signal"]
        )
        task = asyncio.create_task(self._handle(self._chance.choice(self._sides).client, delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, client: TransferClient, delivery: Delivery) -> None:
        at_work.set(delivery)
        try:
            try:
                order = await client.create_order(order_of(delivery.key), key=delivery.key)
                result = {"ended": "created", "order": order.id}
            except TransferError as error:
                result = _result_of(error)
        except Exception as error:  # noqa: BLE001 - any other error must be reported
            self._channel.tell(broken=f"{delivery.key}: {error!r}")
            return
        await self._fate.meet(Point.SETTLED)
        delivery.point = None  # too late for any other fate
        if "ended" in result:
            self._outcomes.write(delivery.key, result["ended"], result.get("order") or "-")
        self._channel.tell(delivery=delivery.number, **result)

    async def _recover_again_and_again(self) -> None:
        at_work.set(self._at_recovery)
        while True:
            with contextlib.suppress(JournalFailed, ClientClosed):
                await self._chance.choice(self._sides).client.recover()
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * RECOVER_EVERY)

    async def _begin_anew_again_and_again(self) -> None:
        """Replace a client and its journal from time to time. The old client finishes its calls."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * ANEW_EVERY)
            at = self._chance.randrange(len(self._sides))
            old, self._sides[at] = self._sides[at], self._side()
            await old.close()

    async def _look_in(self) -> None:
        """Open and close one journal object repeatedly, as a monitoring page does."""
        journal = self._place.new_journal()
        while True:
            with contextlib.suppress(Exception):  # the store may raise any error: it may be down, or locked
                async with journal:
                    await journal.count_in_doubt(SCOPE)
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * LOOK_EVERY)


def _result_of(error: TransferError) -> dict[str, Any]:
    """Return the outcome of a failed call, or the time until it is delivered again."""
    if isinstance(error, AlreadyCreated):
        return {"ended": "created", "order": error.order_id}
    if isinstance(error, OutcomeUnknown):
        return {"ended": "unknown"}
    if isinstance(error, KeyBusy):
        return {"again": error.retry_after or 0.01}
    if isinstance(error, JournalFailed):
        return {"again": 0.05, "journal_failed": True}
    refused = isinstance(error, Refused) and not isinstance(error, RateLimited)
    if refused or (isinstance(error, HoldFailed) and error.refused):
        return {"ended": "unclear" if error.order_may_exist else "refused"}
    return {"again": 0.02}


@frozen
class _Side:
    """One of the worker's clients, with its journal."""

    client: TransferClient
    journal: PostgresJournal | SQLiteJournal

    async def close(self) -> None:
        await self.client.close()
        await self.journal.close()


# --- a visitor of the journal --------------------------------------------------------------------


PAUSE = 0.2
DEATHS = 0.05
LOCKS = 0.01
LOCKED = 1.2 * TIMEOUT
"""The seconds for which a visitor may lock a file: longer than the workers wait, so that their calls fail."""


def visit(_end: socket.socket, *, place: Place, seed: int) -> None:
    """Open and close the journal repeatedly, as the command line does, until killed. Die sometimes."""
    chance = random.Random(seed)
    while True:
        asyncio.run(_look_or_die(place, chance))
        if not place.is_postgres and chance.random() < LOCKS:
            # Another process may be faster, or a planted fault may have damaged the journal.
            with contextlib.suppress(sqlite3.DatabaseError):
                _lock(place.journal)
        time.sleep(chance.uniform(0, PAUSE))


async def _look_or_die(place: Place, chance: random.Random) -> None:
    with contextlib.suppress(Exception):  # whatever its store raises: it may be away, or locked
        async with place.new_journal() as journal:
            await journal.count_in_doubt(SCOPE)
            if chance.random() < DEATHS:
                os.kill(os.getpid(), signal.SIGKILL)


def _lock(path: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=TIMEOUT)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED)
