"""Traces and metrics of the client for OpenTelemetry; the extra is ``transfer_async[opentelemetry]``.

An order is a span with its HTTP attempts as children, a part of whatever trace its caller is in. Spans
and metrics bear the names of OpenTelemetry's semantic conventions where there is one, and otherwise
begin with ``transfer_async``. They tell keys, ids, statuses, and the names of hooks and errors: nothing
about a person, and neither an error's text nor its traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import TracerProvider, get_tracer_provider
from yarl import URL

from transfer_async._http.urls import CREATE_ORDER, normalised
from transfer_async._models.events import Event
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.version import VERSION
from transfer_async.integrations.opentelemetry import names
from transfer_async.integrations.opentelemetry.metrics import Instruments
from transfer_async.integrations.opentelemetry.spans import Orders
from transfer_async.integrations.opentelemetry.timed_journal import TimedJournal
from transfer_async.journal.protocol import Journal

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
        tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE, VERSION, names.SCHEMA)
        # With the address, since of two meters that are alike only the first one's gauges would be asked.
        meter = (meter_provider or get_meter_provider()).get_meter(SCOPE, VERSION, names.SCHEMA, where)
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
    where: dict[str, str | int] = {names.ADDRESS: url.host or ""}
    if url.port is not None:
        where[names.PORT] = url.port
    return where, {names.URL: address + CREATE_ORDER}
