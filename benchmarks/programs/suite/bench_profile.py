"""Where the time of one `create_order` goes."""

from __future__ import annotations

import signal

from benchmarks.contenders import BARE, OURS, Terms
from benchmarks.contenders.host import processes
from benchmarks.contenders.sampling import PARTS, REST
from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, Table
from benchmarks.measuring.samples import Effort, median_of, taken_in_turn
from benchmarks.measuring.services import run_service

AT_ONCE = 32
TURNS = 6
"""Of a profiled turn for one that is measured: samples are few, and shares want many."""


def run(effort: Effort) -> Findings:
    """Measure what an order costs without a profiler, then share that out by where samples were seen."""
    if not hasattr(signal, "setitimer"):
        return Findings("profile", left_out=["profile: this system has no interval timers"])
    core, other = machine.cores()
    with run_service("raw", core=other) as remote:
        terms = Terms(base_url=remote.base_url, token=remote.token)
        with processes((OURS, BARE), terms, [], core=core) as both:
            turns = {
                name: lambda one=one: one.turn(at_once=AT_ONCE, seconds=effort.turn)
                for name, one in both.items()
            }
            found = taken_in_turn(turns, rounds=effort.few)
            seen = both[OURS].ask("profile", at_once=AT_ONCE, seconds=TURNS * effort.turn)
    costs = {name: median_of(rounds, lambda one: one.cpu_cost) * 1e6 for name, rounds in found.items()}
    return _findings(costs, seen)


def _findings(costs: dict[str, float], seen: dict[str, float]) -> Findings:
    total = sum(seen.values())
    parts = sorted({*PARTS.values(), REST}, key=lambda part: -seen.get(part, 0.0))
    shares = {part: seen.get(part, 0.0) / total for part in parts}
    rows = [(part, f"{100 * share:.1f} %", f"{share * costs[OURS]:,.1f}") for part, share in shares.items()]
    rows.append(("all", "100 %", f"{costs[OURS]:,.1f}"))
    note = (
        f"Sampled over {total:.1f} s of processor time, each piece told of the innermost frame of the "
        "package or of aiohttp; what C code takes is its caller's. "
        f"Bare aiohttp needs {costs[BARE]:,.1f} µs for the same exchange, all in all. "
        "There is no observer, so each event costs one check."
    )
    table = Table(
        f"Where the time of one `create_order` goes, {AT_ONCE} at once", ("part", "share", "µs"), rows, note
    )
    return Findings(
        "profile", (), [table], {f"profile: {part}, share": share for part, share in shares.items()}
    )
