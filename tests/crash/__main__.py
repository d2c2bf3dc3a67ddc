"""`python -m tests.crash workers --kills 300`: the exit code is 0 if every promise was kept, else 1."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.mutation.in_process import BY_NAME

TRIALS = {
    "workers": "workers",
    "broker": "broker",
    "bulk": "bulk",
    "probe": "probing",
    "upgrades": "upgrades",
    "decisions": "decisions",
}
"""The trials and their modules. Importing takes a second, so a module is imported only for its own trial."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its result as a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--kills", type=int, default=0, help="processes that are killed")
    parser.add_argument("--seed", type=int, default=0, help="of every choice, and of the faults")
    parser.add_argument("--planted", choices=BY_NAME, metavar="NAME", help="a fault of tests/mutation")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
    journals = "workers, upgrades: where the journal is"
    parser.add_argument("--journal", choices=("sqlite", "postgres"), default="sqlite", help=journals)
    parser.add_argument("--pauses", type=int, default=0, help="workers: some sleep beyond their lease")
    parser.add_argument("--stops", type=int, default=0, help="workers: immediate stops of the database")
    parser.add_argument("--restarts", type=int, default=0, help="broker: of the broker and the database")
    parser.add_argument("--lines", type=int, default=2000, help="bulk: orders in the file")
    parser.add_argument("--concurrency", type=int, default=16, help="bulk: orders in flight")
    fault = {"metavar": "NAME=SHARE[:SETTINGS]", "help": "bulk: a fault of the service"}
    parser.add_argument("--fault", action="append", default=[], **fault)
    parser.add_argument("--rows", type=int, default=40, help="decisions: rows in each file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="crash-") as directory:
        report = import_module(f"tests.crash.{TRIALS[options.trial]}").run(options, Path(directory))
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.violations else 0


def main_into(output: Path, arguments: Sequence[str]) -> None:
    """Run one trial, and write everything that it and its processes print to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for printed in (sys.stdout, sys.stderr):
        os.dup2(file, printed.fileno())
    sys.exit(main(arguments))


if __name__ == "__main__":
    sys.exit(main())
