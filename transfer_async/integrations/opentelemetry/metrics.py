"""The metrics of the client, with their names and units."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

if TYPE_CHECKING:
    from transfer_async._client import TransferClient


Attributes = Mapping[str, str | int]

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Histogram boundaries in seconds for an HTTP request, from the semantic conventions."""

ORDER_SECONDS = (*REQUEST_SECONDS, 15.0, 30.0, 60.0, 120.0)
"""Histogram boundaries in seconds for an order. Its hooks and retries take longer than a request."""

JOURNAL_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Histogram boundaries in seconds for the journal: the conventions' for databases, plus finer ones."""


_WAITING = {
    "doubt": "order in doubt",
    "undo": "pending undo",
    "notification": "pending notification",
}


class Instruments:
    """The instruments of one `Telemetry`.

    Args:
        meter: the meter that creates the instruments.
        where: the service's address, which is an attribute of every metric.
    """

    def __init__(self, meter: Meter, where: Attributes) -> None:
        self._where = where
        self._clients: weakref.WeakSet[TransferClient] = weakref.WeakSet()
        self._count_orders(meter)
        self._measure_time(meter)
        self._doubts: int | None = None
        meter.create_observable_gauge(
            # An observable gauge, because some versions export a value once only.
            "transfer_async.orders.in_doubt",
            [self._observe_doubts],
            unit="{order}",
            description="Orders in doubt, from the journal.",
        )
        self._ages: dict[str, float] = {}
        for waiting, what in _WAITING.items():
            meter.create_observable_gauge(
                f"transfer_async.{waiting}.oldest_age",
                [partial(self._observe_age, waiting)],
                unit="s",
                description=f"Age of the oldest {what}, from the journal.",
            )
        meter.create_observable_gauge(
            "transfer_async.retry_budget.left",
            [self._observe_budgets],
            unit="{token}",
            description="Tokens left in the retry budget. If there are several clients, the lowest.",
        )

    def _count_orders(self, meter: Meter) -> None:
        self._orders = meter.create_counter(
            "transfer_async.orders",
            unit="{order}",
            description="Calls that claimed their key, by outcome.",
        )
        self._attempts = meter.create_counter(
            "transfer_async.attempts",
            unit="{attempt}",
            description="HTTP attempts, by outcome.",
        )
        self._begun = meter.create_counter(
            "transfer_async.doubts.begun", unit="{order}", description="Orders that became in doubt."
        )
        self._ended = meter.create_counter(
            "transfer_async.doubts.ended", unit="{order}", description="Doubts that ended, by outcome."
        )
        self._failed_undos = meter.create_counter(
            "transfer_async.undos.failed",
            unit="{undo}",
            description="Undos that failed and are pending.",
        )
        self._duplicates = meter.create_counter(
            "transfer_async.duplicates.suspected",
            unit="{order}",
            description="Orders that may be a second payment.",
        )

        self._commands = meter.create_counter(
            "transfer_async.commands",
            unit="{command}",
            description="Deliveries of commands that a worker processed, by disposition.",
        )
        self._redelivered = meter.create_counter(
            "transfer_async.commands.redelivered",
            unit="{command}",
            description="Processed deliveries that were not the first of their command.",
        )

    def _measure_time(self, meter: Meter) -> None:
        self._order_seconds = meter.create_histogram(
            "transfer_async.order.duration",
            unit="s",
            description="Time from the call to its outcome.",
            explicit_bucket_boundaries_advisory=ORDER_SECONDS,
        )
        self._command_seconds = meter.create_histogram(
            "transfer_async.command.duration",
            unit="s",
            description="Time from a command's delivery to the broker's confirmation.",
            explicit_bucket_boundaries_advisory=ORDER_SECONDS,
        )
        self._wait_seconds = meter.create_histogram(
            "transfer_async.rate.wait",
            unit="s",
            description="Time in the queue of the client's rate limiter.",
            explicit_bucket_boundaries_advisory=ORDER_SECONDS,
        )
        self._request_seconds = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=REQUEST_SECONDS,
        )
        self._journal_seconds = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=JOURNAL_SECONDS,
        )

    # --- orders -------------------------------------------------------------------------------------

    def order(self, *, seconds: float, ended: Attributes) -> None:
        """Count a call that ended, and record its duration."""
        attributes = {**self._where, **ended}
        self._orders.add(1, attributes)
        self._order_seconds.record(seconds, attributes)

    def attempt(self, *, seconds: float, request: Attributes, ended: Attributes) -> None:
        """Count an HTTP attempt. ``request`` has the conventions' attributes, ``ended`` our own."""
        self._attempts.add(1, {**self._where, **ended})
        self._request_seconds.record(seconds, {**self._where, **request})

    def waited(self, seconds: float) -> None:
        """Record a wait in the rate limiter's queue."""
        self._wait_seconds.record(seconds, self._where)

    def doubt_began(self, why: Attributes) -> None:
        """Count an order that became in doubt."""
        self._begun.add(1, {**self._where, **why})

    def doubt_ended(self, how: Attributes) -> None:
        """Count a doubt that ended."""
        self._ended.add(1, {**self._where, **how})

    def undo_failed(self, why: Attributes) -> None:
        """Count an undo that failed."""
        self._failed_undos.add(1, {**self._where, **why})

    def duplicate(self) -> None:
        """Count a suspected duplicate."""
        self._duplicates.add(1, self._where)

    def command(self, *, disposition: str, deliveries: int, seconds: float) -> None:
        """Count a delivery that a worker has processed, and its duration."""
        attributes = {**self._where, DISPOSITION: disposition}
        self._commands.add(1, attributes)
        self._command_seconds.record(seconds, attributes)
        if deliveries > 1:
            self._redelivered.add(1, self._where)

    # --- the journal, and the budget ----------------------------------------------------------------

    def operation(self, *, seconds: float, done: Attributes) -> None:
        """Record the duration of a journal operation."""
        self._journal_seconds.record(seconds, done)

    def in_doubt(self, count: int) -> None:
        """Set the number of orders in doubt."""
        self._doubts = count

    def oldest(self, ages: Mapping[str, float]) -> None:
        """Set the ages of the oldest doubt, pending undo and pending notification, in seconds."""
        self._ages = dict(ages)

    def watch(self, client: TransferClient) -> None:
        """Observe the client's retry budget as long as the client exists."""
        self._clients.add(client)

    def _observe_doubts(self, _: CallbackOptions) -> Iterable[Observation]:
        return [] if self._doubts is None else [Observation(self._doubts, self._where)]

    def _observe_age(self, waiting: str, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._ages[waiting], self._where)] if waiting in self._ages else []

    def _observe_budgets(self, _: CallbackOptions) -> Iterable[Observation]:
        # The exporter's thread calls this, so iterate over a copy.
        left = [client.retry_budget for client in list(self._clients)]
        return [Observation(min(left), self._where)] if left else []


# --- names -------------------------------------------------------------------------------------------
# The names of spans, metrics and attributes. They are those of the semantic conventions, if these have a
# name.
# They are written as strings because the conventions' own package has been in beta for years.


SCHEMA: Final = "https://opentelemetry.io/schemas/1.33.0"
"""The version of the semantic conventions. It is the first with stable names for databases."""

ERROR_TYPE: Final = "error.type"
METHOD: Final = "http.request.method"
STATUS: Final = "http.response.status_code"
RESENT: Final = "http.request.resend_count"
TEMPLATE: Final = "url.template"
URL: Final = "url.full"
ADDRESS: Final = "server.address"
PORT: Final = "server.port"
DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"

KEY: Final = "transfer_async.key"
INTENT_ID: Final = "transfer_async.intent_id"
ORDER_ID: Final = "transfer_async.order_id"
OUTCOME: Final = "transfer_async.outcome"
DISPOSITION: Final = "transfer_async.disposition"
TAKEN_OVER: Final = "transfer_async.taken_over"
HOOK: Final = "transfer_async.hook.name"
HOOK_DURATION: Final = "transfer_async.hook.duration"
PAUSE: Final = "transfer_async.retry.pause"
WAITED: Final = "transfer_async.rate.waited"

UNRECORDED: Final = "unrecorded"
"""The outcome of a call that recorded no outcome: its journal failed, or another call recorded one first."""

OTHER: Final = "_OTHER"
"""The conventions' ``error.type`` for an error without a class name."""


def error_type(name: str) -> str:
    """Return ``name`` if it is a class name, else `OTHER`. Free text would create too many metric series."""
    return name if name.isidentifier() else OTHER
