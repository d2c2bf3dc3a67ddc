import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.support.cases import each
from transfer_async.sandbox import EVERY_PATH, CloseBeforeReading, Faults, RequestRecord, Status, wire
from transfer_async.sandbox.faults import Waiting

from .wire_client import CREATE, WHO_AM_I, order_body


@pytest.fixture
def faults() -> Faults:
    return Faults(seed=0, waiting=Waiting())


def record(path: str = CREATE, body: bytes | None = None) -> RequestRecord:
    return RequestRecord(
        method="POST",
        path=path,
        headers={},
        received_at=datetime(2024, 5, 6, tzinfo=UTC),
        body=wire.write(order_body()) if body is None else body,
    )


def take(faults: Faults, request: RequestRecord | None = None, *, before_body: bool = False) -> Any:
    return faults.take(request or record(), before_body=before_body)


def test_faults_apply_in_order_and_as_often_as_requested(faults: Faults):
    faults.add(Status(500), times=2)
    faults.add(Status(503))

    assert [take(faults) for _ in range(4)] == [Status(500), Status(500), Status(503), None]


def test_a_fault_without_a_limit_applies_until_cleared(faults: Faults):
    faults.add(Status(500), times=None)

    assert [take(faults) for _ in range(5)] == [Status(500)] * 5
    assert [rule.times for rule in faults.rules] == [None]
    faults.clear()
    assert take(faults) is None
    assert faults.rules == ()


def test_faults_apply_to_order_creation_by_default(faults: Faults):
    faults.add(Status(500))
    faults.add(Status(503), path=WHO_AM_I)
    faults.add(Status(504), path=EVERY_PATH)

    assert take(faults, record(WHO_AM_I)) == Status(503)
    assert take(faults, record("/other")) == Status(504)
    assert take(faults) == Status(500)


def test_a_fault_may_apply_to_one_poster(faults: Faults):
    faults.add(Status(500), username="ada.eze@example.com")
    other = record(body=wire.write(order_body(poster_username="tunde.bello@example.com")))

    assert take(faults, other) is None
    assert take(faults) == Status(500)


@pytest.mark.parametrize("amount", ["155025", 155025, Decimal("155025.000")])
@pytest.mark.parametrize("sent", ["155025.00", Decimal("155025")])
def test_a_fault_may_apply_to_one_amount_compared_as_a_number(faults: Faults, amount: Any, sent: Any):
    faults.add(Status(500), amount=amount)
    other = record(body=wire.write(order_body(poster_amount="155025.01")))

    assert take(faults, other) is None
    assert take(faults, record(body=wire.write(order_body(poster_amount=sent)))) == Status(500)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"poster_amount": []}',
        b'{"poster_amount": "sNaN"}',
        b'{"poster_amount": "one"}',
    ],
)
def test_a_rule_does_not_apply_to_a_body_without_a_usable_field(faults: Faults, body: bytes):
    faults.add(Status(500), amount=1)
    faults.add(Status(500), username="ada.eze@example.com")

    assert take(faults, record(body=body)) is None


def test_before_the_body_only_early_faults_are_taken(faults: Faults):
    faults.add(Status(500), username="ada.eze@example.com")
    faults.add(CloseBeforeReading())
    faults.add(Status(503))

    assert take(faults, before_body=True) == CloseBeforeReading()
    assert take(faults, before_body=True) is None
    assert [take(faults), take(faults)] == [Status(500), Status(503)]


def test_the_probability_is_drawn_from_the_seed():
    def draw(seed: int) -> list[bool]:
        faults = Faults(seed=seed, waiting=Waiting())
        faults.add(Status(500), times=None, probability=0.3)
        return [take(faults) is not None for _ in range(1000)]

    assert draw(1) == draw(1) != draw(2)
    assert 250 < sum(draw(1)) < 350


def test_a_rule_that_is_not_drawn_leaves_the_request_to_the_next(faults: Faults):
    faults.add(Status(500), times=None, probability=0)
    faults.add(Status(503), probability=1)

    assert take(faults) == Status(503)


EARLY = CloseBeforeReading()


@each(
    ("fault", "settings", "rule"),
    [
        (Status(500), {"times": 0}, "times must be 1 or more"),
        (Status(500), {"probability": 1.5}, "probability must be from 0 to 1"),
        (Status(500), {"probability": float("nan")}, "probability must be from 0 to 1"),
        (Status(500), {"amount": "NaN"}, "amount must be finite"),
        (EARLY, {"username": "a@example.com"}, "before the body is read"),
        (EARLY, {"amount": 1}, "before the body is read"),
    ],
)
def test_invalid_rules_are_refused(faults: Faults, fault: Any, settings: dict[str, Any], rule: str):
    with pytest.raises(ValueError, match=rule):
        faults.add(fault, **settings)


async def test_release_releases_every_stalled_request(faults: Faults):
    held = [record(), record()]
    tasks = [asyncio.create_task(faults.hold(request)) for request in held]
    await asyncio.sleep(0)

    assert list(faults.stalled) == held
    assert faults.release() == 2
    assert faults.stalled == ()
    assert faults.release() == 0
    await asyncio.gather(*tasks)


async def test_a_stall_is_released_from_another_thread_and_only_once(faults: Faults) -> None:
    """Releasing it must wake the event loop of the stalled request."""
    stalls = asyncio.new_event_loop()
    held = stalls.create_task(faults.hold(record()))
    await asyncio.to_thread(stalls.run_until_complete, asyncio.sleep(0))

    assert faults.release() == faults.release() == 1
    await asyncio.to_thread(stalls.run_until_complete, held)
    stalls.close()
