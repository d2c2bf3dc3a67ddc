"""Tools for the broker contract: consumers of a broker, and complete workers with a service and a bank."""

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
from transfer_async.testing.assertions import Holds, make_new_order
from transfer_async.worker import Delays, Delivery, Handled, Handler

T = TypeVar("T")

NewBroker = Callable[[WorkerSettings], Broker]
"""A function that creates a broker from settings without opening it.

Each broker belongs to another worker, and all brokers use the same server.
"""

TIMEOUT = 60.0
"""The timeout of one step in seconds: ten times as long as a busy machine needs."""

UNACKNOWLEDGED, LAST = b"left unacknowledged", b"sent last"


async def soon(work: Awaitable[T], what: str) -> T:
    """Await ``work`` for at most `TIMEOUT` seconds.

    Raises:
        AssertionError: the timeout expired; the message names ``what``, the expected event.
    """
    scope = asyncio.timeout(TIMEOUT)
    try:
        async with scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise AssertionError(f"timed out after {TIMEOUT:g} s, waiting until {what}") from None


class TakenMessage:
    """One delivered message, whose subscriber is stopped when the message is acknowledged."""

    def __init__(self, delivery: Delivery, subscriber: Any) -> None:
        self._subscriber = subscriber
        self.delivery: Delivery = delivery
        self.body: bytes = bytes(delivery.body)
        self.headers: dict[str, str] = dict(delivery.headers)
        self.deliveries: int = delivery.deliveries

    async def ack(self) -> None:
        await self._settle(self.delivery.ack())

    async def retry(self, after: float) -> None:
        """Return the message to the queue, to be delivered again in ``after`` seconds."""
        await self._settle(self.delivery.retry(after))

    async def dead_letter(self, reason: str) -> None:
        await self._settle(self.delivery.dead_letter(reason))

    async def _settle(self, call: Awaitable[None]) -> None:
        await soon(call, "the broker confirmed")
        await self._subscriber.stop()

    @asynccontextmanager
    async def heartbeats(self, every: float) -> AsyncIterator[None]:
        """Send a heartbeat every ``every`` seconds while the context is open."""
        sending = asyncio.create_task(_repeat(every, self.delivery.beat))
        try:
            yield
        finally:
            await _cancel([sending])


class Consumer:
    """One worker's open broker, its background tasks, and a subscriber for each message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._subscribers: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await soon(self.broker.open(), "the broker is open")
        self._tasks = [asyncio.create_task(_repeat(every, do)) for every, do in self.broker.chores]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def subscriber(self) -> Any:
        subscriber = self.broker.subscriber()
        self._subscribers.append(subscriber)
        await soon(subscriber.start(), "a subscriber has started")
        return subscriber

    async def take(self) -> TakenMessage:
        """Take the next message with a new subscriber, so that no other message is prefetched."""
        subscriber = await self.subscriber()
        message = await soon(self._next(subscriber), "a message was delivered")
        return TakenMessage(self.broker.delivery(message), subscriber)

    async def _next(self, subscriber: Any) -> Any:
        while True:
            message = await subscriber.get_one(timeout=self.broker.settings.poll)
            if message is not None:
                return message
            await asyncio.sleep(0)  # The subscriber may return at once after an error.

    async def close(self) -> None:
        """Close the broker as a worker does. Messages that were taken stay unacknowledged."""
        await _cancel(self._tasks)
        subscribers, self._subscribers, self._tasks = self._subscribers, [], []
        for end in (*(subscriber.stop for subscriber in subscribers), self.broker.close):
            with contextlib.suppress(Exception):  # The connection may be closed already.
                await soon(end(), "a broker was closed")


class BrokerHarness:
    """Sends messages to a broker, and takes messages from it.

    Args:
        new_line: a function that creates a broker; see `NewBroker`.
        ack_wait: the seconds after which an unacknowledged message is delivered again.

    Attributes:
        settings: the settings of all brokers, with subjects that no other test uses.
    """

    def __init__(self, new_line: NewBroker, *, ack_wait: float) -> None:
        prefix = f"t{secrets.token_hex(5)}"
        self.settings: WorkerSettings = WorkerSettings(
            commands=f"{prefix}.commands",
            outcomes=f"{prefix}.outcomes",
            dead_letters=f"{prefix}.dead",
            ack_wait=ack_wait,
            poll=0.05,
            concurrency=2,
            publish_timeout=2.0,
        )
        self.new_line = new_line
        self._stack = AsyncExitStack()
        self._readers: dict[str, Consumer] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def broker(self, **changes: Any) -> Broker:
        return self.new_line(attrs.evolve(self.settings, **changes))

    async def consumer(self, **changes: Any) -> Consumer:
        return await self._stack.enter_async_context(Consumer(self.broker(**changes)))

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a message to the workers, through a broker that is open for sending only."""
        async with self.sender() as broker:
            await soon(broker.send(broker.settings.commands, body, headers or {}), "a message is sent")

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Broker]:
        broker = self.broker()
        await soon(broker.open(only_to_send=True), "the broker is open")
        try:
            yield broker
        finally:
            await broker.close()

    async def published(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the decoded JSON and the headers of the next published outcome."""
        taken = await self._read(self.settings.outcomes)
        return json.loads(taken.body), taken.headers

    async def outcome(self) -> dict[str, Any]:
        return (await self.published())[0]

    async def dead_lettered(self) -> TakenMessage:
        return await self._read(self.settings.dead_letters)

    async def _read(self, subject: str) -> TakenMessage:
        """Take the next message from ``subject``, with a consumer whose command subject is ``subject``."""
        if subject not in self._readers:
            names = {name: f"{subject}.{name}" for name in ("outcomes", "dead_letters")}
            self._readers[subject] = await self.consumer(commands=subject, group="readers", **names)
        taken = await self._readers[subject].take()
        await taken.ack()
        return taken

    async def close_readers(self) -> None:
        """Close the consumers of outcomes and dead letters. The next read opens new consumers."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.close()

    async def redelivered(self, consumer: Consumer) -> list[bytes]:
        """Return the bodies of all redelivered messages.

        `redelivered` sends two more messages, to detect when the last redelivered message has been received.

        Args:
            consumer: a consumer that takes the first message that `redelivered` sends, and never acknowledges
                it.
        """
        found: list[bytes] = []
        await self.send(UNACKNOWLEDGED)
        while (await consumer.take()).body != UNACKNOWLEDGED:
            pass
        other = await self.consumer()
        for wanted in (UNACKNOWLEDGED, LAST):
            if wanted is LAST:
                await self.send(LAST)
            while (taken := await other.take()).body != wanted:
                found.append(taken.body)
                assert len(found) < 100, f"the redeliveries never end: {found}"
            await taken.ack()
        return found

    async def lost(self, bodies: Iterable[bytes]) -> set[bytes]:
        """Return the message bodies that are neither redelivered nor dead-lettered.

        Close all consumers before you call `lost`.
        """
        left = set(bodies).difference(await self.redelivered(await self.consumer()))
        with contextlib.suppress(AssertionError):  # There are no more dead letters.
            while left:
                left.discard((await self.dead_lettered()).body)
        return left


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.05)  # a broker's driver may swallow a cancellation


async def _repeat(every: float, do: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(every)
        with contextlib.suppress(Exception):  # The next call may succeed.
            await do()


# --- workers -----------------------------------------------------------------------------------------


DELAYS = Delays(first=0.05, longest=0.1)
LEASE = 15.0
RETRY = RetryPolicy(attempts=1, deadline=10.0)
"""One attempt with a long deadline, because a call that reaches its deadline causes another delivery."""


class SlowHolds(Holds):
    """A ledger whose `place` can be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self._open, self._requests = asyncio.Event(), asyncio.Semaphore(0)
        self._open.set()

    def block(self) -> None:
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    async def requested(self, count: int = 1) -> None:
        """Wait until ``count`` more holds have been requested."""
        for _ in range(count):
            await soon(self._requests.acquire(), "a hold was requested")

    async def place(self, intent: OrderIntent) -> str:
        self._requests.release()
        await self._open.wait()
        return await super().place(intent)


class _RecordingHandler(Handler):
    def __init__(self, client: TransferClient, seen: list[tuple[str | None, int]]) -> None:
        super().__init__(client, delays=DELAYS)
        self._seen = seen

    async def handle(self, command: OrderCommand | bytes, *, deliveries: int = 1) -> Handled:
        handled = await super().handle(command, deliveries=deliveries)
        self._seen.append((handled.key, deliveries))
        return handled


class RunningWorker:
    """One worker, which is restarted after its connection has been closed permanently."""

    def __init__(self, group: WorkerGroup, make: Callable[[], Broker]) -> None:
        self._group, self._make = group, make
        self.client: TransferClient = group.client()
        self._stopping = asyncio.Event()
        self.worker: OrderWorker = self._new_worker()
        self._task = asyncio.create_task(self._run())

    def _new_worker(self) -> OrderWorker:
        handler = _RecordingHandler(self.client, self._group.seen)
        return OrderWorker(self.client, self._make(), handler=handler)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.worker.run(self._stopping)
            except ConnectionError:
                self.worker = self._new_worker()

    async def is_ready(self, *, expected: bool = True) -> None:
        """Wait until the worker's health check reports ready, or not ready if ``expected`` is false."""

        async def polled() -> None:
            while bool(await self.worker.health.not_ready()) is expected:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

        await soon(polled(), f"the worker is {'' if expected else 'not '}ready")

    async def stop(self) -> None:
        """Stop the worker after its current messages, or cancel the worker if it does not stop in time."""
        self._stopping.set()
        try:
            await soon(asyncio.wait([self._task]), "the worker has stopped")
        except AssertionError:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=TIMEOUT)
            await self.client.close(timeout=0)
            raise
        await self.client.close()


class WorkerGroup:
    """A group of workers that use one broker.

    Attributes:
        harness: sends commands and reads outcomes.
        sandbox: the service.
        bank: the ledger.
        seen: the key and the delivery count of each handled message.
    """

    def __init__(self, harness: BrokerHarness, directory: Path) -> None:
        self.harness: BrokerHarness = harness
        self.bank: SlowHolds = SlowHolds()
        self.path: Path = directory / "journal.db"
        self.sandbox: Sandbox = Sandbox()
        self.journal: SQLiteJournal = SQLiteJournal(self.path)
        self.seen: list[tuple[str | None, int]] = []
        self._workers: list[RunningWorker] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.sandbox)
        await self._stack.enter_async_context(self.journal)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.bank.unblock()
        for worker in self._workers:
            with contextlib.suppress(AssertionError):  # The test has reported the error already.
                await worker.stop()
        await self._stack.aclose()

    def client(self) -> TransferClient:
        """Create a client with the settings and the journal of the workers."""
        return TransferClient(
            self.sandbox.base_url,
            self.sandbox.token,
            hooks=[self.bank.hook],
            journal=self.journal,
            lease=LEASE,
            retry=RETRY,
        )

    async def start(
        self,
        *,
        slots: int | None = None,
        change: Callable[[Broker], None] = lambda _: None,
        is_awaited: bool = True,
    ) -> RunningWorker:
        """Start another worker.

        Args:
            slots: the number of messages that the worker processes at once; by default the ``concurrency``
                setting.
            change: a function that changes the worker's broker before the start.
            is_awaited: whether to wait until the worker is receiving messages.
        """

        def make() -> Broker:
            broker = self.harness.broker(concurrency=slots or self.harness.settings.concurrency)
            change(broker)
            return broker

        running = RunningWorker(self, make)
        self._workers.append(running)
        if is_awaited:
            await soon(running.worker.started.wait(), "the worker is receiving messages")
        return running

    async def order(self, key: str) -> None:
        async with self.harness.sender() as broker:
            await broker.order(OrderCommand(key=key, order=make_new_order()))
