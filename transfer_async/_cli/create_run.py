"""Create the orders in a file, and write each outcome as soon as it is known.

A run ends when every line has an outcome, when a signal stops it, or when it gives up. In each case, the
journal has recorded what was done, and the next run continues from there.

A run gives up after several consecutive failures that are caused not by the orders but by the service, the
base URL, the token, the journal or a hook. Every further order would either place a hold only to release it,
or end in doubt.

If another worker (usually a killed run) holds the lease on a key, the line is retried after all other lines,
until the lease has expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import aclosing
from itertools import islice

import attrs
from attrs import define, field, frozen

from transfer_async._cli.create_input import Changed, Record
from transfer_async._cli.create_outcomes import OutcomeFile, Progress, Tally, duration, outcome_line
from transfer_async._cli.process import Stopping
from transfer_async._client import TransferClient
from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import ClientClosed, ConnectionFailed, KeyBusy, OutcomeUnknown
from transfer_async._models.requests import OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.batch import OrderResult
from transfer_async._support.clock import Clock
from transfer_async.worker.disposition import Action, disposition

AHEAD = 64
"""The number of lines that a thread reads at a time."""

NOT_READY = 10
"""A run gives up after this many consecutive failures caused by the token or the base URL."""

AT_LEAST = 20
"""A run gives up after this many consecutive failures that are not caused by the orders, or after twice the
concurrency if that is more.
"""

MOST_POSTPONED = 10_000
"""The maximum number of lines that wait for another worker's lease. Further lines are not retried in this
run.
"""

FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0
"""The first and the longest wait before postponed lines are retried, in seconds. The wait doubles each time,
because a live worker may finish a key long before its lease ends. The last retry follows the last lease."""

MARGIN = 0.05
"""Seconds between the expiry of the last lease and the last retry."""

CUT_OFF = 1.0
"""Seconds for which orders in flight may continue after the second signal."""


@frozen
class LineRequest(OrderRequest):
    """An order request with its line number."""

    line: int = 0


def request_of(record: Record) -> LineRequest:
    """Return the order request for a line.

    Raises:
        Changed: the line is invalid, although it was valid when it was checked.
    """
    command: OrderCommand | None = record.command
    if command is None:
        raise Changed(f"line {record.line} of FILE was changed after it was checked")
    return LineRequest(**attrs.asdict(command, recurse=False), line=record.line)


@define(kw_only=True)
class CircuitBreaker:
    """Counts consecutive failures that are not caused by the orders."""

    concurrency: int  # the number of orders in flight
    _in_a_row: int = field(default=0, init=False)
    _not_ready: int = field(default=0, init=False)

    def count(self, result: Order | Exception) -> str | None:
        """Count a result. Return the reason to give up, or None."""
        if isinstance(result, KeyBusy):  # Another worker uses the key. This is no failure.
            return None
        fate = disposition(result)
        # A doubt from an earlier run does not mean that the service fails now.
        in_doubt_now = isinstance(result, OutcomeUnknown) and bool(result.attempts)
        if fate.action in (Action.ACK, Action.DEAD_LETTER) and not in_doubt_now:
            self._in_a_row = self._not_ready = 0
            return None
        self._in_a_row += 1
        # A network may recover by itself, but a wrong token does not. So a short interruption does not end a
        # run.
        may_recover = fate.ready or isinstance(result, ConnectionFailed)
        self._not_ready = 0 if may_recover else self._not_ready + 1
        limit = max(AT_LEAST, 2 * self.concurrency)
        for count, most in ((self._not_ready, NOT_READY), (self._in_a_row, limit)):
            if count >= most:
                return f"{count} orders in a row ended with {type(result).__name__}: {fate.reason}"
        return None


@define(slots=False)
class BulkRun:
    """Sends the orders of one run.

    Attributes:
        gave_up: the reason why the run gave up, or None if it did not.
    """

    _client: TransferClient
    _outcomes: OutcomeFile = field(kw_only=True)  # receives the outcome of each line
    _progress: Progress = field(kw_only=True)  # shows the progress
    _stopping: Stopping = field(kw_only=True)  # receives the signals
    _tally: Tally = field(kw_only=True)  # counts the outcomes
    _total: int = field(kw_only=True)  # the number of lines
    _concurrency: int = field(kw_only=True)  # the number of orders in flight
    _clock: Clock = field(factory=Clock, kw_only=True)  # for tests
    _postponed: list[LineRequest] = field(factory=list, init=False)
    _last_lease_ends: float = field(default=0.0, init=False)
    gave_up: str | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._breaker = CircuitBreaker(concurrency=self._concurrency)

    @property
    def is_complete(self) -> bool:
        """Return whether every line has an outcome."""
        return self._tally.done == self._total

    async def run(self, records: Iterator[Record]) -> None:
        """Create the orders.

        Raises:
            Changed: the file has changed. No orders are in flight any more.
            OSError: the outcomes cannot be written. No orders are in flight any more.
        """
        cutting = asyncio.ensure_future(self._cut_off_when_asked())
        try:
            await self._round(self._requests(map(request_of, records)), may_postpone=True)
            await self._retry_postponed()
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
            await asyncio.to_thread(self._outcomes.write)

    async def _retry_postponed(self) -> None:
        """Retry the lines that wait for a lease, until they are done or all leases have expired."""
        if self._postponed and not self._is_over:
            lines = "1 line waits" if len(self._postponed) == 1 else f"{len(self._postponed):,} lines wait"
            longest = duration(max(0.0, self._last_lease_ends - self._clock.now()))
            self._progress.say(f"{lines} for another worker's lease, up to {longest}")
        until, wait = self._last_lease_ends + MARGIN, FIRST_WAIT
        while self._postponed and not self._is_over:
            left = max(0.0, until - self._clock.now())
            await self._stopping.unless_asked(self._clock.sleep(min(wait, left)))
            waiting, self._postponed = self._postponed, []
            await self._round(self._requests(iter(waiting)), may_postpone=wait < left)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _round(self, requests: AsyncIterable[OrderRequest], *, may_postpone: bool) -> None:
        results = self._client.create_orders(requests, concurrency=self._concurrency, once=True)
        async with aclosing(results):
            async for result in results:
                if not (may_postpone and self._postpone_if_busy(result)):
                    self._record(result)
                if self._outcomes.is_due:
                    await asyncio.to_thread(self._outcomes.write)

    # --- requests -------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._stopping.asked.is_set() or self.gave_up is not None

    async def _requests(self, requests: Iterator[LineRequest]) -> AsyncIterator[LineRequest]:
        while ahead := await asyncio.to_thread(list, islice(requests, AHEAD)):
            for request in ahead:
                if self._is_over:
                    return
                yield request

    # --- results --------------------------------------------------------------------------------

    def _record(self, result: OrderResult) -> None:
        request, order_or_error = result.request, result.order or result.error
        assert isinstance(request, LineRequest) and request.key is not None and order_or_error is not None  # noqa: S101, PT018 - for the type checker
        if isinstance(order_or_error, ClientClosed):  # The order was cut off: the next run reports it.
            return
        self._tally.add(order_or_error)
        self._outcomes.add(outcome_line(request.line, request.key, order_or_error))
        self._progress.show("creating", self._tally.done, self._total, self._tally.counted())
        if self.gave_up is None and not self._stopping.asked.is_set():
            self.gave_up = self._breaker.count(order_or_error)
            if self.gave_up is not None:
                self._progress.say(f"giving up: {self.gave_up}; finishing the orders in flight")

    def _postpone_if_busy(self, result: OrderResult) -> bool:
        """Postpone the line if another worker holds the lease on its key. Return whether it was postponed."""
        request, error = result.request, result.error
        if not isinstance(error, KeyBusy) or len(self._postponed) >= MOST_POSTPONED or self._is_over:
            return False
        assert isinstance(request, LineRequest)  # noqa: S101 - for the type checker
        self._postponed.append(request)
        lease_ends = self._clock.now() + (error.retry_after or 0.0)
        self._last_lease_ends = max(self._last_lease_ends, lease_ends)
        return True

    async def _cut_off_when_asked(self) -> None:
        await self._stopping.asked.wait()
        self._progress.say(
            "stopping: starting no new orders and finishing those in flight; signal again to cut them off"
        )
        await self._stopping.cut.wait()
        await self._client.close(timeout=CUT_OFF)
