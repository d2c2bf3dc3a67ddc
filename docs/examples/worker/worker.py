"""A worker with its own loop, for a broker without an integration.

It follows four rules. It publishes an outcome before it acknowledges the message. It replies to the broker
as the disposition says. It sends heartbeats while it processes a message. After an outcome ``unknown``, its
sweep later publishes the final outcome.

If the broker fails, the worker ends, and must be restarted. The broker redelivers unacknowledged messages.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bank import Bank
from broker import Broker, Message
from transfer_async import Action, Delays, FundsHold, Handler, JournalFailed, SQLiteJournal, TransferClient

log = logging.getLogger(__name__)

AT_ONCE = 4
BEAT_EVERY = 10.0
SWEEP_EVERY = 30.0


class Worker:
    """Process commands from a broker, up to `AT_ONCE` at a time.

    Args:
        client: a client with a durable journal; the handler refuses any other client.
        broker: delivers commands, and receives outcomes.
        delays: the delays before redeliveries.
    """

    def __init__(self, client: TransferClient, broker: Broker, *, delays: Delays | None = None) -> None:
        self._client, self._broker = client, broker
        self._handler = Handler(client, delays=delays)

    async def run(self) -> None:
        """Run until cancelled. Messages in progress are not acknowledged, so the broker redelivers them."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._take_messages())
            group.create_task(self._sweep_now_and_then())

    async def sweep(self) -> None:
        """Recover abandoned work, and publish the final outcomes of orders that were in doubt."""
        await self._client.recover()
        async for outcome in self._handler.untold():
            await self._broker.publish(outcome)
            await self._handler.told(outcome)

    async def _take_messages(self) -> None:
        while True:
            message = await self._broker.next()
            async with self._beating(message):
                await self._see_through(message)

    async def _see_through(self, message: Message) -> None:
        handled = await self._handler.handle(message.body, deliveries=message.deliveries)
        if handled.outcome is not None:
            await self._broker.publish(handled.outcome)
        what = handled.disposition
        match what.action:
            case Action.ACK:
                self._broker.acknowledge(message)
            case Action.RETRY:
                self._broker.deliver_again(message, what.after)
            case Action.DEAD_LETTER:
                self._broker.dead_letter(message, what.reason)
            case Action.LEAVE:
                pass  # no reply: the broker redelivers the message by itself
        if not what.ready:  # the service is unreachable or refuses the token
            await asyncio.sleep(what.after)

    @asynccontextmanager
    async def _beating(self, message: Message) -> AsyncIterator[None]:
        beats = asyncio.create_task(self._beat(message))
        try:
            yield
        finally:
            beats.cancel()

    async def _beat(self, message: Message) -> None:
        while True:
            await asyncio.sleep(BEAT_EVERY)
            self._broker.still_at_work(message)

    async def _sweep_now_and_then(self) -> None:
        while True:
            try:
                await self.sweep()
            except JournalFailed:
                log.warning("the sweep failed and will be repeated")
            await asyncio.sleep(SWEEP_EVERY)


@asynccontextmanager
async def client_of(bank: Bank, *, base_url: str, token: str, journal: Path) -> AsyncIterator[TransferClient]:
    """Yield a client with the bank's hold and a durable journal."""
    async with (
        SQLiteJournal(journal) as records,
        TransferClient(
            base_url,
            token,
            hooks=[FundsHold(bank.place, bank.release)],
            resolve=bank.resolve,
            journal=records,
        ) as client,
    ):
        yield client
