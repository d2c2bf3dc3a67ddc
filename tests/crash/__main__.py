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
    parser.add_argument("options", nargs=argparse.REMAINDER, help="TRIAL --help lists them")
    words = parser.parse_args(arguments)
    trial = import_module(f"tests.crash.{TRIALS[words.trial]}")
    of_trial = argparse.ArgumentParser(prog=f"{parser.prog} {words.trial}", description=trial.__doc__)
    of_trial.add_argument("--kills", type=int, default=0, help="processes that are killed")
    of_trial.add_argument("--seed", type=int, default=0, help="of every choice, and of the faults")
    of_trial.add_argument("--planted", choices=BY_NAME, metavar="NAME", help="a fault of tests/mutation")
    of_trial.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
    trial.add_options(of_trial)
    with tempfile.TemporaryDirectory(prefix="crash-") as directory:
        report = trial.run(of_trial.parse_args(words.options), Path(directory))
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
