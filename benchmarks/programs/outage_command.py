"""Simulate a fleet of clients during an outage, with and without the retry budget.

    python -m benchmarks outage
    python -m benchmarks outage --clients 2000,100,4 --rate 2 --report here

The service is healthy, slows down, accepts no orders for ten minutes, and is healthy again. It rejects
requests with failures that may be retried: status 429 or refused connections. The clients are real. Their
clock and the transport are simulated, so half an hour passes in seconds. Each run has two goals:

- an amplification factor of at most 1.1 during the outage;
- recovery within the expected time, as defined in `benchmarks.programs.outage_simulation`.

Each client has its own token bucket. The amplification factor therefore depends on the number of calls per
client and on the tokens earned before. The bucket of a new client allows 2 retries after status 429 or 3
after refused connections; a full one allows 94 or 35. During the outage, no tokens are earned. For n calls of
a new client, the amplification factor is 1 + 2/n or 1 + 3/n: the goal is met from 20 or 30 calls on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, get_args

from benchmarks.measuring.reports import can_plot, plot_over_time, table
from benchmarks.programs.outage_simulation import (
    MAX_AMPLIFICATION,
    NO_BUDGET,
    Failure,
    Fleet,
    OutageResult,
    OutageSchedule,
    Scenario,
)
from transfer_async import RetryBudget

USAGE = 2
MAX_CLIENTS = 100_000


def scenarios(clients: Sequence[int], *, rate: float, outage: float, seed: int) -> list[Scenario]:
    """Return a scenario for each fleet and failure, with and without a retry budget."""
    return [
        Scenario(
            clients=count,
            rate=rate,
            schedule=OutageSchedule(capacity=2.0 * rate, outage=outage, failure=failure),
            budget=budget,
            seed=seed,
        )
        for count, failure, budget in product(clients, get_args(Failure), (RetryBudget(), NO_BUDGET))
    ]


def simulate(scenario: Scenario) -> OutageResult:
    """Run one simulation. `simulate_all` runs this in other processes."""
    return Fleet(scenario).run()


def simulate_all(scenarios: Sequence[Scenario]) -> list[OutageResult]:
    """Run all simulations, one per processor at a time."""
    context = multiprocessing.get_context("spawn")
    results = []
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        for result in pool.map(simulate, scenarios):
            print(
                f"{_title(result)}: amplification factor {result.amplification:.2f}",
                file=sys.stderr,
                flush=True,
            )
            results.append(result)
    return results


# --- the report ---------------------------------------------------------------------------------


def as_text(results: Sequence[OutageResult]) -> str:
    """Return the report in Markdown."""
    schedule = results[0].scenario.schedule
    about = (
        f"Arrival rate of the fleet: {results[0].scenario.rate:g} orders per second. The service can create "
        f"{schedule.capacity:g} per second, then {schedule.slow_capacity:.0%} of that for "
        f"{schedule.slow:g} s, then none for {schedule.outage:g} s. A 429 costs the service "
        f"{schedule.rejection_cost:g} of an order; a refused connection costs nothing. Goals: an "
        f"amplification factor of at most {MAX_AMPLIFICATION:g} during the full outage, and recovery within "
        "the expected time."
    )
    header = ["fleet", "calls per client", "amplification", "goal", "worst minute", "recovered after"]
    rows = [
        [
            _title(result),
            f"{result.calls_per_client:.1f}",
            f"{result.amplification:.3f}",
            _verdict(result.goals_met[0]),
            f"{max(result.amplification_per_minute):.2f}",
            "not recovered" if result.recovered_after is None else f"{result.recovered_after:.0f} s",
            f"{result.expected_recovery:.0f} s",
            _verdict(result.goals_met[1]),
        ]
        for result in results
    ]
    minutes = range(max(len(result.per_minute) for result in results))
    per_minute = [[_title(result), *_minute_row(result, len(minutes))] for result in results]
    return "\n\n".join(
        (
            about,
            table([*header, "expected", "goal"], rows),
            "Amplification factor by minute:",
            table(["minute", *map(str, minutes)], per_minute),
        )
    )


def _title(result: OutageResult) -> str:
    budget = "no budget" if result.scenario.budget == NO_BUDGET else "budget"
    return f"{result.scenario.clients} clients, {result.scenario.schedule.failure}, {budget}"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _minute_row(result: OutageResult, length: int) -> list[str]:
    values = [f"{value:.2f}" for value in result.amplification_per_minute]
    return values + ["-"] * (length - len(values))


def figures(results: Sequence[OutageResult]) -> list[dict[str, Any]]:
    """Return the report for JSON."""
    return [
        {
            "fleet": _title(result),
            "clients": result.scenario.clients,
            "failure": result.scenario.schedule.failure,
            "budget": result.scenario.budget != NO_BUDGET,
            "calls_a_client": result.calls_per_client,
            "amplification": result.amplification,
            "amplification_by_minute": result.amplification_per_minute,
            "backlog": result.backlog,
            "recovered_after": result.recovered_after,
            "due_after": result.expected_recovery,
            "doubts": result.doubts,
            "goals": result.goals_met,
        }
        for result in results
    ]


def write(directory: Path, results: Sequence[OutageResult]) -> list[Path]:
    """Write a page, the figures and, if matplotlib is installed, the plots; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = list(_draw(directory, results)) if can_plot() else []
    pictures = "\n\n".join(f"![{path.stem}]({path.name})" for path in plots)
    page, numbers = directory / "outage.md", directory / "outage.json"
    page.write_text(f"# Simulated outage\n\n{as_text(results)}\n\n{pictures}\n", encoding="utf-8")
    numbers.write_text(json.dumps(figures(results), indent=1) + "\n", encoding="utf-8")
    return [page, numbers, *plots]


def _draw(directory: Path, results: Sequence[OutageResult]) -> Iterator[Path]:
    schedule = results[0].scenario.schedule
    spans = {
        "service slow": (schedule.healthy / 60, schedule.outage_start / 60),
        "outage": (schedule.outage_start / 60, schedule.outage_end / 60),
    }
    for failure in get_args(Failure):
        ours = [result for result in results if result.scenario.schedule.failure == failure]
        yield plot_over_time(
            directory / f"amplification-{failure}.png",
            {
                _title(result): [
                    (at + 0.5, value) for at, value in enumerate(result.amplification_per_minute)
                ]
                for result in ours
            },
            title=f"Amplification factor in an outage with failure: {failure}",
            y="requests per call, by minute",
            spans=spans,
            goal=("goal", MAX_AMPLIFICATION),
        )
        yield plot_over_time(
            directory / f"backlog-{failure}.png",
            {_title(result): result.backlog_over_time for result in ours},
            title=f"Backlog in an outage with failure: {failure}",
            y="orders",
            spans=spans,
        )


# --- the command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations, print the report and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks outage", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--clients",
        default="2000,100,4",
        metavar="N[,N...]",
        help="sizes of the fleets to compare (2000,100,4)",
    )
    parser.add_argument(
        "--rate", type=float, default=2.0, help="arrival rate of the whole fleet, in orders per second (2)"
    )
    parser.add_argument("--outage", type=float, default=600.0, help="duration of the outage in seconds (600)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness (0)")
    parser.add_argument(
        "--report", type=Path, metavar="DIRECTORY", help="directory for a page, plots and figures"
    )
    options = parser.parse_args(arguments)
    try:
        clients = [int(count) for count in options.clients.split(",")]
    except ValueError:
        clients = [0]
    if not all(0 < count <= MAX_CLIENTS for count in clients):
        print(f"outage: --clients: must be integers between 1 and {MAX_CLIENTS}", file=sys.stderr)
        return USAGE
    if not (0 < options.rate <= 1_000 and 60 <= options.outage <= 86_400):
        print(
            "outage: --rate must be more than 0 and at most 1000; --outage must be between 60 and 86400",
            file=sys.stderr,
        )
        return USAGE
    results = simulate_all(scenarios(clients, rate=options.rate, outage=options.outage, seed=options.seed))
    print(as_text(results))
    for path in write(options.report, results) if options.report is not None else ():
        print(f"Wrote {path}")
    return 0
