"""Reading an order from bytes, and writing one."""

from __future__ import annotations

from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, median_of, ratio
from benchmarks.programs.suite import micro

PYDANTIC, EXACT = "decode: pydantic", "decode: pydantic, every digit"
STRICT, ALL = "decode: transfer_async, strict", "decode: transfer_async, all of it"
NAMES = (
    *(STRICT, ALL, PYDANTIC, EXACT, "decode: json.loads"),
    *("encode: transfer_async", "encode: pydantic", "encode: json.dumps"),
)
GOALS = {
    STRICT: "reading the order, the strict part, as a call does",
    ALL: "reading the order, all of it",
}

_NOTE = (
    "pydantic's `model_validate_json` reads JSON numbers through float, so that 12345678901234567.89 "
    "loses its last digits; with every digit kept, the standard library decodes for it."
)


def run(effort: Effort) -> Findings:
    """Measure all cases in interleaved rounds."""
    left_out: list[str] = []
    found = micro.measured(NAMES, effort.few, left_out)
    goals = []
    for name, what in GOALS.items():
        share, note = None, "not installed"
        if {name, PYDANTIC, EXACT} <= found.keys():
            share = ratio(found[name], found[EXACT], float)
            note = f"{ratio(found[name], found[PYDANTIC], float):.2f} of pydantic that loses digits"
        goals.append(Goal(what, "pydantic 2 that keeps every digit", "<= 0.8", share, note))
    rows = [(name, f"{median_of(rounds, float) * 1e6:,.1f}") for name, rounds in found.items()]
    title = "Bytes and models, an order of 8.6 KB"
    tables = [Table(title, ("case", "µs"), rows, _NOTE)] if rows else []
    figures = {f"{name}, µs": median_of(rounds, float) * 1e6 for name, rounds in found.items()}
    return Findings("decode", goals, tables, figures, left_out)
