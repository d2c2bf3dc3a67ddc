"""A journal on disk against the one in memory: `journal_command` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.measuring.journals import MEMORY, SQLITE
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort
from benchmarks.programs.journal.journal_command import GOAL_LEVEL

TIMEOUT = 240.0


def run(effort: Effort) -> Findings:
    """Run the program with the two journals, and without growth."""
    with tempfile.TemporaryDirectory(prefix="journal-") as directory:
        file = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "journal", f"--rounds={effort.rounds}"]
        command += [f"--orders={effort.orders}", "--growth=0", "--at-once", str(GOAL_LEVEL)]
        command += ["--server=raw", "--journals", MEMORY, SQLITE, f"--json={file}"]
        subprocess.run(  # noqa: S603 - a module of ours
            command, cwd=machine.ROOT, capture_output=True, timeout=TIMEOUT, check=True
        )
        found = json.loads(file.read_text(encoding="utf-8"))
    return _findings(found)


def _findings(found: dict[str, Any]) -> Findings:
    waits = {one["journal"]: one for one in found["waits"]}
    rows = [
        (
            one["journal"],
            f"{one['rate']:,.0f}",
            f"{one['ratio']:.2f}",
            f"{one['cpu_cost'] * 1e6:,.0f}",
            f"{waits[one['journal']]['p50'] * 1e3:.2f}",
            f"{waits[one['journal']]['p99'] * 1e3:.2f}",
        )
        for one in found["speeds"]
    ]
    head = ("journal", "orders/s", f"of {MEMORY}", "CPU, µs an order", "waits p50, ms", "p99")
    table = Table(f"Journals, {GOAL_LEVEL} at once, against the raw service", head, rows)
    shares = {one["journal"]: one["ratio"] for one in found["speeds"]}
    what = f"orders a second with SQLiteJournal, {GOAL_LEVEL} at once"
    note = f"a page is on the disk in {found['about']['fsync_ms']} ms"
    goal = Goal(what, "with MemoryJournal", ">= 0.65", shares[SQLITE], note)
    figures = {f"journal: {one['journal']}, orders/s": one["rate"] for one in found["speeds"]}
    return Findings("journal", [goal], [table], figures)
