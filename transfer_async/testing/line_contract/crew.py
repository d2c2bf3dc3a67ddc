"""Workers at a line on trial, with a service, a journal and a bank that a trial can hold up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from transfer_async import OrderCommand, RetryPolicy, SQLiteJournal, TransferClient
from transfer_async._models.requests import OrderIntent
from transfer_async.integrations.faststream import Line, OrderWorker
from transfer_async.sandbox import Sandbox
from transfer_async.testing.holds import Holds
from transfer_async.testing.line_contract.line_trial import LineTrial, soon
from transfer_async.testing.makers import make_new_order
from transfer_async.worker import Delays, Handled, Handler

DELAYS = Delays(first=0.05, longest=0.1)
LEASE = 1.5
RETRY = RetryPolicy(attempts=1, deadline=1.0)


class SlowHolds(Holds):
    """A ledger whose holds can be kept waiting, and broken.

    Attributes:
        breaks: how many of the next holds fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.breaks: int = 0
        self._open, self._came = asyncio.Event(), asyncio.Semaphore(0)
        self._open.set()

    def hold_up(self) -> None:
        """Let every hold wait from now on."""
        self._open.clear()

    def let_through(self) -> None:
        """Let them through again."""
        self._open.set()

    async def has_come(self, count: int = 1) -> None:
        """Return once so many more holds were asked for."""
        for _ in range(count):
            await soon(self._came.acquire(), "a command came to the hold")

    async def place(self, intent: OrderIntent) -> str:
        """Hold, once it is let through."""
        self._came.release()
        await self._open.wait()
        if self.breaks:
            self.breaks -= 1
            raise OSError("the ledger is out of reach")
        return await super().place(intent)


class _Watched(Handler):
    """Notes what comes: the key, and how often it has been delivered."""

    def __init__(self, client: TransferClient, seen: list[tuple[str | None, int]]) -> None:
        super().__init__(client, delays=DELAYS)
        self._seen = seen

    async def handle(self, command: OrderCommand | bytes, *, deliveries: int = 1) -> Handled:
        handled = await super().handle(command, deliveries=deliveries)
        self._seen.append((handled.key, deliveries))
        return handled


class AtWork:
    """One worker, which is started anew when its connection is closed for good, as whoever runs one does."""

    def __init__(self, crew: Crew, make: Callable[[], Line], options: Mapping[str, Any]) -> None:
        self._crew, self._make, self._options = crew, make, options
        self.client: TransferClient = crew.client()
        self._stopping = asyncio.Event()
        self.worker: OrderWorker = self._employed()
        self._task = asyncio.create_task(self._run())

    def _employed(self) -> OrderWorker:
        handler = _Watched(self.client, self._crew.seen)
        return OrderWorker(self.client, self._make(), handler=handler, **self._options)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.worker.run(self._stopping)
            except ConnectionError:
                self.worker = self._employed()

    async def is_ready(self, *, so: bool = True) -> None:
        """Return once it says that it could take a message; or, if not ``so``, that it could not."""

        async def says() -> None:
            while bool(await self.worker.health.not_ready()) is so:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)  # between two looks

        await soon(says(), f"the worker is {'' if so else 'not '}ready")

    async def stop(self) -> None:
        """Let it finish what is in flight, and go; what does not go is cut off."""
        self._stopping.set()
        try:
            await soon(asyncio.wait([self._task]), "the worker has stopped")
        except AssertionError:
            await self.cut_off()
            raise
        await self.client.close()

    async def cut_off(self) -> None:
        """End it at once, as a second signal does."""
        self._stopping.set()
        self._task.cancel()
        try:
            await soon(asyncio.wait([self._task]), "the worker was cut off")
        finally:
            await self.client.close(timeout=0)


class Crew:
    """Workers at one line.

    Attributes:
        trial: the line's, where commands are sent and outcomes read.
        sandbox: the service.
        bank: the ledger.
        seen: of each message that was handled, its key, and how often it had been delivered.
    """

    def __init__(self, trial: LineTrial, directory: Path) -> None:
        self.trial: LineTrial = trial
        self.bank: SlowHolds = SlowHolds()
        self.path: Path = directory / "journal.db"
        self.sandbox: Sandbox = Sandbox()
        self.journal: SQLiteJournal = SQLiteJournal(self.path)
        self.seen: list[tuple[str | None, int]] = []
        self._workers: list[AtWork] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.sandbox)
        await self._stack.enter_async_context(self.journal)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.bank.let_through()
        for worker in self._workers:
            with contextlib.suppress(AssertionError):  # the test has said what was wrong
                await worker.stop()
        await self._stack.aclose()

    def client(self) -> TransferClient:
        """A client as each of the workers has one."""
        return TransferClient(
            self.sandbox.base_url,
            self.sandbox.token,
            hooks=[self.bank.hook],
            journal=self.journal,
            lease=LEASE,
            retry=RETRY,
        )

    async def worker(
        self,
        *,
        lanes: int | None = None,
        spoil: Callable[[Line], None] = lambda _: None,
        is_awaited: bool = True,
        **options: Any,
    ) -> AtWork:
        """One more worker, that takes messages.

        Args:
            lanes: how many it takes at once; as the trial's settings say by default.
            spoil: what is done to its line first.
            is_awaited: false if it cannot begin yet.
            options: as `OrderWorker` takes them.
        """

        def make() -> Line:
            line = self.trial.line(concurrency=lanes or self.trial.settings.concurrency)
            spoil(line)
            return line

        at_work = AtWork(self, make, options)
        self._workers.append(at_work)
        if is_awaited:
            await soon(at_work.worker.started.wait(), "the worker takes messages")
        return at_work

    async def order(self, key: str, headers: Mapping[str, str] | None = None) -> None:
        """Send the command of an order."""
        await self.trial.send(OrderCommand(key=key, order=make_new_order()).to_json(), headers)
