"""Real deaths of workers, of their broker and of their database; more by `python -m tests.chaos`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres
from tests.brokers import NatsServer
from tests.chaos import mutants
from tests.deaths.test_deaths import count

PATIENCE = 3000
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(PATIENCE + 120),
    pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start"),
    pytest.mark.skipif(not NatsServer.is_installed(), reason="there is no NATS to start"),
]


def trial(*options: str, patience: int = PATIENCE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", "--patience", str(patience), *options]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.trial(ci=200, long=3_000)
def test_every_command_is_answered_and_no_order_is_doubled_or_lost(size: int):
    kills, restarts = size, size // 50

    ended = trial("--kills", str(kills), "--restarts", str(restarts), "--seed", "1")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "restart of the broker") == restarts
    assert count(ended.stdout, "stop of the database") == restarts
    assert count(ended.stdout, "created") > kills


@pytest.mark.trial(ci=20, long=20)
@pytest.mark.parametrize(
    ("mutant", "violation"),
    [("acknowledge-first", "unended"), ("never-tell", "untold"), ("send-again", "duplicate")],
)
def test_a_fault_of_our_own_making_is_noticed(mutant: str, violation: str, size: int):
    assert mutant in mutants.MUTANTS
    ended = trial("--kills", str(size), "--restarts", "0", "--seed", "4", "--mutant", mutant, patience=15)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert count(ended.stdout, violation) > 0, ended.stdout + ended.stderr
