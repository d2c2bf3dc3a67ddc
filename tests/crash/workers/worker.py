"""A worker: the real client between a service, a journal and a bank, at some commands at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import Any

from attrs import frozen

from tests.crash.bank import Bank, Book
from tests.crash.processes import Channel
from tests.crash.setting import LEASE, POLICY, SCOPE, Place, Point, order_of
from tests.crash.workers.fate import Delivery, Fate, at_work
from tests.crash.workers.watched import MortalJournal, watch
from tests.mutation.in_process import plant_for_good
from transfer_async import PostgresJournal, SQLiteJournal, TransferClient
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

JOURNALS = (2, 4)
"""How many journal objects, with a client each, a worker has at least and at most."""

RECOVER_EVERY = 0.5
ANEW_EVERY = 1.0
LOOK_EVERY = 0.3


def work(end: socket.socket, *, place: Place, fault: str | None, seed: int) -> None:
    """Work until told to stop."""
    plant_for_good(fault)
    asyncio.run(_Worker(Channel(end), place, seed).run())


class _Worker:
    def __init__(self, channel: Channel, place: Place, seed: int) -> None:
        self._channel = channel
        self._place = place
        self._chance = random.Random(seed)
        self._fate = Fate(channel)
        self._told = Book(place.path("told"))
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
        journal = place.new_journal()  # it opens when it is used: its database may be away now
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
        # asyncpg leaves a future behind where its server stops between the connection and the first byte.
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
                said = {"ended": "created", "order": order.id}
            except TransferError as error:
                said = _said(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be heard of
            self._channel.tell(broken=f"{delivery.key}: {error!r}")
            return
        await self._fate.meet(Point.SETTLED)
        delivery.point = None  # it is too late for any other fate
        if "ended" in said:
            self._told.write(delivery.key, said["ended"], said.get("order") or "-")
        self._channel.tell(delivery=delivery.number, **said)

    async def _recover_again_and_again(self) -> None:
        at_work.set(self._at_recovery)
        while True:
            with contextlib.suppress(JournalFailed, ClientClosed):
                await self._chance.choice(self._sides).client.recover()
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * RECOVER_EVERY)

    async def _begin_anew_again_and_again(self) -> None:
        """Put a new client with a new journal in an old one's place, which ends what it has begun."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * ANEW_EVERY)
            at = self._chance.randrange(len(self._sides))
            old, self._sides[at] = self._sides[at], self._side()
            await old.close()

    async def _look_in(self) -> None:
        """A page that shows the state of things: it enters and leaves one journal object again and again."""
        journal = self._place.new_journal()
        while True:
            with contextlib.suppress(Exception):  # whatever its store raises: it may be away, or locked
                async with journal:
                    await journal.count_in_doubt(SCOPE)
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * LOOK_EVERY)


def _said(error: TransferError) -> dict[str, Any]:
    """What the broker and the customer are told: an end, or how soon to deliver again."""
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
    """One of a worker's clients, and its journal."""

    client: TransferClient
    journal: PostgresJournal | SQLiteJournal

    async def close(self) -> None:
        await self.client.close()
        await self.journal.close()
