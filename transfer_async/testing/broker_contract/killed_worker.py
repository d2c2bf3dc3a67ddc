"""A worker in a process of its own, that comes to points at which it can be killed, and stays there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from attrs import frozen

from transfer_async import (
    FundsHold,
    OrderCommand,
    OrderIntent,
    OrderOutcome,
    RetryPolicy,
    SQLiteJournal,
    TransferClient,
)
from transfer_async.integrations.faststream import Broker, OrderWorker, WorkerSettings
from transfer_async.testing.broker_contract.broker_harness import Hand, NewLine
from transfer_async.worker import Delays, Delivery, Handler

POINTS = ("holding", "created", "published", "given back")
"""Where a worker dies: in the bank's hook; before its order's outcome is published; before the message is
acknowledged; after it was given back. A command's key begins with the point at which its worker stays."""

DEADLINE, LEASE = 2.0, 3.0
"""Seconds: enough for a busy machine, though another worker waits for the lease of one that was killed."""

PARKING = "parking"
"""What is told once a worker is in the midst of putting messages aside."""

PAUSES = (1.0, 0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.0)
"""From one message's putting aside to the next one's, of the time that the first takes, which is let end.

So each of the others has come less far, however far off the broker is.
"""


@frozen(kw_only=True)
class Place:
    """Where a worker works: all that a new process needs to know."""

    new_line: NewLine
    settings: WorkerSettings
    journal: Path
    base_url: str
    token: str
    keys: frozenset[str]
    """Of the commands that leave it at their points: it carries out all others, of those who died before."""


def work(place: Place, reached: Connection) -> None:
    """Work until killed; tell of every key whose worker has come to its point."""
    asyncio.run(Mortal(place, reached).run())


def put_aside_until_killed(place: Place, reached: Connection) -> None:
    """Begin to put messages aside, tell of it, and do nothing more until killed."""

    def stand_still() -> None:
        reached.send(PARKING)
        threading.Event().wait()  # holds up the whole loop, as death does

    asyncio.run(put_aside(place, stand_still))


async def put_aside(place: Place, stand_still: Callable[[], None]) -> None:
    """Take a few messages, begin to put all of them aside, and ``stand_still``.

    That is before a copy is sent, where the line's ``send`` does that; or else in the midst of it. The first
    message is put aside whole, which shows how long that takes.
    """
    line = place.new_line(place.settings)
    send = line.send

    async def stands_still_first(subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        if subject == place.settings.dead_letters:
            stand_still()
        await send(subject, body, headers)

    async with Hand(line) as hand:
        first, *taken = [await hand.take() for _ in PAUSES]
        began = time.monotonic()
        await first.delivery.dead_letter("not valid")
        took = time.monotonic() - began
        line.send = stands_still_first  # type: ignore[method-assign] # there is no other way in between
        parking = []
        for one, pause in zip(taken, PAUSES[1:], strict=True):
            parking.append(asyncio.create_task(one.delivery.dead_letter("not valid")))
            await asyncio.sleep(took * pause)
        stand_still()
        await asyncio.wait(parking)


class Mortal:
    """The worker: a hold, and a line that hangs where its process is to be killed."""

    def __init__(self, place: Place, reached: Connection) -> None:
        self._place, self._reached = place, reached

    async def run(self) -> None:
        """Work until cancelled."""
        place = self._place
        line = place.new_line(place.settings)
        self._make_mortal(line)
        async with (
            SQLiteJournal(place.journal) as journal,
            TransferClient(
                place.base_url,
                place.token,
                hooks=[FundsHold(self._place_hold, self._release)],
                journal=journal,
                retry=RetryPolicy(attempts=1, deadline=DEADLINE),
                lease=LEASE,
            ) as client,
        ):
            handler = Handler(client, delays=Delays(first=0.05, longest=0.1))
            await OrderWorker(client, line, handler=handler).run(asyncio.Event())

    async def _come_to(self, point: str, key: str) -> None:
        if self._stays(point, key):
            self._reached.send(key)
            await asyncio.Event().wait()

    def _stays(self, point: str, key: str) -> bool:
        return key in self._place.keys and key.startswith(point)

    async def _place_hold(self, intent: OrderIntent) -> str:
        await self._come_to("holding", intent.key)
        if self._stays("given back", intent.key):
            raise OSError(intent.key)
        return f"hold-{intent.id}"

    async def _release(self, intent: OrderIntent, reference: str | None) -> None:
        """Nobody counts the holds of those who died."""

    def _make_mortal(self, line: Broker) -> None:
        publish, delivery = line.publish, line.delivery

        async def published(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
            await self._come_to("created", outcome.key)
            await publish(outcome, headers)
            await self._come_to("published", outcome.key)

        def delivered(message: object) -> Delivery:
            one = delivery(message)
            retry = one.retry

            async def given_back(after: float) -> None:
                await retry(after)
                await self._come_to("given back", OrderCommand.from_json(one.body).key)

            one.retry = given_back  # type: ignore[method-assign] # for this one message
            return one

        line.publish, line.delivery = published, delivered  # type: ignore[method-assign] # for this one line
