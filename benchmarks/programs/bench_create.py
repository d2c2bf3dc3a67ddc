"""The CPU cost of one order, against the other clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contenders import BARE, HANDWRITTEN, HTTPX, OURS, STRIPE, TREASURY, Terms
from benchmarks.contenders.process import PARTS, REST, processes
from benchmarks.measuring import machine
from benchmarks.measuring.journals import MEMORY, SQLITE
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, Sample, median_of, ratio, taken_in_turn
from benchmarks.measuring.services import run_service
from benchmarks.programs.journal_command import GOAL_LEVEL

AT_ONCE = 32
WHAT = f"CPU of `create_order`, {AT_ONCE} at once"
GOALS = {
    BARE: (WHAT, "bare aiohttp: post bytes, read bytes", "<= 1.6"),
    HANDWRITTEN: ("the same", "aiohttp + tenacity by hand, dicts", "<= 0.95"),
    TREASURY: ("the same", "Modern Treasury's async SDK", "<= 0.15"),
    STRIPE: ("the same", "Stripe's async SDK", "<= 0.08"),
}
ON_UVLOOP = ("the same, both on uvloop", "bare aiohttp on uvloop", "<= 1.7")


NEAR = (BARE, HANDWRITTEN)
"""Contenders whose cost is so close to ours that one process is not enough to compare."""

FAR = (HTTPX, TREASURY, STRIPE)


def measure_create(effort: Effort) -> Findings:
    """Create orders with all contenders in interleaved rounds, each in its own process."""
    left_out: list[str] = []
    core, other = machine.cores()
    with run_service("raw", core=other) as remote:
        terms = Terms(base_url=remote.base_url, token=remote.token)
        far = _rounds((*FAR, OURS), terms, effort, left_out, core=core)
        near = _near(NEAR, terms, effort, left_out, core=core)
        on_uvloop = _near((BARE,), attrs.evolve(terms, uvloop=True), effort, left_out, core=core)
    shares = {name: ratio(group[OURS], group[name], _cpu) for group in (far, near) for name in group}
    goals = [
        Goal(*GOALS[name], measured=shares.get(name), note="" if name in shares else "not installed")
        for name in GOALS
    ]
    share = ratio(on_uvloop[OURS], on_uvloop[BARE], _cpu) if on_uvloop else None
    goals.append(Goal(*ON_UVLOOP, measured=share, note="" if on_uvloop else "not installed"))
    found = near | {name: far[name] for name in FAR if name in far}
    named = found | {f"{name}, on uvloop": rounds for name, rounds in on_uvloop.items()}
    figures = {f"create: {name}, µs of CPU": median_of(rounds, _cpu) * 1e6 for name, rounds in named.items()}
    return Findings("create", goals, [_table(found, shares)], figures, left_out)


def _near(
    names: Iterable[str], terms: Terms, effort: Effort, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    """Short rounds in new processes, since one process costs up to a tenth more than another by chance."""
    brief = attrs.evolve(effort, turn=effort.turn / 4)
    found: dict[str, list[Sample]] = {}
    for number in range(effort.starts):
        rounds = _rounds((*names, OURS), terms, brief, left_out if number == 0 else [], core=core)
        for name, samples in rounds.items():
            found.setdefault(name, []).extend(samples)
    return found


def _rounds(
    names: Iterable[str], terms: Terms, effort: Effort, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    with processes(names, terms, left_out, core=core) as contenders:
        turns = {
            name: lambda one=one: one.turn(at_once=AT_ONCE, seconds=effort.turn)
            for name, one in contenders.items()
        }
        if not turns:
            return {}
        taken_in_turn(turns, rounds=1)
        return taken_in_turn(turns, rounds=effort.rounds)


def _cpu(sample: Sample) -> float:
    return sample.cpu_cost


def _table(found: dict[str, list[Sample]], shares: dict[str, float]) -> Table:
    rows = [
        (
            name,
            f"{median_of(rounds, _cpu) * 1e6:,.0f}",
            f"{min(map(_cpu, rounds)) * 1e6:,.0f}",
            f"{median_of(rounds, lambda one: one.rate):,.0f}",
            f"{shares[name]:.2f}",
        )
        for name, rounds in found.items()
    ]
    head = ("contender", "CPU, µs an order", "least", "orders/s", f"{OURS} / it")
    note = (
        f"Medians of the rounds; {HTTPX} retries nothing. The two SDKs read the same 8.6 KB order, "
        "which is not of their own models' shape."
    )
    return Table(f"One order, {AT_ONCE} at once, by contender", head, rows, note)


# --- profile --------------------------------------------------------------------------------------

TURNS = 6
"""Of a profiled turn for one that is measured: samples are few, and shares want many."""


def measure_profile(effort: Effort) -> Findings:
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
    return _profile_findings(costs, seen)


def _profile_findings(costs: dict[str, float], seen: dict[str, float]) -> Findings:
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


# --- journals -------------------------------------------------------------------------------------

TIMEOUT = 240.0


def measure_journal(effort: Effort) -> Findings:
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
    return _journal_findings(found)


def _journal_findings(found: dict[str, Any]) -> Findings:
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
