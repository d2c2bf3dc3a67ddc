"""Trials that really kill processes. `python -m tests.crash` runs them with any number of kills."""

import re
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.crash.__main__ import main_into
from tests.support import postgres
from tests.support.brokers import NatsServer
from tests.support.trials import ONLY_IN_TRIALS

TIMEOUT = 3000

pytestmark = pytest.mark.timeout(TIMEOUT + 120)
needs_postgres = pytest.mark.skipif(not postgres.is_installed(), reason="there is no PostgreSQL to start")
needs_nats = pytest.mark.skipif(not NatsServer.is_installed(), reason="there is no NATS to start")

SERVER = get_context("forkserver")
"""A process that imports the trials once, and forks a process without threads for each of them."""
SERVER.set_forkserver_preload(
    [f"tests.crash.{trial}" for trial in ("bulk", "workers", "upgrades", "decisions")]
)


def trial(*options: object, timeout: int = TIMEOUT) -> tuple[int | None, str]:
    """Run a trial. Return its exit code and its output."""
    arguments = [*map(str, options), "--timeout", str(timeout)]
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        process = SERVER.Process(target=main_into, args=(output, arguments), daemon=True)
        process.start()
        process.join()
        return process.exitcode, output.read_text(encoding="utf-8")


def kept(*options: object) -> str:
    """Run a trial. Check that every promise was kept, and return its table."""
    code, output = trial(*options)
    assert code == 0, output
    return output


def noticed(violation: str, fault: str, *options: object, timeout: int = TIMEOUT) -> bool:
    """Return whether trials with the planted ``fault`` report the violation. Each trial has another seed.

    Whether one of a few kills meets a fault is a matter of chance: for example, a log is only lost if another
    process closes the file in between. Five trials find it almost certainly, and mostly the first does. Each
    has more time than the previous one, because on a busy machine a trial may end without a kill.
    """
    for number, seed in enumerate(range(4, 9), 1):
        code, output = trial(*options, "--planted", fault, "--seed", seed, timeout=number * timeout)
        assert code in (0, 1), output
        if count(output, violation):
            return True
    return False


def count(table: str, row: str) -> int:
    found = re.search(rf"^ *{row} +(\d+)$", table, re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.mark.trial(short=2, ci=50, long=5_000)
def test_killed_and_stopped_workers_on_a_file_lose_or_duplicate_no_order(size: int):
    kills, pauses = size, size // 50

    table = kept("workers", "--journal", "sqlite", "--kills", kills, "--pauses", pauses, "--seed", 1)

    assert count(table, "kills") >= kills
    assert count(table, "pauses") >= pauses
    assert count(table, "created") > kills


@needs_postgres
@pytest.mark.trial(ci=12, long=1_000)
def test_killed_workers_and_stopped_postgres_lose_or_duplicate_no_order(size: int):
    kills, stops = size, max(1, size // 5)

    table = kept("workers", "--journal", "postgres", "--kills", kills, "--stops", stops, "--seed", 2)

    assert count(table, "kills") >= kills
    assert count(table, "stops of the database") >= stops


@needs_postgres
@pytest.mark.trial(ci=4, long=200)
def test_paused_workers_on_postgres_lose_or_duplicate_no_order(size: int):
    table = kept("workers", "--journal", "postgres", "--pauses", size, "--seed", 3)

    assert count(table, "pauses") >= size
    assert count(table, "not waited for") < size


@needs_postgres
@needs_nats
@pytest.mark.trial(ci=20, long=3_000)
def test_every_command_gets_an_outcome_and_no_order_is_lost_or_duplicated(size: int):
    kills, restarts = size, 1 + size // 50

    table = kept("broker", "--kills", kills, "--restarts", restarts, "--seed", 1)

    assert count(table, "kills") >= kills
    assert count(table, "restarts of the broker") == restarts
    assert count(table, "stops of the database") == restarts
    assert count(table, "created") > kills


@pytest.mark.trial(ci=600, long=100_000)
@pytest.mark.parametrize("faults", [(), ("close-after-processing=0.02", "status=0.02:status=429")])
def test_a_repeatedly_killed_bulk_command_loses_or_duplicates_no_order(faults: tuple[str, ...], size: int):
    kills = 5 if size < 100_000 else 20

    table = kept("bulk", "--lines", size, "--kills", kills, *(f"--fault={fault}" for fault in faults))

    assert count(table, "kills") == kills
    assert count(table, "lines in the outcome file") == size


@pytest.mark.trial(ci=15, long=200)
def test_a_repeatedly_killed_probe_never_exceeds_its_cap(size: int):
    table = kept("probe", "--kills", size, "--seed", 1)

    assert count(table, "kills") == size
    assert count(table, "orders received") > size // 2


@pytest.mark.trial(ci=6, long=20)
def test_a_probe_that_does_not_count_is_noticed(size: int):
    assert noticed("beyond", "probe-sends-what-was-turned-away-again", "probe", "--kills", size, timeout=60)


@pytest.mark.trial(ci=20, long=200)
def test_a_row_of_decisions_is_decided_once_or_not_at_all_however_often_it_is_killed(size: int):
    table = kept("decisions", "--kills", size, "--seed", 1)

    assert count(table, "kills") >= size


@pytest.mark.trial(short=1, ci=20, long=200)
@pytest.mark.parametrize(
    "journal", ["sqlite", pytest.param("postgres", marks=[needs_postgres, ONLY_IN_TRIALS])]
)
def test_an_upgrade_that_is_killed_leaves_the_journal_whole(journal: str, size: int):
    table = kept("upgrades", "--journal", journal, "--kills", size, "--seed", 1)

    assert count(table, "kills") >= size


@needs_postgres
@pytest.mark.trial(ci=200)
@pytest.mark.parametrize(
    ("journal", "fault"),
    [("sqlite", "upgrade-of-a-file-in-halves"), ("postgres", "upgrade-of-tables-in-halves")],
)
def test_an_upgrade_in_two_transactions_is_noticed(journal: str, fault: str, size: int):
    arguments = ("upgrades", "--journal", journal, "--kills", size, "--planted", fault)

    assert "halves: version 1 with keys_2" in trial(*arguments)[1]


FAULTS = {
    "dead-request-is-sent-again": "duplicate",
    "mark-is-not-written": "unmarked",
    "order-is-not-recorded": "lost",
    "unknown-releases-the-hold": "hold",
    "descriptor-of-the-file-is-closed": "lost",
}


@pytest.mark.trial(ci=40, long=40)
@pytest.mark.parametrize(("fault", "violation"), FAULTS.items())
def test_a_fault_in_the_workers_is_noticed(fault: str, violation: str, size: int):
    assert noticed(violation, fault, "workers", "--kills", size, timeout=6)


BROKER_FAULTS = [
    ("dead-request-is-sent-again", "duplicate"),
    pytest.param("message-is-acknowledged-first", "unended", marks=pytest.mark.trial(long=20)),
    pytest.param("pending-notifications-are-not-published", "unreported", marks=pytest.mark.trial(long=20)),
]


@needs_postgres
@needs_nats
@pytest.mark.trial(ci=20, long=20)
@pytest.mark.parametrize(("fault", "violation"), BROKER_FAULTS)
def test_a_fault_in_the_workers_on_a_broker_is_noticed(fault: str, violation: str, size: int):
    assert noticed(violation, fault, "broker", "--kills", size, timeout=30)


@pytest.mark.trial(ci=600, long=600)
def test_a_fault_in_the_bulk_command_is_noticed(size: int):
    assert noticed("duplicate", "dead-request-is-sent-again", "bulk", "--lines", size, "--kills", 3)
