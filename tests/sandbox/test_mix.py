"""Faults by their shares of all orders, drawn from the seed."""

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


def play(faults: Faults, request: RequestRecord | None = None) -> Fault | None:
    """What a request gets, asked as the sandbox asks."""
    request = request or record()
    return faults.take(request, before_body=True) or faults.take(request, before_body=False)


def test_each_fault_has_its_share():
    faults = mixed()
    played = Counter(play(faults) for _ in range(10_000))

    assert 400 < played[CloseAfterProcessing()] < 600
    assert 850 < played[Status(429)] < 1150
    assert set(played) == {None, *MIX}


def test_the_same_seed_plays_the_same_faults():
    def first(seed: int) -> list[Fault | None]:
        faults = mixed(seed=seed)
        return [play(faults) for _ in range(200)]

    assert first(7) == first(7) != first(8)


def test_what_is_scripted_comes_first_and_changes_no_draw():
    plain, scripted = mixed(), mixed()
    scripted.add(Status(500), times=3)
    first = [play(scripted) for _ in range(3)]
    expected = [play(plain) for _ in range(100)]

    assert first == [Status(500)] * 3
    assert [play(scripted) for _ in range(97)] == expected[3:]


def test_other_paths_change_no_draw():
    plain, disturbed = mixed(), mixed()
    got = []
    for _ in range(100):
        assert play(disturbed, record(WHO_AM_I)) is None
        got.append(play(disturbed))

    assert got == [play(plain) for _ in range(100)]


def test_a_mix_may_be_for_another_path():
    assert play(mixed({Status(503): 1.0}, path=WHO_AM_I), record(WHO_AM_I)) == Status(503)
    assert play(mixed({Status(503): 1.0}, path=WHO_AM_I)) is None
    assert play(mixed({Status(503): 1.0}, path=EVERY_PATH), record("/other")) == Status(503)


def test_what_plays_before_the_body_waits_for_a_scripted_fault_that_needs_it():
    faults = mixed({CloseBeforeReading(): 1.0})
    faults.add(Status(500), probability=0.0)
    request = record()

    assert faults.take(request, before_body=True) is None
    assert faults.take(request, before_body=False) == CloseBeforeReading()


def test_a_mix_takes_the_place_of_the_one_before_and_is_forgotten_when_cleared():
    faults = mixed({Status(429): 1.0})
    faults.mix({Redirect(): 1.0})

    assert play(faults) == Redirect()
    faults.clear()
    assert faults.shares == {}
    assert play(faults) is None


@each(
    ("shares", "rule"),
    [
        ({Status(429): 1.5}, "the share of status must be from 0 to 1, not 1.5"),
        ({Status(429): -0.1}, "the share of status must be from 0 to 1"),
        ({Status(429): float("nan")}, "the share of status must be from 0 to 1"),
        ({Status(429): 0.6, Redirect(): 0.6}, "1 at most together, not 1.2"),
        ({CloseAfterProcessing: 0.1}, r"no fault: make one, as in CloseAfterProcessing\(\)"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: Any, rule: str):
    with pytest.raises(ValueError, match=rule):
        Sandbox(faults=shares)


@each("name", list(FAULTS))
def test_every_fault_may_be_in_a_mix(name: str):
    fault = make_fault(name, {"status": 503} if name.startswith("status") else {})

    assert mixed({fault: 0.5}).shares == {fault: 0.5}


async def test_a_mix_is_listed_and_forgotten_over_http(sandbox: Sandbox, client: WireClient):
    sandbox.faults.mix({Status(429): 0.25})
    listed = await client.ask(method="GET", path="/sandbox/faults")
    forgotten = await client.ask(method="DELETE", path="/sandbox/faults")

    assert [(one["fault"], one["options"]["status"], one["share"]) for one in listed.json["mix"]] == [
        ("status", "429", 0.25)
    ]
    assert forgotten.json == {"faults": [], "mix": []}
    assert sandbox.faults.shares == {}
