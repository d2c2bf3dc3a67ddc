"""`python -m tests.crash workers --kills 300`: exit code 0 if every promise was kept, else 1."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.crash import broker, bulk, decisions, probing, upgrades, workers
from tests.mutation.in_process import BY_NAME

TRIALS = {
    "workers": workers,
    "broker": broker,
    "bulk": bulk,
    "probe": probing,
    "upgrades": upgrades,
    "decisions": decisions,
}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options that all trials have, and those of one trial."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    trials = parser.add_subparsers(dest="trial", required=True)
    for name, trial in TRIALS.items():
        options = trials.add_parser(name, description=trial.__doc__)
        options.add_argument("--kills", type=int, default=0, help="processes that are killed")
        options.add_argument("--seed", type=int, default=0, help="of every choice, and of the faults")
        options.add_argument("--planted", choices=BY_NAME, metavar="NAME", help="a fault of tests/mutation")
        options.add_argument("--patience", type=float, default=600.0, help="seconds before it is cut short")
        trial.add_options(options)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its table."""
    options = options_of(arguments)
    with tempfile.TemporaryDirectory(prefix="crash-") as directory:
        report = TRIALS[options.trial].run(options, Path(directory))
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
