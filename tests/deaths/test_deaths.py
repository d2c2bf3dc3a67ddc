"""Some hundred real deaths; some thousand with ``TRANSFER_TRIALS=long``; any number by the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres
from tests.deaths import mutants

LONG = os.environ.get("TRANSFER_TRIALS") == "long"
PATIENCE = 1800 if LONG else 160
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(PATIENCE + 60)]
needs_postgres = pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start")


def trial(*options: str, patience: int = PATIENCE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.deaths", "--patience", str(patience), *options]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def count(table: str, row: str) -> int:
    found = re.search(rf"^ *{row} +(\d+)", table, re.MULTILINE)
    return int(found[1]) if found else 0


def test_workers_on_a_file_are_killed_and_stopped_and_no_order_is_doubled_or_lost():
    kills, pauses = (5000, 100) if LONG else (300, 10)

    ended = trial("--journal", "sqlite", "--kills", str(kills), "--pauses", str(pauses), "--seed", "1")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "pauses") >= pauses
    assert count(ended.stdout, "created") > kills


@needs_postgres
def test_workers_on_postgres_are_killed_and_robbed_of_it_and_no_order_is_doubled_or_lost():
    kills, stops = (1000, 200) if LONG else (100, 20)

    ended = trial("--journal", "postgres", "--kills", str(kills), "--stops", str(stops), "--seed", "2")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "kills") >= kills
    assert count(ended.stdout, "stops of the database") >= stops


@needs_postgres
def test_workers_on_postgres_sleep_beyond_their_leases_and_no_order_is_doubled_or_lost():
    pauses = 200 if LONG else 20

    ended = trial("--journal", "postgres", "--pauses", str(pauses), "--seed", "3")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert count(ended.stdout, "pauses") >= pauses
    assert count(ended.stdout, "not waited for") < pauses / 2


@pytest.mark.parametrize(
    ("mutant", "violation"),
    [
        (mutants.RESEND, "duplicate"),
        (mutants.UNMARKED, "unmarked"),
        (mutants.UNSETTLED, "lost"),
        (mutants.RELEASED, "hold"),
    ],
)
def test_a_fault_of_our_own_making_is_noticed(mutant: str, violation: str):
    ended = trial("--kills", "15", "--seed", "4", "--mutant", mutant, patience=6)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert count(ended.stdout, violation) > 0, ended.stdout + ended.stderr
