"""The spans of orders and their attempts, built from the client's events.

An order's span begins with `Claimed` and lasts until the task of its call ends. So it includes undos after a
definite failure, and ``resolve`` after a doubt. If the order was created, nothing follows, and its span ends
at once. Every task ends, so no span stays open. A call that ends without an outcome is `UNRECORDED`.

Events of calls without a span here, for example of ``recover``, become events of the current span.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from transfer_async._http.urls import CREATE_ORDER
from transfer_async._models import events
from transfer_async._models.errors import Outcome
from transfer_async.integrations.opentelemetry import metrics
from transfer_async.integrations.opentelemetry.metrics import Attributes, Instruments

ORDER_SPAN = "create_order"
ATTEMPT_SPAN = f"POST {CREATE_ORDER}"
_REQUEST: Attributes = {metrics.METHOD: "POST", metrics.TEMPLATE: CREATE_ORDER}


@define(eq=False, kw_only=True)
class OpenAttempt:
    """An HTTP attempt in progress, with its start in nanoseconds since 1970 and on a monotonic clock."""

    span: Span
    began_at: int = field(factory=time.time_ns)
    began: float = field(factory=time.perf_counter)


@define(eq=False, kw_only=True)
class OpenOrder:
    """An order whose call is in progress, and what is known of its end so far."""

    span: Span
    context: Context
    attempt: OpenAttempt | None = None
    outcome: str = metrics.UNRECORDED
    error: str | None = metrics.OTHER
    seconds: float = 0.0
    is_over: bool = False


class Orders:
    """Create spans from events, and update the metrics.

    Args:
        tracer: creates the spans.
        instruments: the metrics.
        server: the service's address, for the spans of attempts.
    """

    def __init__(self, tracer: Tracer, instruments: Instruments, server: Attributes) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._request = {**_REQUEST, **server}
        # Only the tasks hold the orders, so that an abandoned event loop frees its orders.
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
        """Record one event."""
        record = self._recorders.get(type(event))
        if record is not None:
            record(event)

    # --- the order ----------------------------------------------------------------------------------

    def _claimed(self, event: events.Claimed) -> None:
        task = asyncio.current_task()
        if task is None:
            return  # without a task, nothing would end the span
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
        # Spans of hooks belong to the order. Detaching is not needed: the context ends with the call's task.
        context.attach(order.context)

    def _call_is_over(self, intent_id: str, order: OpenOrder, _: asyncio.Task[Any]) -> None:
        if not order.is_over:
            self._end(intent_id, order)

    def _end(self, intent_id: str, order: OpenOrder) -> None:
        order.is_over = True
        if self._open.get(intent_id) is order:  # another call may have taken over the intent
            del self._open[intent_id]
        self._end_attempt(order, outcome=order.outcome, error=order.error)
        ended: dict[str, str | int] = {metrics.OUTCOME: order.outcome}
        if order.error is not None:
            ended[metrics.ERROR_TYPE] = order.error
            order.span.set_status(StatusCode.ERROR)
        order.span.set_attributes(ended)
        order.span.end()
        self._instruments.order(seconds=order.seconds, ended=ended)

    def _ended(self, event: events.Event, outcome: Outcome, error: str | None) -> OpenOrder | None:
        """Note how the order ended, as far as is known now."""
        order = self._open.get(event.intent_id)
        if order is not None:
            order.outcome, order.seconds = outcome.value, event.seconds
            order.error = None if error is None else metrics.error_type(error)
        return order

    def _created(self, event: events.OrderCreated) -> None:
        order = self._ended(event, Outcome.CREATED, None)
        if order is not None:
            order.span.set_attribute(metrics.ORDER_ID, event.order_id)
            # The response arrived before it was recorded.
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
            # The attempt is still open if its response was an order that belongs to another key.
            self._end_attempt(order, outcome=Outcome.UNKNOWN.value, error=error)
        self._note(event, "order_in_doubt", {metrics.ERROR_TYPE: error})
        self._instruments.doubt_began({metrics.ERROR_TYPE: error})

    def _resolved(self, event: events.Resolved) -> None:
        created = event.outcome is Outcome.CREATED
        order = self._ended(event, event.outcome, None if created else "Refuted")
        how: dict[str, str | int] = {metrics.OUTCOME: event.outcome.value}
        self._instruments.doubt_ended(how)
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
        self._instruments.duplicate()

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
        self._instruments.attempt(seconds=seconds, request={**_REQUEST, **answered}, ended=ended)

    # --- events of an order ------------------------------------------------------------------------

    def _rate_limit_waited(self, event: events.RateLimitWaited) -> None:
        self._note(event, "rate_limit_waited", {metrics.WAITED: event.waited})
        self._instruments.waited(event.waited)

    def _hook_passed(self, event: events.HookPassed) -> None:
        self._note(event, "hook_passed", {metrics.HOOK: event.hook, metrics.HOOK_DURATION: event.took})

    def _hook_undone(self, event: events.HookUndone) -> None:
        self._note(event, "hook_undone", {metrics.HOOK: event.hook})

    def _undo_pending(self, event: events.UndoPending) -> None:
        why = {metrics.HOOK: event.hook, metrics.ERROR_TYPE: metrics.error_type(event.error)}
        self._note(event, "undo_pending", why)
        self._instruments.undo_failed(why)

    def _retry_scheduled(self, event: events.RetryScheduled) -> None:
        self._note(event, "retry_scheduled", {metrics.PAUSE: event.pause})

    def _note(self, event: events.Event, name: str, attributes: dict[str, Any]) -> None:
        order = self._open.get(event.intent_id)
        if order is not None:
            order.span.add_event(name, attributes)
        elif (span := trace.get_current_span()).is_recording():
            order_ids = {metrics.KEY: event.key, metrics.INTENT_ID: event.intent_id}
            span.add_event(name, {**order_ids, **attributes})
