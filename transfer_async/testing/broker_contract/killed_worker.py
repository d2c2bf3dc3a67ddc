"""A worker in a separate process that stops at certain points, so that a test can kill it there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
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
from transfer_async.testing.broker_contract.broker_harness import Consumer, NewBroker
from transfer_async.worker import Delays, Delivery, Handler

POINTS = ("holding", "created", "published", "retried")
"""The points at which a worker stops. A command's key begins with the name of its point.

The worker stops in the bank's hook, before it publishes the outcome, before it acknowledges the message, or
after it has returned the message for a retry.
"""

DEADLINE, LEASE = 2.0, 3.0
"""The deadline of a call and the lease of a claim, in seconds.

Both are long enough for a busy machine. Another worker waits for the lease of a killed worker.
"""

DEAD_LETTERING = "dead-lettering"
"""The key that a worker reports when it dead-letters messages."""

PAUSES = (1.0, 0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.0)
"""The pauses between the calls that dead-letter messages, as fractions of the duration of the first call.

At the kill, each call has therefore made less progress than the previous one, even with a distant broker.
"""


@frozen(kw_only=True)
class Workplace:
    """The settings of a worker process. Each of ``keys`` begins with the point at which its command stops."""

    new_line: NewBroker
    settings: WorkerSettings
    journal: Path
    base_url: str
    token: str
    keys: frozenset[str]


def work(place: Workplace, reached: Connection) -> None:
    """Process commands until killed. When a command stops at the point that its key names, report the key."""
    asyncio.run(_KilledWorker(place, reached).run())


def dead_letter_until_killed(place: Workplace, reached: Connection) -> None:
    """Start dead-lettering messages, report the start, and block until killed."""
    asyncio.run(_dead_letter(place, reached))


async def _dead_letter(place: Workplace, reached: Connection) -> None:
    """Take a few messages, start dead-lettering all of them, and block.

    The first message is dead-lettered completely, to measure how long that takes. If the broker calls
    ``send`` to dead-letter a message, the process blocks before the next call. Otherwise, the process blocks
    at an arbitrary point.
    """
    broker = place.new_line(place.settings)
    send = broker.send

    is_sent = False  # whether the broker calls ``send`` to dead-letter a message

    async def observed(subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        nonlocal is_sent
        is_sent = is_sent or subject == place.settings.dead_letters
        await send(subject, body, headers)

    def block() -> None:
        reached.send(DEAD_LETTERING)
        threading.Event().wait()  # This blocks the event loop, so that nothing else is sent.

    async def blocking(subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        if subject == place.settings.dead_letters:
            block()
        await send(subject, body, headers)

    async with Consumer(broker) as consumer:
        first, *taken = [await consumer.take() for _ in PAUSES]
        broker.send = observed  # type: ignore[method-assign] # the only way to observe it
        began = time.monotonic()
        await first.delivery.dead_letter("not valid")
        took = time.monotonic() - began
        broker.send = blocking  # type: ignore[method-assign] # the same
        running = []
        for item, pause in zip(taken, PAUSES[1:], strict=True):
            running.append(asyncio.create_task(item.delivery.dead_letter("not valid")))
            await asyncio.sleep(took * pause)
        if is_sent:  # The first copy blocks, however slow the machine is.
            await asyncio.wait(running)
        block()


class _KilledWorker:
    def __init__(self, place: Workplace, reached: Connection) -> None:
        self._place, self._reached = place, reached

    async def run(self) -> None:
        place = self._place
        broker = place.new_line(place.settings)
        self._add_points(broker)
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
            await OrderWorker(client, broker, handler=handler).run(asyncio.Event())

    async def _reach(self, point: str, key: str) -> None:
        if self._stops_at(point, key):
            self._reached.send(key)
            await asyncio.Event().wait()

    def _stops_at(self, point: str, key: str) -> bool:
        return key in self._place.keys and key.startswith(point)

    async def _place_hold(self, intent: OrderIntent) -> str:
        await self._reach("holding", intent.key)
        if self._stops_at("retried", intent.key):
            raise OSError(intent.key)
        return f"hold-{intent.id}"

    async def _release(self, intent: OrderIntent, reference: str | None) -> None:
        """Do nothing, because the contract does not count the holds."""

    def _add_points(self, broker: Broker) -> None:
        publish, delivery = broker.publish, broker.delivery

        async def published(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
            await self._reach("created", outcome.key)
            await publish(outcome, headers)
            await self._reach("published", outcome.key)

        def delivered(message: object) -> Delivery:
            made = delivery(message)
            retry = made.retry

            async def retried(after: float) -> None:
                await retry(after)
                await self._reach("retried", OrderCommand.from_json(made.body).key)

            made.retry = retried  # type: ignore[method-assign] # for this one message
            return made

        broker.publish, broker.delivery = published, delivered  # type: ignore[method-assign] # for this one
