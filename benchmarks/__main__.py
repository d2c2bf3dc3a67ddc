"""Command line: ``python -m benchmarks NAME ...``. Each benchmark has its own ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {
    "suite": ("suite_command", "compare transfer_async with other clients and with its performance goals"),
    "compare": ("compare", "compare two reports of the suite"),
    "guard": (
        "guard.guard_command",
        "count instructions, calls and memory, and compare them with stored figures",
    ),
    "journal": (
        "journal_command",
        "measure journals on a real disk, with a thousand keys and with a million",
    ),
    "load": ("load_command", "run a load test with the real client, and check every outcome"),
    "outage": ("outage_command", "simulate an outage with thousands of clients, in virtual time"),
    "workers": ("workers", "measure workers on NATS and PostgreSQL"),
    "file": ("create_file", "compare `transfer-async create FILE` with a minimal program"),
}
"""For each NAME, the module in `benchmarks.programs` that has its ``main``, and a description.

A program is imported only when it runs, because each needs different optional packages.
"""

USAGE = 2
"""Exit code of a usage error."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark named by the first argument and return its exit code."""
    name, *rest = arguments or ["--help"]
    if name in PROGRAMS:
        return import_module(f"benchmarks.programs.{PROGRAMS[name][0]}").main(rest) or 0
    print("usage: python -m benchmarks NAME ...\n")
    print("\n".join(f"  {program:8} {purpose}" for program, (_, purpose) in PROGRAMS.items()))
    return 0 if name in ("-h", "--help") else USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
