"""The queue and the mix select the fault of each request, and tasks wait for what happens in the sandbox."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.support.cases import each
from transfer_async.sandbox import (
    EVERY_PATH,
    FAULTS,
    CloseAfterProcessing,
    CloseBeforeReading,
    Fault,
    Faults,
    Redirect,
    RequestRecord,
    Sandbox,
    Status,
    wire,
)
from transfer_async.sandbox.control import make_fault
from transfer_async.sandbox.faults import Waiting

from .wire_client import CREATE, WHO_AM_I, order_body

ADA = "ada.eze@example.com"
EARLY = CloseBeforeReading()
MIX = {CloseAfterProcessing(): 0.05, Status(429): 0.1}


def script(*, seed: int = 0, mix: Mapping[Fault, float] | None = None, **settings: Any) -> Faults:
    faults = Faults(seed=seed, waiting=Waiting())
    faults.mix(mix or {}, **settings)
    return faults


@pytest.fixture
def faults() -> Faults:
    return script()


def record(path: str = CREATE, body: bytes | None = None) -> RequestRecord:
    return RequestRecord(
        method="POST",
        path=path,
        headers={},
        received_at=datetime(2024, 5, 6, tzinfo=UTC),
        body=wire.write(order_body()) if body is None else body,
    )


def ordering(**changes: Any) -> RequestRecord:
    return record(body=wire.write(order_body(**changes)))


def take(faults: Faults, request: RequestRecord | None = None, *, before_body: bool = False) -> Fault | None:
    return faults.take(request or record(), before_body=before_body)


def apply(faults: Faults, request: RequestRecord | None = None) -> Fault | None:
    """Return the fault of a request, using the same two calls as the sandbox."""
    request = request or record()
    return take(faults, request, before_body=True) or take(faults, request)


# --- the queue ----------------------------------------------------------------------------------


def test_faults_apply_in_order_as_often_as_requested_until_cleared(faults: Faults):
    faults.add(Status(500), times=2)
    faults.add(Status(503))
    faults.add(Status(504), times=None)

    assert [take(faults) for _ in range(3)] == [Status(500), Status(500), Status(503)]
    assert [take(faults) for _ in range(5)] == [Status(504)] * 5
    assert [rule.times for rule in faults.rules] == [None]
    faults.clear()
    assert (take(faults), faults.rules) == (None, ())


UNUSABLE = [
    b"",
    b"{",
    b"[]",
    b"{}",
    *(b'{"poster_amount": %s}' % one for one in (b"[]", b'"sNaN"', b'"one"')),
]


@each(
    ("rule", "sent", "applies"),
    [
        ({}, record(), True),
        ({}, record(WHO_AM_I), False),
        ({"path": WHO_AM_I}, record(WHO_AM_I), True),
        ({"path": WHO_AM_I}, record(), False),
        ({"path": EVERY_PATH}, record("/other"), True),
        ({"username": ADA}, record(), True),
        ({"username": ADA}, ordering(poster_username="tunde.bello@example.com"), False),
        ({"amount": "155025"}, ordering(poster_amount="155025.00"), True),
        ({"amount": 155025}, ordering(poster_amount=Decimal(155025)), True),
        ({"amount": Decimal("155025.000")}, record(), True),
        ({"amount": 155025}, ordering(poster_amount="155025.01"), False),
        *(({"amount": 1}, record(body=body), False) for body in UNUSABLE),
        *(({"username": ADA}, record(body=body), False) for body in UNUSABLE),
    ],
)
def test_a_fault_applies_to_the_requests_that_its_rule_names(rule, sent: RequestRecord, applies: bool):
    faults = script()
    faults.add(Status(500), **rule)

    assert take(faults, sent) == (Status(500) if applies else None)


def test_before_the_body_only_early_faults_are_taken(faults: Faults):
    faults.add(Status(500), username=ADA)
    faults.add(EARLY)
    faults.add(Status(503))

    assert [take(faults, before_body=True) for _ in range(2)] == [EARLY, None]
    assert [take(faults), take(faults)] == [Status(500), Status(503)]


def test_the_probability_is_drawn_from_the_seed():
    def draw(seed: int) -> list[bool]:
        faults = script(seed=seed)
        faults.add(Status(500), times=None, probability=0.3)
        return [take(faults) is not None for _ in range(1000)]

    assert draw(1) == draw(1) != draw(2)
    assert 250 < sum(draw(1)) < 350


def test_a_rule_that_is_not_drawn_leaves_the_request_to_the_next(faults: Faults):
    faults.add(Status(500), times=None, probability=0)
    faults.add(Status(503), probability=1)

    assert take(faults) == Status(503)


@each(
    ("fault", "settings", "rule"),
    [
        (Status(500), {"times": 0}, "times must be 1 or more"),
        (Status(500), {"probability": 1.5}, "probability must be from 0 to 1"),
        (Status(500), {"probability": float("nan")}, "probability must be from 0 to 1"),
        (Status(500), {"amount": "NaN"}, "amount must be finite"),
        (EARLY, {"username": ADA}, "before the body is read"),
        (EARLY, {"amount": 1}, "before the body is read"),
    ],
)
def test_invalid_rules_are_refused(faults: Faults, fault: Any, settings: dict[str, Any], rule: str):
    with pytest.raises(ValueError, match=rule):
        faults.add(fault, **settings)


# --- the mix ------------------------------------------------------------------------------------


def test_each_fault_of_a_mix_has_its_share_drawn_from_the_seed():
    def drawn(seed: int) -> list[Fault | None]:
        faults = script(seed=seed, mix=MIX)
        return [apply(faults) for _ in range(2_000)]

    counts = Counter(drawn(7))
    assert 70 < counts[CloseAfterProcessing()] < 130
    assert 160 < counts[Status(429)] < 240
    assert set(counts) == {None, *MIX}
    assert drawn(7) == drawn(7) != drawn(8)


def test_neither_queued_faults_nor_requests_to_other_paths_change_the_drawn_ones():
    plain, disturbed = script(seed=7, mix=MIX), script(seed=7, mix=MIX)
    disturbed.add(Status(500), times=3)
    got = []
    for _ in range(100):
        assert apply(disturbed, record(WHO_AM_I)) is None
        got.append(apply(disturbed))

    assert got[:3] == [Status(500)] * 3
    assert got[3:] == [apply(plain) for _ in range(100)][3:]


def test_a_mix_may_apply_to_another_path():
    whole = {Status(503): 1.0}

    assert apply(script(mix=whole, path=WHO_AM_I), record(WHO_AM_I)) == Status(503)
    assert apply(script(mix=whole, path=WHO_AM_I)) is None
    assert apply(script(mix=whole, path=EVERY_PATH), record("/other")) == Status(503)


def test_a_drawn_early_fault_waits_for_a_rule_that_needs_the_body():
    faults = script(mix={EARLY: 1.0})
    faults.add(Status(500), probability=0.0)
    request = record()

    assert [take(faults, request, before_body=early) for early in (True, False)] == [None, EARLY]


def test_a_mix_replaces_the_previous_one_and_clear_removes_it():
    faults = script(mix={Status(429): 1.0})
    faults.mix({Redirect(): 1.0})

    assert apply(faults) == Redirect()
    faults.clear()
    assert (apply(faults), faults.shares) == (None, {})


@each(
    ("shares", "rule"),
    [
        ({Status(429): 1.5}, "the share of status must be from 0 to 1, not 1.5"),
        ({Status(429): -0.1}, "the share of status must be from 0 to 1"),
        ({Status(429): float("nan")}, "the share of status must be from 0 to 1"),
        ({Status(429): 0.6, Redirect(): 0.6}, "at most 1 in total, not 1.2"),
        ({CloseAfterProcessing: 0.1}, r"not a fault: create one, as in CloseAfterProcessing\(\)"),
    ],
)
def test_invalid_shares_are_refused(shares: Any, rule: str):
    with pytest.raises(ValueError, match=rule):
        Sandbox(faults=shares)


@each("name", list(FAULTS))
def test_every_fault_may_be_in_a_mix(name: str):
    fault = make_fault(name, {"status": 503} if name.startswith("status") else {})

    assert script(mix={fault: 0.5}).shares == {fault: 0.5}


# --- stalls and waiters -------------------------------------------------------------------------


async def test_release_releases_every_stalled_request(faults: Faults):
    held = [record(), record()]
    tasks = [asyncio.create_task(faults.hold(request)) for request in held]
    await asyncio.sleep(0)

    assert list(faults.stalled) == held
    assert (faults.release(), faults.stalled, faults.release()) == (2, (), 0)
    await asyncio.gather(*tasks)


async def test_a_stall_is_released_from_another_thread_and_only_once(faults: Faults) -> None:
    """Releasing it must wake the event loop of the stalled request."""
    stalls = asyncio.new_event_loop()
    held = stalls.create_task(faults.hold(record()))
    await asyncio.to_thread(stalls.run_until_complete, asyncio.sleep(0))

    assert faults.release() == faults.release() == 1
    await asyncio.to_thread(stalls.run_until_complete, held)
    stalls.close()


async def test_a_cancelled_waiter_is_removed():
    waiting = Waiting()
    for end in (waiting.changed, waiting.close):
        waiter = asyncio.create_task(waiting.until(lambda: False))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        end()

        assert waiter.cancelled()


async def test_closing_fails_present_and_later_waiters():
    waiting = Waiting()
    waiter = asyncio.create_task(waiting.until(lambda: False))
    await asyncio.sleep(0)
    waiting.close()

    with pytest.raises(RuntimeError, match="closed before the awaited event"):
        await waiter
    with pytest.raises(RuntimeError, match="is closed"):
        await waiting.until(lambda: False)
