"""The cost of an order as the load grows: more concurrent orders, hooks or previous orders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import frozen

from benchmarks.contenders import BARE, OURS, ContenderSettings
from benchmarks.contenders.process import ContenderProcess
from benchmarks.measuring import machine
from benchmarks.measuring.reports import AreaResult, Goal, Table
from benchmarks.measuring.samples import RunSize, Sample, interleave_blocking, median_of, ratio
from benchmarks.measuring.services import run_service

BASE_CONCURRENCY = 64
"""A concurrency that keeps the event loop busy. Above it, the cost should stay constant."""

HOOKS = (1, 2, 4, 8)
CONCURRENCY = 32
TIMEOUT = 120.0
MAX_SECONDS = 180.0
"""The maximum duration of a long-running process, in seconds."""


def measure_scale(size: RunSize) -> AreaResult:
    """Measure the cost with more concurrent orders, with more hooks and in a long-running process."""
    parts = [_measure_concurrency(size), _measure_hooks(size), _measure_long_runs(size)]
    return AreaResult(
        "scale",
        [goal for part in parts for goal in part.goals],
        [table for part in parts for table in part.tables],
        {name: value for part in parts for name, value in part.figures.items()},
    )


def _cpu(sample: Sample) -> float:
    return sample.cpu_cost


# --- concurrency ----------------------------------------------------------------------------------


def _measure_concurrency(size: RunSize) -> AreaResult:
    core, service_core = machine.pick_cores()
    highest = min(size.concurrency_levels[-1], machine.raise_file_limit() - 300)
    concurrency_levels = [*(level for level in size.concurrency_levels if level < highest), highest]
    with run_service("raw", core=service_core) as remote, ExitStack() as stack:
        samplers: dict[str, Callable[[], Sample]] = {}
        for name, level in itertools.product((OURS, BARE), concurrency_levels):
            settings = ContenderSettings(
                base_url=remote.base_url, token=remote.token, connections=level, timeout=TIMEOUT
            )
            process = stack.enter_context(ContenderProcess(name, settings, core=core))
            samplers[f"{name}, {level}"] = partial(
                process.sample, concurrency=level, seconds=size.sample_seconds
            )
        samples = interleave_blocking(samplers, rounds=size.slow_rounds)
    costs = {name: median_of(rounds, _cpu) * 1e6 for name, rounds in samples.items()}
    growth = {
        name: ratio(samples[f"{name}, {highest}"], samples[f"{name}, {BASE_CONCURRENCY}"], _cpu)
        for name in (OURS, BARE)
    }
    rows = [
        (level, f"{costs[f'{OURS}, {level}']:,.0f}", f"{costs[f'{BARE}, {level}']:,.0f}")
        for level in concurrency_levels
    ]
    return AreaResult(
        "scale",
        [
            Goal(
                f"cost of an order, concurrency {highest:,}",
                f"the same, concurrency {BASE_CONCURRENCY}",
                "<= 1.25",
                growth[OURS],
            ),
            Goal(
                "the increase of that cost",
                "the increase with bare aiohttp",
                "<= 1.1",
                growth[OURS] / growth[BARE],
                f"bare aiohttp: {growth[BARE]:.2f}",
            ),
        ],
        [Table("Concurrency", ("concurrency", "CPU, µs per order", "bare aiohttp"), rows)],
        {f"scale: {level} at once, µs of CPU": costs[f"{OURS}, {level}"] for level in concurrency_levels},
    )


# --- hooks ----------------------------------------------------------------------------------------


def _measure_hooks(size: RunSize) -> AreaResult:
    core, _ = machine.pick_cores()
    with ExitStack() as stack:
        samplers = {}
        for hooks in HOOKS:
            process = stack.enter_context(
                ContenderProcess(OURS, ContenderSettings(hooks=hooks, stub_transport=True), core=core)
            )
            samplers[str(hooks)] = partial(
                process.sample, concurrency=CONCURRENCY, seconds=size.sample_seconds / 2
            )
        samples = interleave_blocking(samplers, rounds=2 * size.slow_rounds)
    costs = {hooks: median_of(samples[str(hooks)], _cpu) * 1e6 for hooks in HOOKS}
    fit = linear_fit(costs)
    max_deviation = max(abs(cost / fit(hooks) - 1) for hooks, cost in costs.items())
    rows = [(hooks, f"{cost:,.1f}", f"{fit(hooks):,.1f}") for hooks, cost in costs.items()]
    goal = Goal(
        f"cost with 1 to {HOOKS[-1]} hooks: deviation from a linear fit",
        "itself",
        "<= 0.1",
        max_deviation,
        f"{fit(2) - fit(1):.1f} µs per hook",
    )
    head = ("hooks", "CPU, µs per order", "linear fit")
    table = Table("Hooks, with a stubbed transport", head, rows)
    return AreaResult("scale", [goal], [table], {"scale: one more hook, µs of CPU": fit(2) - fit(1)})


def linear_fit(points: dict[int, float]) -> Callable[[float], float]:
    """Fit a straight line to the points by least squares."""
    count = len(points)
    x, y = sum(points) / count, sum(points.values()) / count
    slope = sum((at - x) * (value - y) for at, value in points.items()) / sum((at - x) ** 2 for at in points)
    return lambda at: y + slope * (at - x)


# --- long-running processes -----------------------------------------------------------------------


@frozen
class KeySource:
    """Where the idempotency keys come from.

    Args:
        name: the name for reports.
        caller_keys: whether the caller supplies a key with each order.
    """

    name: str
    caller_keys: bool


KEY_SOURCES = (
    KeySource("keys generated by the client", caller_keys=False),
    KeySource("callers' keys, more than the journal keeps", caller_keys=True),
)


def _measure_long_runs(size: RunSize) -> AreaResult:
    with ThreadPoolExecutor(len(KEY_SOURCES)) as pool:  # each has its own process and core
        samples = list(pool.map(partial(_run_long, size), KEY_SOURCES, machine.pick_cores()))
    goals, rows, figures = [], [], {}
    for source, (steps, growth) in zip(KEY_SOURCES, samples, strict=True):
        goals += _long_run_goals(source, steps, growth, size)
        rows += [
            (
                source.name,
                f"{step['done']:,}",
                f"{step['cpu'] * 1e6:,.1f}",
                f"{step['bytes'] / 1e6:,.1f}",
            )
            for step in steps
        ]
        figures[f"scale: {source.name}, after {steps[-1]['done']:,}, MB"] = steps[-1]["bytes"] / 1e6
    head = ("keys", "orders", "CPU since, µs per order", "memory (RSS), MB")
    title = f"One long-running process, stubbed transport, at most {size.max_keys:,} keys in the journal"
    return AreaResult("scale", goals, [Table(title, head, rows)], figures)


def _run_long(size: RunSize, source: KeySource, core: int | None) -> tuple[list[dict[str, Any]], float]:
    """Run one process for long; return its steps and its final cost relative to a young process."""
    settings = ContenderSettings(stub_transport=True, caller_keys=source.caller_keys, max_keys=size.max_keys)
    with (
        ContenderProcess(OURS, settings, core=core) as old,
        ContenderProcess(OURS, settings, core=core) as young,
    ):
        steps: list[dict[str, Any]] = old.call(
            "run_long", concurrency=CONCURRENCY, orders_done=list(size.orders_done), seconds=MAX_SECONDS
        )
        young.call(
            "run_long",
            concurrency=CONCURRENCY,
            orders_done=[_orders_to_fill_journal(size)],
            seconds=MAX_SECONDS,
        )
        samples = interleave_blocking(
            {
                "old": partial(old.sample, concurrency=CONCURRENCY, seconds=size.sample_seconds / 4),
                "young": partial(young.sample, concurrency=CONCURRENCY, seconds=size.sample_seconds / 4),
            },
            rounds=size.rounds,
        )
    return steps, ratio(samples["old"], samples["young"], _cpu)


def _orders_to_fill_journal(size: RunSize) -> int:
    """Return the number of orders after which the journal stops growing."""
    return next(
        (orders_done for orders_done in size.orders_done if orders_done >= 3 * size.max_keys),
        size.orders_done[-1],
    )


def _long_run_goals(
    source: KeySource, steps: list[dict[str, Any]], growth: float, size: RunSize
) -> list[Goal]:
    last = steps[-1]
    filled = next((step for step in steps if step["done"] >= _orders_to_fill_journal(size)), last)
    metric = f"after {last['done']:,} orders, {source.name}"
    after = f"after {filled['done']:,}"
    return [
        Goal(f"cost {metric}", f"another process {after}, interleaved", "<= 1.15", growth),
        Goal(f"memory {metric}", f"the same process {after}", "<= 1.05", last["bytes"] / filled["bytes"]),
    ]


# --- memory ---------------------------------------------------------------------------------------

RESERVED_FILES = 300
"""File descriptors for everything but connections."""

ROUNDS = 3


def measure_memory(size: RunSize) -> AreaResult:
    """Measure the memory per order in flight.

    Each sample needs a new process, because a process does not return memory to the system."""
    possible = machine.raise_file_limit() - RESERVED_FILES
    count = min(size.in_flight, possible)
    samplers = {name: partial(_memory_sample, name, count) for name in (BARE, OURS)}
    samples = interleave_blocking(samplers, rounds=min(ROUNDS, size.slow_rounds))
    note = "" if count == size.in_flight else f"the limit of open files allows only {count:,}"
    goal = Goal(
        f"memory per order in flight, concurrency {count:,}",
        "bare aiohttp",
        "<= 1.4",
        ratio(samples[OURS], samples[BARE], float),
        note,
    )
    rows = [(name, f"{median_of(rounds, float) / 1024:.1f}") for name, rounds in samples.items()]
    figures = {
        f"memory: {name}, KiB an order in flight": median_of(rounds, float) / 1024
        for name, rounds in samples.items()
    }
    table = Table(
        f"Memory (RSS) per order in flight, concurrency {count:,}", ("contender", "KiB per order"), rows
    )
    return AreaResult("memory", [goal], [table], figures)


def _memory_sample(name: str, count: int) -> float:
    core, service_core = machine.pick_cores()
    with run_service("raw", hold=count, core=service_core) as remote:
        settings = ContenderSettings(
            base_url=remote.base_url, token=remote.token, connections=count + 100, timeout=TIMEOUT
        )
        with ContenderProcess(name, settings, core=core) as process:
            return float(process.call("memory_per_order", count=count)["bytes"])
