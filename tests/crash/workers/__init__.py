"""Workers: clients are killed or paused, or lose their database, during their calls.

The harness forks workers. Each has some clients, with a journal object each, and replaces one of them now
and then. The service runs in a process of its own, and visitors open and close the durable journal all the
time. The harness delivers commands at least once, sends SIGKILL or SIGSTOP at named points or at random
times, and stops PostgreSQL immediately.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.crash.service import service
from tests.crash.verdict import Report, of_the_key, of_the_marks
from tests.crash.workers.harness import Harness
from tests.support.postgres import PostgresServer


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare the service, the bank, the journal and the reported outcomes."""
    if options.stops and options.journal != "postgres":
        sys.exit("--stops is for --journal postgres")
    report = Report(f"workers on {options.journal}, seed {options.seed}")
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer()) if options.journal == "postgres" else None
        journal = str(directory / "journal.db") if postgres is None else postgres.dsn
        with service(directory, options, report, journal=journal) as place:
            harness = Harness(options, place, postgres, report)
            harness.run()
        report.compare(place, harness.keys, of_the_key, of_the_marks)
    return report
