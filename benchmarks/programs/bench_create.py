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

from benchmarks.contenders import BARE, HANDWRITTEN, HTTPX, OURS, STRIPE, TREASURY, ContenderSettings
from benchmarks.contenders.process import EVENT_LOOP, PROFILE_PARTS, contender_processes
from benchmarks.measuring import machine
from benchmarks.measuring.journals import MEMORY, SQLITE
from benchmarks.measuring.reports import AreaResult, Goal, Table
from benchmarks.measuring.samples import RunSize, Sample, interleave_blocking, median_of, ratio
from benchmarks.measuring.services import run_service
from benchmarks.programs.journal_command import GOAL_CONCURRENCY

CONCURRENCY = 32
WHAT = f"CPU of `create_order`, {CONCURRENCY} at once"
GOALS = {
    BARE: (WHAT, "bare aiohttp: post bytes, read bytes", "<= 1.6"),
    HANDWRITTEN: ("the same", "aiohttp + tenacity by hand, dicts", "<= 0.95"),
    TREASURY: ("the same", "Modern Treasury's async SDK", "<= 0.15"),
    STRIPE: ("the same", "Stripe's async SDK", "<= 0.08"),
}
ON_UVLOOP = ("the same, both on uvloop", "bare aiohttp on uvloop", "<= 1.7")


SIMILAR_COST = (BARE, HANDWRITTEN)
"""Contenders whose cost is so close to ours that one process is not enough to compare."""

HIGHER_COST = (HTTPX, TREASURY, STRIPE)


def measure_create(size: RunSize) -> AreaResult:
    """Create orders with all contenders in interleaved rounds, each in its own process."""
    left_out: list[str] = []
    core, service_core = machine.pick_cores()
    with run_service("raw", core=service_core) as remote:
        settings = ContenderSettings(base_url=remote.base_url, token=remote.token)
        higher = _measure_rounds((*HIGHER_COST, OURS), settings, size, left_out, core=core)
        similar = _measure_in_new_processes(SIMILAR_COST, settings, size, left_out, core=core)
        on_uvloop = _measure_in_new_processes(
            (BARE,), attrs.evolve(settings, uvloop=True), size, left_out, core=core
        )
    shares = {name: ratio(group[OURS], group[name], _cpu) for group in (higher, similar) for name in group}
    goals = [
        Goal(*GOALS[name], measured=shares.get(name), note="" if name in shares else "not installed")
        for name in GOALS
    ]
    share = ratio(on_uvloop[OURS], on_uvloop[BARE], _cpu) if on_uvloop else None
    goals.append(Goal(*ON_UVLOOP, measured=share, note="" if on_uvloop else "not installed"))
    samples = similar | {name: higher[name] for name in HIGHER_COST if name in higher}
    named = samples | {f"{name}, on uvloop": rounds for name, rounds in on_uvloop.items()}
    figures = {f"create: {name}, µs of CPU": median_of(rounds, _cpu) * 1e6 for name, rounds in named.items()}
    return AreaResult("create", goals, [_table(samples, shares)], figures, left_out)


def _measure_in_new_processes(
    names: Iterable[str], settings: ContenderSettings, size: RunSize, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    """Short rounds in new processes, since one process costs up to a tenth more than another by chance."""
    short = attrs.evolve(size, sample_seconds=size.sample_seconds / 4)
    results: dict[str, list[Sample]] = {}
    for number in range(size.restarts):
        rounds = _measure_rounds((*names, OURS), settings, short, left_out if number == 0 else [], core=core)
        for name, samples in rounds.items():
            results.setdefault(name, []).extend(samples)
    return results


def _measure_rounds(
    names: Iterable[str], settings: ContenderSettings, size: RunSize, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    with contender_processes(names, settings, left_out, core=core) as contenders:
        samplers = {
            name: lambda contender=contender: contender.sample(
                concurrency=CONCURRENCY, seconds=size.sample_seconds
            )
            for name, contender in contenders.items()
        }
        if not samplers:
            return {}
        interleave_blocking(samplers, rounds=1)
        return interleave_blocking(samplers, rounds=size.rounds)


def _cpu(sample: Sample) -> float:
    return sample.cpu_cost


def _table(samples: dict[str, list[Sample]], shares: dict[str, float]) -> Table:
    rows = [
        (
            name,
            f"{median_of(rounds, _cpu) * 1e6:,.0f}",
            f"{min(map(_cpu, rounds)) * 1e6:,.0f}",
            f"{median_of(rounds, lambda sample: sample.rate):,.0f}",
            f"{shares[name]:.2f}",
        )
        for name, rounds in samples.items()
    ]
    head = ("contender", "CPU, µs an order", "least", "orders/s", f"{OURS} / it")
    note = (
        f"Medians of the rounds; {HTTPX} retries nothing. The two SDKs read the same 8.6 KB order, "
        "which is not of their own models' shape."
    )
    return Table(f"One order, {CONCURRENCY} at once, by contender", head, rows, note)


# --- profile --------------------------------------------------------------------------------------

PROFILE_SAMPLES = 6
"""Of a profiled turn for one that is measured: samples are few, and shares want many."""


def measure_profile(size: RunSize) -> AreaResult:
    """Measure what an order costs without a profiler, then share that out by where samples were seen."""
    if not hasattr(signal, "setitimer"):
        return AreaResult("profile", left_out=["profile: this system has no interval timers"])
    core, service_core = machine.pick_cores()
    with run_service("raw", core=service_core) as remote:
        settings = ContenderSettings(base_url=remote.base_url, token=remote.token)
        with contender_processes((OURS, BARE), settings, [], core=core) as both:
            samplers = {
                name: lambda contender=contender: contender.sample(
                    concurrency=CONCURRENCY, seconds=size.sample_seconds
                )
                for name, contender in both.items()
            }
            samples = interleave_blocking(samplers, rounds=size.slow_rounds)
            profile = both[OURS].call(
                "profile", concurrency=CONCURRENCY, seconds=PROFILE_SAMPLES * size.sample_seconds
            )
    costs = {
        name: median_of(rounds, lambda contender: contender.cpu_cost) * 1e6
        for name, rounds in samples.items()
    }
    return _profile_result(costs, profile)


def _profile_result(costs: dict[str, float], profile: dict[str, float]) -> AreaResult:
    total = sum(profile.values())
    parts = sorted({*PROFILE_PARTS.values(), EVENT_LOOP}, key=lambda part: -profile.get(part, 0.0))
    shares = {part: profile.get(part, 0.0) / total for part in parts}
    rows = [(part, f"{100 * share:.1f} %", f"{share * costs[OURS]:,.1f}") for part, share in shares.items()]
    rows.append(("all", "100 %", f"{costs[OURS]:,.1f}"))
    note = (
        f"Sampled over {total:.1f} s of processor time, each piece told of the innermost frame of the "
        "package or of aiohttp; what C code takes is its caller's. "
        f"Bare aiohttp needs {costs[BARE]:,.1f} µs for the same exchange, all in all. "
        "There is no observer, so each event costs one check."
    )
    table = Table(
        f"Where the time of one `create_order` goes, {CONCURRENCY} at once",
        ("part", "share", "µs"),
        rows,
        note,
    )
    return AreaResult(
        "profile", (), [table], {f"profile: {part}, share": share for part, share in shares.items()}
    )


# --- journals -------------------------------------------------------------------------------------

JOURNAL_TIMEOUT = 240.0


def measure_journal(size: RunSize) -> AreaResult:
    """Run the program with the two journals, and without growth."""
    with tempfile.TemporaryDirectory(prefix="journal-") as directory:
        file = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "journal", f"--rounds={size.rounds}"]
        command += [
            f"--orders={size.orders_per_sample}",
            "--growth=0",
            "--concurrency",
            str(GOAL_CONCURRENCY),
        ]
        command += ["--server=raw", "--journals", MEMORY, SQLITE, f"--json={file}"]
        subprocess.run(  # noqa: S603 - a module of ours
            command, cwd=machine.ROOT, capture_output=True, timeout=JOURNAL_TIMEOUT, check=True
        )
        samples = json.loads(file.read_text(encoding="utf-8"))
    return _journal_result(samples)


def _journal_result(samples: dict[str, Any]) -> AreaResult:
    waits = {contender["journal"]: contender for contender in samples["waits"]}
    rows = [
        (
            contender["journal"],
            f"{contender['rate']:,.0f}",
            f"{contender['ratio']:.2f}",
            f"{contender['cpu_cost'] * 1e6:,.0f}",
            f"{waits[contender['journal']]['p50'] * 1e3:.2f}",
            f"{waits[contender['journal']]['p99'] * 1e3:.2f}",
        )
        for contender in samples["speeds"]
    ]
    head = ("journal", "orders/s", f"of {MEMORY}", "CPU, µs an order", "waits p50, ms", "p99")
    table = Table(f"Journals, {GOAL_CONCURRENCY} at once, against the raw service", head, rows)
    shares = {contender["journal"]: contender["ratio"] for contender in samples["speeds"]}
    what = f"orders a second with SQLiteJournal, {GOAL_CONCURRENCY} at once"
    note = f"a page is on the disk in {samples['about']['fsync_ms']} ms"
    goal = Goal(what, "with MemoryJournal", ">= 0.65", shares[SQLITE], note)
    figures = {
        f"journal: {contender['journal']}, orders/s": contender["rate"] for contender in samples["speeds"]
    }
    return AreaResult("journal", [goal], [table], figures)
