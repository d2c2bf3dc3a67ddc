"""The second pass: every order is created, and what became of it is written down as it comes.

A run ends when every line has an outcome, when somebody stops it, or when it gives up. Nothing is lost by
either of the latter: the journal knows what was done, and another run goes on from there.

It gives up when no other order would fare better: when the service, its address, the token, the journal
or a hook is at fault so many times in a row. Every further line would place a hold only to release it or,
where the service answers nothing that is certain, end in doubt.

A key that another worker has a lease on (mostly: a run that was killed) is tried again when all others
are done, until the lease has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import attrs
from attrs import frozen

from transfer_async._cli.create_input import Changed, Record
from transfer_async._cli.create_outcomes import OutcomeFile, Progress, Tally, duration, outcome_line
from transfer_async._cli.process import on_signals
from transfer_async._client import TransferClient
from transfer_async._models.errors import ClientClosed, ConnectionFailed, KeyBusy, OutcomeUnknown
from transfer_async._models.requests import OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.batch import OrderResult
from transfer_async._support.clock import Clock
from transfer_async.worker.disposition import Action, disposition

AHEAD = 64
"""How many lines are read at a time, in a thread of their own."""

NOT_READY = 10
"""So many orders in a row that the token or the address is at fault for end the run."""

AT_LEAST = 20
"""So many orders in a row, and twice as many as are in flight, that anything else but the order is at
fault for end the run."""

PUT_OFF = 10_000
"""How many lines wait for another worker's lease at most; more of them are not sent."""

FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0
"""Seconds after which they are tried again, and which double from one time to the next: a worker that is
alive may be done with a key long before its lease ends. Once the leases have ended it is the last time."""

MARGIN = 0.05
"""Seconds by which a lease is waited for too long, so that it is over."""

CUT_OFF = 1.0
"""Seconds that those in flight get when somebody does not want to wait for them."""


@frozen
class LineRequest(OrderRequest):
    """A request that knows its line."""

    line: int = 0


def request_of(record: Record) -> LineRequest:
    """What is asked for on a line without faults.

    Raises:
        Changed: it has some, though it had none when it was checked.
    """
    command = record.command
    if command is None:
        raise Changed(f"line {record.line} is not what it was when it was checked")
    return LineRequest(**attrs.asdict(command, recurse=False), line=record.line)


class CircuitBreaker:
    """Counts the orders in a row that something else than the order was at fault for.

    Args:
        concurrency: how many are in flight.
    """

    def __init__(self, *, concurrency: int) -> None:
        self._most = max(AT_LEAST, 2 * concurrency)
        self._in_a_row = self._not_ready = 0

    def met(self, result: Order | Exception) -> str | None:
        """Take one more result; why to give up, if it is time to."""
        if isinstance(result, KeyBusy):  # somebody else is well
            return None
        fate = disposition(result)
        # A doubt that was there before says nothing of today's service.
        in_doubt_now = isinstance(result, OutcomeUnknown) and bool(result.attempts)
        if fate.action in (Action.ACK, Action.DEAD_LETTER) and not in_doubt_now:
            self._in_a_row = self._not_ready = 0
            return None
        self._in_a_row += 1
        # A network comes back by itself, unlike a token: one short break of it is no reason to give up.
        waits = fate.ready or isinstance(result, ConnectionFailed)
        self._not_ready = 0 if waits else self._not_ready + 1
        for count, most in ((self._not_ready, NOT_READY), (self._in_a_row, self._most)):
            if count >= most:
                return f"{count} in a row ended in {type(result).__name__}: {fate.reason}"
        return None


class BulkRun:
    """One run.

    Args:
        client: open.
        outcomes: where each line's outcome goes.
        progress: shows how far it has come.
        stopping: how it is stopped.
        tally: counts.
        total: how many lines there are.
        concurrency: how many orders are in flight.
        clock: for tests.

    Attributes:
        gave_up: why, if it did.
    """

    def __init__(
        self,
        client: TransferClient,
        *,
        outcomes: OutcomeFile,
        progress: Progress,
        stopping: Stopping,
        tally: Tally,
        total: int,
        concurrency: int,
        clock: Clock | None = None,
    ) -> None:
        self._client, self._outcomes, self._progress = client, outcomes, progress
        self._stopping, self._tally, self._total = stopping, tally, total
        self._concurrency, self._clock = concurrency, clock or Clock()
        self._trouble = CircuitBreaker(concurrency=concurrency)
        self._put_off: list[LineRequest] = []
        self._until = 0.0
        self.gave_up: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every line has its outcome."""
        return self._tally.done == self._total

    async def run(self, records: Iterator[Record]) -> None:
        """Create the orders.

        Raises:
            Changed: the file is not what it was; what had begun has come to its end.
            OSError: the outcomes cannot be written; the same.
        """
        cutting = asyncio.ensure_future(self._cut_off_when_asked())
        try:
            await self._round(self._requests(records), may_put_off=True)
            await self._try_again()
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
            await asyncio.to_thread(self._outcomes.write)

    async def _try_again(self) -> None:
        """Try what was put off, until it is done or the leases have ended."""
        if self._put_off and not self._is_over:
            lines = "1 line waits" if len(self._put_off) == 1 else f"{len(self._put_off):,} lines wait"
            longest = duration(max(0.0, self._until - self._clock.now()))
            self._progress.say(f"{lines} for another worker's lease, up to {longest}")
        until, wait = self._until + MARGIN, FIRST_WAIT
        while self._put_off and not self._is_over:
            left = max(0.0, until - self._clock.now())
            await self._stopping.unless_asked(_slept(self._clock, min(wait, left)))
            waiting, self._put_off = self._put_off, []
            await self._round(self._unless_stopped(waiting), may_put_off=wait < left)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _round(self, requests: AsyncIterable[OrderRequest], *, may_put_off: bool) -> None:
        results = self._client.create_orders(requests, concurrency=self._concurrency, once=True)
        async with aclosing(results):
            async for result in results:
                if not (may_put_off and self._is_put_off(result)):
                    self._note(result)
                if self._outcomes.is_due:
                    await asyncio.to_thread(self._outcomes.write)

    # --- what goes in ---------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._stopping.asked.is_set() or self.gave_up is not None

    async def _requests(self, records: Iterator[Record]) -> AsyncIterator[LineRequest]:
        """The file's orders, until it is time to stop; those in flight come to their end after that."""
        while some := await asyncio.to_thread(_some, records):
            for request in some:
                if self._is_over:
                    return
                yield request

    async def _unless_stopped(self, requests: Iterable[LineRequest]) -> AsyncIterator[LineRequest]:
        for request in requests:
            if self._is_over:
                return
            yield request

    # --- what comes out -------------------------------------------------------------------------

    def _note(self, result: OrderResult) -> None:
        request, ended = result.request, _ended(result)
        assert isinstance(request, LineRequest) and request.key is not None  # noqa: S101, PT018 - we made it
        if isinstance(ended, ClientClosed):  # cut off: another run will say what became of it
            return
        self._tally.add(ended)
        self._outcomes.add(outcome_line(request.line, request.key, ended))
        self._progress.show("creating", self._tally.done, self._total, self._tally.told())
        if self.gave_up is None and not self._stopping.asked.is_set():
            self.gave_up = self._trouble.met(ended)
            if self.gave_up is not None:
                self._progress.say(f"giving up: {self.gave_up}; those in flight come to their end")

    def _is_put_off(self, result: OrderResult) -> bool:
        request, error = result.request, result.error
        if not isinstance(error, KeyBusy) or len(self._put_off) >= PUT_OFF or self._is_over:
            return False
        assert isinstance(request, LineRequest)  # noqa: S101 - we made it
        self._put_off.append(request)
        self._until = max(self._until, self._clock.now() + (error.retry_after or 0.0))
        return True

    async def _cut_off_when_asked(self) -> None:
        await self._stopping.asked.wait()
        self._progress.say(
            "stopping: no new line is begun, those in flight come to their end; once more to cut them off"
        )
        await self._stopping.cut.wait()
        await self._client.close(timeout=CUT_OFF)


async def _slept(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def _some(records: Iterator[Record]) -> list[LineRequest]:
    return [request_of(record) for record in itertools.islice(records, AHEAD)]


def _ended(result: OrderResult) -> Order | Exception:
    if result.order is not None:
        return result.order
    assert result.error is not None  # noqa: S101 - it is one or the other
    return result.error


# --- stopping ----------------------------------------------------------------------------------------
# How a run is stopped: the first signal lets what has begun come to its end, the second cuts it off.


T = TypeVar("T")


class Stopping:
    """What was asked for by signals.

    Attributes:
        asked: a signal came.
        cut: a second one did.
        by: the first.
    """

    def __init__(self) -> None:
        self.asked, self.cut = asyncio.Event(), asyncio.Event()
        self.by: signal.Signals | None = None

    def ask(self, number: int) -> None:
        """Take a signal."""
        if self.by is None:
            self.by = signal.Signals(number)
            self.asked.set()
        else:
            self.cut.set()

    @property
    def exit_code(self) -> int | None:
        """As shells have it: 128 and the signal's number."""
        return None if self.by is None else 128 + self.by

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """What ``work`` comes to; None, and it is cancelled, if a signal comes first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for item in (task, asked):
                item.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM for as long as this lasts."""
        if threading.current_thread() is not threading.main_thread():  # signals come to that one alone
            yield
            return
        with on_signals(self.ask):
            yield
