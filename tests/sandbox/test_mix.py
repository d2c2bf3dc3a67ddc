"""Faults that affect a share of all orders, drawn from the seed."""

from collections import Counter
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
)
from transfer_async.sandbox.control import make_fault
from transfer_async.sandbox.faults import Waiting

from .test_script import record
from .wire_client import WHO_AM_I, WireClient

MIX = {CloseAfterProcessing(): 0.05, Status(429): 0.1}


def mixed(shares: dict[Fault, float] | None = None, *, seed: int = 7, **settings: Any) -> Faults:
    faults = Faults(seed=seed, waiting=Waiting())
    faults.mix(MIX if shares is None else shares, **settings)
    return faults


def apply(faults: Faults, request: RequestRecord | None = None) -> Fault | None:
    """Return the fault of a request, using the same two calls as the sandbox."""
    request = request or record()
    return faults.take(request, before_body=True) or faults.take(request, before_body=False)


def test_each_fault_has_its_share():
    faults = mixed()
    counts = Counter(apply(faults) for _ in range(2_000))

    assert 70 < counts[CloseAfterProcessing()] < 130
    assert 160 < counts[Status(429)] < 240
    assert set(counts) == {None, *MIX}


def test_the_same_seed_draws_the_same_faults():
    def first(seed: int) -> list[Fault | None]:
        faults = mixed(seed=seed)
        return [apply(faults) for _ in range(200)]

    assert first(7) == first(7) != first(8)


def test_queued_faults_come_first_and_do_not_change_the_drawn_ones():
    plain, scripted = mixed(), mixed()
    scripted.add(Status(500), times=3)
    first = [apply(scripted) for _ in range(3)]
    expected = [apply(plain) for _ in range(100)]

    assert first == [Status(500)] * 3
    assert [apply(scripted) for _ in range(97)] == expected[3:]


def test_requests_to_other_paths_do_not_change_the_drawn_faults():
    plain, disturbed = mixed(), mixed()
    got = []
    for _ in range(100):
        assert apply(disturbed, record(WHO_AM_I)) is None
        got.append(apply(disturbed))

    assert got == [apply(plain) for _ in range(100)]


def test_a_mix_may_apply_to_another_path():
    assert apply(mixed({Status(503): 1.0}, path=WHO_AM_I), record(WHO_AM_I)) == Status(503)
    assert apply(mixed({Status(503): 1.0}, path=WHO_AM_I)) is None
    assert apply(mixed({Status(503): 1.0}, path=EVERY_PATH), record("/other")) == Status(503)


def test_a_drawn_early_fault_waits_for_a_rule_that_needs_the_body():
    faults = mixed({CloseBeforeReading(): 1.0})
    faults.add(Status(500), probability=0.0)
    request = record()

    assert faults.take(request, before_body=True) is None
    assert faults.take(request, before_body=False) == CloseBeforeReading()


def test_a_mix_replaces_the_previous_one_and_clear_removes_it():
    faults = mixed({Status(429): 1.0})
    faults.mix({Redirect(): 1.0})

    assert apply(faults) == Redirect()
    faults.clear()
    assert faults.shares == {}
    assert apply(faults) is None


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

    assert mixed({fault: 0.5}).shares == {fault: 0.5}


async def test_a_mix_is_listed_and_removed_over_http(sandbox: Sandbox, client: WireClient):
    sandbox.faults.mix({Status(429): 0.25})
    listed = await client.ask(method="GET", path="/sandbox/faults")
    forgotten = await client.ask(method="DELETE", path="/sandbox/faults")

    assert [(fault["fault"], fault["options"]["status"], fault["share"]) for fault in listed.json["mix"]] == [
        ("status", "429", 0.25)
    ]
    assert forgotten.json == {"faults": [], "mix": []}
    assert sandbox.faults.shares == {}
