"""The cost of `create_order` with each journal.

The program measures orders per second, the time that an order waits for its journal, and the effect of a
journal's size.

It leaves out a network between the worker and its database, a standby that each commit waits for, and a slow
service. All but the first make the journals' share smaller.
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
    StopwatchJournal,
    Workshop,
    workshop,
)
from benchmarks.measuring.reports import table
from benchmarks.measuring.samples import Sample, drive, interleaved, median_of, ratio
from benchmarks.measuring.services import KINDS, RunningService, ServiceKind, run_service
from benchmarks.measuring.workload import new_orders
from benchmarks.programs import journal_growth
from benchmarks.programs.journal_growth import Growth
from transfer_async import FundsHold, TransferClient
from transfer_async._models.requests import OrderIntent
from transfer_async.journal import Journal

LEVELS = (1, 16, 64, 256)
GOAL_LEVEL = 64
GOALS = {SQLITE: 0.65, POSTGRES: 0.42}
"""The share of `MemoryJournal`'s orders a second, at 64 at once, that a durable journal is to keep."""

GROWTH_GOAL = 1.15
"""What a key in a large journal may cost for one in a small journal: more would not be noise."""

SAMPLE_SECONDS = 5.0
"""When a sample begins no more orders, however many there were to be."""


@attrs.frozen
class Speed:
    """Orders a second with one journal.

    Args:
        at_once: how many orders were under way at any time.
        journal: with which.
        rate: the median of all rounds.
        low: of the slowest round.
        high: of the fastest round.
        ratio: the median, over the rounds, of its rate for one of `MemoryJournal`'s.
        cpu_cost: seconds of the client's processor time for an order, the journal's thread included.
    """

    at_once: int
    journal: str
    rate: float
    low: float
    high: float
    ratio: float
    cpu_cost: float


@attrs.frozen
class Wait:
    """Seconds that an order waited for its journal, all its moves together; medians of all rounds."""

    journal: str
    p50: float
    p99: float


@attrs.frozen
class JournalGoal:
    """What was to be reached, and what was seen."""

    name: str
    seen: float
    goal: str
    met: bool


# --- orders a second ----------------------------------------------------------------------------


class BusyClient:
    """A bank's worker with one journal: it creates orders as fast as it can.

    Args:
        client: ready to send.
        name: of the journal.
        orders: to take in turn.
    """

    def __init__(self, client: TransferClient, name: str, orders: int) -> None:
        self._client, self._name = client, name
        self._orders = new_orders(orders)
        self._keys = itertools.count()

    async def work(self, count: int, at_once: int) -> Sample:
        """Create so many orders."""

        async def create(number: int) -> None:
            order = self._orders[number % len(self._orders)]
            await self._client.create_order(order, key=f"{self._name}-{next(self._keys)}")

        return await drive(create, count=count, at_once=at_once, seconds=SAMPLE_SECONDS)


async def _place(intent: OrderIntent) -> str:
    return f"hold-{intent.id}"


async def _release(_intent: OrderIntent, _receipt: str | None) -> None:
    pass


@asynccontextmanager
async def desk(remote: RunningService, journal: Journal, name: str) -> AsyncIterator[BusyClient]:
    """Open a journal and a client with it; close both."""
    hooks = [FundsHold(_place, _release)]
    async with journal, TransferClient(remote.base_url, remote.token, hooks=hooks, journal=journal) as client:
        yield BusyClient(client, name, 500)


async def speeds(shop: Workshop, options: Options) -> list[Speed]:
    """Measure all levels; each with a service and with journals of its own."""
    found = []
    for at_once in options.at_once:
        share = {1: 8, 16: 2}.get(at_once, 1)  # the slower ones need fewer to be told apart
        count = max(at_once, options.orders // share)
        with run_service(options.server, seed=at_once) as remote:
            async with AsyncExitStack() as stack:
                desks = {
                    name: await stack.enter_async_context(desk(remote, shop.journal(name), name))
                    for name in shop.names
                }
                await interleaved(_turns(desks, max(at_once, count // 10), at_once), rounds=1)
                rounds = await interleaved(_turns(desks, count, at_once), rounds=options.rounds)
        found += [_speed(at_once, name, rounds) for name in rounds]
    return found


def _turns(
    desks: dict[str, BusyClient], count: int, at_once: int
) -> dict[str, Callable[[], Awaitable[Sample]]]:
    return {name: partial(one.work, count, at_once) for name, one in desks.items()}


def _speed(at_once: int, name: str, rounds: dict[str, list[Sample]]) -> Speed:
    samples = rounds[name]
    rates = [one.rate for one in samples]
    return Speed(
        at_once=at_once,
        journal=name,
        rate=median_of(samples, lambda one: one.rate),
        low=min(rates),
        high=max(rates),
        ratio=ratio(samples, rounds[MEMORY], lambda one: one.rate),
        cpu_cost=median_of(samples, lambda one: one.cpu_cost),
    )


# --- the journal's part of an order -------------------------------------------------------------


async def waits(shop: Workshop, options: Options) -> list[Wait]:
    """Measure how long orders wait for each journal, `GOAL_LEVEL` at once."""
    count = max(GOAL_LEVEL, options.orders // 2)
    with run_service(options.server, seed=1000) as remote:
        async with AsyncExitStack() as stack:
            turns: dict[str, Callable[[], Awaitable[Wait]]] = {}
            for name in shop.names:
                timed = StopwatchJournal(shop.journal(name))
                worker = await stack.enter_async_context(desk(remote, cast("Journal", timed), name))
                turns[name] = partial(_wait, worker, timed, count)
            await interleaved(turns, rounds=1)
            rounds = await interleaved(turns, rounds=options.rounds)
    return [
        Wait(name, median_of(found, lambda one: one.p50), median_of(found, lambda one: one.p99))
        for name, found in rounds.items()
    ]


async def _wait(worker: BusyClient, timed: StopwatchJournal, count: int) -> Wait:
    await worker.work(count, GOAL_LEVEL)
    return Wait("", *timed.take(50, 99))


# --- the report ---------------------------------------------------------------------------------


@attrs.frozen
class JournalReport:
    """All that was found."""

    about: dict[str, Any]
    speeds: list[Speed]
    waits: list[Wait]
    growths: list[Growth]
    seconds: float

    @property
    def goals(self) -> list[JournalGoal]:
        """What was to be reached."""
        found = [
            JournalGoal(
                name=f"{one.journal}, {GOAL_LEVEL} at once: share of {MEMORY}'s orders a second",
                seen=one.ratio,
                goal=f">= {GOALS[one.journal]:.2f}",
                met=one.ratio >= GOALS[one.journal],
            )
            for one in self.speeds
            if one.at_once == GOAL_LEVEL and one.journal in GOALS
        ]
        return found + [
            JournalGoal(
                name=f"{one.journal}: a key among {one.many:,} for one among {one.few:,}, {one.kind}",
                seen=one.ratio,
                goal=f"<= {GROWTH_GOAL:.2f}",
                met=one.ratio <= GROWTH_GOAL,
            )
            for one in self.growths
        ]

    def as_json(self) -> str:
        """The figures, in seconds and orders a second."""
        return json.dumps(
            {**attrs.asdict(self), "goals": [attrs.asdict(one) for one in self.goals]}, indent=2
        )

    def as_text(self) -> str:
        """The tables."""
        parts = [
            "Conditions: " + ", ".join(f"{name} {value}" for name, value in self.about.items()),
            _speed_table(self.speeds),
            f"The time that an order waits for its journal (claim, mark and create), {GOAL_LEVEL} at once:",
            table(
                ("journal", "p50, ms", "p99, ms"),
                [(one.journal, _ms(one.p50), _ms(one.p99)) for one in self.waits],
            ),
            _ABOUT_GROWTH.format(at_once=journal_growth.AT_ONCE, size=len(journal_growth.SMALL_REPLY)),
            _growth_table(self.growths),
            table(
                ("goal", "wanted", "seen", ""),
                [(one.name, one.goal, f"{one.seen:.2f}", _met(one)) for one in self.goals],
            ),
            f"The measurement took {self.seconds:.0f} s.",
        ]
        return "\n\n".join(parts)


_ABOUT_GROWTH = (
    "A new key (claim, mark and create; no service), {at_once} at once, in a journal with few or many.\n"
    "Its reply is as large as the service's, those that were there have {size} bytes. `ratio` is the median\n"
    "of the rounds, `in all` that of all rounds together, with the checkpoints in them:"
)


def _met(goal: JournalGoal) -> str:
    return "met" if goal.met else "not met"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _speed_table(speeds: list[Speed]) -> str:
    head = ("journal", "at once", "orders/s", "slowest", "fastest", f"of {MEMORY}", "client's CPU, µs")
    return table(
        head,
        [
            (
                one.journal,
                one.at_once,
                f"{one.rate:,.0f}",
                f"{one.low:,.0f}",
                f"{one.high:,.0f}",
                f"{one.ratio:.2f}",
                f"{one.cpu_cost * 1e6:,.0f}",
            )
            for one in speeds
        ],
    )


def _growth_table(growths: list[Growth]) -> str:
    head = ("journal", "new keys", "held", "µs each", "held", "µs each", "ratio", "in all", "client's CPU")
    return table(
        head,
        [
            (
                one.journal,
                one.kind,
                f"{one.few:,}",
                f"{one.few_cost * 1e6:,.0f}",
                f"{one.many:,}",
                f"{one.many_cost * 1e6:,.0f}",
                f"{one.ratio:.2f}",
                f"{one.total_ratio:.2f}",
                f"{one.cpu_ratio:.2f}",
            )
            for one in growths
        ],
    )


# --- the program --------------------------------------------------------------------------------


@attrs.frozen
class Options:
    """What was asked for; see `parser`."""

    rounds: int
    orders: int
    growth: int
    at_once: list[int]
    server: ServiceKind
    json: Path | None
    journals: list[str]


def parser() -> argparse.ArgumentParser:
    """Read the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks journal", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--rounds", type=_count, default=5, help="rounds (5)")
    made.add_argument("--orders", type=_count, default=2000, help="orders for each journal in a round (2000)")
    made.add_argument("--growth", type=int, default=1_000_000, help="keys in the large journal; 0 skips it")
    made.add_argument("--at-once", type=_count, nargs="+", default=LEVELS, help="concurrent orders")
    made.add_argument(
        "--server",
        choices=KINDS,
        default="sandbox",
        help="the kind of service, see measuring/services.py",
    )
    made.add_argument(
        "--journals",
        nargs="+",
        choices=JOURNALS,
        default=JOURNALS,
        help="the journals; memory is always included",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    return made


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return count


async def run(options: Options) -> JournalReport:
    """Measure all there is to measure."""
    began = time.perf_counter()
    with workshop(options.journals) as shop:
        about = {**shop.about(), "server": options.server, "rounds": options.rounds}
        tell = partial(print, file=sys.stderr, flush=True)
        tell("orders a second ...")
        fast = await speeds(shop, options)
        tell("the journal's part ...")
        slow = await waits(shop, options)
        grown: list[Growth] = []
        for name in shop.names[1:] if options.growth > 0 else []:
            tell(f"growth of a {name} ...")
            rounds, keys = 2 * options.rounds - 1, max(journal_growth.AT_ONCE, options.orders // 4)
            grown += await journal_growth.measure(shop, name, many=options.growth, rounds=rounds, keys=keys)
    return JournalReport(about, fast, slow, grown, time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    options = Options(**vars(parser().parse_args(arguments)))
    report = asyncio.run(run(options))
    print(report.as_text())
    if options.json is not None:
        options.json.write_text(report.as_json() + "\n", encoding="utf-8")
