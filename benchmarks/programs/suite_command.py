"""Compare `transfer_async` with other clients and with its performance goals."""

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
from benchmarks.measuring.reports import AreaResult, goals_table
from benchmarks.measuring.samples import FULL, QUICK, RunSize
from benchmarks.programs.bench_create import measure_create, measure_journal, measure_profile
from benchmarks.programs.bench_micro import measure_decode, measure_imports
from benchmarks.programs.bench_scale import measure_memory, measure_scale

AREAS: dict[str, Callable[[RunSize], AreaResult]] = {
    "create": measure_create,
    "decode": measure_decode,
    "journal": measure_journal,
    "import": measure_imports,
    "memory": measure_memory,
    "scale": measure_scale,
    "profile": measure_profile,
}


def run_areas(areas: Sequence[str], size: RunSize) -> list[AreaResult]:
    """Measure the areas one after the other. If one fails, report it and continue."""
    results = []
    for area in areas:
        print(f"{area} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            result = AREAS[area](size)
        except Exception as error:  # noqa: BLE001 - the other areas may succeed
            result = AreaResult(area, left_out=[f"{area}: failed ({type(error).__name__}: {error})"])
        results.append(attrs.evolve(result, seconds=time.perf_counter() - began))
    return results


def as_json(about: dict[str, Any], results: Sequence[AreaResult]) -> str:
    """Return the report as JSON."""
    return json.dumps({"about": about, "areas": [result.as_dict() for result in results]}, indent=2) + "\n"


def as_text(about: dict[str, Any], results: Sequence[AreaResult]) -> str:
    """Return the report in Markdown."""
    goals = [goal for result in results for goal in result.goals]
    left_out = [f"- {name}" for result in results for name in result.left_out]
    parts = [
        "# Benchmarks",
        _conditions(about),
        goals_table(goals) if goals else "",
        "Left out:\n" + "\n".join(left_out) if left_out else "All contenders are included.",
        *(table.text() for result in results for table in result.tables),
        "Duration in seconds: " + ", ".join(f"{result.area} {result.seconds:.0f}" for result in results),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _conditions(about: dict[str, Any]) -> str:
    conditions = {name: value for name, value in about.items() if name != "versions"}
    lines = [f"- {name}: {value}" for name, value in conditions.items()]
    lines.append(
        "- versions: " + ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    )
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks suite", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take one minute instead of twelve")
    parser.add_argument("--only", action="append", choices=AREAS, metavar="AREA", help=", ".join(AREAS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIRECTORY",
        default=Path(".benchmarks"),
        help="directory for the report (.benchmarks)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite; print the report and write it to files."""
    options = make_parser().parse_args(arguments)
    size = QUICK if options.quick else FULL
    about = {**machine.about(), "effort": size.name}
    results = run_areas(options.only or list(AREAS), size)
    report, figures = as_text(about, results), as_json(about, results)
    print(report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(report, encoding="utf-8")
    (options.out / "report.json").write_text(figures, encoding="utf-8")
    if options.json is not None:
        options.json.write_text(figures, encoding="utf-8")
    if any(result.left_out and not result.goals and not result.tables for result in results):
        sys.exit(1)  # an area failed
