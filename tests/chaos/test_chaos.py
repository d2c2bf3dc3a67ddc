"""Three hundred real deaths in every run; three thousand with ``TRANSFER_TRIALS=long``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres
from tests.brokers import NatsServer
from tests.chaos import mutants
from tests.deaths.test_deaths import count

LONG = os.environ.get("TRANSFER_TRIALS") == "long"
PATIENCE = 3000 if LONG else 400
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(PATIENCE + 120),
    pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start"),
    pytest.mark.skipif(not NatsServer.is_installed(), reason="there is no NATS to start"),
]


def trial(*options: str, patience: int = PATIENCE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", "--patience", str(patience), *options]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_every_command_is_answered_and_no_order_is_doubled_or_lost():
    kills, restarts = (3000, 60) if LONG else (300, 6)

    ended = trial("--kills", str(kills), "--restarts", str(restarts), "--seed", "1")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "restart of the broker") == restarts
    assert count(ended.stdout, "stop of the database") == restarts
    assert count(ended.stdout, "created") > kills


@pytest.mark.parametrize(
    ("mutant", "violation"),
    [("acknowledge-first", "unended"), ("never-tell", "untold"), ("send-again", "duplicate")],
)
def test_a_fault_of_our_own_making_is_noticed(mutant: str, violation: str):
    assert mutant in mutants.MUTANTS
    ended = trial("--kills", "20", "--restarts", "0", "--seed", "4", "--mutant", mutant, patience=15)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert count(ended.stdout, violation) > 0, ended.stdout + ended.stderr
