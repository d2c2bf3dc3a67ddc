"""The CPU cost of `create_order`: against other clients, by part, and with a durable journal."""

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
METRIC = f"CPU of `create_order`, concurrency {CONCURRENCY}"
GOALS = {
    BARE: (METRIC, "bare aiohttp: post bytes, read bytes", "<= 1.6"),
    HANDWRITTEN: ("the same", "handwritten client: aiohttp + tenacity, dicts", "<= 0.75"),
    TREASURY: ("the same", "Modern Treasury's async SDK", "<= 0.15"),
    STRIPE: ("the same", "Stripe's async SDK", "<= 0.08"),
}
ON_UVLOOP = ("the same, both on uvloop", "bare aiohttp on uvloop", "<= 1.9")


SIMILAR_COST = (BARE, HANDWRITTEN)
"""Contenders whose cost is so close to ours that one process each is not enough to compare them."""

HIGHER_COST = (HTTPX, TREASURY, STRIPE)


def measure_create(size: RunSize) -> AreaResult:
    """Compare all contenders in interleaved rounds, each in its own process."""
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
    """Take short samples in several successive processes.

    One process may need up to a tenth more CPU than another by chance."""
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
    head = ("contender", "CPU, µs per order", "minimum", "orders/s", f"{OURS} / this")
    note = (
        f"Medians of the rounds. {HTTPX} does not retry. The two SDKs read the same 8.6 KB order, "
        "which does not match their own models."
    )
    return Table(f"One order, by contender, concurrency {CONCURRENCY}", head, rows, note)


# --- profile --------------------------------------------------------------------------------------

PROFILE_SAMPLES = 6
"""The duration of the profile, in samples: accurate shares need many stack samples."""


def measure_profile(size: RunSize) -> AreaResult:
    """Measure the cost of an order without a profiler, then divide it by the shares in a profile."""
    if not hasattr(signal, "setitimer"):
        return AreaResult("profile", left_out=["profile: this operating system has no interval timers"])
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
        f"Sampled over {total:.1f} s of CPU time, which is attributed to the innermost frame of the package "
        "or of aiohttp. The time of C code counts for its caller. "
        f"Bare aiohttp needs {costs[BARE]:,.1f} µs in total for the same exchange. "
        "There is no observer, so each event costs one check."
    )
    table = Table(
        f"Where the time of one `create_order` goes, concurrency {CONCURRENCY}",
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
    """Run `python -m benchmarks journal` with two journals, and without measuring growth."""
    with tempfile.TemporaryDirectory(prefix="journal-") as directory:
        file = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "journal", f"--rounds={size.rounds}"]
        command += [f"--orders={size.orders_per_sample}", "--growth=0", f"--concurrency={GOAL_CONCURRENCY}"]
        command += ["--server=raw", "--journals", MEMORY, SQLITE, f"--json={file}"]
        subprocess.run(  # noqa: S603 - our own module
            command, cwd=machine.ROOT, capture_output=True, timeout=JOURNAL_TIMEOUT, check=True
        )
        report = json.loads(file.read_text(encoding="utf-8"))
    return _journal_result(report)


def _journal_result(report: dict[str, Any]) -> AreaResult:
    waits = {speed["journal"]: speed for speed in report["waits"]}
    rows = [
        (
            speed["journal"],
            f"{speed['rate']:,.0f}",
            f"{speed['ratio']:.2f}",
            f"{speed['cpu_cost'] * 1e6:,.0f}",
            f"{waits[speed['journal']]['p50'] * 1e3:.2f}",
            f"{waits[speed['journal']]['p99'] * 1e3:.2f}",
        )
        for speed in report["speeds"]
    ]
    head = ("journal", "orders/s", f"of {MEMORY}", "CPU, µs per order", "wait p50, ms", "p99")
    table = Table(f"Journals with the raw service, concurrency {GOAL_CONCURRENCY}", head, rows)
    shares = {speed["journal"]: speed["ratio"] for speed in report["speeds"]}
    metric = f"orders per second with SQLiteJournal, concurrency {GOAL_CONCURRENCY}"
    note = f"an fsync takes {report['about']['fsync_ms']} ms"
    goal = Goal(metric, "with MemoryJournal", ">= 0.65", shares[SQLITE], note)
    figures = {f"journal: {speed['journal']}, orders/s": speed["rate"] for speed in report["speeds"]}
    return AreaResult("journal", [goal], [table], figures)
