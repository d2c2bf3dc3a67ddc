"""`python -m tests.crash workers --kills 300`: the exit code is 0 if every promise was kept, else 1."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

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


def parse(arguments: Sequence[str] | None) -> tuple[ModuleType, argparse.Namespace]:
    """Return the trial's module and its options, both the common ones and its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="TRIAL --help lists them")
    words = parser.parse_args(arguments)
    trial = import_module(f"tests.crash.{TRIALS[words.trial]}")
    options = argparse.ArgumentParser(prog=f"{parser.prog} {words.trial}", description=trial.__doc__)
    options.add_argument("--kills", type=int, default=0, help="processes that are killed")
    options.add_argument("--seed", type=int, default=0, help="of every choice, and of the faults")
    options.add_argument("--planted", choices=BY_NAME, metavar="NAME", help="a fault of tests/mutation")
    options.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
    trial.add_options(options)
    return trial, options.parse_args(words.options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its result as a table."""
    trial, options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="crash-") as directory:
        report = trial.run(options, Path(directory))
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
