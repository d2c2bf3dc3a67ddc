"""The load of a fleet of clients on a service that fails and recovers, with and without the retry budget.

    python -m benchmarks outage
    python -m benchmarks outage --clients 2000,100,4 --rate 2 --report here

The service is healthy, slows down, accepts no order for ten minutes, and is healthy again. It rejects
orders with failures that may be retried: 429, or no connection. The clients are real; their clock and the
connection to the service are simulated, so half an hour passes in seconds. Each run is checked against two
goals:

- at most 1.1 requests for each requested order, over the full outage;
- recovered within the time that the backlog needs, as defined in `benchmarks.programs.outage_simulation`.

Each client has its own bucket. So the first goal depends on the number of its orders in the outage, and on
what it has earned before. A new client's bucket allows 2 retries after a 429 and 3 without a connection; a
full one allows 94 and 35. Nothing refills it during the outage. Over n calls of a new client that is 1 +
2/n and 1 + 3/n requests each, which meets the goal from 20 and 30 calls on.
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
    """Make the settings of all the runs: each fleet, each failure, with the budget and without."""
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
    """Run one; for a process of its own."""
    return Fleet(scenario).run()


def simulate_all(scenarios: Sequence[Scenario]) -> list[OutageResult]:
    """Run all, as many at once as there are processors."""
    context = multiprocessing.get_context("spawn")
    results = []
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        for result in pool.map(simulate, scenarios):
            print(
                f"{_title(result)}: {result.amplification:.2f} requests for each order",
                file=sys.stderr,
                flush=True,
            )
            results.append(result)
    return results


# --- what is told ---------------------------------------------------------------------------------


def as_text(results: Sequence[OutageResult]) -> str:
    """Say it in Markdown."""
    schedule = results[0].scenario.schedule
    about = (
        f"The fleet creates {results[0].scenario.rate:g} orders per second. The service can create "
        f"{schedule.capacity:g} per second, then {schedule.slow_capacity:.0%} of that for "
        f"{schedule.slow:g} s, then none for {schedule.outage:g} s. A 429 costs the service "
        f"{schedule.rejection_cost:g} of an order; a refused connection costs nothing. Goals: an "
        f"amplification factor of at most {MAX_AMPLIFICATION:g} during the full outage, and recovery within "
        "the expected time."
    )
    header = ["fleet", "orders a client", "requests an order", "goal", "worst minute", "recovered after"]
    rows = [
        [
            _title(result),
            f"{result.calls_per_client:.1f}",
            f"{result.amplification:.3f}",
            _verdict(result.goals_met[0]),
            f"{max(result.amplification_per_minute):.2f}",
            "not seen" if result.recovered_after is None else f"{result.recovered_after:.0f} s",
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
            table([*header, "due after", "goal"], rows),
            "Requests for each requested order, by minute:",
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
    """Say it in numbers."""
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
    """Write a page, the figures and, if matplotlib is installed, the plots; give back what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = list(_draw(directory, results)) if can_plot() else []
    pictures = "\n\n".join(f"![{path.stem}]({path.name})" for path in plots)
    page, numbers = directory / "outage.md", directory / "outage.json"
    page.write_text(f"# An outage\n\n{as_text(results)}\n\n{pictures}\n", encoding="utf-8")
    numbers.write_text(json.dumps(figures(results), indent=1) + "\n", encoding="utf-8")
    return [page, numbers, *plots]


def _draw(directory: Path, results: Sequence[OutageResult]) -> Iterator[Path]:
    schedule = results[0].scenario.schedule
    spans = {
        "service slow": (schedule.healthy / 60, schedule.outage_start / 60),
        "service out": (schedule.outage_start / 60, schedule.outage_end / 60),
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
            title=f"Requests for each order wanted, in an outage with {failure}",
            y="requests / orders wanted, by minute",
            spans=spans,
            goal=("goal", MAX_AMPLIFICATION),
        )
        yield plot_over_time(
            directory / f"backlog-{failure}.png",
            {_title(result): result.backlog_over_time for result in ours},
            title=f"Orders wanted that do not exist, in an outage with {failure}",
            y="orders",
            spans=spans,
        )


# --- the command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, tell, report; give back the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks outage", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", default="2000,100,4", metavar="N[,N...]", help="fleets (2000,100,4)")
    parser.add_argument("--rate", type=float, default=2.0, help="orders per second of a whole fleet (2)")
    parser.add_argument("--outage", type=float, default=600.0, help="seconds of the full outage (600)")
    parser.add_argument("--seed", type=int, default=0, help="seeds everything")
    parser.add_argument(
        "--report", type=Path, metavar="DIRECTORY", help="directory for a page, plots and figures"
    )
    options = parser.parse_args(arguments)
    try:
        clients = [int(count) for count in options.clients.split(",")]
    except ValueError:
        clients = [0]
    if not all(0 < count <= MAX_CLIENTS for count in clients):
        print(f"outage: --clients: must be whole numbers, 1 to {MAX_CLIENTS}", file=sys.stderr)
        return USAGE
    if not (0 < options.rate <= 1_000 and 60 <= options.outage <= 86_400):
        print("outage: --rate: must be 1000 at most; --outage: from 60 to 86400", file=sys.stderr)
        return USAGE
    results = simulate_all(scenarios(clients, rate=options.rate, outage=options.outage, seed=options.seed))
    print(as_text(results))
    for path in write(options.report, results) if options.report is not None else ():
        print(f"written: {path}")
    return 0
