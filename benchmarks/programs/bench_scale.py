"""The cost of an order as the load grows: more concurrent orders, more hooks, more orders before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import frozen

from benchmarks.contenders import BARE, OURS, Terms
from benchmarks.contenders.process import Process
from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, Sample, median_of, ratio, taken_in_turn
from benchmarks.measuring.services import run_service

KNEE = 64
"""The concurrency that keeps the loop busy: above it, the cost should stay constant."""

HOOKS = (1, 2, 4, 8)
AT_ONCE = 32
PATIENCE = 120.0
SECONDS = 180.0
"""When a process that goes on for long stops, however much was still to be done."""


def measure_scale(effort: Effort) -> Findings:
    """Measure all three."""
    parts = [_levels(effort), _hooks(effort), _done(effort)]
    return Findings(
        "scale",
        [goal for part in parts for goal in part.goals],
        [table for part in parts for table in part.tables],
        {name: value for part in parts for name, value in part.figures.items()},
    )


def _cpu(sample: Sample) -> float:
    return sample.cpu_cost


# --- more at once -------------------------------------------------------------------------------


def _levels(effort: Effort) -> Findings:
    core, other = machine.cores()
    most = min(effort.levels[-1], machine.descriptors() - 300)
    levels = [*(level for level in effort.levels if level < most), most]
    with run_service("raw", core=other) as remote, ExitStack() as stack:
        turns: dict[str, Callable[[], Sample]] = {}
        for name, level in itertools.product((OURS, BARE), levels):
            terms = Terms(base_url=remote.base_url, token=remote.token, connections=level, patience=PATIENCE)
            process = stack.enter_context(Process(name, terms, core=core))
            turns[f"{name}, {level}"] = partial(process.turn, at_once=level, seconds=effort.turn)
        found = taken_in_turn(turns, rounds=effort.few)
    costs = {name: median_of(rounds, _cpu) * 1e6 for name, rounds in found.items()}
    growth = {name: ratio(found[f"{name}, {most}"], found[f"{name}, {KNEE}"], _cpu) for name in (OURS, BARE)}
    rows = [
        (level, f"{costs[f'{OURS}, {level}']:,.0f}", f"{costs[f'{BARE}, {level}']:,.0f}") for level in levels
    ]
    return Findings(
        "scale",
        [
            Goal(
                f"cost of an order, {most:,} at once",
                f"itself, {KNEE} at once",
                "<= 1.25",
                growth[OURS],
            ),
            Goal(
                "the growth of that cost",
                "the growth of bare aiohttp's",
                "<= 1.1",
                growth[OURS] / growth[BARE],
                f"bare aiohttp's: {growth[BARE]:.2f}",
            ),
        ],
        [Table("More at once", ("at once", "µs of CPU an order", "bare aiohttp"), rows)],
        {f"scale: {level} at once, µs of CPU": costs[f"{OURS}, {level}"] for level in levels},
    )


# --- more hooks ---------------------------------------------------------------------------------


def _hooks(effort: Effort) -> Findings:
    core, _ = machine.cores()
    with ExitStack() as stack:
        turns = {}
        for hooks in HOOKS:
            process = stack.enter_context(Process(OURS, Terms(hooks=hooks, stubbed=True), core=core))
            turns[str(hooks)] = partial(process.turn, at_once=AT_ONCE, seconds=effort.turn / 2)
        found = taken_in_turn(turns, rounds=2 * effort.few)
    costs = {hooks: median_of(found[str(hooks)], _cpu) * 1e6 for hooks in HOOKS}
    line = straight(costs)
    farthest = max(abs(cost / line(hooks) - 1) for hooks, cost in costs.items())
    rows = [(hooks, f"{cost:,.1f}", f"{line(hooks):,.1f}") for hooks, cost in costs.items()]
    goal = Goal(
        f"cost with 1 to {HOOKS[-1]} hooks: distance from a straight line",
        "itself",
        "<= 0.1",
        farthest,
        f"{line(2) - line(1):.1f} µs a hook",
    )
    head = ("hooks", "µs of CPU an order", "on the line")
    table = Table("More hooks, the transport stubbed", head, rows)
    return Findings("scale", [goal], [table], {"scale: one more hook, µs of CPU": line(2) - line(1)})


def straight(points: dict[int, float]) -> Callable[[float], float]:
    """The straight line that is nearest to the points."""
    count = len(points)
    x, y = sum(points) / count, sum(points.values()) / count
    slope = sum((at - x) * (value - y) for at, value in points.items()) / sum((at - x) ** 2 for at in points)
    return lambda at: y + slope * (at - x)


# --- more done ----------------------------------------------------------------------------------


@frozen
class Kind:
    """One way of going on for long.

    Args:
        name: of it.
        keys: whether the caller gives a key for each order.
    """

    name: str
    keys: bool


KINDS = (
    Kind("keys made by the client", keys=False),
    Kind("callers' keys, past the journal's bound", keys=True),
)


def _done(effort: Effort) -> Findings:
    with ThreadPoolExecutor(len(KINDS)) as pool:  # a process for each, and a core
        found = list(pool.map(partial(_endure, effort), KINDS, machine.cores()))
    goals, rows, figures = [], [], {}
    for kind, (steps, share) in zip(KINDS, found, strict=True):
        goals += _of_one_kind(kind, steps, share, effort)
        rows += [
            (kind.name, f"{step['done']:,}", f"{step['cpu'] * 1e6:,.1f}", f"{step['bytes'] / 1e6:,.1f}")
            for step in steps
        ]
        figures[f"scale: {kind.name}, after {steps[-1]['done']:,}, MB"] = steps[-1]["bytes"] / 1e6
    head = ("keys", "orders done", "µs of CPU an order since", "memory (RSS), MB")
    title = f"More done in one process, the transport stubbed, a journal bound to {effort.bound:,} keys"
    return Findings("scale", goals, [Table(title, head, rows)], figures)


def _endure(effort: Effort, kind: Kind, core: int | None) -> tuple[list[dict[str, Any]], float]:
    """What was seen on the way, and what an order costs then, by turns with a process that is young."""
    terms = Terms(stubbed=True, keys=kind.keys, bound=effort.bound)
    with Process(OURS, terms, core=core) as old, Process(OURS, terms, core=core) as young:
        steps: list[dict[str, Any]] = old.ask(
            "endure", at_once=AT_ONCE, done=list(effort.done), seconds=SECONDS
        )
        young.ask("endure", at_once=AT_ONCE, done=[_full(effort)], seconds=SECONDS)
        found = taken_in_turn(
            {
                "old": partial(old.turn, at_once=AT_ONCE, seconds=effort.turn / 4),
                "young": partial(young.turn, at_once=AT_ONCE, seconds=effort.turn / 4),
            },
            rounds=effort.rounds,
        )
    return steps, ratio(found["old"], found["young"], _cpu)


def _full(effort: Effort) -> int:
    """After how many orders the journal keeps as much as it ever will."""
    return next((done for done in effort.done if done >= 3 * effort.bound), effort.done[-1])


def _of_one_kind(kind: Kind, steps: list[dict[str, Any]], share: float, effort: Effort) -> list[Goal]:
    last = steps[-1]
    full = next((step for step in steps if step["done"] >= _full(effort)), last)
    what = f"after {last['done']:,} orders, {kind.name}"
    after = f"after {full['done']:,}"
    return [
        Goal(f"cost {what}", f"a process's {after}, by turns", "<= 1.15", share),
        Goal(f"memory {what}", f"its own {after}", "<= 1.05", last["bytes"] / full["bytes"]),
    ]


# --- memory ---------------------------------------------------------------------------------------

SPARE = 300
"""Descriptors for everything but connections."""

ROUNDS = 3


def measure_memory(effort: Effort) -> Findings:
    """Measure both in turn, each time in a new process: memory that was had once is not given back."""
    possible = machine.descriptors() - SPARE
    count = min(effort.crowd, possible)
    turns = {name: partial(_memory_turn, name, count) for name in (BARE, OURS)}
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


def _memory_turn(name: str, count: int) -> float:
    core, other = machine.cores()
    with run_service("raw", hold=count, core=other) as remote:
        terms = Terms(
            base_url=remote.base_url, token=remote.token, connections=count + 100, patience=PATIENCE
        )
        with Process(name, terms, core=core) as process:
            return float(process.ask("crowd", count=count)["bytes"])
