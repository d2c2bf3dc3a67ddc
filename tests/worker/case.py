"""Workers on a real broker, with a sandbox, a bank and a journal in which a test can cause faults."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from tests.support.bank import Bank, SpiedJournal, new_order
from tests.worker.sides import PATIENCE, until
from transfer_async import RetryPolicy, SQLiteJournal, TransferClient
from transfer_async._converters.messages import OrderCommand
from transfer_async._support.clock import Clock
from transfer_async.integrations.faststream import OrderWorker, broker_at
from transfer_async.sandbox import Sandbox
from transfer_async.worker.handler import Delays, Handler

DELAYS = Delays(first=0.05, longest=0.1)


def command(key="k", **changes):
    return OrderCommand(**{"key": key, "order": new_order(), **changes})


class Spied(SpiedJournal):
    durable = True


class Seen:
    """The handling of one command: its result, the number of the delivery, and its times."""

    def __init__(self, result, handled, deliveries):
        self.result, self.handled, self.deliveries = result, handled, deliveries
        self.ended = time.monotonic()
        self.began = None


class Watched(Handler):
    def __init__(self, client, case, **settings):
        super().__init__(client, delays=DELAYS, **settings)
        self.case = case

    async def handle(self, command, *, deliveries=1):
        began = time.monotonic()
        try:
            handled = await super().handle(command, deliveries=deliveries)
        except asyncio.CancelledError as error:
            self.case.note(Seen(error, None, deliveries), began)
            raise
        seen = Seen(handled.result, handled, deliveries)
        if self.case.heal is not None:
            heal, self.case.heal = self.case.heal, None
            await heal()
        self.case.note(seen, began)
        return handled


class Case:
    """The workers of a test, and everything that the test controls.

    Attributes:
        heal: called once, after the first handling and before the broker receives anything.
        utc: the journal's fixed time, or None for the real time.
    """

    def __init__(self, side, tmp_path):
        self.side, self._path = side, tmp_path
        self.bank, self.hooks, self.heal = Bank(), None, None
        self.body = command().to_json()
        self.token = None
        self.seen = asyncio.Queue()
        self.client_settings = {}
        self.runs = []
        self.utc = None

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        self.sandbox = await self._stack.enter_async_context(Sandbox())
        self.good_token = self.sandbox.token
        self.base_url = self.sandbox.base_url
        journal = await self._stack.enter_async_context(
            SQLiteJournal(self._path / "journal.db", clock=Clock(utc=self._utc))
        )
        self.journal = Spied(journal)
        await self._stack.enter_async_context(self.side)
        return self

    async def __aexit__(self, *exc):
        for run in self.runs:
            await run.stop()
        await self._stack.aclose()

    def _utc(self):
        return datetime.now(UTC) if self.utc is None else self.utc

    def note(self, seen, began):
        seen.began = began
        self.seen.put_nowait(seen)

    async def handled(self):
        async with asyncio.timeout(PATIENCE):
            return await self.seen.get()

    async def worker(self, **settings):
        """Start a worker. Return when it accepts messages."""
        run = Run(self, **settings)
        self.runs.append(run)
        await run.start()
        return run

    def client(self):
        """Return a client with the same settings as the workers' clients."""

        async def token():
            return self.good_token if self.token is None else self.token()

        settings = {"hooks": [self.bank.hold] if self.hooks is None else self.hooks, "lease": 1.5}
        settings |= {"retry": RetryPolicy(attempts=1, deadline=1.0), "journal": self.journal}
        return TransferClient(self.base_url, token, **settings | self.client_settings)


class Run:
    """One worker."""

    def __init__(self, case, **settings):
        self.client = case.client()
        self.stopping = asyncio.Event()
        self.line = broker_at(case.side.address, case.side.settings)
        handler = Watched(self.client, case, **settings)
        self.worker = OrderWorker(self.client, self.line, handler=handler)
        self.health = self.worker.health
        self.task = None

    async def start(self):
        self.task = asyncio.create_task(self.worker.run(self.stopping))
        async with asyncio.timeout(PATIENCE):
            await self.worker.started.wait()

    async def stop(self):
        self.stopping.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([self.task])
        await self.client.close()

    async def kill(self):
        """Cancel the worker, as a second signal would."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.client.close(timeout=0)

    async def ready(self):
        async def true():
            return not await self.health.not_ready()

        await until(true)
