"""A worker with a loop of its own, for a broker that we have no integration for.

It keeps four rules. An outcome is published before its message is acknowledged. Only what the disposition
says is said to the broker. While a message is worked on, the broker hears that work goes on. And whoever
was told ``unknown`` is told later how it ended: that is the sweep.

If the broker itself fails, the worker ends: have it started again. What was not acknowledged comes again.
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
    """Takes commands from a broker, some at a time.

    Args:
        client: with a journal on a disk; the handler refuses one in memory.
        broker: where commands come from, and outcomes go to.
        delays: how long a message waits until it is delivered again.
    """

    def __init__(self, client: TransferClient, broker: Broker, *, delays: Delays | None = None) -> None:
        self._client, self._broker = client, broker
        self._handler = Handler(client, delays=delays)

    async def run(self) -> None:
        """Work until cancelled; what is in flight then is not acknowledged, and comes again."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._take_messages())
            group.create_task(self._sweep_now_and_then())

    async def sweep(self) -> None:
        """Work off what was left over, and tell how doubts have ended."""
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
                pass  # say nothing: it comes again by itself
        if not what.ready:  # the service is out of reach, or the token no good: no other would fare better
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
                log.warning("the sweep failed; the next one tries again")
            await asyncio.sleep(SWEEP_EVERY)


@asynccontextmanager
async def client_of(bank: Bank, *, base_url: str, token: str, journal: Path) -> AsyncIterator[TransferClient]:
    """A client with the bank's hold, and a journal that survives the process."""
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
