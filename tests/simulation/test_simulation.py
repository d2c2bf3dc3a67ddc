"""The promise under a seed's worth of trouble, and faults put in on purpose, which must not survive it."""

import os
from collections import deque
from typing import Any

import pytest

from tests.simulation import trials
from tests.simulation.mutants import MUTANTS
from tests.simulation.trials import Tally

SEEDS = range(1_000_000 if os.environ.get("TRANSFER_TRIALS") == "long" else 10_000)
pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200 if len(SEEDS) > 10_000 else 250)]

MUST_BE_SEEN = (
    "acted late",
    "cancelled",
    "claim taken over",
    "clock set back",
    "close",
    "commit lost",
    "commit unknown",
    "commit unknown, and later",
    "crash",
    "doubt",
    "end of a doubt told",
    "foreign order",
    "freeze",
    "late effect",
    "operator heard",
    "owe",
    "owed paid",
    "refute",
    "resolve",
    "slow commit",
    "stale claim ended",
    "status 200",
    "status 401",
    "status 422",
    "status 429",
    "status 503",
    "takeover",
    "twin's order",
    "undo failed",
)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return deque(trials.trial(SEEDS, jobs=2), maxlen=1).pop()


def test_every_promise_is_kept(tally: Tally):
    told = [f"{verdict.broken[0]}\n    {trials.replay(verdict)}" for verdict in tally.broken[:10]]

    assert tally.seeds == len(SEEDS)
    assert not tally.broken, "\n".join([f"{len(tally.broken)} seeds are broken", *told])


@pytest.mark.parametrize("what", MUST_BE_SEEN)
def test_the_seeds_have_every_kind_of_trouble(tally: Tally, what: str):
    assert tally.counts[what] > 0


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_a_seed_tells_the_same_story_twice(seed: int):
    assert trials.traced(seed) == trials.traced(seed)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str, record_property: Any):
    verdict = trials.caught(mutant, range(trials.BOUND))

    assert verdict is not None
    assert not trials.traced(verdict.seed).broken  # it is the mutant's doing
    record_property("caught", f"{trials.replay(verdict)} --mutant {mutant}: {verdict.broken[0]}")
