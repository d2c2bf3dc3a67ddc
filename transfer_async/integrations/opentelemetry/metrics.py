"""The metrics of the client and of workers, with their names and units."""

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
"""Histogram boundaries for the duration of an HTTP request, in seconds, from the semantic conventions."""

ORDER_SECONDS = (*REQUEST_SECONDS, 15.0, 30.0, 60.0, 120.0)
"""Histogram boundaries for the duration of an order, in seconds. An order includes hooks and retries."""

JOURNAL_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Histogram boundaries for the duration of a journal operation, in seconds.

They are the semantic conventions' boundaries for databases, with some lower ones added.
"""


# The names of the counters and histograms.
ORDERS: Final = "transfer_async.orders"
ATTEMPTS: Final = "transfer_async.attempts"
DOUBTS_BEGUN: Final = "transfer_async.doubts.begun"
DOUBTS_ENDED: Final = "transfer_async.doubts.ended"
UNDOS_FAILED: Final = "transfer_async.undos.failed"
DUPLICATES_SUSPECTED: Final = "transfer_async.duplicates.suspected"
COMMANDS: Final = "transfer_async.commands"
COMMANDS_REDELIVERED: Final = "transfer_async.commands.redelivered"
ORDER_DURATION: Final = "transfer_async.order.duration"
COMMAND_DURATION: Final = "transfer_async.command.duration"
RATE_LIMIT_WAIT: Final = "transfer_async.rate.wait"
REQUEST_DURATION: Final = "http.client.request.duration"
OPERATION_DURATION: Final = "db.client.operation.duration"

COUNTERS: Final[dict[str, tuple[str, str]]] = {
    ORDERS: ("{order}", "Calls that claimed their key, by outcome."),
    ATTEMPTS: ("{attempt}", "HTTP attempts, by outcome."),
    DOUBTS_BEGUN: ("{order}", "Orders whose outcome became unknown."),
    DOUBTS_ENDED: ("{order}", "Orders in doubt that were resolved or refuted, by outcome."),
    UNDOS_FAILED: ("{undo}", "Undos that failed and are pending."),
    DUPLICATES_SUSPECTED: ("{order}", "Orders that may have been paid twice."),
    COMMANDS: (
        "{command}",
        "Command deliveries processed, by disposition.",
    ),
    COMMANDS_REDELIVERED: (
        "{command}",
        "Command redeliveries processed.",
    ),
}
"""The unit and the description of each counter."""

HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    ORDER_DURATION: ("Time from the start of a call to its outcome.", ORDER_SECONDS),
    COMMAND_DURATION: (
        "Time from a command's delivery to the broker's confirmation.",
        ORDER_SECONDS,
    ),
    RATE_LIMIT_WAIT: ("Time spent in the queue of the client's rate limiter.", ORDER_SECONDS),
    REQUEST_DURATION: ("Duration of HTTP client requests.", REQUEST_SECONDS),
    OPERATION_DURATION: ("Duration of database client operations.", JOURNAL_SECONDS),
}
"""The description of each histogram, and its boundaries in seconds."""

_WAITING = {
    "doubt": "order in doubt",
    "undo": "pending undo",
    "notification": "pending notification",
}


class Instruments:
    """The OpenTelemetry instruments of one `Telemetry` object.

    Args:
        meter: the meter that creates the instruments.
        where: the service's address, as attributes for every metric except the duration of journal
            operations.

    Attributes:
        in_doubt: the number of orders in doubt, or None until it is known.
        ages: the ages of the oldest doubt, pending undo and pending notification, in seconds.
        clients: weak references to the clients whose retry budgets are observed.
    """

    def __init__(self, meter: Meter, where: Attributes) -> None:
        self._where = where
        self.in_doubt: int | None = None
        self.ages: Mapping[str, float] = {}
        self.clients: weakref.WeakSet[TransferClient] = weakref.WeakSet()
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=description)
            for name, (unit, description) in COUNTERS.items()
        }
        self._histograms = {
            name: meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=boundaries
            )
            for name, (description, boundaries) in HISTOGRAMS.items()
        }
        # These are observable gauges because some versions export the value of other gauges only once.
        meter.create_observable_gauge(
            "transfer_async.orders.in_doubt",
            [self._observe_doubts],
            unit="{order}",
            description="Orders in doubt, as recorded in the journal.",
        )
        for waiting, what in _WAITING.items():
            meter.create_observable_gauge(
                f"transfer_async.{waiting}.oldest_age",
                [partial(self._observe_age, waiting)],
                unit="s",
                description=f"Age of the oldest {what}, as recorded in the journal.",
            )
        meter.create_observable_gauge(
            "transfer_async.retry_budget.left",
            [self._observe_budgets],
            unit="{token}",
            description="Tokens left in the retry budget; with several clients, the lowest count.",
        )

    def count(self, name: str, attributes: Attributes | None = None) -> None:
        """Add 1 to a counter."""
        self._counters[name].add(1, {**self._where, **(attributes or {})})

    def measure(self, name: str, seconds: float, attributes: Attributes | None = None) -> None:
        """Record the duration of an order, a request or a command."""
        self._histograms[name].record(seconds, {**self._where, **(attributes or {})})

    def operation(self, seconds: float, done: Attributes) -> None:
        """Record the duration of a journal operation, with ``done`` as its only attributes."""
        self._histograms[OPERATION_DURATION].record(seconds, done)

    def command(self, *, disposition: str, deliveries: int, seconds: float) -> None:
        """Count a delivery that a worker has processed, and record its duration."""
        attributes = {DISPOSITION: disposition}
        self.count(COMMANDS, attributes)
        self.measure(COMMAND_DURATION, seconds, attributes)
        if deliveries > 1:
            self.count(COMMANDS_REDELIVERED)

    def _observe_doubts(self, _: CallbackOptions) -> Iterable[Observation]:
        return [] if self.in_doubt is None else [Observation(self.in_doubt, self._where)]

    def _observe_age(self, waiting: str, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self.ages[waiting], self._where)] if waiting in self.ages else []

    def _observe_budgets(self, _: CallbackOptions) -> Iterable[Observation]:
        # The exporter's thread calls this method, so iterate over a copy.
        left = [client.retry_budget for client in list(self.clients)]
        return [Observation(min(left), self._where)] if left else []


# --- names -------------------------------------------------------------------------------------------
# The names of attributes. Where the semantic conventions define a name, it is used. The names are repeated
# here because the conventions' own package has been in beta for years.


SCHEMA: Final = "https://opentelemetry.io/schemas/1.33.0"
"""The version of the semantic conventions, which is the first one with stable names for databases."""

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
"""The outcome attribute of a call without a recorded outcome.

The call's journal failed, or another call recorded the outcome first.
"""

OTHER: Final = "_OTHER"
"""The semantic conventions' ``error.type`` for an error without a known name."""


def error_type(name: str) -> str:
    """Return ``name`` if it may be a class name, otherwise `OTHER`.

    Free text in attributes would create too many metric series.
    """
    return name if name.isidentifier() else OTHER
