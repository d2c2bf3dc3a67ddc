"""Real deaths; any number of them by `python -m tests.deaths`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres
from tests.deaths import mutants

PATIENCE = 1800
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(PATIENCE + 60)
needs_postgres = pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start")


def trial(*options: str, patience: int = PATIENCE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.deaths", "--patience", str(patience), *options]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def count(table: str, row: str) -> int:
    found = re.search(rf"^ *{row} +(\d+)", table, re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.mark.trial(short=20, ci=300, long=5_000)
def test_workers_on_a_file_are_killed_and_stopped_and_no_order_is_doubled_or_lost(size: int):
    kills, pauses = size, size // 50

    ended = trial("--journal", "sqlite", "--kills", str(kills), "--pauses", str(pauses), "--seed", "1")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "pauses") >= pauses
    assert count(ended.stdout, "created") > kills


@needs_postgres
@pytest.mark.trial(short=10, ci=100, long=1_000)
def test_workers_on_postgres_are_killed_and_robbed_of_it_and_no_order_is_doubled_or_lost(size: int):
    kills, stops = size, size // 5

    ended = trial("--journal", "postgres", "--kills", str(kills), "--stops", str(stops), "--seed", "2")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "stops of the database") >= stops


@needs_postgres
@pytest.mark.trial(ci=20, long=200)
def test_workers_on_postgres_sleep_beyond_their_leases_and_no_order_is_doubled_or_lost(size: int):
    ended = trial("--journal", "postgres", "--pauses", str(size), "--seed", "3")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "pauses") >= size
    assert count(ended.stdout, "not waited for") < size / 2


@pytest.mark.trial(ci=15, long=15)
@pytest.mark.parametrize(
    ("mutant", "violation"),
    [
        (mutants.RESEND, "duplicate"),
        (mutants.UNMARKED, "unmarked"),
        (mutants.UNSETTLED, "lost"),
        (mutants.RELEASED, "hold"),
        (mutants.UNLOCKED, "lost"),
    ],
)
def test_a_fault_of_our_own_making_is_noticed(mutant: str, violation: str, size: int):
    ended = trial("--kills", str(size), "--seed", "4", "--mutant", mutant, patience=6)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert count(ended.stdout, violation) > 0, ended.stdout + ended.stderr
