"""Telemetry in memory, with short names for its spans and metrics."""

import json
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.bank import World, new_order
from transfer_async.integrations.opentelemetry import Telemetry

ORDER = "create_order"
ATTEMPT = "POST /api/api/v1/order/create"


class Traced:
    """Telemetry, with its spans and metrics."""

    def __init__(self, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        # An explicit resource, because detecting one would block the loop.
        who = Resource({"service.name": "a bank's payments"})
        self.tracers = TracerProvider(resource=who)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], resource=who)
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    def shutdown(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    # --- spans ----------------------------------------------------------------------------------

    @property
    def spans(self) -> list[ReadableSpan]:
        """All ended spans, in the order in which they ended."""
        return [*self._exporter.get_finished_spans()]

    @property
    def orders(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == ORDER]

    @property
    def attempts(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == ATTEMPT]

    def order(self) -> ReadableSpan:
        """Return the span of the only order."""
        (order,) = self.orders
        return order

    def nothing_is_open(self) -> bool:
        return self.telemetry.open_orders == 0

    # --- metrics --------------------------------------------------------------------------------

    def points(self, name: str) -> list[tuple[Any, dict[str, Any]]]:
        """Return the values of a metric (for a histogram, its counts) with their attributes."""
        return [
            (point.count if hasattr(point, "count") else point.value, dict(point.attributes))
            for point in self.points_of(name)
        ]

    def total(self, name: str, **attributes: Any) -> Any:
        """Return the sum of a metric over the points with these attributes (``__`` stands for a dot)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return sum(value for value, recorded in self.points(name) if wanted.items() <= recorded.items())

    def points_of(self, name: str) -> list[Any]:
        return [
            point for metric in self._metrics() if metric.name == name for point in metric.data.data_points
        ]

    def units(self) -> dict[str, str]:
        return {metric.name: metric.unit for metric in self._metrics()}

    def everything(self) -> str:
        """Return all exported data as text."""
        spans = [span.to_json() for span in self.spans]
        metrics = self._reader.get_metrics_data()
        return "\n".join([*spans, "" if metrics is None else json.dumps(json.loads(metrics.to_json()))])

    def _metrics(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = (
            [] if data is None else [one for found in data.resource_metrics for one in found.scope_metrics]
        )
        return [metric for scope in scopes for metric in scope.metrics]


def events_of(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    return [(event.name, dict(event.attributes or {})) for event in span.events]


def outcome_of(span: ReadableSpan) -> tuple[Any, Any]:
    """Return the outcome and the error type of a span."""
    return span.attributes["transfer_async.outcome"], span.attributes.get("error.type")


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


async def ended(world: World, traced: Traced, error: type[Exception] | None = None, **settings: Any) -> Any:
    """Make one call with the key ``k`` and wait for its task. Return the order or the expected error."""
    order = settings.pop("order", None) or new_order()
    async with world.client(**{"observers": [traced.telemetry]} | settings) as client:
        if error is None:
            return await client.create_order(order, key="k")
        with pytest.raises(error) as caught:
            await client.create_order(order, key="k")
    return caught.value


def found(world: World) -> Any:
    """Return a ``resolve`` callback that finds the first order."""

    async def resolve(*_: object) -> str:
        return next(iter(world.sandbox.orders))

    return resolve
