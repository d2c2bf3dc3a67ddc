"""The cost of `create_order` with each journal.

This benchmark measures the throughput, the time that an order waits for its journal, and the effect of the
number of stored keys.

It does not include a network between worker and database, a synchronous standby or a slow service.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs

from benchmarks.measuring.journals import (
    JOURNALS,
    MEMORY,
    POSTGRES,
    SQLITE,
    JournalFactory,
    TimedJournal,
    journal_factory,
)
from benchmarks.measuring.reports import table
from benchmarks.measuring.samples import Sample, drive, interleave, median_of, ratio
from benchmarks.measuring.services import SERVICE_KINDS, RunningService, ServiceKind, run_service
from benchmarks.measuring.workload import new_orders
from benchmarks.programs import journal_growth
from benchmarks.programs.journal_growth import Growth
from transfer_async import FundsHold, TransferClient
from transfer_async._models.requests import OrderIntent
from transfer_async.journal import Journal

CONCURRENCY_LEVELS = (1, 16, 64, 256)
GOAL_CONCURRENCY = 64
GOALS = {SQLITE: 0.65, POSTGRES: 0.42}
"""The minimum throughput of each durable journal, as a share of `MemoryJournal`'s, at `GOAL_CONCURRENCY`."""

GROWTH_GOAL = 1.15
"""The maximum cost of a key in a large journal, relative to a small one."""

SAMPLE_SECONDS = 5.0
"""Seconds after which a sample starts no more orders."""


@attrs.frozen
class Speed:
    """The throughput with one journal.

    Args:
        concurrency: the number of concurrent orders.
        journal: the name of the journal.
        rate: orders per second; the median of the rounds.
        low: orders per second in the slowest round.
        high: orders per second in the fastest round.
        ratio: the median over the rounds of the rate divided by `MemoryJournal`'s.
        cpu_cost: CPU seconds of the client per order, including the journal's thread.
    """

    concurrency: int
    journal: str
    rate: float
    low: float
    high: float
    ratio: float
    cpu_cost: float


@attrs.frozen
class JournalWait:
    """How long an order waits for all its transitions, in seconds; medians of the rounds."""

    journal: str
    p50: float
    p99: float


@attrs.frozen
class JournalGoal:
    """A goal and the measured value."""

    name: str
    measured: float
    goal: str
    met: bool


# --- throughput ------------------------------------------------------------------------------


class OrderCreator:
    """Creates orders as fast as possible, with one journal.

    Args:
        client: an open client.
        name: the name of the journal.
        orders: the number of different orders.
    """

    def __init__(self, client: TransferClient, name: str, orders: int) -> None:
        self._client, self._name = client, name
        self._orders = new_orders(orders)
        self._keys = itertools.count()

    async def create_orders(self, count: int, concurrency: int) -> Sample:
        """Create ``count`` orders."""

        async def create(number: int) -> None:
            order = self._orders[number % len(self._orders)]
            await self._client.create_order(order, key=f"{self._name}-{next(self._keys)}")

        return await drive(create, count=count, concurrency=concurrency, seconds=SAMPLE_SECONDS)


async def _place(intent: OrderIntent) -> str:
    return f"hold-{intent.id}"


async def _release(_intent: OrderIntent, _receipt: str | None) -> None:
    pass


@asynccontextmanager
async def open_creator(remote: RunningService, journal: Journal, name: str) -> AsyncIterator[OrderCreator]:
    """Open a journal and a client that uses it; close both at the end."""
    hooks = [FundsHold(_place, _release)]
    async with journal, TransferClient(remote.base_url, remote.token, hooks=hooks, journal=journal) as client:
        yield OrderCreator(client, name, 500)


async def measure_speeds(factory: JournalFactory, options: Options) -> list[Speed]:
    """Measure the throughput at each concurrency, with a new service and new journals for each."""
    results = []
    for concurrency in options.concurrency:
        divisor = {1: 8, 16: 2}.get(concurrency, 1)  # at low concurrency, fewer orders suffice
        count = max(concurrency, options.orders // divisor)
        with run_service(options.server, seed=concurrency) as remote:
            async with AsyncExitStack() as stack:
                creators = {
                    name: await stack.enter_async_context(open_creator(remote, factory.journal(name), name))
                    for name in factory.names
                }
                await interleave(_samplers(creators, max(concurrency, count // 10), concurrency), rounds=1)
                rounds = await interleave(_samplers(creators, count, concurrency), rounds=options.rounds)
        results += [_speed(concurrency, name, rounds) for name in rounds]
    return results


def _samplers(
    creators: dict[str, OrderCreator], count: int, concurrency: int
) -> dict[str, Callable[[], Awaitable[Sample]]]:
    return {name: partial(row.create_orders, count, concurrency) for name, row in creators.items()}


def _speed(concurrency: int, name: str, rounds: dict[str, list[Sample]]) -> Speed:
    samples = rounds[name]
    rates = [row.rate for row in samples]
    return Speed(
        concurrency=concurrency,
        journal=name,
        rate=median_of(samples, lambda sample: sample.rate),
        low=min(rates),
        high=max(rates),
        ratio=ratio(samples, rounds[MEMORY], lambda sample: sample.rate),
        cpu_cost=median_of(samples, lambda sample: sample.cpu_cost),
    )


# --- waiting for the journal ---------------------------------------------------------------


async def measure_waits(factory: JournalFactory, options: Options) -> list[JournalWait]:
    """Measure how long orders wait for each journal, at `GOAL_CONCURRENCY`."""
    count = max(GOAL_CONCURRENCY, options.orders // 2)
    with run_service(options.server, seed=1000) as remote:
        async with AsyncExitStack() as stack:
            samplers: dict[str, Callable[[], Awaitable[JournalWait]]] = {}
            for name in factory.names:
                timed = TimedJournal(factory.journal(name))
                creator = await stack.enter_async_context(open_creator(remote, cast("Journal", timed), name))
                samplers[name] = partial(_wait, creator, timed, count)
            await interleave(samplers, rounds=1)
            rounds = await interleave(samplers, rounds=options.rounds)
    return [
        JournalWait(
            name, median_of(results, lambda sample: sample.p50), median_of(results, lambda sample: sample.p99)
        )
        for name, results in rounds.items()
    ]


async def _wait(creator: OrderCreator, timed: TimedJournal, count: int) -> JournalWait:
    await creator.create_orders(count, GOAL_CONCURRENCY)
    return JournalWait("", *timed.percentiles(50, 99))


# --- the report -----------------------------------------------------------------------------------


@attrs.frozen
class JournalReport:
    """All results."""

    about: dict[str, Any]
    speeds: list[Speed]
    waits: list[JournalWait]
    growths: list[Growth]
    seconds: float

    @property
    def goals(self) -> list[JournalGoal]:
        """The goals and the measured values."""
        results = [
            JournalGoal(
                name=f"{row.journal}, concurrency {GOAL_CONCURRENCY}: throughput relative to {MEMORY}",
                measured=row.ratio,
                goal=f">= {GOALS[row.journal]:.2f}",
                met=row.ratio >= GOALS[row.journal],
            )
            for row in self.speeds
            if row.concurrency == GOAL_CONCURRENCY and row.journal in GOALS
        ]
        return results + [
            JournalGoal(
                name=f"{row.journal}: cost with {row.many:,} keys relative to {row.few:,}, {row.kind}",
                measured=row.ratio,
                goal=f"<= {GROWTH_GOAL:.2f}",
                met=row.ratio <= GROWTH_GOAL,
            )
            for row in self.growths
        ]

    def as_json(self) -> str:
        """Return the figures as JSON, in seconds and orders per second."""
        return json.dumps(
            {**attrs.asdict(self), "goals": [attrs.asdict(row) for row in self.goals]}, indent=2
        )

    def as_text(self) -> str:
        """Return the tables in Markdown."""
        parts = [
            "Conditions: " + ", ".join(f"{name} {value}" for name, value in self.about.items()),
            _speed_table(self.speeds),
            f"Time an order waits for its journal (claim, mark, create), concurrency {GOAL_CONCURRENCY}:",
            table(
                ("journal", "p50, ms", "p99, ms"),
                [(row.journal, _ms(row.p50), _ms(row.p99)) for row in self.waits],
            ),
            _ABOUT_GROWTH.format(
                concurrency=journal_growth.CONCURRENCY, size=len(journal_growth.SMALL_REPLY)
            ),
            _growth_table(self.growths),
            table(
                ("goal", "target", "measured", ""),
                [(row.name, row.goal, f"{row.measured:.2f}", _verdict(row)) for row in self.goals],
            ),
            f"Duration: {self.seconds:.0f} s.",
        ]
        return "\n\n".join(parts)


_ABOUT_GROWTH = (
    "Cost of a new key (claim, mark, create; no service) in a journal with few or many keys, concurrency\n"
    "{concurrency}. The response is as large as the service's; the responses of the existing keys have\n"
    "{size} bytes. `ratio` is the median of the rounds; `total` is the ratio of all rounds together,\n"
    "including checkpoints:"
)


def _verdict(goal: JournalGoal) -> str:
    return "met" if goal.met else "not met"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _speed_table(speeds: list[Speed]) -> str:
    head = ("journal", "concurrency", "orders/s", "slowest", "fastest", f"of {MEMORY}", "client CPU, µs")
    return table(
        head,
        [
            (
                row.journal,
                row.concurrency,
                f"{row.rate:,.0f}",
                f"{row.low:,.0f}",
                f"{row.high:,.0f}",
                f"{row.ratio:.2f}",
                f"{row.cpu_cost * 1e6:,.0f}",
            )
            for row in speeds
        ],
    )


def _growth_table(growths: list[Growth]) -> str:
    head = ("journal", "new keys", "keys", "µs each", "keys", "µs each", "ratio", "total", "client CPU")
    return table(
        head,
        [
            (
                row.journal,
                row.kind,
                f"{row.few:,}",
                f"{row.few_cost * 1e6:,.0f}",
                f"{row.many:,}",
                f"{row.many_cost * 1e6:,.0f}",
                f"{row.ratio:.2f}",
                f"{row.total_ratio:.2f}",
                f"{row.cpu_ratio:.2f}",
            )
            for row in growths
        ],
    )


# --- the command line ----------------------------------------------------------------------------------


@attrs.frozen
class Options:
    """The command-line options; see `make_parser`."""

    rounds: int
    orders: int
    growth: int
    concurrency: list[int]
    server: ServiceKind
    json: Path | None
    journals: list[str]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks journal", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=_count, default=5, help="number of rounds (5)")
    parser.add_argument("--orders", type=_count, default=2000, help="orders per journal and round (2000)")
    parser.add_argument(
        "--growth",
        type=int,
        default=1_000_000,
        help="number of keys in the large journal (1000000); 0 skips this part",
    )
    parser.add_argument(
        "--concurrency",
        type=_count,
        nargs="+",
        default=CONCURRENCY_LEVELS,
        help="numbers of concurrent orders (1 16 64 256)",
    )
    parser.add_argument(
        "--server",
        choices=SERVICE_KINDS,
        default="sandbox",
        help="kind of service (sandbox); raw is faster",
    )
    parser.add_argument(
        "--journals",
        nargs="+",
        choices=JOURNALS,
        default=JOURNALS,
        help="journals to measure (all); MemoryJournal is always included",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return count


async def run(options: Options) -> JournalReport:
    """Run all measurements."""
    began = time.perf_counter()
    with journal_factory(options.journals) as factory:
        about = {**factory.about(), "server": options.server, "rounds": options.rounds}
        log = partial(print, file=sys.stderr, flush=True)
        log("throughput ...")
        speeds = await measure_speeds(factory, options)
        log("waiting for the journal ...")
        waits = await measure_waits(factory, options)
        growths: list[Growth] = []
        for name in factory.names[1:] if options.growth > 0 else []:
            log(f"growth of a {name} ...")
            rounds, keys = 2 * options.rounds - 1, max(journal_growth.CONCURRENCY, options.orders // 4)
            growths += await journal_growth.measure(
                factory, name, many=options.growth, rounds=rounds, keys=keys
            )
    return JournalReport(about, speeds, waits, growths, time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements and print the tables."""
    options = Options(**vars(make_parser().parse_args(arguments)))
    report = asyncio.run(run(options))
    print(report.as_text())
    if options.json is not None:
        options.json.write_text(report.as_json() + "\n", encoding="utf-8")
