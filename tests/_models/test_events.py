"""Events: their fields and their order. An observer cannot affect a call."""

import asyncio
import logging

import attrs
import pytest

from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.ids import stable_repr
from transfer_async import (
    NO_ORDER,
    AttemptFailed,
    AttemptStarted,
    Claimed,
    DuplicateSuspected,
    Event,
    HookPassed,
    HookUndone,
    KeyState,
    NotSent,
    OrderCreated,
    OrderInDoubt,
    OrderRefused,
    OrderUnrecorded,
    Outcome,
    RateLimitWaited,
    Refused,
    Resolved,
    RetryScheduled,
    TransferError,
    UndoPending,
    log_events,
)
from transfer_async._models import events
from transfer_async._models.events import Observers
from transfer_async.sandbox import CloseAfterProcessing, Status

COMMON = {
    "key": "payment-1",
    "intent_id": "intent-1",
    "attempt": 2,
    "seconds": 1.5,
    "attempt_id": "attempt-1",
}
OWN = {
    Claimed: {"taken_over": True},
    RateLimitWaited: {"waited": 10.0},
    HookPassed: {"hook": "funds_hold", "took": 0.25},
    HookUndone: {"hook": "funds_hold"},
    UndoPending: {"hook": "funds_hold", "error": "OSError"},
    AttemptStarted: {},
    AttemptFailed: {"outcome": Outcome.UNKNOWN, "error": "OutcomeUnknown", "status": 503, "request_id": "r"},
    RetryScheduled: {"pause": 0.5},
    OrderCreated: {"order_id": "tx-1", "status": 200, "took": 0.25, "request_id": "r"},
    OrderRefused: {"error": "Refused", "status": 422},
    NotSent: {"error": "HoldFailed"},
    OrderInDoubt: {"error": "OutcomeUnknown", "status": None},
    Resolved: {"outcome": Outcome.CREATED, "order_id": "tx-1"},
    DuplicateSuspected: {"order_id": "tx-1"},
    OrderUnrecorded: {"outcome": Outcome.CREATED, "order_id": "tx-1"},
}
EACH = each("kind", list(OWN))


def test_the_list_of_events_is_complete():
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}

    assert kinds == {Event, *OWN}


@EACH
def test_each_event_is_frozen_and_has_the_common_fields_and_its_own(kind):
    event = kind(**COMMON, **OWN[kind])

    assert attrs.asdict(event, recurse=False) == COMMON | OWN[kind]
    assert [attribute.name for attribute in attrs.fields(kind)] == [*COMMON, *OWN[kind]]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.key = "other"
    with pytest.raises(TypeError):
        kind(*COMMON.values(), *OWN[kind].values())


# --- in which order -----------------------------------------------------------------------------


NO = {"outcome": Outcome.REFUSED, "error": "RateLimited", "status": 429, "request_id": "req-7"}
IN_DOUBT = [(AttemptFailed, {}), (OrderInDoubt, {"error": "OutcomeUnknown"})]


@pytest.mark.parametrize(
    ("fault", "resolution", "then"),
    [
        pytest.param(
            Status(429, headers={"X-Request-Id": "req-7"}),
            None,
            [
                (AttemptFailed, NO),
                (RetryScheduled, {"pause": pytest.approx(0.025)}),
                (AttemptStarted, {"attempt": 2}),
                (OrderCreated, {"status": 200}),
            ],
            id="created at the second attempt",
        ),
        pytest.param(
            Status(422),
            None,
            [(AttemptFailed, {}), (OrderRefused, {"error": "Refused", "status": 422}), (HookUndone, {})],
            id="refused",
        ),
        pytest.param(CloseAfterProcessing(), None, IN_DOUBT, id="in doubt"),
        pytest.param(
            CloseAfterProcessing(),
            "tx-seen",
            [*IN_DOUBT, (Resolved, {"outcome": Outcome.CREATED, "order_id": "tx-seen"})],
            id="in doubt, and found",
        ),
        pytest.param(
            Status(503),
            NO_ORDER,
            [*IN_DOUBT, (Resolved, {"outcome": Outcome.REFUSED, "order_id": None}), (HookUndone, {})],
            id="in doubt, and refuted",
        ),
    ],
)
async def test_each_step_of_an_order_is_published_as_an_event(world: World, fault, resolution, then):
    async def resolve(intent, doubt):
        return resolution

    world.sandbox.faults.add(fault)
    async with world.client(resolve=resolve, settle_after=0.0) as client:
        await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)

    expected = [*((kind, {}) for kind in (Claimed, HookPassed, AttemptStarted)), *then]
    assert [type(event) for event in world.events] == [kind for kind, _ in expected]
    for event, (_, fields) in zip(world.events, expected, strict=True):
        assert {name: getattr(event, name) for name in fields} == fields


async def test_all_events_of_a_call_share_key_and_intent_and_count_attempts_and_seconds(world: World):
    world.bank.on_place = world.passing(2.0)
    world.sandbox.faults.add(Status(429, headers={"Retry-After": "3"}))
    await world.create()

    assert {event.key for event in world.events} == {"k"}
    assert {event.intent_id for event in world.events} == set(world.bank.placed)
    assert [event.attempt for event in world.events] == [0, 0, 1, 1, 1, 2, 2]
    assert [event.seconds for event in world.events] == [0.0, 2.0, 2.0, 2.0, 2.0, 5.0, 5.0]
    assert world.events_of(HookPassed)[0].took == 2.0


async def test_replaying_an_order_publishes_no_event(world: World):
    await world.create()
    world.events.clear()
    await world.create()

    assert world.events == []


# --- observers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("oops"), asyncio.CancelledError(), RecursionError()], ids=stable_repr
)
def test_a_failing_observer_is_logged_and_the_others_still_get_the_event(caplog, error):
    def fail(_):
        raise error

    seen, event = [], Claimed(**COMMON)
    Observers([fail, seen.append]).publish(event)

    assert seen == [event]
    assert [(one.levelname, one.getMessage(), one.exc_info) for one in caplog.records] == [
        ("WARNING", f"an observer failed on Claimed ({type(error).__name__})", None)
    ]


@pytest.mark.parametrize(
    ("fault", "outcome", "state", "undone"),
    [
        (None, None, KeyState.CREATED, 0),
        (Status(422), Outcome.REFUSED, KeyState.FREE, 1),
        (CloseAfterProcessing(), Outcome.UNKNOWN, KeyState.IN_DOUBT, 0),
    ],
    ids=["created", "refused", "in doubt"],
)
async def test_an_observer_that_always_raises_does_not_affect_the_call(
    world: World, fault, outcome, state, undone
):
    def fail(_):
        raise ValueError

    if fault is not None:
        world.sandbox.faults.add(fault)
    async with world.client(observers=[fail]) as client:
        try:
            await client.create_order(new_order(), key="k")
            ended = None
        except TransferError as raised:
            ended = raised.outcome

    assert ended is outcome
    assert (await world.entry()).state is state
    assert len(world.bank.released) == undone


async def test_without_observers_no_event_is_created(world: World, monkeypatch):
    def explode(*_, **__):
        raise AssertionError("an event was made")

    for kind in OWN:
        monkeypatch.setattr(kind, "__init__", explode)
    world.sandbox.faults.add(Status(429))
    world.sandbox.faults.add(Status(422))
    error = await world.fails(TransferError, observers=())

    assert type(error) is Refused


# --- the log ------------------------------------------------------------------------------------


LEVELS = {
    **dict.fromkeys([AttemptStarted, HookPassed, RateLimitWaited], "DEBUG"),
    **dict.fromkeys([AttemptFailed, UndoPending, OrderInDoubt], "WARNING"),
    **dict.fromkeys([DuplicateSuspected, OrderUnrecorded], "ERROR"),
}


@EACH
def test_an_event_is_one_line_of_the_log_and_its_fields_are_in_the_records_extra(caplog, kind):
    caplog.clear()
    caplog.set_level(logging.DEBUG, "transfer_async")
    log_events(kind(**COMMON, **OWN[kind]))

    (record,) = caplog.records
    line = record.getMessage()
    assert (record.name, record.levelname) == ("transfer_async", LEVELS.get(kind, "INFO"))
    assert line.startswith(f"{kind.__name__} key=payment-1 ")
    assert "\n" not in line
    assert (record.key, record.intent_id, record.attempt) == ("payment-1", "intent-1", 2)
    assert {name: getattr(record, f"transfer_{name}") for name in OWN[kind]} == OWN[kind]
    assert record.transfer_seconds == 1.5


def test_a_log_line_is_readable(caplog):
    caplog.set_level(logging.DEBUG, "transfer_async")
    log_events(AttemptFailed(**COMMON, outcome=Outcome.UNKNOWN, error="OutcomeUnknown", status=503))

    assert caplog.messages == [
        "AttemptFailed key=payment-1 seconds=1.500 outcome=unknown error=OutcomeUnknown status=503"
    ]


def test_a_disabled_log_level_costs_nothing(caplog, monkeypatch):
    monkeypatch.setattr(events, "_plain", lambda _: pytest.fail("a line was made"))
    caplog.set_level(logging.ERROR, "transfer_async")
    log_events(Claimed(**COMMON))

    assert caplog.records == []
