"""Workers that take their commands from a message broker, through FastStream.

What is the same for all brokers is here: lanes that each take one message, see it through, and only then
take the next; the sweeper; health; a stop that finishes what is in flight. What differs, how a broker
delivers, acknowledges, delays and dead-letters, is a `Broker`, and there is one for each broker in
`transfer_async.integrations.faststream`::

    line = broker_at("nats://127.0.0.1:4222", WorkerSettings(concurrency=32))
    async with TransferClient.from_env(journal=PostgresJournal(dsn), hooks=hooks) as client:
        await OrderWorker(client, line).run(stop)

FastStream's own subscription loops are not used, for three reasons: they fetch more than can be worked on
at once, and what waits in their buffers is not heart-beaten; they take a consumer that was deleted, or a
connection that is closed for good, for an empty queue and ask again without a pause; and on Redis they
end for ever with the group. Its subscribers' ``get_one`` has none of these. On NATS the lanes ask together,
in place of each for itself: see `transfer_async.integrations.faststream.nats`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from transfer_async._support.util import log
from transfer_async.integrations.faststream.broker import Broker, WorkerSettings, broker_at, reason
from transfer_async.worker.consumer import Around, Delivery, Health, Inject, Worker
from transfer_async.worker.handler import Handler
from transfer_async.worker.outbox import Sweeper

if TYPE_CHECKING:
    from transfer_async._client import TransferClient

BACK_OFF, LONGEST_BACK_OFF = 0.25, 8.0
"""Seconds to wait after the broker failed, doubled each time."""

GRACE = 5.0
"""Seconds that what was cut off gets to end."""

OPENING = 10.0
"""Seconds that connecting to the broker, and making what is missing there, may take."""

_CLOSED = "the broker closed the connection"
_ENDED = "a part of the worker has ended by itself"

_NO_ANSWER = TimeoutError(f"no answer within {OPENING:g} s")

__all__ = ["Broker", "OrderWorker", "WorkerSettings", "broker_at"]


class OrderWorker:
    """A worker: takes commands from a line until it is told to stop.

    Args:
        client: with a journal that survives its process; it is the caller's, and not closed.
        line: see `Broker`; opened and closed by `run`.
        handler: one of the client's own settings; by default ``Handler(client)``.
        health: see `Health`; its ``checks`` get the broker and the journal.
        around: what each message is handled within; see `transfer_async.worker.consumer`.
        inject: headers for the outcomes, asked for within ``around``.

    Attributes:
        started: set once it takes messages.

    Raises:
        ValueError: the client's journal does not survive its process.
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
        )
        self._sweeper = Sweeper(
            handler, line.publish, every=line.settings.sweep_every, health=self.health, inject=inject
        )
        self.started: asyncio.Event = asyncio.Event()
        self._stopping = asyncio.Event()
        self.health.trouble("worker", "is starting")

    async def run(self, stop: asyncio.Event) -> None:
        """Take messages until ``stop`` is set; then finish what is in flight, and let the broker go.

        A broker that cannot be reached is tried again, at the start as well as later. When cancelled, what
        is in flight is cut off at once, and left to come again.

        Raises:
            ConnectionError: the broker closed the connection for good; only a new start helps, by whoever
                runs the worker.
        """
        try:
            if await self._opened(stop):
                await self._work(stop)
        finally:
            self.health.trouble("worker", "has stopped")
            with contextlib.suppress(Exception):  # it is gone, or it is let go
                async with asyncio.timeout(GRACE):
                    await self.line.close()

    async def _opened(self, stop: asyncio.Event) -> bool:
        pauses = _Pauses()
        while not stop.is_set():
            opening = asyncio.create_task(self.line.open())
            await _either(opening, stop.wait(), at_most=OPENING)
            await _cut_off([opening])
            error = _failure(opening)
            if error is _NO_ANSWER and stop.is_set():
                break
            if error is None:
                return True
            if self._is_closed():
                self.health.ended(_CLOSED)
                raise ConnectionError(_CLOSED) from error
            self.health.trouble("broker", f"cannot be used yet ({reason(error)})")
            log.warning("the broker cannot be used yet (%s); trying again", _told(error))
            await _either(stop.wait(), at_most=pauses.next())
        return False

    async def _work(self, stop: asyncio.Event) -> None:
        lanes = [asyncio.create_task(self._lane()) for _ in range(self._settings.concurrency)]
        chores = [asyncio.create_task(self._again(every, do)) for every, do in self.line.chores]
        sweeper = asyncio.create_task(self._sweeper.run())
        parts = [*lanes, *chores, sweeper]
        for item in ("worker", "broker"):
            self.health.well(item)
        self.started.set()
        try:
            await self._until(stop, parts)
            self.health.trouble("worker", "is stopping")
            self._stopping.set()
            await self._finished(lanes, sweeper)
        finally:
            self._stopping.set()
            await _cut_off(parts)
        if not stop.is_set():
            raise ConnectionError(_CLOSED) if self._is_closed() else RuntimeError(_ENDED)

    async def _until(self, stop: asyncio.Event, parts: list[asyncio.Task[None]]) -> None:
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not stop.is_set():  # none of them ends as long as there is any going on
            self.health.ended(_CLOSED if self._is_closed() else _ENDED)

    async def _finished(self, lanes: list[asyncio.Task[None]], sweeper: asyncio.Task[None]) -> None:
        patience = self._settings.patience
        await asyncio.gather(
            asyncio.wait(lanes, timeout=patience), self._sweeper.stop(sweeper, patience=patience)
        )

    # --- lanes ----------------------------------------------------------------------------------

    async def _lane(self) -> None:
        """One message after the other: what is not worked on is not fetched, so nothing waits unseen."""
        pauses = _Pauses()
        while self._goes_on():
            try:
                await self._take_from(self.line.subscriber(), pauses)
            except asyncio.CancelledError as error:
                lane = asyncio.current_task()
                if lane is not None and lane.cancelling():
                    raise
                await self._failed(error, pauses)  # a broker's driver has cancelled something of its own
            except Exception as error:  # noqa: BLE001 - whatever it is, the lane goes on
                await self._failed(error, pauses)

    async def _take_from(self, subscriber: Any, pauses: _Pauses) -> None:
        try:
            await subscriber.start()
            while self._goes_on():
                if self._worker.pause > 0:
                    await _either(self._worker.ready(), self._stopping.wait())
                message = await self._next(subscriber)
                pauses.begin_anew()
                if message is not None:
                    await self._take(self.line.delivery(message))
        finally:
            with contextlib.suppress(Exception):  # its connection may be gone
                await subscriber.stop()

    async def _next(self, subscriber: Any) -> Any:
        poll = self._settings.poll
        began = time.monotonic()
        message = await subscriber.get_one(timeout=poll)
        if message is None and time.monotonic() - began < poll / 2:
            # A connection that is closed, or a consumer that is gone, looks like an empty queue, but sooner.
            raise ConnectionError("the broker gave nothing, and did not wait")
        if self.health.well("broker"):
            log.info("the broker can be used again")
        return message

    async def _take(self, delivery: Delivery) -> None:
        if self._stopping.is_set():
            await delivery.retry(0.0)
        else:
            await self._worker.take(delivery)

    async def _failed(self, error: BaseException, pauses: _Pauses) -> None:
        if self.health.trouble("broker", f"gives no messages ({type(error).__name__})"):
            log.warning("the broker gives no messages (%s)", type(error).__name__)
        await _either(self._stopping.wait(), at_most=pauses.next())
        with contextlib.suppress(Exception):  # the next try will tell
            await self.line.prepare()

    # --- beside them ----------------------------------------------------------------------------

    async def _again(self, every: float, do: Callable[[], Awaitable[object]]) -> None:
        pauses, pause = _Pauses(), every
        while self._goes_on():
            await asyncio.sleep(pause)
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - the next time may go well
                log.warning("a chore at the broker failed (%s)", type(error).__name__)
                pause = max(every, pauses.next())
            else:
                pauses.begin_anew()
                pause = every

    def _goes_on(self) -> bool:
        return not (self._stopping.is_set() or self._is_closed())

    def _is_closed(self) -> bool:
        """Whether the connection is closed for good, at a broker whose connections can be."""
        return bool(self.line.is_closed)

    async def _reach_broker(self) -> None:
        if not await self.line.broker.ping(timeout=1.0):
            raise ConnectionError


def _failure(opening: asyncio.Task[None]) -> BaseException | None:
    """Why the broker was not reached; one that not even a cancellation ends has no answer either."""
    if not opening.done() or opening.cancelled():
        return _NO_ANSWER
    return opening.exception()


def _told(error: BaseException) -> str:
    """Why a broker cannot be used yet; no message is involved, so that the error's text tells of nobody."""
    why = reason(error)
    return f"{why}: {error}" if why == type(error).__name__ and str(error) else why


class _Pauses:
    """How long to wait after each failure in a row."""

    def __init__(self) -> None:
        self._next = BACK_OFF

    def next(self) -> float:
        pause, self._next = self._next, min(2 * self._next, LONGEST_BACK_OFF)
        return pause

    def begin_anew(self) -> None:
        self._next = BACK_OFF


async def _either(*ends: Awaitable[object], at_most: float | None = None) -> None:
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait(tasks, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _cut_off(tasks: list[asyncio.Task[None]]) -> None:
    deadline = time.monotonic() + GRACE
    while pending := [task for task in tasks if not task.done()]:
        if time.monotonic() > deadline:
            break
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=GRACE / 20)  # a broker's driver may swallow a cancellation
