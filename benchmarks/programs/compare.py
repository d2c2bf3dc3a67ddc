"""Compare two reports of the suite: ``python -m benchmarks compare A.json B.json``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.reports import table

CONDITIONS = ("machine", "python", "versions", "effort", "commit", "pinned")
"""The conditions to compare."""


def compare_reports(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return a comparison of two reports in Markdown."""
    old, new = _figures(before), _figures(after)
    rows = [
        (name, f"{old[name]:,.3g}", f"{new[name]:,.3g}", f"{new[name] / old[name]:.2f}" if old[name] else "-")
        for name in old
        if name in new
    ]
    unmatched = [f"- {name}: only in one report" for name in {**old, **new} if (name in old) != (name in new)]
    parts = [
        "\n".join(_conditions(before["about"], after["about"])),
        table(("goal", "target", "A", "B", ""), _goals(before, after)),
        table(("figure", "A", "B", "B / A"), rows),
        "\n".join(unmatched),
    ]
    return "\n\n".join(filter(None, parts))


def _figures(run: dict[str, Any]) -> dict[str, float]:
    return {name: value for area in run["areas"] for name, value in area["figures"].items()}


def _goals(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, ...]]:
    old, new = (
        {(goal["what"], goal["against"]): goal for area in run["areas"] for goal in area["goals"]}
        for run in (before, after)
    )
    rows: list[tuple[str, ...]] = []
    for name, goal in new.items():
        if name in old:
            verdict = (
                f"{_verdict(old[name])}, then {_verdict(goal)}"
                if old[name]["met"] != goal["met"]
                else _verdict(goal)
            )
            rows.append((" / ".join(name), goal["goal"], _measured(old[name]), _measured(goal), verdict))
    return rows


def _verdict(goal: dict[str, Any]) -> str:
    return {True: "met", False: "NOT MET", None: "not measured"}[goal["met"]]


def _measured(goal: dict[str, Any]) -> str:
    return "-" if goal["measured"] is None else f"{goal['measured']:.3g}"


def _conditions(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    differences = (
        f"- {name} differs: {before.get(name)} / {after.get(name)}"
        for name in CONDITIONS
        if before.get(name) != after.get(name)
    )
    return [f"A: {before['date']}, B: {after['date']}", *differences]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare two reports and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    options = parser.parse_args(arguments)
    print(
        compare_reports(
            json.loads(options.before.read_text(encoding="utf-8")),
            json.loads(options.after.read_text(encoding="utf-8")),
        )
    )
