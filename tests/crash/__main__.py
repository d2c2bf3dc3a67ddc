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
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kills", type=int, default=0, help="processes that are killed")
    common.add_argument("--seed", type=int, default=0, help="of every choice, and of the faults")
    common.add_argument("--planted", choices=BY_NAME, metavar="NAME", help="a fault of tests/mutation")
    common.add_argument("--timeout", type=float, default=600.0, help="seconds until it is ended early")
    trials = parser.add_subparsers(dest="trial", required=True)
    for trial in TRIALS:
        own = trials.add_parser(trial, parents=[common]).add_argument
        if trial in ("workers", "upgrades"):
            own("--journal", choices=("sqlite", "postgres"), default="sqlite")
        if trial == "workers":
            own("--pauses", type=int, default=0, help="how often a worker sleeps for longer than its lease")
            own("--stops", type=int, default=0, help="immediate stops of the database")
        elif trial == "broker":
            own("--restarts", type=int, default=0, help="restarts of the broker and the database")
        elif trial == "bulk":
            own("--lines", type=int, default=2000, help="orders in the file")
            own("--concurrency", type=int, default=16, help="orders in flight")
            fault = {"metavar": "NAME=SHARE[:SETTINGS]", "help": "a fault of the service"}
            own("--fault", action="append", default=[], **fault)
        elif trial == "decisions":
            own("--rows", type=int, default=40, help="rows in each file")
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
