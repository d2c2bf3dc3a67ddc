"""What it costs to import the package where aiohttp is imported already, and what comes along."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from benchmarks.measuring import machine
from benchmarks.measuring.findings import Effort, Findings, Goal, Table
from benchmarks.measuring.samples import median_of
from benchmarks.programs.suite import micro
from benchmarks.programs.suite.cases import COMMANDS

NOTHING, AIOHTTP, OURS = COMMANDS
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


def run(effort: Effort) -> Findings:
    """Measure whole processes in turn; their differences are the imports."""
    left_out: list[str] = []
    extras = extras_imported()
    none = Goal("extras imported with `transfer_async`", "none", "<= 0", len(extras), ", ".join(extras))
    found = micro.measured(COMMANDS, effort.rounds, left_out)
    what, against = "import of `transfer_async` on top of aiohttp", "aiohttp's own import"
    if left_out:
        return Findings(
            "import", [Goal(what, against, "<= 0.4", None, "not installed"), none], (), {}, left_out
        )
    times = {name: median_of(rounds, float) * 1e3 for name, rounds in found.items()}
    own, ours = times[AIOHTTP] - times[NOTHING], times[OURS] - times[AIOHTTP]
    shares = [
        (all_of_it - aiohttp) / (aiohttp - nothing)
        for nothing, aiohttp, all_of_it in zip(*(found[name] for name in COMMANDS), strict=True)
    ]
    rows = [("aiohttp", f"{own:.1f}"), ("transfer_async, on top of it", f"{ours:.1f}")]
    return Findings(
        "import",
        [Goal(what, against, "<= 0.4", median(shares)), none],
        [Table("Imports", ("what", "ms"), rows)],
        {"import: aiohttp, ms": own, "import: transfer_async, ms": ours},
    )
