"""The trace context passes from message to message, and exported data contain no personal data."""

import importlib
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import NoOpTracerProvider

from tests.faults.servers import Connection, Received, http, order_reply, serving
from tests.integrations.tracing import Traced, ended, id_of
from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import (
    AlreadyCreated,
    JournalFailed,
    OutcomeUnknown,
    PersonName,
    PreflightFailed,
    Rate,
    Refused,
    RetryPolicy,
    TransferClient,
    log_events,
)
from transfer_async._models.events import Event
from transfer_async.integrations.opentelemetry import Telemetry, context_from, headers_of_context
from transfer_async.journal import transitions
from transfer_async.sandbox import CloseAfterProcessing, Status

ROOT = Path(__file__).parent.parent.parent
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT = 0x00F067AA0BA902B7
TRACEPARENT = f"00-{TRACE:032x}-{PARENT:016x}-01"


# --- from message to message --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
async def test_an_order_belongs_to_its_messages_trace(at_work: World, traced: Traced, name):
    async with at_work.client(observers=[traced.telemetry]) as client:
        with context_from({name: TRACEPARENT}):
            await client.create_order(new_order(), key="k")

    assert {span.context.trace_id for span in traced.spans} == {TRACE}
    assert traced.order().parent.span_id == PARENT


def test_the_context_ends_with_the_message_even_if_its_handling_fails():
    with pytest.raises(KeyError), context_from({"traceparent": TRACEPARENT}):
        raise KeyError

    assert not trace.get_current_span().get_span_context().is_valid


@each("headers", [{}, {"traceparent": "?"}, {"traceparent": 7}, {"other": b"\xff"}])
def test_headers_that_name_no_trace_change_nothing(headers):
    with context_from({"traceparent": TRACEPARENT}), context_from(headers):
        assert trace.get_current_span().get_span_context().trace_id == TRACE


def test_the_context_is_injected_into_the_next_messages_headers():
    incoming = {"traceparent": TRACEPARENT, "tracestate": "bank=1", "baggage": "region=eu", "other": "x"}
    with context_from(incoming):
        assert baggage.get_baggage("region") == "eu"
        assert headers_of_context() == {name: incoming[name] for name in incoming if name != "other"}


def test_without_a_context_there_are_no_headers():
    assert headers_of_context() == {}


# --- from a request to the service --------------------------------------------------------------

INCOMING = {"traceparent": TRACEPARENT, "tracestate": "bank=1", "baggage": "customer=s3cr3t"}


async def anything(connection: Connection) -> None:
    """Answer the first order with "busy", other orders with their own data, and reads with an account."""
    while request := await connection.request():
        is_first = len(connection.server.requests) == 1
        connection.send(
            http(429, b"{}")
            if is_first
            else order_reply(request)
            if request.body
            else http(200, b'{"id": "usr-1"}')
        )


async def requests_of(telemetry: Telemetry) -> list[Received]:
    """Create an order and read an account within a message's trace. Return the requests."""
    settings = {"retry": RetryPolicy(first_delay=0.0), "request_id_header": "X-Id"}
    async with (
        serving(anything) as server,
        TransferClient(server.url, "abc", observers=[telemetry], **settings) as client,
    ):
        with context_from(INCOMING):
            await client.create_order(new_order(), key="k", held="hold-1")
            await client.who_am_i()
    return server.requests


@pytest.fixture
def traced_requests() -> Iterator[Traced]:
    """Yield telemetry that sends the trace context to the service."""
    made = Traced(trace_requests=True)
    yield made
    made.shutdown()


async def test_each_request_carries_the_trace_context_of_its_own_span(traced_requests: Traced):
    *orders, read = await requests_of(traced_requests.telemetry)

    spans = [f"00-{TRACE:032x}-{id_of(span):016x}-01" for span in traced_requests.attempts]
    assert [request.headers["traceparent"] for request in orders] == spans
    assert len(set(spans)) == 2
    assert read.headers["traceparent"] == TRACEPARENT
    assert {request.headers["tracestate"] for request in (*orders, read)} == {"bank=1"}
    assert len({request.headers["x-id"] for request in orders}) == 1


async def test_no_baggage_is_sent_to_the_service(traced_requests: Traced):
    requests = await requests_of(traced_requests.telemetry)

    assert len(requests) == 3
    assert not [request for request in requests if "s3cr3t" in repr(request.headers)]


async def test_without_the_option_no_request_carries_the_trace_context(traced: Traced):
    requests = await requests_of(traced.telemetry)

    assert len(requests) == 3
    assert not [request for request in requests if "traceparent" in request.headers]


async def test_without_a_trace_a_request_carries_none():
    telemetry = Telemetry(tracer_provider=NoOpTracerProvider(), trace_requests=True)
    async with (
        serving(anything) as server,
        TransferClient(server.url, "abc", observers=[telemetry]) as client,
    ):
        await client.create_order(new_order(), key="k", held="hold-1")

    assert not [request for request in server.requests if "traceparent" in request.headers]


# --- span events as logs ------------------------------------------------------------------------


class _Correlated(logging.Handler):
    """Records each log record's event and the span that was current."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if event := getattr(record, "transfer_event", None):  # The sandbox uses a child of this logger.
            self.logged.append((event, trace.get_current_span().get_span_context().span_id))


async def test_events_can_be_logged_within_the_orders_span_instead_of_being_span_events(
    at_work: World, caplog: pytest.LogCaptureFixture
):
    traced, handler, logger = Traced(span_events=False), _Correlated(), logging.getLogger("transfer_async")
    caplog.set_level(logging.DEBUG, logger.name)
    at_work.sandbox.faults.add(Status(429))
    logger.addHandler(handler)
    try:
        await ended(at_work, traced, observers=[traced.telemetry, log_events])
    finally:
        logger.removeHandler(handler)
        traced.shutdown()

    order = traced.order()
    assert order.events == ()
    assert {span_id for _, span_id in handler.logged} == {id_of(order)}
    names = [name for name, _ in handler.logged]
    assert names == [
        *("Claimed", "HookPassed", "AttemptStarted", "AttemptFailed", "RetryScheduled"),
        *("AttemptStarted", "OrderCreated"),
    ]


# --- no person ----------------------------------------------------------------------------------

MARK = "s3cr3t"


def an_order(**changes):
    return new_order(
        poster_amount=Decimal("77123456789.01"),
        matcher_amount=Decimal("77123456789.01"),
        exchange_rate=1,
        **changes,
    )


async def failed(kind, call):
    with pytest.raises(kind):
        await call


async def everything_that_can_happen(world: World, telemetry) -> None:
    """Publish every kind of event, for orders whose people, holds and responses contain the marker."""
    body = f'{{"message": "{MARK}-message"}}'
    faults, bank = world.sandbox.faults, world.bank
    bank.reference = f"{MARK}-hold"
    answer: list[object] = []

    async def resolve(intent, error):
        if not answer:
            raise OSError(f"{MARK}-office")
        return answer[0]

    whose = {"beneficiary": PersonName(f"{MARK}-first", f"{MARK}-last")}
    settings = {"observers": [telemetry, world.events.append], "resolve": resolve, "rate": Rate(1000.0)}
    journal = telemetry.journal(world.journal)
    async with world.client(journal=journal, **settings) as client:
        telemetry.watch(client)
        faults.add(Status(429, body=body, headers={"X-Request-Id": f"{MARK}-request"}))
        await client.create_order(new_order(), key="created", **whose)
        bank.release_error = OSError(f"{MARK}-release")
        faults.add(Status(422, body=body))
        await failed(Refused, client.create_order(an_order(), key="owed", **whose))
        bank.release_error = None
        marked = an_order(poster_username=f"{MARK}@example.com", poster_recipient_username=f"{MARK}@e.com")
        await failed(Refused, client.create_order(marked, key="refused", **whose))
        bank.place_error = OSError(f"{MARK}-place")
        await failed(PreflightFailed, client.create_order(an_order(), key="stopped", **whose))
        bank.place_error = None
        faults.add(CloseAfterProcessing())
        await failed(OutcomeUnknown, client.create_order(new_order(), key="doubt", **whose))
        answer.append(list(world.sandbox.orders)[-1])
        await failed(AlreadyCreated, client.create_order(new_order(), key="doubt", **whose))
        world.meanwhile(transitions.Create, lambda: world.refute("duplicate"))
        await failed(JournalFailed, client.create_order(new_order(), key="duplicate", **whose))
        world.journal.fail_on, world.journal.error = transitions.Create, OSError(f"{MARK}-disk")
        await failed(JournalFailed, client.create_order(new_order(), key="unrecorded", **whose))
        world.journal.fail_on = transitions.MarkSending
        await failed(JournalFailed, client.create_order(new_order(), key="broken", **whose))
        world.journal.fail_on = None
        telemetry.report(await client.recover())


OF_BOTH = {
    *("http.request.method", "http.response.status_code", "url.template", "error.type"),
    *("transfer_async.outcome", "transfer_async.hook.name"),
}


async def test_exports_contain_only_listed_attributes_and_no_personal_data(at_work: World, traced: Traced):
    await everything_that_can_happen(at_work, traced.telemetry)

    exported = traced.everything()
    assert {type(event) for event in at_work.events} == {*Event.__subclasses__()}
    assert {span.attributes["transfer_async.key"] for span in traced.orders} >= {"created", "doubt", "broken"}
    for private in (MARK, at_work.sandbox.token, "example.com", "77123456789", "155025", "1550.25", "NGN"):
        assert private not in exported, private
    assert {span.status.description for span in traced.spans} == {None}
    assert "Traceback" not in exported

    events = [event for span in traced.spans for event in span.events]
    assert "exception" not in {event.name for event in events}
    assert {name for one in (*traced.spans, *events) for name in one.attributes} == OF_BOTH | {
        *("transfer_async.key", "transfer_async.intent_id", "transfer_async.order_id"),
        *("transfer_async.taken_over", "transfer_async.retry.pause", "transfer_async.hook.duration"),
        *("http.request.resend_count", "transfer_async.rate.waited"),
    }
    names = {name for metric in traced.units() for _, recorded in traced.points(metric) for name in recorded}
    assert names == OF_BOTH | {"db.system.name", "db.operation.name"}  # neither a key nor an id


# --- the extra ----------------------------------------------------------------------------------


OURS = "transfer_async.integrations.opentelemetry"


@pytest.fixture
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove OpenTelemetry and the package's integration from the imported modules."""
    for name in [*sys.modules]:
        if name.startswith(OURS) or name.split(".")[0] == "opentelemetry":
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("nothing_imported")
def test_a_missing_opentelemetry_package_is_reported_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    needed = f"{OURS} needs opentelemetry-api: pip install 'transfer_async[opentelemetry]'"
    with pytest.raises(ImportError, match=re.escape(needed)):
        importlib.import_module(OURS)


@pytest.mark.usefixtures("nothing_imported")
def test_a_broken_opentelemetry_api_is_not_reported_as_missing(monkeypatch, tmp_path):
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("import what_it_needs", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="No module named 'what_it_needs'"):
        importlib.import_module(OURS)


@ONLY_IN_TRIALS
def test_only_the_opentelemetry_api_is_required():
    code = f"import sys, {OURS}; print(*(name for name in sys.modules if name.startswith('opentelemetry.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )

    assert "opentelemetry.trace" in done.stdout.split()
    assert not any(part in done.stdout for part in ("opentelemetry.sdk", "opentelemetry.semconv"))
