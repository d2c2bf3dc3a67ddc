"""`python -m tests.chaos --kills 300`: exit code 0 if every promise was kept, else 1."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.brokers import NatsServer
from tests.chaos.harness import Harness
from tests.chaos.mutants import MUTANTS
from tests.chaos.report import Report
from tests.deaths.evidence import gather
from tests.deaths.trial import Trial
from tests.postgres import PostgresServer


def run(options: argparse.Namespace) -> Report:
    """Run one trial, and compare what everybody says in the end."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        postgres = stack.enter_context(PostgresServer())
        harness = Harness(
            directory=directory,
            broker=stack.enter_context(NatsServer()),
            postgres=postgres,
            kills=options.kills,
            restarts=options.restarts,
            seed=options.seed,
            mutant=options.mutant,
            patience=options.patience,
        )
        harness.run()
        keys = (Path(directory) / "keys").read_text().split("\n")
        return Report(harness, gather(Trial(journal=postgres.dsn, directory=directory), keys))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="workers that are killed")
    parser.add_argument("--restarts", type=int, default=6, help="of the broker, and of the database")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS, help="a fault of our own making")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
    report = run(parser.parse_args(arguments))
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
