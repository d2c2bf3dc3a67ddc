"""The memory of an order in flight, with thousands at once: the service responds after all have arrived."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import BARE, OURS, Terms
from benchmarks.contenders.host import Process
from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, median_of, ratio, taken_in_turn
from benchmarks.measuring.services import run_service

SPARE = 300
"""Descriptors for everything but connections."""

PATIENCE = 120.0
ROUNDS = 3


def run(effort: Effort) -> Findings:
    """Measure both in turn, each time in a new process: memory that was had once is not given back."""
    possible = machine.descriptors() - SPARE
    count = min(effort.crowd, possible)
    turns = {name: partial(_turn, name, count) for name in (BARE, OURS)}
    found = taken_in_turn(turns, rounds=min(ROUNDS, effort.few))
    note = "" if count == effort.crowd else f"no more descriptors were to be had than for {count:,}"
    goal = Goal(
        f"memory per order in flight, {count:,} at once",
        "bare aiohttp doing the same",
        "<= 1.4",
        ratio(found[OURS], found[BARE], float),
        note,
    )
    rows = [(name, f"{median_of(rounds, float) / 1024:.1f}") for name, rounds in found.items()]
    figures = {
        f"memory: {name}, KiB an order in flight": median_of(rounds, float) / 1024
        for name, rounds in found.items()
    }
    table = Table(
        f"Memory (RSS) of an order in flight, {count:,} at once", ("contender", "KiB an order"), rows
    )
    return Findings("memory", [goal], [table], figures)


def _turn(name: str, count: int) -> float:
    core, other = machine.cores()
    with run_service("raw", hold=count, core=other) as remote:
        terms = Terms(
            base_url=remote.base_url, token=remote.token, connections=count + 100, patience=PATIENCE
        )
        with Process(name, terms, core=core) as process:
            return float(process.ask("crowd", count=count)["bytes"])
