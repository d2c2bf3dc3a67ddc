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
    GOAL,
    NO_BUDGET,
    Failure,
    Fleet,
    OutageFindings,
    Setting,
    Weather,
)
from transfer_async import RetryBudget

USAGE = 2
MOST_CLIENTS = 100_000


def settings(clients: Sequence[int], *, rate: float, out: float, seed: int) -> list[Setting]:
    """Make the settings of all the runs: each fleet, each failure, with the budget and without."""
    return [
        Setting(
            clients=count,
            rate=rate,
            weather=Weather(capacity=2.0 * rate, out=out, failure=failure),
            budget=budget,
            seed=seed,
        )
        for count, failure, budget in product(clients, get_args(Failure), (RetryBudget(), NO_BUDGET))
    ]


def simulate(setting: Setting) -> OutageFindings:
    """Run one; for a process of its own."""
    return Fleet(setting).run()


def simulated(wanted: Sequence[Setting]) -> list[OutageFindings]:
    """Run all, as many at once as there are processors."""
    context = multiprocessing.get_context("spawn")
    found = []
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        for one in pool.map(simulate, wanted):
            print(
                f"{_title(one)}: {one.amplification:.2f} requests for each order", file=sys.stderr, flush=True
            )
            found.append(one)
    return found


# --- what is told -------------------------------------------------------------------------------


def text(found: Sequence[OutageFindings]) -> str:
    """Say it in Markdown."""
    weather = found[0].setting.weather
    about = (
        f"{found[0].setting.rate:g} orders a second of the whole fleet; the service can create "
        f"{weather.capacity:g} a second, {weather.slowness:.0%} of that for {weather.slow:g} s, then none "
        f"for {weather.out:g} s. A 429 costs it {weather.turning_away:g} of an order, a refused "
        f"connection nothing. Goals: at most {GOAL:g} requests for each requested order in the full outage; "
        "recovered before the backlog is due."
    )
    head = ["fleet", "orders a client", "requests an order", "goal", "worst minute", "recovered after"]
    rows = [
        [
            _title(one),
            f"{one.calls_a_client:.1f}",
            f"{one.amplification:.3f}",
            _verdict(one.met[0]),
            f"{max(one.amplifications):.2f}",
            "not seen" if one.recovered_after is None else f"{one.recovered_after:.0f} s",
            f"{one.due_after:.0f} s",
            _verdict(one.met[1]),
        ]
        for one in found
    ]
    minutes = range(max(len(one.by_minute) for one in found))
    by_minute = [[_title(one), *_by_minute(one, len(minutes))] for one in found]
    return "\n\n".join(
        (
            about,
            table([*head, "due after", "goal"], rows),
            "Requests for each requested order, by minute:",
            table(["minute", *map(str, minutes)], by_minute),
        )
    )


def _title(one: OutageFindings) -> str:
    budget = "no budget" if one.setting.budget == NO_BUDGET else "budget"
    return f"{one.setting.clients} clients, {one.setting.weather.failure}, {budget}"


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _by_minute(one: OutageFindings, length: int) -> list[str]:
    told = [f"{value:.2f}" for value in one.amplifications]
    return told + ["-"] * (length - len(told))


def figures(found: Sequence[OutageFindings]) -> list[dict[str, Any]]:
    """Say it in numbers."""
    return [
        {
            "fleet": _title(one),
            "clients": one.setting.clients,
            "failure": one.setting.weather.failure,
            "budget": one.setting.budget != NO_BUDGET,
            "calls_a_client": one.calls_a_client,
            "amplification": one.amplification,
            "amplification_by_minute": one.amplifications,
            "backlog": one.backlog,
            "recovered_after": one.recovered_after,
            "due_after": one.due_after,
            "doubts": one.doubts,
            "goals": one.met,
        }
        for one in found
    ]


def write(directory: Path, found: Sequence[OutageFindings]) -> list[Path]:
    """Write a page, the figures and, if matplotlib is installed, the plots; give back what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = list(_draw(directory, found)) if can_plot() else []
    pictures = "\n\n".join(f"![{path.stem}]({path.name})" for path in drawn)
    page, numbers = directory / "outage.md", directory / "outage.json"
    page.write_text(f"# An outage\n\n{text(found)}\n\n{pictures}\n", encoding="utf-8")
    numbers.write_text(json.dumps(figures(found), indent=1) + "\n", encoding="utf-8")
    return [page, numbers, *drawn]


def _draw(directory: Path, found: Sequence[OutageFindings]) -> Iterator[Path]:
    weather = found[0].setting.weather
    spans = {
        "service slow": (weather.well / 60, weather.fails_at / 60),
        "service out": (weather.fails_at / 60, weather.ends_at / 60),
    }
    for failure in get_args(Failure):
        ours = [one for one in found if one.setting.weather.failure == failure]
        yield plot_over_time(
            directory / f"amplification-{failure}.png",
            {_title(one): [(at + 0.5, value) for at, value in enumerate(one.amplifications)] for one in ours},
            title=f"Requests for each order wanted, in an outage with {failure}",
            y="requests / orders wanted, by minute",
            spans=spans,
            goal=("goal", GOAL),
        )
        yield plot_over_time(
            directory / f"backlog-{failure}.png",
            {_title(one): one.waiting for one in ours},
            title=f"Orders wanted that do not exist, in an outage with {failure}",
            y="orders",
            spans=spans,
        )


# --- the command line ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, tell, report; give back the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks outage", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", default="2000,100,4", metavar="N[,N...]", help="fleets (2000,100,4)")
    parser.add_argument("--rate", type=float, default=2.0, help="orders per second of a whole fleet (2)")
    parser.add_argument("--out", type=float, default=600.0, help="seconds of the full outage (600)")
    parser.add_argument("--seed", type=int, default=0, help="seeds everything")
    parser.add_argument(
        "--report", type=Path, metavar="DIRECTORY", help="directory for a page, plots and figures"
    )
    options = parser.parse_args(arguments)
    try:
        clients = [int(one) for one in options.clients.split(",")]
    except ValueError:
        clients = [0]
    if not all(0 < one <= MOST_CLIENTS for one in clients):
        print(f"outage: --clients: must be whole numbers, 1 to {MOST_CLIENTS}", file=sys.stderr)
        return USAGE
    if not (0 < options.rate <= 1_000 and 60 <= options.out <= 86_400):
        print("outage: --rate: must be 1000 at most; --out: from 60 to 86400", file=sys.stderr)
        return USAGE
    found = simulated(settings(clients, rate=options.rate, out=options.out, seed=options.seed))
    print(text(found))
    for path in write(options.report, found) if options.report is not None else ():
        print(f"written: {path}")
    return 0
