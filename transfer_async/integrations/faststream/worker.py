"""Workers that use FastStream to take their commands from a message broker.

The module contains the code for all brokers: consumer slots that each process one message at a time, the
periodic recovery, health checks, and a shutdown that finishes messages in progress. A `Broker` contains the
code for a particular broker::

    broker = broker_at("nats://127.0.0.1:4222", WorkerSettings(concurrency=32))
    async with TransferClient.from_env(journal=PostgresJournal(dsn), hooks=hooks) as client:
        await OrderWorker(client, broker).run(stop)

The worker does not use FastStream's own subscription loops, for three reasons. The loops fetch messages in
advance, and these messages get no heartbeats. After a consumer is deleted or the connection is permanently
closed, the loops poll without a pause, as if the queue were empty. On Redis, the loops end when the group is
deleted, and never restart. The worker instead calls the subscribers' ``get_one``, which avoids these
problems. On NATS, the slots share their requests; see `transfer_async.integrations.faststream.nats`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from transfer_async._support.util import log
from transfer_async.integrations.faststream.broker import Broker, WorkerSettings, broker_at, reason
from transfer_async.worker.consumer import Around, Health, Inject, Measure, Sweeper, Worker
from transfer_async.worker.handler import Handler

if TYPE_CHECKING:
    from transfer_async._client import TransferClient

BACK_OFF, LONGEST_BACK_OFF = 0.25, 8.0
"""The first and the longest pause after a failure of the broker, in seconds. Each pause is twice the last."""

GRACE = 5.0
"""The maximum time to wait for cancelled tasks to end, in seconds."""

OPENING = 10.0
"""The timeout in seconds for connecting to the broker and creating missing streams there."""

_CLOSED = "the broker closed the connection"
_ENDED = "a task of the worker ended unexpectedly"

_NO_RESPONSE = TimeoutError(f"no response within {OPENING:g} s")

__all__ = ["Broker", "OrderWorker", "WorkerSettings", "broker_at"]


class OrderWorker:
    """A worker that takes commands from a broker until it is stopped.

    Args:
        client: a client with a durable journal. The worker does not close the client.
        line: the broker; see `Broker`. `run` opens and closes the broker.
        handler: the object that carries out the commands, by default ``Handler(client)``.
        health: the health checks; see `Health`. The worker adds checks of the broker and the journal.
        around: a function that returns a context manager in which a message is handled; see
            `transfer_async.worker.consumer`.
        inject: a function, called within ``around``, that returns the headers to add to published outcomes.
        measure: a function that records each delivery that was processed; see `Measure`.

    Attributes:
        started: an event that is set once the worker takes messages.

    Raises:
        ValueError: the client's journal is not durable.
    """

    def __init__(
        self,
        client: TransferClient,
        line: Broker,
        *,
        handler: Handler | None = None,
        health: Health | None = None,
        around: Around | None = None,
        inject: Inject | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.health: Health = health or Health()
        self.line: Broker = line
        self._settings = line.settings
        handler = handler or Handler(client)
        self.health.checks |= {"broker": self._reach_broker, "journal": lambda: client.known("-")}
        self._worker = Worker(
            handler,
            line.publish,
            beat_every=line.settings.ack_wait / 3,
            health=self.health,
            around=around,
            inject=inject,
            measure=measure,
        )
        self._sweeper = Sweeper(
            handler, line.publish, every=line.settings.sweep_every, health=self.health, inject=inject
        )
        self.started: asyncio.Event = asyncio.Event()
        self._stopping = asyncio.Event()
        self.health.trouble("worker", "is starting")

    async def run(self, stop: asyncio.Event) -> None:
        """Take messages until ``stop`` is set.

        When ``stop`` is set, finish the messages in progress and close the broker.

        If the broker is unreachable, the worker retries until it responds. If `run` is cancelled, it cancels
        the messages in progress, and the broker redelivers them.

        Raises:
            ConnectionError: the connection is closed permanently; restart the worker.
        """
        try:
            if await self._opened(stop):
                await self._work(stop)
        finally:
            self.health.trouble("worker", "has stopped")
            with contextlib.suppress(Exception):  # The connection may already be lost.
                async with asyncio.timeout(GRACE):
                    await self.line.close()

    async def _opened(self, stop: asyncio.Event) -> bool:
        pauses = _Pauses()
        while not stop.is_set():
            opening = asyncio.create_task(self.line.open())
            await _either(opening, stop.wait(), at_most=OPENING)
            await _cancel_all([opening])
            error = _failure(opening)
            if error is _NO_RESPONSE and stop.is_set():
                break
            if error is None:
                return True
            if self.line.is_closed:
                self.health.ended(_CLOSED)
                raise ConnectionError(_CLOSED) from error
            self.health.trouble("broker", f"cannot be used yet ({reason(error)})")
            log.warning("the broker cannot be used yet (%s); trying again", _described(error))
            await _either(stop.wait(), at_most=pauses.next())
        return False

    async def _work(self, stop: asyncio.Event) -> None:
        slots = [asyncio.create_task(self._run_slot()) for _ in range(self._settings.concurrency)]
        chores = [asyncio.create_task(self._repeat(every, do)) for every, do in self.line.chores]
        sweeper = asyncio.create_task(self._sweeper.run())
        tasks = [*slots, *chores, sweeper]
        for item in ("worker", "broker"):
            self.health.well(item)
        self.started.set()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():  # While the connection works, no task ends by itself.
                self.health.ended(_CLOSED if self.line.is_closed else _ENDED)
            self.health.trouble("worker", "is stopping")
            self._stopping.set()
            grace = self._settings.patience
            await asyncio.gather(
                asyncio.wait(slots, timeout=grace), self._sweeper.stop(sweeper, patience=grace)
            )
        finally:
            self._stopping.set()
            await _cancel_all([stopped, *tasks])
        if not stop.is_set():
            raise ConnectionError(_CLOSED) if self.line.is_closed else RuntimeError(_ENDED)

    # --- consumer slots -------------------------------------------------------------------------

    async def _run_slot(self) -> None:
        """Process messages one by one, and request each message only when the previous one is finished."""
        pauses = _Pauses()
        while self._is_running():
            try:
                await self._take_from(self.line.subscriber(), pauses)
            except asyncio.CancelledError as error:
                slot = asyncio.current_task()
                if slot is not None and slot.cancelling():
                    raise
                await self._failed(error, pauses)  # The broker's driver has cancelled one of its own tasks.
            except Exception as error:  # noqa: BLE001 - the slot continues after any error
                await self._failed(error, pauses)

    async def _take_from(self, subscriber: Any, pauses: _Pauses) -> None:
        try:
            await subscriber.start()
            while self._is_running():
                if self._worker.pause > 0:
                    await _either(self._worker.ready(), self._stopping.wait())
                message = await self._next(subscriber)
                pauses.reset()
                if message is None:
                    continue
                delivery = self.line.delivery(message)
                if self._stopping.is_set():
                    await delivery.retry(0.0)
                else:
                    await self._worker.take(delivery)
        finally:
            with contextlib.suppress(Exception):  # The subscriber's connection may be lost.
                await subscriber.stop()

    async def _next(self, subscriber: Any) -> Any:
        poll = self._settings.poll
        began = time.monotonic()
        message = await subscriber.get_one(timeout=poll)
        if message is None and time.monotonic() - began < poll / 2:
            # With a closed connection or a deleted consumer, `get_one` returns None before the timeout.
            raise ConnectionError("the broker returned no message before the timeout")
        if self.health.well("broker"):
            log.info("the broker can be used again")
        return message

    async def _failed(self, error: BaseException, pauses: _Pauses) -> None:
        if self.health.trouble("broker", f"is not delivering messages ({type(error).__name__})"):
            log.warning("the broker is not delivering messages (%s)", type(error).__name__)
        await _either(self._stopping.wait(), at_most=pauses.next())
        with contextlib.suppress(Exception):  # The next attempt raises the error again.
            await self.line.prepare()

    # --- periodic tasks -------------------------------------------------------------------------

    async def _repeat(self, every: float, do: Callable[[], Awaitable[object]]) -> None:
        pauses, pause = _Pauses(), every
        while self._is_running():
            await asyncio.sleep(pause)
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - the task is repeated after a pause
                log.warning("a periodic task of the broker connection failed (%s)", type(error).__name__)
                pause = max(every, pauses.next())
            else:
                pauses.reset()
                pause = every

    def _is_running(self) -> bool:
        return not (self._stopping.is_set() or self.line.is_closed)

    async def _reach_broker(self) -> None:
        if not await self.line.broker.ping(timeout=1.0):
            raise ConnectionError


def _failure(opening: asyncio.Task[None]) -> BaseException | None:
    """Return the error of the task ``opening``, or None.

    An unfinished or cancelled task counts as timed out.
    """
    if not opening.done() or opening.cancelled():
        return _NO_RESPONSE
    return opening.exception()


def _described(error: BaseException) -> str:
    why = reason(error)
    # The error's text contains no personal data, because no message was read.
    return f"{why}: {error}" if why == type(error).__name__ and str(error) else why


class _Pauses:
    def __init__(self) -> None:
        self._next = BACK_OFF

    def next(self) -> float:
        pause, self._next = self._next, min(2 * self._next, LONGEST_BACK_OFF)
        return pause

    def reset(self) -> None:
        self._next = BACK_OFF


async def _either(*ends: Awaitable[object], at_most: float | None = None) -> None:
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait(tasks, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    deadline = time.monotonic() + GRACE
    while pending := [task for task in tasks if not task.done()]:
        if time.monotonic() > deadline:
            break
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=GRACE / 20)  # A broker's driver may swallow a cancellation.
