"""Every random story keeps the promise, and the stories detect planted faults."""

from collections import deque
from typing import Any

import pytest

from tests.mutation.in_process import BY_NAME
from tests.simulation import trials
from tests.simulation.trials import Tally
from tests.support.trials import mostly_in_trials

pytestmark = pytest.mark.timeout(7200)
seeded = pytest.mark.trial(short=240, ci=4_000, long=1_000_000)

MUST_BE_SEEN = (
    # callers
    *("cancelled", "close", "RateLimitWaited", "result taken late"),
    *("Expired at a deadline", "OutcomeUnknown at a deadline"),
    # the service
    *("status 200", "status 401", "status 422", "status 429", "status 503"),
    *("late effect", "foreign order"),
    # workers and their hooks
    *("paused before the write", "sent after a pause", "paused beyond every wait"),
    *("crash", "freeze", "takeover", "claim taken over", "stale claim ended", "acted late"),
    *("undo failed", "late undo", "owe", "owed paid"),
    # the journal
    *("commit lost", "commit unknown", "commit unknown, and later", "slow commit", "clock set back"),
    # doubts and operators
    *("doubt", "resolve", "refute", "end of a doubt published", "operator decided", "proposed"),
)
RARE = ("twin's order", "approved")
"""Events that occur only in hundreds or thousands of stories."""


@pytest.fixture(scope="session")
def tally(size: int) -> Tally:
    return deque(trials.trial(range(size), jobs=1 if size < 4_000 else 2), maxlen=1).pop()


@seeded
def test_every_promise_is_kept(tally: Tally, size: int):
    failures = [f"{verdict.broken[0]}\n    {trials.replay(verdict)}" for verdict in tally.broken[:10]]

    assert tally.seeds == size
    assert not tally.broken, "\n".join([f"{len(tally.broken)} seeds are broken", *failures])


@seeded
def test_the_seeds_have_every_kind_of_trouble(tally: Tally, size: int):
    expected = MUST_BE_SEEN if size < 4_000 else (*MUST_BE_SEEN, *RARE)

    assert [what for what in expected if not tally.counts[what]] == []


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_a_seed_always_gives_the_same_story(seed: int):
    assert trials.traced(seed) == trials.traced(seed)


@pytest.mark.parametrize("fault", mostly_in_trials(trials.SEEN, often=trials.SEEN[::8]))
def test_a_planted_fault_is_noticed(fault: str, record_property: Any):
    seeds = (BY_NAME[fault].seed, *range(trials.BOUND))
    verdict = trials.caught(fault, seeds)

    assert verdict is not None
    assert not trials.traced(verdict.seed).broken  # the story is broken only with the fault
    record_property("caught", f"{trials.replay(verdict)} --planted {fault}: {verdict.broken[0]}")
