"""Traces and metrics of the client for OpenTelemetry; the extra is ``transfer_async[opentelemetry]``.

An order is a span with its HTTP attempts as children, a part of whatever trace its caller is in. Spans
and metrics bear the names of OpenTelemetry's semantic conventions where there is one, and otherwise
begin with ``transfer_async``. They tell keys, ids, statuses, and the names of hooks and errors: nothing
about a person, and neither an error's text nor its traceback.
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
    """An observer that traces and counts what the clients of one service do::

        telemetry = Telemetry(base_url=base_url)
        journal = telemetry.journal(SQLiteJournal("orders.db"))
        async with TransferClient(base_url, token, journal=journal, observers=[telemetry]) as client:
            telemetry.watch(client)

    One is enough for a process, unless its clients speak to several services: then one for each.

    Args:
        base_url: the service's, as the client has it; without it no span or metric names the server.
        tracer_provider: where spans go; the global one by default.
        meter_provider: where metrics go; the global one by default.

    Raises:
        ValueError: ``base_url`` is not one that a client would take.
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
        # With the address, since of two meters that are alike only the first one's gauges would be asked.
        meter = (meter_provider or get_meter_provider()).get_meter(SCOPE, VERSION, metrics.SCHEMA, where)
        self._instruments = Instruments(meter, where)
        self._orders = Orders(tracer, self._instruments, {**where, **full})

    def __call__(self, event: Event) -> None:
        """Take note of what happened."""
        self._orders.tell(event)

    @property
    def open_orders(self) -> int:
        """How many orders' spans are open now."""
        return len(self._orders)

    def journal(self, journal: Journal) -> Journal:
        """``journal``, with each move measured, and its orders in doubt counted by each ``recover``.

        It is opened and closed as the journal itself would be.
        """
        return cast("Journal", TimedJournal(journal, self._instruments))

    def watch(self, client: TransferClient) -> None:
        """Measure what is left of ``client``'s retry budget; this does not keep the client alive."""
        self._instruments.watch(client)

    def report(self, report: RecoveryReport) -> None:
        """Note how many orders are in doubt: for a journal that is not measured by `journal`."""
        self._instruments.in_doubt(report.in_doubt)


def _server(base_url: str | None) -> tuple[dict[str, str | int], dict[str, str | int]]:
    """The server's address for spans and metrics; the request's for spans."""
    if base_url is None:
        return {}, {}
    address = normalised(base_url)
    url = URL(address)
    where: dict[str, str | int] = {metrics.ADDRESS: url.host or ""}
    if url.port is not None:
        where[metrics.PORT] = url.port
    return where, {metrics.URL: address + CREATE_ORDER}


# --- timed journal -----------------------------------------------------------------------------------
# A journal in front of another that measures how long each move takes.


SYSTEMS = {"SQLiteJournal": "sqlite", "PostgresJournal": "postgresql", "MemoryJournal": "memory"}
"""``db.system.name`` by the journal's class; it is ``other`` for a journal of the bank's own."""

_OPERATIONS = {"takeover": "take_over", "layaside": "lay_aside"}
"""``db.operation.name`` of the moves that have another one than in the journal."""


class TimedJournal:
    """``journal``, its moves measured; everything else is handed on as it is.

    Args:
        journal: the journal that does the work.
        instruments: where it is measured.
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
        """Make ``move``, and measure it."""
        began = perf_counter()
        try:
            verdict = await self._journal.move(scope, key, move)
        except BaseException as error:
            self._measure(began, move, error)
            raise
        self._measure(began, move, None)
        return verdict

    async def count_in_doubt(self, scope: str) -> int:
        """How many keys are in doubt; every run of ``recover`` asks, so the gauge is never older."""
        count = await self._journal.count_in_doubt(scope)
        oldest = self._read_by.pop(_this_task(), None)
        try:
            self._instruments.in_doubt(count)
            if oldest is not None:
                self._instruments.oldest(oldest.ages(await self._journal.now()))
        except Exception as broken:  # noqa: BLE001 - as below
            _tell(broken)
        return count

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """What waits; a run of ``recover`` reads through all of it, and the oldest is noted on the way."""
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
        except Exception as broken:  # noqa: BLE001 - what is in the journal must not look as if it were not
            _tell(broken)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine is run by one
    return task


def _tell(broken: Exception) -> None:
    log.warning("the journal's time could not be measured (%s)", type(broken).__name__)


# --- ages --------------------------------------------------------------------------------------------
# How long the oldest of what waits has waited: noted while `recover` reads through all of it.


@define
class Oldest:
    """Since when the oldest doubt, undo and untold end have waited, in the journal's seconds; None: none."""

    doubt: float | None = None
    undo: float | None = None
    untold: float | None = None

    def note(self, entry: Entry) -> None:
        """Take ``entry`` into account; what did not keep its time yet counts from the intent's beginning."""
        if entry.state is KeyState.IN_DOUBT:
            self.doubt = _earlier(self.doubt, [entry.sent_until])
        self.undo = _earlier(self.undo, [_since(undo.since, entry) for undo in entry.pending_undos])
        self.untold = _earlier(
            self.untold, [_since(pending.since, entry) for pending in entry.pending_notifications]
        )

    def ages(self, now: float) -> dict[str, float]:
        """Their ages in seconds; 0 where nothing waits."""
        since = {"doubt": self.doubt, "undo": self.undo, "untold": self.untold}
        return {name: 0.0 if time is None else max(0.0, now - time) for name, time in since.items()}


def _since(since: float | None, entry: Entry) -> float:
    return entry.claimed_at if since is None else since


def _earlier(known: float | None, times: Iterable[float]) -> float | None:
    told = [time for time in times if is_a_time(time)]  # a damaged one says nothing, and would hide others
    return min(told if known is None else [known, *told], default=None)


# --- propagation -------------------------------------------------------------------------------------
# The trace's context in a message's headers: taken from the command, and put into the outcome.


@contextmanager
def context_from(headers: Mapping[str, str]) -> Iterator[None]:
    """Within it, what is traced is a part of the trace that a message's headers name.

    Headers that name none, or are broken, change nothing.

    Args:
        headers: the message's; their names may be written in any case.
    """
    # Proxies and brokers write the names as they like, and propagators look for theirs in lower case.
    carrier = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    # What is current is handed over, or else headers without a trace would end the one there is.
    token = context.attach(propagate.extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def headers_of_context() -> dict[str, str]:
    """The headers that carry the current context on: for a message that belongs to the same trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
