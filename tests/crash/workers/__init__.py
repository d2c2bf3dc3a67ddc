"""Workers: clients are killed or paused, or lose their database, during their calls.

The harness forks workers. Each has some clients, with a journal object each, and replaces one of them now
and then. The service runs in a process of its own, and visitors open and close the durable journal all the
time. The harness delivers commands at least once, sends SIGKILL or SIGSTOP at named points or at random
times, and stops PostgreSQL immediately.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.crash.service import service
from tests.crash.setting import Place
from tests.crash.verdict import Report, gather, of_the_key, of_the_marks, violations
from tests.crash.workers.harness import Fates, Harness
from tests.support.postgres import PostgresServer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this trial."""
    parser.add_argument("--journal", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--stops", type=int, default=0, help="immediate stops of the database")
    parser.add_argument("--pauses", type=int, default=0, help="workers that sleep beyond their lease")


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare the service, the bank, the journal and the reported outcomes."""
    if options.stops and options.journal != "postgres":
        sys.exit("--stops is for --journal postgres")
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer()) if options.journal == "postgres" else None
        journal = str(directory / "journal.db") if postgres is None else postgres.dsn
        harness = Harness(options, postgres)
        began = time.monotonic()
        with service(directory, seed=options.seed, troubles=harness.troubles) as where:
            place = Place(directory=str(directory), journal=journal, **where)
            place.enter()
            harness.run(place)
        evidence = gather(place, harness.commands.keys)
    broken = violations(evidence, of_the_key, of_the_marks)
    return Report(
        title=f"workers on {options.journal}, seed {options.seed}: {time.monotonic() - began:.1f} s",
        trials=harness.kills.met.total() + harness.pauses.met.total() + harness.stops,
        rows=[
            *_rows("kills", harness.kills),
            *_rows("pauses", harness.pauses),
            ("  not waited for", harness.outwaited),
            ("stops of the database", harness.stops),
            ("visitors that died", harness.visitors),
            ("calls that lost the journal", harness.journal_failed),
        ],
        evidence=evidence,
        violations=[*broken, *(("trouble", why) for why in harness.troubles)],
    )


def _rows(name: str, fates: Fates) -> list[tuple[str, int]]:
    points = sorted(fates.met.items(), key=lambda found: -found[1])
    return [(name, fates.met.total()), *((f"  {point}", count) for point, count in points)]
