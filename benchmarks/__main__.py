"""Run a benchmark: ``python -m benchmarks NAME ...``; each has its own ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {
    "suite": ("suite_command", "everything with a goal: contenders, growth, memory, imports"),
    "compare": ("compare", "two reports of the suite, figure by figure"),
    "guard": (
        "guard.guard_command",
        "instructions, calls and memory of an order, compared with stored figures",
    ),
    "journal": (
        "journal_command",
        "journals on a real disk, with a thousand keys and with a million",
    ),
    "load": ("load_command", "orders at a rate through the real client; checks every outcome"),
    "outage": ("outage_command", "thousands of clients and a service that fails, in virtual time"),
    "workers": ("workers", "one, two and four workers on NATS and PostgreSQL, or one against a bare loop"),
    "file": ("create_file", "a file of orders, against a program's own loop"),
}
"""By NAME: the module in `benchmarks.programs` whose `main` takes the arguments, and its purpose.

A program is imported when it runs, since each needs another part of the group `bench`.
"""

USAGE = 2
"""Exit code of a usage error."""


def main(arguments: Sequence[str]) -> int:
    """Run the program that the first argument names, and return its exit code."""
    name, *rest = arguments or ["--help"]
    if name in PROGRAMS:
        return import_module(f"benchmarks.programs.{PROGRAMS[name][0]}").main(rest) or 0
    print("usage: python -m benchmarks NAME ...\n")
    print("\n".join(f"  {program:8} {purpose}" for program, (_, purpose) in PROGRAMS.items()))
    return 0 if name in ("-h", "--help") else USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
