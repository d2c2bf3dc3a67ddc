"""The metrics: what is counted and measured, under which name, in which unit."""

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
"""The conventions' boundaries for an HTTP request."""

ORDER_SECONDS = (*REQUEST_SECONDS, 15.0, 30.0, 60.0, 120.0)
"""An order's: its hooks and its retries take longer than a request."""

JOURNAL_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""The conventions' for a database, and finer at the low end, where a local disk is."""


_WAITING = {
    "doubt": "order in doubt",
    "undo": "undo that is owed",
    "untold": "end of a doubt that is not published yet",
}


class Instruments:
    """The instruments of one `Telemetry`.

    Args:
        meter: makes them.
        where: the service's address; it goes with every metric.
    """

    def __init__(self, meter: Meter, where: Attributes) -> None:
        self._where = where
        self._clients: weakref.WeakSet[TransferClient] = weakref.WeakSet()
        self._count_orders(meter)
        self._measure_time(meter)
        self._doubts: int | None = None
        meter.create_observable_gauge(
            # Observed, not set: a gauge that is set is told once by some versions, and then no more.
            "transfer_async.orders.in_doubt",
            [self._observe_doubts],
            unit="{order}",
            description="Orders in doubt, by the journal.",
        )
        self._ages: dict[str, float] = {}
        for waiting, what in _WAITING.items():
            meter.create_observable_gauge(
                f"transfer_async.{waiting}.oldest_age",
                [partial(self._observe_age, waiting)],
                unit="s",
                description=f"Age of the oldest {what}, by the journal.",
            )
        meter.create_observable_gauge(
            "transfer_async.retry_budget.left",
            [self._observe_budgets],
            unit="{token}",
            description="What is left of the retry budget; of several clients', the least.",
        )

    def _count_orders(self, meter: Meter) -> None:
        self._orders = meter.create_counter(
            "transfer_async.orders",
            unit="{order}",
            description="Calls that took their key, by their end.",
        )
        self._attempts = meter.create_counter(
            "transfer_async.attempts",
            unit="{attempt}",
            description="HTTP attempts, by what is certain.",
        )
        self._begun = meter.create_counter(
            "transfer_async.doubts.begun", unit="{order}", description="Orders that went in doubt."
        )
        self._ended = meter.create_counter(
            "transfer_async.doubts.ended", unit="{order}", description="Doubts that ended, by how."
        )
        self._owed = meter.create_counter(
            "transfer_async.undos.owed",
            unit="{undo}",
            description="Undos that failed, and are owed.",
        )
        self._duplicates = meter.create_counter(
            "transfer_async.duplicates.suspected",
            unit="{order}",
            description="Orders that nobody wished for.",
        )

    def _measure_time(self, meter: Meter) -> None:
        self._order_seconds = meter.create_histogram(
            "transfer_async.order.duration",
            unit="s",
            description="From the call to its outcome.",
            explicit_bucket_boundaries_advisory=ORDER_SECONDS,
        )
        self._wait_seconds = meter.create_histogram(
            "transfer_async.rate.wait",
            unit="s",
            description="Waits for a turn at the client's rate.",
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
        """An order's call ended."""
        told = {**self._where, **ended}
        self._orders.add(1, told)
        self._order_seconds.record(seconds, told)

    def attempt(self, *, seconds: float, request: Attributes, ended: Attributes) -> None:
        """An HTTP attempt ended: ``request`` in the conventions' words, ``ended`` in ours."""
        self._attempts.add(1, {**self._where, **ended})
        self._request_seconds.record(seconds, {**self._where, **request})

    def waited(self, seconds: float) -> None:
        """An order's turn came."""
        self._wait_seconds.record(seconds, self._where)

    def doubt_began(self, why: Attributes) -> None:
        """An order went in doubt."""
        self._begun.add(1, {**self._where, **why})

    def doubt_ended(self, how: Attributes) -> None:
        """A doubt ended."""
        self._ended.add(1, {**self._where, **how})

    def undo_owed(self, why: Attributes) -> None:
        """An undo failed."""
        self._owed.add(1, {**self._where, **why})

    def duplicate(self) -> None:
        """A duplicate is suspected."""
        self._duplicates.add(1, self._where)

    # --- the journal, and the budget ----------------------------------------------------------------

    def operation(self, *, seconds: float, done: Attributes) -> None:
        """The journal did something."""
        self._journal_seconds.record(seconds, done)

    def in_doubt(self, count: int) -> None:
        """So many orders are in doubt now."""
        self._doubts = count

    def oldest(self, ages: Mapping[str, float]) -> None:
        """The oldest doubt, undo and untold end are so many seconds old now."""
        self._ages = dict(ages)

    def watch(self, client: TransferClient) -> None:
        """Measure what is left of the client's retry budget, as long as there is the client."""
        self._clients.add(client)

    def _observe_doubts(self, _: CallbackOptions) -> Iterable[Observation]:
        return [] if self._doubts is None else [Observation(self._doubts, self._where)]

    def _observe_age(self, waiting: str, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._ages[waiting], self._where)] if waiting in self._ages else []

    def _observe_budgets(self, _: CallbackOptions) -> Iterable[Observation]:
        # Read by the exporter's thread: it takes a copy first.
        left = [client.retry_budget for client in list(self._clients)]
        return [Observation(min(left), self._where)] if left else []


# --- names -------------------------------------------------------------------------------------------
# What spans and metrics are called: the semantic conventions' names where there is one, else our own.
#
# Names are strings here, not imports: the conventions come in a package of their own, for ever in beta.


SCHEMA: Final = "https://opentelemetry.io/schemas/1.33.0"
"""The version of the conventions that the names are taken from: the first with stable ones for databases."""

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
TAKEN_OVER: Final = "transfer_async.taken_over"
HOOK: Final = "transfer_async.hook.name"
HOOK_DURATION: Final = "transfer_async.hook.duration"
PAUSE: Final = "transfer_async.retry.pause"
WAITED: Final = "transfer_async.rate.waited"

UNRECORDED: Final = "unrecorded"
"""The outcome of a call that did not write down how it ended: its journal failed, or others were faster."""

OTHER: Final = "_OTHER"
"""The conventions' ``error.type`` for an error that has no name."""


def error_type(name: str) -> str:
    """``name`` if it is that of a class: sentences have no place in an attribute that metrics go by."""
    return name if name.isidentifier() else OTHER
