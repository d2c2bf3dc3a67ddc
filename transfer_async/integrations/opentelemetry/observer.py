"""Traces and metrics of the client for OpenTelemetry; the extra is ``transfer_async[opentelemetry]``.

An order is a span in its caller's trace, with its HTTP attempts as children. Names are those of
OpenTelemetry's semantic conventions; others begin with ``transfer_async``. Attributes hold keys, ids,
statuses, and names of hooks and errors. They never hold personal data, an error's text or its traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakKeyDictionary

from attrs import define
from opentelemetry import context, propagate
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import TracerProvider, get_tracer_provider
from yarl import URL

from transfer_async._http.urls import CREATE_ORDER, normalised
from transfer_async._models.events import Event
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.clock import is_a_time
from transfer_async._support.util import VERSION, log
from transfer_async.integrations.opentelemetry import metrics
from transfer_async.integrations.opentelemetry.metrics import Instruments
from transfer_async.integrations.opentelemetry.spans import Orders
from transfer_async.journal.model import Entry, KeyState, TransitionResult
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import Move

if TYPE_CHECKING:
    from transfer_async._client import TransferClient


SCOPE = "transfer_async"
"""The name of the instrumentation scope."""


class Telemetry:
    """An observer that creates traces and metrics for the clients of one service::

        telemetry = Telemetry(base_url=base_url)
        journal = telemetry.journal(SQLiteJournal("orders.db"))
        async with TransferClient(base_url, token, journal=journal, observers=[telemetry]) as client:
            telemetry.watch(client)

    A process needs one for each service.

    Args:
        base_url: the client's base URL. Without it, no span or metric names the server.
        tracer_provider: receives the spans; by default the global one.
        meter_provider: receives the metrics; by default the global one.

    Raises:
        ValueError: ``base_url`` is not valid for a client.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        where, full = _server(base_url)
        tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE, VERSION, metrics.SCHEMA)
        # The address makes the meters differ: of two equal ones, only the first one's gauges are observed.
        meter = (meter_provider or get_meter_provider()).get_meter(SCOPE, VERSION, metrics.SCHEMA, where)
        self._instruments = Instruments(meter, where)
        self._orders = Orders(tracer, self._instruments, {**where, **full})

    def __call__(self, event: Event) -> None:
        """Record one event of a client."""
        self._orders.record(event)

    @property
    def open_orders(self) -> int:
        """The number of open order spans."""
        return len(self._orders)

    def journal(self, journal: Journal) -> Journal:
        """Return ``journal`` with its operations measured. Each ``recover`` also counts orders in doubt.

        Open and close it like the journal itself.
        """
        return cast("Journal", TimedJournal(journal, self._instruments))

    def watch(self, client: TransferClient) -> None:
        """Observe ``client``'s retry budget, without keeping the client alive."""
        self._instruments.watch(client)

    def report(self, report: RecoveryReport) -> None:
        """Record the number of orders in doubt, if you do not use `journal`."""
        self._instruments.in_doubt(report.in_doubt)


def _server(base_url: str | None) -> tuple[dict[str, str | int], dict[str, str | int]]:
    """Return the server's address for spans and metrics, and the request's URL for spans."""
    if base_url is None:
        return {}, {}
    address = normalised(base_url)
    url = URL(address)
    where: dict[str, str | int] = {metrics.ADDRESS: url.host or ""}
    if url.port is not None:
        where[metrics.PORT] = url.port
    return where, {metrics.URL: address + CREATE_ORDER}


# --- timed journal -----------------------------------------------------------------------------------
# A journal that measures the operations of another one.


SYSTEMS = {"SQLiteJournal": "sqlite", "PostgresJournal": "postgresql", "MemoryJournal": "memory"}
"""``db.system.name`` for each journal class; a bank's own journal is ``other``."""

_OPERATIONS = {"takeover": "take_over", "layaside": "lay_aside"}
"""``db.operation.name`` of transitions whose name in the journal differs."""


class TimedJournal:
    """A journal that measures the transitions of another one, and passes everything else on.

    Args:
        journal: the measured journal.
        instruments: record the durations.
    """

    def __init__(self, journal: Journal, instruments: Instruments) -> None:
        self._journal = journal
        self._instruments = instruments
        known = (SYSTEMS[item.__name__] for item in type(journal).__mro__ if item.__name__ in SYSTEMS)
        self._system = next(known, "other")
        self._read_by: WeakKeyDictionary[asyncio.Task[Any], Oldest] = WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def __aenter__(self) -> Self:
        await self._journal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._journal.__aexit__(kind, error, traceback)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """Apply the transition ``move``, and measure it."""
        began = perf_counter()
        try:
            verdict = await self._journal.move(scope, key, move)
        except BaseException as error:
            self._measure(began, move, error)
            raise
        self._measure(began, move, None)
        return verdict

    async def count_in_doubt(self, scope: str) -> int:
        """Return the number of keys in doubt. Every ``recover`` calls this, which updates the gauge."""
        count = await self._journal.count_in_doubt(scope)
        oldest = self._read_by.pop(_this_task(), None)
        try:
            self._instruments.in_doubt(count)
            if oldest is not None:
                self._instruments.oldest(oldest.ages(await self._journal.now()))
        except Exception as raised:  # noqa: BLE001 - as in `_measure`
            _log_failure(raised)
        return count

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Return pending keys. A run of ``recover`` reads all of them, so the oldest is noted here."""
        found = await self._journal.work(scope, limit=limit, after=after)
        oldest = self._read_by.setdefault(_this_task(), Oldest()) if after else Oldest()
        self._read_by[_this_task()] = oldest
        for _, entry in found:
            oldest.note(entry)
        return found

    def _measure(self, began: float, move: Move, error: BaseException | None) -> None:
        seconds = perf_counter() - began
        operation = _OPERATIONS.get(move.name, move.name)
        done = {metrics.DB_SYSTEM: self._system, metrics.DB_OPERATION: operation}
        if error is not None:
            done[metrics.ERROR_TYPE] = type(error).__name__
        try:
            self._instruments.operation(seconds=seconds, done=done)
        except Exception as raised:  # noqa: BLE001 - the journal was written: a metric must not fail the call
            _log_failure(raised)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a task runs every coroutine
    return task


def _log_failure(raised: Exception) -> None:
    log.warning("the duration of a journal operation could not be recorded (%s)", type(raised).__name__)


# --- ages --------------------------------------------------------------------------------------------
# The ages of the oldest pending work, noted while `recover` reads all of it.


@define
class Oldest:
    """The times at which the oldest doubt, pending undo and pending notification began; None if none waits.

    In seconds of the journal's clock.
    """

    doubt: float | None = None
    undo: float | None = None
    notification: float | None = None

    def note(self, entry: Entry) -> None:
        """Include ``entry``. Work that was recorded without a time counts from the claim."""
        if entry.state is KeyState.IN_DOUBT:
            self.doubt = _earlier(self.doubt, [entry.sent_until])
        self.undo = _earlier(self.undo, [_since(undo.since, entry) for undo in entry.pending_undos])
        self.notification = _earlier(
            self.notification, [_since(pending.since, entry) for pending in entry.pending_notifications]
        )

    def ages(self, now: float) -> dict[str, float]:
        """Return the ages in seconds; 0 if nothing waits."""
        since = {"doubt": self.doubt, "undo": self.undo, "notification": self.notification}
        return {name: 0.0 if time is None else max(0.0, now - time) for name, time in since.items()}


def _since(since: float | None, entry: Entry) -> float:
    return entry.claimed_at if since is None else since


def _earlier(known: float | None, times: Iterable[float]) -> float | None:
    told = [time for time in times if is_a_time(time)]  # a damaged one says nothing, and would hide others
    return min(told if known is None else [known, *told], default=None)


# --- propagation -------------------------------------------------------------------------------------
# The trace context in message headers: read from the command, and written to the outcome.


@contextmanager
def context_from(headers: Mapping[str, str]) -> Iterator[None]:
    """Make spans within this context part of the trace in a message's headers.

    Headers without a valid trace change nothing.

    Args:
        headers: the message's headers, with names in any case.
    """
    # Proxies and brokers change the case of names, and propagators expect lower case.
    carrier = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    # Pass the current context, or headers without a trace would end the current trace.
    token = context.attach(propagate.extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def headers_of_context() -> dict[str, str]:
    """Return headers with the current trace context, for a message of the same trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
