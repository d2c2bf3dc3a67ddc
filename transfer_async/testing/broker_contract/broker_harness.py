"""What a trial of a line has in its hands: names of its own at the broker, and workers' hands there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs

from transfer_async import OrderCommand, RetryPolicy, SQLiteJournal, TransferClient
from transfer_async._models.requests import OrderIntent
from transfer_async.integrations.faststream import Broker, OrderWorker, WorkerSettings
from transfer_async.sandbox import Sandbox
from transfer_async.testing.assertions import Holds
from transfer_async.testing.makers import make_new_order
from transfer_async.worker import Delays, Delivery, Handled, Handler

T = TypeVar("T")

NewLine = Callable[[WorkerSettings], Broker]
"""Makes a line with the settings it is given, not opened yet: each is another worker's, at one broker."""

PATIENCE = 60.0
"""Seconds after which what should have happened long ago is a failure: ten times a busy machine's."""

MARK, LAST = b"left unanswered", b"sent in the end"


async def soon(work: Awaitable[T], what: str) -> T:
    """What ``work`` gives; should that last too long, a failure that says ``what`` did not happen."""
    scope = asyncio.timeout(PATIENCE)
    try:
        async with scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise AssertionError(f"{what}: not within {PATIENCE:g} s") from None


class Taken:
    """One message in hand: what came of it, and the lane that took it, which is done once it is answered."""

    def __init__(self, delivery: Delivery, lane: Any) -> None:
        self._lane = lane
        self.delivery: Delivery = delivery
        self.body: bytes = bytes(delivery.body)
        self.headers: dict[str, str] = dict(delivery.headers)
        self.deliveries: int = delivery.deliveries

    async def ack(self) -> None:
        """Acknowledge it."""
        await self._answered(self.delivery.ack())

    async def retry(self, after: float) -> None:
        """Give it back, to come again after that many seconds."""
        await self._answered(self.delivery.retry(after))

    async def dead_letter(self, reason: str) -> None:
        """Put it aside."""
        await self._answered(self.delivery.dead_letter(reason))

    async def _answered(self, answer: Awaitable[None]) -> None:
        await soon(answer, "the broker took note of an answer")
        await self._lane.stop()

    @asynccontextmanager
    async def beaten(self, every: float) -> AsyncIterator[None]:
        """Give signs of life as long as this is open."""
        beating = asyncio.create_task(_again(every, self.delivery.beat))
        try:
            yield
        finally:
            await _end([beating])


class Hand:
    """One worker's hand: a line that is open, its chores, and a lane for each message."""

    def __init__(self, line: Broker) -> None:
        self.line = line
        self._lanes: list[Any] = []
        self._chores: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await soon(self.line.open(), "the line is open")
        self._chores = [asyncio.create_task(_again(every, do)) for every, do in self.line.chores]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.go()

    async def lane(self) -> Any:
        """A subscriber that has been started."""
        lane = self.line.subscriber()
        self._lanes.append(lane)
        await soon(lane.start(), "a lane has begun")
        return lane

    async def take(self) -> Taken:
        """The next message, on a lane of its own: no lane asks for more than it works on."""
        lane = await self.lane()
        return Taken(self.line.delivery(await soon(self._next(lane), "a message came")), lane)

    async def _next(self, lane: Any) -> Any:
        while True:
            message = await lane.get_one(timeout=self.line.settings.poll)
            if message is not None:
                return message
            await asyncio.sleep(0)  # it may not have waited

    async def go(self) -> None:
        """Let go of all, as a worker that ends; what is in hand is left as it is."""
        await _end(self._chores)
        lanes, self._lanes, self._chores = self._lanes, [], []
        for end in (*(lane.stop for lane in lanes), self.line.close):
            with contextlib.suppress(Exception):  # its connection may be gone
                await soon(end(), "a line has ended")


class LineTrial:
    """A trial of one line.

    Args:
        new_line: see `NewLine`.
        ack_wait: as of `WorkerSettings`.

    Attributes:
        settings: of all lines, with subjects that no other trial has.
    """

    def __init__(self, new_line: NewLine, *, ack_wait: float) -> None:
        mine = f"t{secrets.token_hex(5)}"
        self.settings: WorkerSettings = WorkerSettings(
            commands=f"{mine}.commands",
            outcomes=f"{mine}.outcomes",
            dead_letters=f"{mine}.parked",
            ack_wait=ack_wait,
            poll=0.05,
            concurrency=2,
            publish_timeout=2.0,
        )
        self.new_line = new_line
        self._stack = AsyncExitStack()
        self._readers: dict[str, Hand] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def line(self, **changes: Any) -> Broker:
        """One more line, not opened yet."""
        return self.new_line(attrs.evolve(self.settings, **changes))

    async def hand(self, **changes: Any) -> Hand:
        """One more worker's hand."""
        return await self._stack.enter_async_context(Hand(self.line(**changes)))

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send what is taken for a command, as somebody who does nothing else."""
        async with self.sender() as line:
            await soon(line.send(line.settings.commands, body, headers or {}), "a message is sent")

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Broker]:
        """A line that is open for sending only."""
        line = self.line()
        await soon(line.open(only_to_send=True), "the line is open")
        try:
            yield line
        finally:
            await line.close()

    # --- what was published ---------------------------------------------------------------------

    async def published(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The next outcome, as a tree, and its headers."""
        taken = await self._read(self.settings.outcomes)
        return json.loads(taken.body), taken.headers

    async def outcome(self) -> dict[str, Any]:
        """The next outcome, as a tree."""
        return (await self.published())[0]

    async def parked(self) -> Taken:
        """The next of what was put aside."""
        return await self._read(self.settings.dead_letters)

    async def _read(self, subject: str) -> Taken:
        """The next message of a subject, by a line of the same kind for which it is where commands are."""
        if subject not in self._readers:
            names = {name: f"{subject}.{name}" for name in ("outcomes", "dead_letters")}
            self._readers[subject] = await self.hand(commands=subject, group="readers", **names)
        taken = await self._readers[subject].take()
        await taken.ack()
        return taken

    async def forget_readers(self) -> None:
        """Let those go who read what is published: the next look is another's."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.go()

    async def come_again(self, keeper: Hand) -> list[bytes]:
        """What comes again of all that has been taken: it has done so when what is taken last comes again.

        Args:
            keeper: whose hand leaves one unanswered.
        """
        found: list[bytes] = []
        await self.send(MARK)
        while (await keeper.take()).body != MARK:
            pass
        other = await self.hand()
        for wanted in (MARK, LAST):
            if wanted is LAST:
                await self.send(LAST)
            while (taken := await other.take()).body != wanted:
                found.append(taken.body)
                assert len(found) < 100, f"it never ends: {found}"
            await taken.ack()
        return found

    async def lost(self, bodies: Iterable[bytes]) -> set[bytes]:
        """Which of them neither come again nor are among the dead letters, once nobody has any in hand."""
        left = set(bodies).difference(await self.come_again(await self.hand()))
        with contextlib.suppress(AssertionError):  # no more are dead-lettered
            while left:
                left.discard((await self.parked()).body)
        return left


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.05)  # a broker's driver may swallow a cancellation


async def _again(every: float, do: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(every)
        with contextlib.suppress(Exception):  # the next time may go well, as with a worker
            await do()


# --- crew --------------------------------------------------------------------------------------------
# Workers at a line on trial, with a service, a journal and a bank that a trial can hold up.


DELAYS = Delays(first=0.05, longest=0.1)
LEASE = 15.0
RETRY = RetryPolicy(attempts=1, deadline=10.0)
"""Long enough for a busy machine: a call cut short by its deadline would be one more delivery."""


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

    def __init__(self, crew: Crew, make: Callable[[], Broker], options: Mapping[str, Any]) -> None:
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
        spoil: Callable[[Broker], None] = lambda _: None,
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

        def make() -> Broker:
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
