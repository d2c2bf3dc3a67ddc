"""OpenTelemetry traces and metrics of the client.

Each order becomes a span in its caller's trace, and its HTTP attempts become child spans. Names of metrics
and attributes come from OpenTelemetry's semantic conventions or begin with ``transfer_async``. Attributes
contain keys, ids, statuses, and the names of hooks and errors, but never personal data, error texts or
tracebacks.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakKeyDictionary

from attrs import define, field
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider, get_tracer_provider
from yarl import URL

from transfer_async._http.urls import CREATE_ORDER, normalised
from transfer_async._models import events
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, HeaderSource
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.clock import is_a_time
from transfer_async._support.util import VERSION, log
from transfer_async.integrations.opentelemetry import metrics
from transfer_async.integrations.opentelemetry.metrics import Attributes, Instruments
from transfer_async.journal.model import Entry, KeyState, TransitionResult
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import Move

if TYPE_CHECKING:
    from transfer_async._client import TransferClient


SCOPE = "transfer_async"
"""The name of the instrumentation scope of all spans and metrics."""


class Telemetry:
    """An observer that records traces and metrics of one service's clients::

        telemetry = Telemetry(base_url=base_url)
        journal = telemetry.journal(SQLiteJournal("orders.db"))
        async with TransferClient(base_url, token, journal=journal, observers=[telemetry]) as client:
            telemetry.watch(client)

    A process needs one `Telemetry` for each service.

    Args:
        base_url: the client's base URL. If ``base_url`` is omitted, spans and metrics do not contain the
            server's address.
        tracer_provider: the provider that receives the spans, by default the global one.
        meter_provider: the provider that receives the metrics, by default the global one.
        trace_requests: whether to send the trace context in request headers (``traceparent``), using the
            global propagator of ``opentelemetry.propagate``. Baggage is never sent to the service.
        span_events: whether hooks, retries, undos and doubts are recorded as span events. OpenTelemetry plans
            to replace span events with logs. To use logs now, pass false, and add ``log_events`` to the
            observers after the `Telemetry`.

    Raises:
        ValueError: ``base_url`` is not valid for a client.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        trace_requests: bool = False,
        span_events: bool = True,
    ) -> None:
        where, full = _server(base_url)
        tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE, VERSION, metrics.SCHEMA)
        # The address distinguishes the meters of two services. If two meters were equal, only the gauges of
        # the first one would be observed.
        meter = (meter_provider or get_meter_provider()).get_meter(SCOPE, VERSION, metrics.SCHEMA, where)
        self._instruments = Instruments(meter, where)
        self._orders = Orders(tracer, self._instruments, {**where, **full}, span_events=span_events)
        self.request_headers: HeaderSource | None = self._orders.headers_for if trace_requests else None
        """The function that returns the headers with a request's trace context; None by default.

        The client calls it for each request if ``trace_requests`` is true.
        """

    def __call__(self, event: Event) -> None:
        """Record one event of a client."""
        self._orders.record(event)

    @property
    def open_orders(self) -> int:
        """The number of open order spans."""
        return len(self._orders)

    def journal(self, journal: Journal) -> Journal:
        """Return a journal that wraps ``journal`` and measures its transitions.

        Open and close the returned journal instead of ``journal``. If a client uses the returned journal, its
        ``recover`` also updates the number of orders in doubt.
        """
        return cast("Journal", TimedJournal(journal, self._instruments))

    def watch(self, client: TransferClient) -> None:
        """Observe the retry budget of ``client`` through a weak reference."""
        self._instruments.clients.add(client)

    def command(self, *, disposition: str, deliveries: int, seconds: float) -> None:
        """Record a delivery that a worker has processed. Pass `command` to a worker as ``measure``."""
        self._instruments.command(disposition=disposition, deliveries=deliveries, seconds=seconds)

    def report(self, report: RecoveryReport) -> None:
        """Record the number of orders in doubt. Call `report` only if you do not use `journal`."""
        self._instruments.in_doubt = report.in_doubt


def _server(base_url: str | None) -> tuple[dict[str, str | int], dict[str, str | int]]:
    if base_url is None:
        return {}, {}
    address = normalised(base_url)
    url = URL(address)
    where: dict[str, str | int] = {metrics.ADDRESS: url.host or ""}
    if url.port is not None:
        where[metrics.PORT] = url.port
    return where, {metrics.URL: address + CREATE_ORDER}


# --- timed journal -----------------------------------------------------------------------------------
# A journal that measures the operations of another journal.


SYSTEMS = {"SQLiteJournal": "sqlite", "PostgresJournal": "postgresql", "MemoryJournal": "memory"}
"""The value of ``db.system.name`` for each journal class. It is ``other`` for all other journals."""

_OPERATIONS = {"takeover": "take_over", "layaside": "lay_aside"}
"""The value of ``db.operation.name`` for transitions whose name in the journal differs from it."""


class TimedJournal:
    """Wraps a journal and measures the duration of its transitions.

    Args:
        journal: the journal to measure.
        instruments: the metrics that record the durations.
    """

    def __init__(self, journal: Journal, instruments: Instruments) -> None:
        self._journal = journal
        self._instruments = instruments
        known = (SYSTEMS[item.__name__] for item in type(journal).__mro__ if item.__name__ in SYSTEMS)
        self._system = next(known, "other")
        self._read_by: WeakKeyDictionary[asyncio.Task[Any], Oldest] = WeakKeyDictionary()
        self._undos_read_by: WeakKeyDictionary[asyncio.Task[Any], Oldest] = WeakKeyDictionary()

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
        """Apply the transition ``move`` in the wrapped journal, and record its duration."""
        began = perf_counter()
        try:
            verdict = await self._journal.move(scope, key, move)
        except BaseException as error:
            self._measure(began, move, error)
            raise
        self._measure(began, move, None)
        return verdict

    async def count_in_doubt(self, scope: str) -> int:
        """Return the number of keys in doubt, and update the metrics.

        Every run of ``recover`` calls `count_in_doubt`.
        """
        count = await self._journal.count_in_doubt(scope)
        oldest = self._read_by.pop(_this_task(), None)
        self._instruments.in_doubt = count
        try:
            if oldest is not None:
                self._instruments.ages = oldest.ages(await self._journal.now())
        except Exception as raised:  # noqa: BLE001 - as in `_measure`
            _log_failure(raised)
        return count

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Return a page of pending keys, and note the age of the page's oldest doubt, undo and notification.

        Every run of ``recover`` reads all pending keys with `work`.
        """
        found = await self._journal.work(scope, limit=limit, after=after)
        task = _this_task()
        oldest = self._read_by.get(task) if after else self._undos_read_by.pop(task, None)
        return _noted(found, self._read_by, oldest)

    @property
    def pending_undos(self) -> Callable[..., Awaitable[list[tuple[str, Entry]]]]:
        """Calls the optional method ``pending_undos`` of the wrapped journal.

        ``recover`` runs the returned undos before it calls `work`.
        """
        list_keys = self._journal.pending_undos  # type: ignore[attr-defined] # not every journal has it

        async def pending_undos(scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
            found = await list_keys(scope, limit=limit, after=after)
            return _noted(
                found, self._undos_read_by, self._undos_read_by.get(_this_task()) if after else None
            )

        return pending_undos

    def _measure(self, began: float, move: Move, error: BaseException | None) -> None:
        seconds = perf_counter() - began
        operation = _OPERATIONS.get(move.name, move.name)
        done = {metrics.DB_SYSTEM: self._system, metrics.DB_OPERATION: operation}
        if error is not None:
            done[metrics.ERROR_TYPE] = type(error).__name__
        try:
            self._instruments.operation(seconds, done)
        except Exception as raised:  # noqa: BLE001 - the journal was written: the call must not fail now
            _log_failure(raised)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a task runs every coroutine
    return task


def _noted(
    found: list[tuple[str, Entry]],
    read_by: WeakKeyDictionary[asyncio.Task[Any], Oldest],
    oldest: Oldest | None,
) -> list[tuple[str, Entry]]:
    """Update the current task's `Oldest` with the entries in ``found``, and return ``found``."""
    oldest = read_by[_this_task()] = oldest or Oldest()
    for _, entry in found:
        oldest.note(entry)
    return found


def _log_failure(raised: Exception) -> None:
    log.warning("the duration of a journal operation could not be recorded (%s)", type(raised).__name__)


# --- ages --------------------------------------------------------------------------------------------
# The ages of the oldest pending work, computed while `recover` reads the pending keys.


@define
class Oldest:
    """The start times of the oldest doubt, pending undo and pending notification.

    Each time is in seconds on the journal's clock, or None if no such work is pending.
    """

    doubt: float | None = None
    undo: float | None = None
    notification: float | None = None

    def note(self, entry: Entry) -> None:
        """Take the doubt, undos and notifications of ``entry`` into account.

        If the time of an undo or a notification is not recorded, the time of the key's claim is used.
        """
        if entry.state is KeyState.IN_DOUBT:
            self.doubt = _earlier(self.doubt, [entry.sent_until])
        self.undo = _earlier(self.undo, [_since(undo.since, entry) for undo in entry.pending_undos])
        self.notification = _earlier(
            self.notification, [_since(pending.since, entry) for pending in entry.pending_notifications]
        )

    def ages(self, now: float) -> dict[str, float]:
        """Return the age of the oldest doubt, undo and notification, in seconds; 0 if none is pending."""
        since = {"doubt": self.doubt, "undo": self.undo, "notification": self.notification}
        return {name: 0.0 if time is None else max(0.0, now - time) for name, time in since.items()}


def _since(since: float | None, entry: Entry) -> float:
    return entry.claimed_at if since is None else since


def _earlier(known: float | None, times: Iterable[float]) -> float | None:
    valid = [time for time in times if is_a_time(time)]  # A corrupt time must not hide the others.
    return min(valid if known is None else [known, *valid], default=None)


# --- propagation -------------------------------------------------------------------------------------
# The trace context in message headers. A worker reads it from the command and writes it to the outcome.


@contextmanager
def context_from(headers: Mapping[str, str]) -> Iterator[None]:
    """Return a context manager in which new spans belong to the trace in a message's headers.

    Headers without a valid trace context have no effect.

    Args:
        headers: the message's headers. Header names are case-insensitive.
    """
    # Proxies and brokers change the case of names, and propagators expect lower case.
    carrier = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    # Without the current context, headers without a trace would end the current trace.
    token = context.attach(propagate.extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def headers_of_context() -> dict[str, str]:
    """Return the current trace context as headers of a message."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


# --- spans --------------------------------------------------------------------------------------------
# The spans of orders and their attempts, built from the client's events.
#
# An order's span begins with the event `Claimed` and ends with the task of the call. So it includes the undos
# after a definite failure, and ``resolve`` after a doubt. If the order was created, nothing follows, and the
# span ends immediately. Every task ends, so no span stays open. A call without a recorded outcome gets the
# outcome `UNRECORDED`. If an event belongs to no order span, as in ``recover``, it is added to the current
# span.


ORDER_SPAN = "create_order"
ATTEMPT_SPAN = f"POST {CREATE_ORDER}"
_REQUEST: Attributes = {metrics.METHOD: "POST", metrics.TEMPLATE: CREATE_ORDER}


@define(eq=False, kw_only=True)
class OpenAttempt:
    """An HTTP attempt in progress, with its start time on the wall clock and on a monotonic clock."""

    span: Span
    began_at: int = field(factory=time.time_ns)
    began: float = field(factory=time.perf_counter)


@define(eq=False, kw_only=True)
class OpenOrder:
    """An order whose call is in progress, with the part of its outcome that is already known."""

    span: Span
    context: Context
    attempt: OpenAttempt | None = None
    outcome: str = metrics.UNRECORDED
    error: str | None = metrics.OTHER
    seconds: float = 0.0
    is_over: bool = False


class Orders:
    """Creates spans and updates metrics from the client's events.

    Args:
        tracer: the tracer that creates the spans.
        instruments: the metrics to update.
        server: the service's address, as attributes of attempt spans.
        span_events: whether span events are recorded.
    """

    def __init__(
        self, tracer: Tracer, instruments: Instruments, server: Attributes, *, span_events: bool
    ) -> None:
        self._tracer = tracer
        self._span_events = span_events
        self._instruments = instruments
        self._request = {**_REQUEST, **server}
        # Only the tasks reference the orders, so that the orders of an abandoned event loop are freed.
        self._open: weakref.WeakValueDictionary[str, OpenOrder] = weakref.WeakValueDictionary()
        self._recorders: dict[type[events.Event], Callable[[Any], None]] = {
            events.Claimed: self._claimed,
            events.RateLimitWaited: self._rate_limit_waited,
            events.HookPassed: self._hook_passed,
            events.HookUndone: self._hook_undone,
            events.UndoPending: self._undo_pending,
            events.AttemptStarted: self._attempt_started,
            events.AttemptFailed: self._attempt_failed,
            events.RetryScheduled: self._retry_scheduled,
            events.OrderCreated: self._created,
            events.OrderRefused: self._refused,
            events.NotSent: self._not_sent,
            events.OrderInDoubt: self._order_in_doubt,
            events.Resolved: self._resolved,
            events.DuplicateSuspected: self._duplicate_suspected,
        }

    def __len__(self) -> int:
        return len(self._open)

    def record(self, event: events.Event) -> None:
        """Record one event of a client."""
        record = self._recorders.get(type(event))
        if record is not None:
            record(event)

    def headers_for(self, intent_id: str | None) -> dict[str, str]:
        """Return headers with the trace context of the order's open attempt, or else of the current span."""
        where = context.get_current()
        order = None if intent_id is None else self._open.get(intent_id)
        if order is not None and order.attempt is not None:
            where = trace.set_span_in_context(order.attempt.span, where)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, baggage.clear(where))  # Baggage may name a person: the service gets none.
        return carrier

    # --- the order ----------------------------------------------------------------------------------

    def _claimed(self, event: events.Claimed) -> None:
        task = asyncio.current_task()
        if task is None:
            return  # Without a task, the span would never end.
        span = self._tracer.start_span(
            ORDER_SPAN,
            start_time=time.time_ns() - int(event.seconds * 1e9),
            attributes={
                metrics.KEY: event.key,
                metrics.INTENT_ID: event.intent_id,
                metrics.TAKEN_OVER: event.taken_over,
            },
        )
        order = OpenOrder(span=span, context=trace.set_span_in_context(span), seconds=event.seconds)
        self._open[event.intent_id] = order
        task.add_done_callback(partial(self._call_is_over, event.intent_id, order))
        # Attach the context, so that spans of hooks become children of the order's span. It ends with the
        # call's task, so it need not be detached.
        context.attach(order.context)

    def _call_is_over(self, intent_id: str, order: OpenOrder, _: asyncio.Task[Any]) -> None:
        if not order.is_over:
            self._end(intent_id, order)

    def _end(self, intent_id: str, order: OpenOrder) -> None:
        order.is_over = True
        if self._open.get(intent_id) is order:  # Another call may have taken over the intent.
            del self._open[intent_id]
        self._end_attempt(order, outcome=order.outcome, error=order.error)
        ended: dict[str, str | int] = {metrics.OUTCOME: order.outcome}
        if order.error is not None:
            ended[metrics.ERROR_TYPE] = order.error
            order.span.set_status(StatusCode.ERROR)
        order.span.set_attributes(ended)
        order.span.end()
        self._instruments.count(metrics.ORDERS, ended)
        self._instruments.measure(metrics.ORDER_DURATION, order.seconds, ended)

    def _ended(self, event: events.Event, outcome: Outcome, error: str | None) -> OpenOrder | None:
        """Record the outcome of the order in ``event``. Return the order, or None if it has no open span."""
        order = self._open.get(event.intent_id)
        if order is not None:
            order.outcome, order.seconds = outcome.value, event.seconds
            order.error = None if error is None else metrics.error_type(error)
        return order

    def _created(self, event: events.OrderCreated) -> None:
        order = self._ended(event, Outcome.CREATED, None)
        if order is not None:
            order.span.set_attribute(metrics.ORDER_ID, event.order_id)
            # The event has the attempt's duration. The time until now also includes writing the journal.
            self._end_attempt(order, outcome=order.outcome, error=None, status=event.status, took=event.took)
            self._end(event.intent_id, order)

    def _refused(self, event: events.OrderRefused) -> None:
        self._ended(event, Outcome.REFUSED, event.error)

    def _not_sent(self, event: events.NotSent) -> None:
        self._ended(event, Outcome.NOT_SENT, event.error)

    def _order_in_doubt(self, event: events.OrderInDoubt) -> None:
        error = metrics.error_type(event.error)
        order = self._ended(event, Outcome.UNKNOWN, error)
        if order is not None:
            # The attempt is still open if the service responded with an order of another key.
            self._end_attempt(order, outcome=Outcome.UNKNOWN.value, error=error)
        self._note(event, "order_in_doubt", {metrics.ERROR_TYPE: error})
        self._instruments.count(metrics.DOUBTS_BEGUN, {metrics.ERROR_TYPE: error})

    def _resolved(self, event: events.Resolved) -> None:
        created = event.outcome is Outcome.CREATED
        order = self._ended(event, event.outcome, None if created else "Refuted")
        how: dict[str, str | int] = {metrics.OUTCOME: event.outcome.value}
        self._instruments.count(metrics.DOUBTS_ENDED, how)
        found = {} if event.order_id is None else {metrics.ORDER_ID: event.order_id}
        self._note(event, "resolved", {**how, **found})
        if order is not None:
            order.span.set_attributes(found)

    def _duplicate_suspected(self, event: events.DuplicateSuspected) -> None:
        found = {} if event.order_id is None else {metrics.ORDER_ID: event.order_id}
        order = self._ended(event, Outcome.CREATED, "DuplicateSuspected")
        if order is not None:
            self._end_attempt(order, outcome=Outcome.CREATED.value, error=None)
        self._note(event, "duplicate_suspected", {**found})
        self._instruments.count(metrics.DUPLICATES_SUSPECTED)

    # --- its attempts -------------------------------------------------------------------------------

    def _attempt_started(self, event: events.AttemptStarted) -> None:
        order = self._open.get(event.intent_id)
        if order is None:
            return
        attributes = dict(self._request)
        if event.attempt > 1:
            attributes[metrics.RESENT] = event.attempt - 1
        span = self._tracer.start_span(
            ATTEMPT_SPAN, context=order.context, kind=SpanKind.CLIENT, attributes=attributes
        )
        order.attempt = OpenAttempt(span=span)

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        order = self._open.get(event.intent_id)
        if order is not None:
            error = metrics.error_type(event.error)
            self._end_attempt(order, outcome=event.outcome.value, error=error, status=event.status)

    def _end_attempt(
        self,
        order: OpenOrder,
        *,
        outcome: str,
        error: str | None,
        status: int | None = None,
        took: float | None = None,
    ) -> None:
        attempt, order.attempt = order.attempt, None
        if attempt is None:
            return
        seconds = time.perf_counter() - attempt.began if took is None else took
        ended: dict[str, str | int] = {metrics.OUTCOME: outcome}
        answered: dict[str, str | int] = {}
        if status is not None:
            answered[metrics.STATUS] = status
        if error is not None:
            answered[metrics.ERROR_TYPE] = ended[metrics.ERROR_TYPE] = error
            attempt.span.set_status(StatusCode.ERROR)
        attempt.span.set_attributes({**answered, **ended})
        attempt.span.end(attempt.began_at + int(seconds * 1e9))
        self._instruments.count(metrics.ATTEMPTS, ended)
        request = {**_REQUEST, **answered}
        self._instruments.measure(metrics.REQUEST_DURATION, seconds, request)

    # --- events of an order ------------------------------------------------------------------------

    def _rate_limit_waited(self, event: events.RateLimitWaited) -> None:
        self._note(event, "rate_limit_waited", {metrics.WAITED: event.waited})
        self._instruments.measure(metrics.RATE_LIMIT_WAIT, event.waited)

    def _hook_passed(self, event: events.HookPassed) -> None:
        self._note(event, "hook_passed", {metrics.HOOK: event.hook, metrics.HOOK_DURATION: event.took})

    def _hook_undone(self, event: events.HookUndone) -> None:
        self._note(event, "hook_undone", {metrics.HOOK: event.hook})

    def _undo_pending(self, event: events.UndoPending) -> None:
        why = {metrics.HOOK: event.hook, metrics.ERROR_TYPE: metrics.error_type(event.error)}
        self._note(event, "undo_pending", why)
        self._instruments.count(metrics.UNDOS_FAILED, why)

    def _retry_scheduled(self, event: events.RetryScheduled) -> None:
        self._note(event, "retry_scheduled", {metrics.PAUSE: event.pause})

    def _note(self, event: events.Event, name: str, attributes: dict[str, Any]) -> None:
        if not self._span_events:
            return
        order = self._open.get(event.intent_id)
        if order is not None:
            order.span.add_event(name, attributes)
        elif (span := trace.get_current_span()).is_recording():
            order_ids = {metrics.KEY: event.key, metrics.INTENT_ID: event.intent_id}
            span.add_event(name, {**order_ids, **attributes})
