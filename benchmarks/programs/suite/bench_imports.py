"""The cost of importing the package on top of aiohttp, and the extras that are imported with it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial

from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, median_of, taken_in_turn

IMPORTS = ("pass", "import aiohttp", "import aiohttp, transfer_async")
"""What a process of its own does, and nothing else."""

STARTS = 8
"""Of each, for one round elsewhere: a start is short, and the machine's speed drifts from one to the next."""

EXTRAS = ("asyncpg", "rapidfuzz", "rich", "typer", "faststream", "opentelemetry", "pydantic", "pytest")
"""What a caller that wants none of it must not pay for."""

_LOOK = "import json, sys, transfer_async; print(json.dumps([*sys.modules]))"


def extras_imported() -> list[str]:
    """The extras that are imported with the package, wanted or not."""
    done = subprocess.run(  # noqa: S603 - a line of ours
        [sys.executable, "-c", _LOOK], cwd=machine.ROOT, capture_output=True, timeout=60, check=True
    )
    modules = json.loads(done.stdout)
    return [name for name in EXTRAS if name in modules]


def _seconds(line: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", line], cwd=machine.ROOT, timeout=60, check=True)  # noqa: S603 - ours
    return time.perf_counter() - began


def run(effort: Effort) -> Findings:
    """Measure whole processes in turn; their differences are the imports."""
    extras = extras_imported()
    none = Goal("extras imported with `transfer_async`", "none", "<= 0", len(extras), ", ".join(extras))
    starts = {line: partial(_seconds, line) for line in IMPORTS}
    found = taken_in_turn(starts, rounds=STARTS * effort.rounds)
    rounds = list(zip(*found.values(), strict=True))
    own = 1e3 * median_of(rounds, lambda round_: round_[1] - round_[0])
    ours = 1e3 * median_of(rounds, lambda round_: round_[2] - round_[1])
    share = median_of(rounds, lambda round_: (round_[2] - round_[1]) / (round_[1] - round_[0]))
    what, against = "import of `transfer_async` on top of aiohttp", "aiohttp's own import"
    rows = [("aiohttp", f"{own:.1f}"), ("transfer_async, on top of it", f"{ours:.1f}")]
    return Findings(
        "import",
        [Goal(what, against, "<= 0.4", share), none],
        [Table("Imports", ("what", "ms"), rows)],
        {"import: aiohttp, ms": own, "import: transfer_async, ms": ours},
    )
