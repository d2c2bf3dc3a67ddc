"""Workers on a real broker, with a sandbox, a bank and a journal."""

import asyncio
from contextlib import AsyncExitStack

from tests.support.bank import Bank, new_order
from tests.worker.sides import PATIENCE, until
from transfer_async import RetryPolicy, SQLiteJournal, TransferClient
from transfer_async._converters.messages import OrderCommand
from transfer_async.integrations.faststream import OrderWorker, broker_at
from transfer_async.sandbox import Sandbox
from transfer_async.worker.handler import Delays, Handler


def command(key="k", **changes):
    return OrderCommand(**{"key": key, "order": new_order(), **changes})


class Case:
    """The workers of a test, and everything that the test controls.

    Attributes:
        deliveries: the delivery count of each command that a worker has carried out.
    """

    def __init__(self, side, tmp_path):
        self.side, self._path = side, tmp_path
        self.bank, self.runs, self.deliveries = Bank(), [], []

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        self.sandbox = await self._stack.enter_async_context(Sandbox())
        self.token = self.sandbox.token
        self.journal = await self._stack.enter_async_context(SQLiteJournal(self._path / "journal.db"))
        await self._stack.enter_async_context(self.side)
        return self

    async def __aexit__(self, *exc):
        for run in self.runs:
            await run.stop()
        await self._stack.aclose()

    async def worker(self):
        """Start a worker. Return when it accepts messages."""
        run = Run(self)
        run.start()
        async with asyncio.timeout(PATIENCE):
            await run.worker.started.wait()
        return run

    async def order(self, key="k", headers=None):
        """Send a command. Return its outcome."""
        await self.side.send(command(key).to_json(), headers)
        return await self.side.outcome()


class Run:
    """One worker, which the case stops at the end."""

    def __init__(self, case):
        async def token():
            return case.token

        settings = {"hooks": [case.bank.hold], "journal": case.journal, "lease": 1.5}
        settings["retry"] = RetryPolicy(attempts=1, deadline=1.0)
        self.client = TransferClient(case.sandbox.base_url, token, **settings)
        self.line = broker_at(case.side.address, case.side.settings)
        self.worker = OrderWorker(self.client, self.line, handler=_Counting(self.client, case.deliveries))
        self.health = self.worker.health
        self.stopping, self.task = asyncio.Event(), None
        case.runs.append(self)

    def start(self):
        self.task = asyncio.create_task(self.worker.run(self.stopping))

    async def ended(self):
        """Wait until the worker ends, and raise its error."""
        async with asyncio.timeout(PATIENCE):
            await self.task

    async def stop(self):
        self.stopping.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([self.task])
        await self.client.close()

    async def ready(self):
        async def true():
            return not await self.health.not_ready()

        await until(true)

    async def reports(self, why):
        """Wait until the worker is not ready for a reason that contains ``why``."""

        async def reported():
            return any(why in one for one in await self.health.not_ready())

        await until(reported)


class _Counting(Handler):
    def __init__(self, client, deliveries):
        super().__init__(client, delays=Delays(first=0.05, longest=0.1))
        self._deliveries = deliveries

    async def handle(self, command, *, deliveries=1):
        handled = await super().handle(command, deliveries=deliveries)
        self._deliveries.append(deliveries)
        return handled
