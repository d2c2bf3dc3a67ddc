"""`python -m tests.deaths --journal sqlite --kills 300`: exit code 0 if every promise was kept, else 1."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.deaths.evidence import gather
from tests.deaths.harness import Harness
from tests.deaths.mutants import MUTANTS
from tests.deaths.report import Report
from tests.deaths.trial import Trial
from tests.postgres import PostgresServer


def run(options: argparse.Namespace) -> Report:
    """Run one trial, and compare what everybody says in the end."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="deaths-"))
        postgres = stack.enter_context(PostgresServer()) if options.journal == "postgres" else None
        trial = Trial(
            journal=str(Path(directory) / "journal.db") if postgres is None else postgres.dsn,
            directory=directory,
            kills=options.kills,
            stops=options.stops,
            pauses=options.pauses,
            seed=options.seed,
            mutant=options.mutant,
            patience=options.patience,
        )
        began = time.monotonic()
        harness = Harness(trial, postgres)
        harness.run()
        evidence = gather(trial, harness.commands.keys)
        return Report(harness, evidence, time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.deaths", description=__doc__)
    parser.add_argument("--journal", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--kills", type=int, default=0, help="workers that are killed")
    parser.add_argument("--stops", type=int, default=0, help="immediate stops of the database")
    parser.add_argument("--pauses", type=int, default=0, help="workers that sleep beyond their lease")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS, help="a fault of our own making")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
    options = parser.parse_args(arguments)
    if options.stops and options.journal != "postgres":
        parser.error("--stops is for --journal postgres")
    report = run(options)
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
