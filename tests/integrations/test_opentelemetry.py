"""Each order is a span, its attempts are child spans, and every span ends."""

import asyncio
import gc
from unittest.mock import Mock

import pytest
from opentelemetry import context
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider

from tests.integrations.tracing import (
    Traced,
    ended,
    events_of,
    found,
    id_of,
    outcome_of,
    parent_of,
)
from tests.support.bank import Gate, World, new_order, refused_order, turns, world
from transfer_async import (
    NO_ORDER,
    AlreadyCreated,
    AttemptStarted,
    Claimed,
    ConnectionFailed,
    HookPassed,
    JournalFailed,
    OrderCreated,
    OutcomeUnknown,
    Refused,
    Refuted,
    UnreadableOrder,
)
from transfer_async.integrations.opentelemetry import Telemetry
from transfer_async.journal import transitions
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, GarbageBody, Status

ANSWERED = {"http.request.method": "POST", "url.template": "/api/api/v1/order/create"}
"""Attributes that every attempt has."""

# --- created ------------------------------------------------------------------------------------


async def test_a_created_order_is_a_span_with_a_client_span_for_its_attempt(at_work: World, traced: Traced):
    order = await ended(at_work, traced)

    span, (attempt,) = traced.order(), traced.attempts
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert (attempt.kind, attempt.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert parent_of(attempt) == id_of(span)
    assert dict(span.attributes) == {
        "transfer_async.key": "k",
        "transfer_async.intent_id": (await at_work.entry()).intent_id,
        "transfer_async.taken_over": False,
        "transfer_async.outcome": "created",
        "transfer_async.order_id": order.id,
    }
    assert dict(attempt.attributes) == ANSWERED | {
        "http.response.status_code": 200,
        "transfer_async.outcome": "created",
    }
    assert span.instrumentation_scope.name == "transfer_async"
    assert traced.nothing_is_open()


async def test_an_attempt_ends_with_its_response_not_when_it_is_recorded(traced: Traced):
    common_fields = {"key": "k", "intent_id": "i", "attempt": 1, "seconds": 0.0}
    traced.telemetry(Claimed(**common_fields))
    traced.telemetry(AttemptStarted(**common_fields))
    traced.telemetry(OrderCreated(**common_fields, order_id="tx-1", status=200, took=100.0))

    (attempt,) = traced.attempts
    assert 99.0 < (attempt.end_time - attempt.start_time) / 1e9 < 101.0


async def test_an_order_span_begins_with_the_call_not_with_the_claim(at_work: World, traced: Traced):
    at_work.journal.before[Claim] = at_work.passing(30.0)
    await ended(at_work, traced)

    span = traced.order()
    assert span.end_time - span.start_time >= 30 * 10**9


async def test_attempts_name_the_server_if_it_is_known(at_work: World):
    traced = Traced(base_url=f"{at_work.sandbox.base_url}/")
    await ended(at_work, traced)

    attributes = traced.attempts[0].attributes
    assert attributes["server.address"] == "127.0.0.1"
    assert f"http://127.0.0.1:{attributes['server.port']}" == at_work.sandbox.base_url
    assert attributes["url.full"] == f"{at_work.sandbox.base_url}/api/api/v1/order/create"
    assert "server.address" not in traced.order().attributes
    traced.shutdown()


def test_a_base_url_that_the_client_would_reject_is_rejected():
    with pytest.raises(ValueError, match="base_url"):
        Telemetry(base_url="http://service.example")


async def test_hooks_are_events_of_the_order(at_work: World, traced: Traced):
    at_work.bank.on_place = at_work.passing(0.25)
    await ended(at_work, traced)

    passed = {"transfer_async.hook.name": "funds_hold", "transfer_async.hook.duration": 0.25}
    assert events_of(traced.order()) == [("hook_passed", passed)]


async def test_spans_of_a_hook_are_children_of_the_order(at_work: World, traced: Traced):
    tracer = traced.tracers.get_tracer("the bank's")

    async def look_up(_):
        with tracer.start_as_current_span("ledger"):
            await asyncio.sleep(0)

    at_work.bank.on_place = look_up
    await ended(at_work, traced)

    (ledger,) = [span for span in traced.spans if span.name == "ledger"]
    assert parent_of(ledger) == id_of(traced.order())


async def test_a_context_that_a_hook_leaves_attached_does_not_change_parents(at_work: World, traced: Traced):
    async def careless(_):
        context.attach(context.Context())

    at_work.bank.on_place = careless
    await ended(at_work, traced)

    assert parent_of(traced.attempts[0]) == id_of(traced.order())


# --- retries ---------------------------------------------------------------------------------


async def test_a_retried_order_is_traced_with_a_span_for_each_attempt(at_work: World, traced: Traced):
    at_work.sandbox.faults.add(Status(429))
    at_work.time.chances = [0.5]
    await ended(at_work, traced)

    first, second = traced.attempts
    assert dict(first.attributes) == ANSWERED | {
        "http.response.status_code": 429,
        "error.type": "RateLimited",
        "transfer_async.outcome": "refused",
    }
    assert first.status.status_code is StatusCode.ERROR
    assert second.attributes["http.request.resend_count"] == 1
    assert second.status.status_code is StatusCode.UNSET
    assert {parent_of(first), parent_of(second)} == {id_of(traced.order())}
    assert ("retry_scheduled", {"transfer_async.retry.pause": 0.025}) in events_of(traced.order())
    assert first.end_time <= second.start_time
    assert traced.order().status.status_code is StatusCode.UNSET


# --- definite failures -------------------------------------------------------------------------------


async def test_a_refused_order_is_traced_with_its_status_and_undo(at_work: World, traced: Traced):
    await ended(at_work, traced, Refused, order=refused_order())

    span, (attempt,) = traced.order(), traced.attempts
    assert (outcome_of(span), attempt.attributes["http.response.status_code"]) == (
        ("refused", "Refused"),
        422,
    )
    for one in (span, attempt):
        assert (one.status.status_code, one.status.description) == (StatusCode.ERROR, None)
    assert events_of(span)[-1] == ("hook_undone", {"transfer_async.hook.name": "funds_hold"})


async def test_an_attempt_that_cannot_connect_is_traced_as_not_sent(traced: Traced, closed_port: int):
    async with world(port=closed_port) as gone:
        client = gone.made(observers=[traced.telemetry])
    async with client:
        with pytest.raises(ConnectionFailed):
            await client.create_order(new_order(), key="k")

    assert len(traced.attempts) == 4
    for attempt in traced.attempts:
        assert outcome_of(attempt) == ("not_sent", "ConnectionFailed")
        assert "http.response.status_code" not in attempt.attributes
    assert outcome_of(traced.order()) == ("not_sent", "ConnectionFailed")


# --- in doubt -----------------------------------------------------------------------------------


async def test_an_order_in_doubt_is_traced_as_unknown(at_work: World, traced: Traced):
    at_work.sandbox.faults.add(CloseAfterProcessing())
    await ended(at_work, traced, OutcomeUnknown)

    span = traced.order()
    assert outcome_of(span) == ("unknown", "OutcomeUnknown")
    assert span.status.status_code is StatusCode.ERROR
    assert events_of(span)[-1] == ("order_in_doubt", {"error.type": "OutcomeUnknown"})
    assert traced.attempts[0].attributes["transfer_async.outcome"] == "unknown"


async def test_a_doubt_resolved_in_the_same_call_is_traced_as_created(at_work: World, traced: Traced):
    at_work.sandbox.faults.add(CloseAfterProcessing())
    await ended(at_work, traced, AlreadyCreated, resolve=found(at_work))

    span = traced.order()
    (order_id,) = at_work.sandbox.orders
    assert outcome_of(span) == ("created", None)
    assert span.attributes["transfer_async.order_id"] == order_id
    assert span.status.status_code is StatusCode.UNSET
    assert [name for name, _ in events_of(span)] == ["hook_passed", "order_in_doubt", "resolved"]
    assert traced.points("transfer_async.orders") == [(1, {"transfer_async.outcome": "created"})]
    assert traced.points("transfer_async.doubts.begun") == [(1, {"error.type": "OutcomeUnknown"})]
    assert traced.points("transfer_async.doubts.ended") == [(1, {"transfer_async.outcome": "created"})]


async def test_refuting_an_earlier_doubt_begins_no_order_span(at_work: World, traced: Traced):
    async def resolve(intent, error):
        return NO_ORDER

    at_work.sandbox.faults.add(GarbageBody("?"))
    await ended(at_work, traced, OutcomeUnknown)
    at_work.time.pass_(1000.0)
    with traced.tracers.get_tracer("the bank's").start_as_current_span("message"):
        await ended(at_work, traced, Refuted, resolve=resolve)

    assert len(traced.orders) == 1
    message = next(span for span in traced.spans if span.name == "message")
    assert [name for name, _ in events_of(message)] == ["resolved", "hook_undone"]


@pytest.mark.parametrize(
    ("seen", "error", "outcome"),
    [(None, UnreadableOrder, "unknown"), ("tx-of-the-statement", AlreadyCreated, "created")],
)
async def test_the_end_of_a_doubt_does_not_change_its_attempts_outcome(
    at_work: World, traced: Traced, seen, error, outcome
):
    async def resolve(*_):
        return seen

    async with at_work.client(observers=[traced.telemetry], resolve=resolve) as client:
        order = await client.create_order(new_order(), key="j")
        at_work.sandbox.faults.add(Status(200, body=order.to_json().decode()))
        with pytest.raises(error):
            await client.create_order(new_order(), key="k")

    _, foreign = traced.attempts
    assert outcome_of(foreign) == ("unknown", "UnreadableOrder")
    assert foreign.status.status_code is StatusCode.ERROR
    assert traced.orders[1].attributes["transfer_async.outcome"] == outcome


async def test_a_response_after_a_refutation_is_a_suspected_duplicate(at_work: World, traced: Traced):
    at_work.meanwhile(transitions.Create, at_work.refute)
    await ended(at_work, traced, JournalFailed)

    span, (attempt,) = traced.order(), traced.attempts
    (order_id,) = at_work.sandbox.orders
    assert events_of(span)[-1] == ("duplicate_suspected", {"transfer_async.order_id": order_id})
    assert outcome_of(span) == ("created", "DuplicateSuspected")
    assert attempt.status.status_code is StatusCode.UNSET
    assert traced.points("transfer_async.duplicates.suspected") == [(1, {})]


# --- nothing is left open -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "faults", "attempts"),
    [
        (transitions.MarkSending, [], 0),
        (transitions.Create, [], 1),
        (transitions.Release, [Status(422)], 1),
        (transitions.GoInDoubt, [GarbageBody("?")], 1),
    ],
)
async def test_a_failed_journal_leaves_no_span_open(at_work: World, traced: Traced, move, faults, attempts):
    at_work.journal.fail_on = move
    for fault in faults:
        at_work.sandbox.faults.add(fault)
    await ended(at_work, traced, JournalFailed)

    span = traced.order()
    assert outcome_of(span) == ("unrecorded", "_OTHER")
    assert span.status.status_code is StatusCode.ERROR
    assert len(traced.attempts) == attempts
    assert traced.nothing_is_open()


async def test_a_call_cancelled_before_sending_is_traced_as_not_sent(at_work: World, traced: Traced):
    gate = Gate()
    at_work.bank.on_place = gate
    async with at_work.client(observers=[traced.telemetry]) as client:
        call = await gate.catches(client.create_order(new_order(), key="k"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert outcome_of(traced.order()) == ("not_sent", "Cancelled")


async def test_a_garbage_collected_task_closes_its_order(traced: Traced):
    async def claim() -> None:
        traced.telemetry(Claimed(key="k", intent_id="i", attempt=0, seconds=0.0))
        await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    running, task = asyncio.get_running_loop(), loop.create_task(claim())
    task._log_destroy_pending = False  # the task is destroyed on purpose, together with its loop
    asyncio._set_running_loop(None)
    try:
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert traced.telemetry.open_orders == 1
        loop.close()
    finally:
        asyncio._set_running_loop(running)
    del task
    gc.collect()

    assert traced.nothing_is_open()


async def test_an_intent_taken_over_in_the_same_process_gets_its_own_span(traced: Traced):
    common_fields = {"key": "k", "intent_id": "i", "attempt": 0, "seconds": 0.0}
    slept, woke = Gate(), Gate()

    async def call(gate, **fields):
        traced.telemetry(Claimed(**common_fields, **fields))
        await gate()

    first, second = asyncio.create_task(call(slept)), asyncio.create_task(call(woke, taken_over=True))
    await asyncio.gather(slept.reached.wait(), woke.reached.wait())
    slept.open()
    await first
    await turns(2)
    still_open = traced.telemetry.open_orders
    traced.telemetry(OrderCreated(**common_fields, order_id="tx-1"))
    woke.open()
    await second
    await turns(2)

    assert still_open == 1
    outcomes = [
        (span.attributes["transfer_async.taken_over"], span.attributes["transfer_async.outcome"])
        for span in traced.orders
    ]
    assert outcomes == [(False, "unrecorded"), (True, "created")]


# --- several at once ----------------------------------------------------------------------------


async def test_concurrent_orders_have_separate_spans(at_work: World, traced: Traced):
    both = asyncio.Barrier(2)

    async def together(_):
        await both.wait()

    at_work.bank.on_place = together
    async with at_work.client(observers=[traced.telemetry]) as client:
        results = await asyncio.gather(
            client.create_order(new_order(), key="good"),
            client.create_order(refused_order(), key="bad"),
            return_exceptions=True,
        )

    good, bad = sorted(traced.orders, key=lambda span: span.attributes["transfer_async.outcome"])
    outcomes = {parent_of(one): one.attributes["transfer_async.outcome"] for one in traced.attempts}
    assert isinstance(results[1], Refused)
    assert (good.attributes["transfer_async.key"], bad.attributes["transfer_async.key"]) == ("good", "bad")
    assert outcomes == {id_of(good): "created", id_of(bad): "refused"}
    assert good.context.trace_id != bad.context.trace_id


# --- without an order ---------------------------------------------------------------------------


async def test_events_of_recover_go_to_the_current_span(at_work: World, traced: Traced):
    intent_id = await at_work.crash(transitions.Create)
    at_work.time.pass_(1000.0)
    async with at_work.client(observers=[traced.telemetry], resolve=found(at_work)) as client:
        with traced.tracers.get_tracer("the bank's").start_as_current_span("sweep"):
            report = await client.recover()

    (span,) = traced.spans
    whose = {"transfer_async.key": "k", "transfer_async.intent_id": intent_id}
    assert report.resolved == 1
    assert [name for name, _ in events_of(span)] == ["order_in_doubt", "resolved"]
    assert events_of(span)[0] == ("order_in_doubt", {**whose, "error.type": "Abandoned"})


async def test_events_without_an_open_order_are_ignored(traced: Traced):
    common_fields = {"key": "k", "intent_id": "i", "attempt": 1, "seconds": 0.0}
    traced.telemetry(AttemptStarted(**common_fields))
    traced.telemetry(HookPassed(**common_fields, hook="h", took=0.0))
    traced.telemetry(OrderCreated(**common_fields, order_id="tx-1"))
    asyncio.get_running_loop().call_soon(traced.telemetry, Claimed(**common_fields))  # outside of any task
    await turns(2)

    assert traced.spans == []
    assert traced.nothing_is_open()


async def test_a_failing_tracer_provider_does_not_affect_orders(at_work: World, caplog):
    class Broken(TracerProvider):
        def get_tracer(self, *_):
            raise_it = Mock(side_effect=RuntimeError("s3cr3t"))
            return Mock(start_span=raise_it)

    async with at_work.client(observers=[Telemetry(tracer_provider=Broken())]) as client:
        await client.create_order(new_order(), key="k")

    assert caplog.messages == ["an observer failed on Claimed (RuntimeError)"]


# --- exporters ----------------------------------------------------------------------------------


async def test_without_an_sdk_telemetry_does_nothing(at_work: World):
    async with at_work.client(observers=[Telemetry()]) as client:
        await client.create_order(new_order(), key="k")

    assert len(at_work.sandbox.orders) == 1
