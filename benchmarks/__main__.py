"""The way to every program: ``python -m benchmarks NAME ...``; each has a ``--help`` of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {
    "suite": ("suite.suite_command", "everything with a goal: contenders, growth, memory, imports"),
    "compare": ("compare", "two reports of the suite, figure by figure"),
    "guard": ("guard.guard_command", "instructions, calls and memory of an order, beside the stored figures"),
    "journal": (
        "journal.journal_command",
        "journals on a real disk, of a thousand keys and of a million",
    ),
    "load": ("load.load_command", "orders at a rate, through the real client, and whether all of it is true"),
    "outage": ("outage.outage_command", "thousands of clients and a service that fails, in virtual time"),
    "workers": ("workers", "one, two and four workers on NATS and PostgreSQL, or one beside a bare loop"),
    "file": ("create_file", "a file of orders, beside a program's own loop"),
}
"""By NAME: the module in `benchmarks.programs` whose `main` takes the arguments, and what it is for.

A program is imported when it is run: each needs another part of the extra `bench`.
"""

USAGE = 2
"""Exit code of a wrong use."""


def main(arguments: Sequence[str]) -> int:
    """Run the program that the first argument names; give back its exit code."""
    name, *rest = arguments or ["--help"]
    if name in PROGRAMS:
        return import_module(f"benchmarks.programs.{PROGRAMS[name][0]}").main(rest) or 0
    print("usage: python -m benchmarks NAME ...\n")
    print("\n".join(f"  {one:8} {what}" for one, (_, what) in PROGRAMS.items()))
    return 0 if name in ("-h", "--help") else USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
