"""The speed of the package: against other clients, with growing load, and against its goals."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, goals_table
from benchmarks.measuring.samples import FULL, QUICK, Effort
from benchmarks.programs.bench_create import measure_create, measure_journal, measure_profile
from benchmarks.programs.bench_micro import measure_decode, measure_imports
from benchmarks.programs.bench_scale import measure_memory, measure_scale

AREAS: dict[str, Callable[[Effort], Findings]] = {
    "create": measure_create,
    "decode": measure_decode,
    "journal": measure_journal,
    "import": measure_imports,
    "memory": measure_memory,
    "scale": measure_scale,
    "profile": measure_profile,
}


def measured(areas: Sequence[str], effort: Effort) -> list[Findings]:
    """Measure one area after the other; report one that fails, and continue."""
    found = []
    for area in areas:
        print(f"{area} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            findings = AREAS[area](effort)
        except Exception as error:  # noqa: BLE001 - the others are worth having
            findings = Findings(area, left_out=[f"{area}: broke ({type(error).__name__}: {error})"])
        found.append(attrs.evolve(findings, seconds=time.perf_counter() - began))
    return found


def as_json(about: dict[str, Any], found: Sequence[Findings]) -> str:
    """The figures for other programs."""
    return json.dumps({"about": about, "areas": [one.as_dict() for one in found]}, indent=2) + "\n"


def as_text(about: dict[str, Any], found: Sequence[Findings]) -> str:
    """The report."""
    goals = [goal for one in found for goal in one.goals]
    left_out = [f"- {name}" for one in found for name in one.left_out]
    parts = [
        "# Benchmarks",
        _conditions(about),
        goals_table(goals) if goals else "",
        "Left out:\n" + "\n".join(left_out) if left_out else "All contenders are included.",
        *(table.text() for one in found for table in one.tables),
        "Duration in seconds: " + ", ".join(f"{one.area} {one.seconds:.0f}" for one in found),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _conditions(about: dict[str, Any]) -> str:
    told = {name: value for name, value in about.items() if name != "versions"}
    lines = [f"- {name}: {value}" for name, value in told.items()]
    lines.append(
        "- versions: " + ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Read the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks suite", description=__doc__)
    made.add_argument("--quick", action="store_true", help="less than a minute; without it less than twelve")
    made.add_argument("--only", action="append", choices=AREAS, metavar="AREA", help=", ".join(AREAS))
    made.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    made.add_argument(
        "--out", type=Path, metavar="DIRECTORY", default=Path(".benchmarks"), help="directory of the report"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report, and write it to files."""
    options = parser().parse_args(arguments)
    effort = QUICK if options.quick else FULL
    about = {**machine.about(), "effort": effort.name}
    found = measured(options.only or list(AREAS), effort)
    report, figures = as_text(about, found), as_json(about, found)
    print(report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(report, encoding="utf-8")
    (options.out / "report.json").write_text(figures, encoding="utf-8")
    if options.json is not None:
        options.json.write_text(figures, encoding="utf-8")
    if any(one.left_out and not one.goals and not one.tables for one in found):
        sys.exit(1)  # an area broke
