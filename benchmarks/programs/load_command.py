"""A load on the service through the real client: rate, latency, cost, and a check of every outcome.

    python -m benchmarks load --rate 500 --for 30
    python -m benchmarks load --at-once 1,8,64,512 --for 10 --report here
    python -m benchmarks load --rate 100 --fault close-after-processing=0.05 --journal payments.sqlite
    TRANSFER_API_TOKEN=... python -m benchmarks load --url http://127.0.0.1:8080 --order order.json --rate 50

Without ``--url``, the program starts the sandbox in a process of its own. At the end it compares the
sandbox's orders with the outcomes: no duplicate, none missing, none that should not exist.
``--rate`` is an open loop and ``--at-once`` a closed one; see `benchmarks.programs.load_driver`.
Everything is bounded. Ctrl-C stops it cleanly and reports what was measured until then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.measuring.services import run_service
from benchmarks.measuring.workload import SCHEDULES
from benchmarks.programs.load_driver import KINDS, Driver, LoadTally, StepLimits, Stop
from benchmarks.programs.load_report import LoadFindings, LoadPlan, LoadReport
from benchmarks.programs.load_target import (
    MOST_ORDERS,
    Sender,
    checked_host,
    compared,
    journal_for,
    made_order,
    order_from,
    recorded,
    settled,
)
from transfer_async import TransferClient
from transfer_async._cli.output import Say
from transfer_async._cli.process import run
from transfer_async._cli.servers import fault_shares

LONGEST = 3_600.0
"""The largest number of seconds for one step."""

FASTEST, MOST_AT_ONCE = 20_000.0, 10_000
WARM_UP = 20
"""The number of orders before the first step that are not measured, to open connections and fill caches."""

USAGE, DISAGREES = 2, 1
"""Exit codes: a usage error; a run after which the client and the sandbox disagree."""


# --- the run ------------------------------------------------------------------------------------


async def put_load(plan: LoadPlan, *, base_url: str, token: str, board: Board) -> LoadFindings:
    """Run all the steps, one after the other, each with a client of its own."""
    sender, steps = Sender(plan.order), dict[float, LoadTally]()
    with _stopped_by_ctrl_c() as stop:
        warm_up = StepLimits(plan.limits.seconds, min(WARM_UP, plan.limits.orders))
        async with _client(plan, base_url, token) as sender.client:
            await Driver(sender.send, warm_up, LoadTally(), stop).closed(4)
        for load in plan.loads:
            if stop.wanted:
                break
            steps[load] = LoadTally()
            driver = Driver(sender.send, plan.limits, steps[load], stop, first=len(sender.endings))
            async with _client(plan, base_url, token) as sender.client:
                await _step(plan, load, driver, board)
    comparison = None
    if plan.url is None:
        amounts = await settled(lambda: recorded(base_url, token))
        comparison = compared(sender.endings, amounts)
    return LoadFindings(steps, comparison, stop.wanted)


async def _step(plan: LoadPlan, load: float, driver: Driver, board: Board) -> None:
    gc.collect()  # of the step before
    async with shown(board, plan.title(load), plan.limits, driver.tally):
        if plan.loop == "open":
            await driver.open(SCHEDULES[plan.schedule](load, seed=plan.seed))
        else:
            await driver.closed(int(load))


@asynccontextmanager
async def _client(plan: LoadPlan, base_url: str, token: str) -> AsyncIterator[TransferClient]:
    async with (
        journal_for(plan.journal) as journal,
        TransferClient(base_url, token, journal=journal, max_connections=plan.connections) as client,
    ):
        yield client


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[Stop]:
    """Stop cleanly at the first Ctrl-C; the second one interrupts Python."""
    stop = Stop()

    def handle(*_: object) -> None:
        stop.wanted = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


# --- the command line ---------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Make the parser of the options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks load", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = made.add_argument
    kind = made.add_mutually_exclusive_group(required=True)
    kind.add_argument("--rate", metavar="N[,N...]", help="orders per second (open loop)")
    kind.add_argument("--at-once", metavar="N[,N...]", help="concurrent orders (closed loop)")
    add(
        "--for",
        dest="seconds",
        type=float,
        default=10.0,
        help=f"seconds for each step (10; at most {LONGEST:g})",
    )
    add(
        "--orders",
        type=int,
        default=100_000,
        help=f"largest number for each step (100000; {MOST_ORDERS} in total)",
    )
    add("--schedule", choices=SCHEDULES, default="poisson", help="arrivals with --rate (poisson)")
    add("--seed", type=int, default=0, help="seeds the arrivals and the faults")
    add("--journal", default="memory", help="memory, a path, or postgresql://... (memory)")
    add("--connections", type=int, default=512, help="largest number of the client (512)")
    add("--fault", action="append", default=[], help="NAME=SHARE[:SETTINGS], as transfer-async sandbox has")
    add("--url", help="base URL of the service, with TRANSFER_API_TOKEN; by default our own sandbox")
    add("--order", type=Path, help="with --url: a JSON file with the order to send repeatedly")
    add("--i-own-this-host", action="store_true", help="confirms a --url that is not loopback")
    add("--report", type=Path, metavar="DIRECTORY", help="directory for a page, plots and figures")
    return made


def plan_from(options: argparse.Namespace) -> LoadPlan:
    """Make the plan.

    Raises:
        ValueError: names the option and the rule.
    """
    if options.url is not None:
        checked_host(options.url, owned=options.i_own_this_host)
        if options.fault:
            raise ValueError("--fault: works only without --url, with our own sandbox")
    elif options.order is not None:
        raise ValueError("--order: only with --url; the sandbox's own orders can be told apart")
    fault_shares(options.fault)
    journal_for(options.journal)
    is_open = options.rate is not None
    loads = _loads("--rate", options.rate) if is_open else _loads("--at-once", options.at_once)
    if not 0 < options.seconds <= LONGEST:
        raise ValueError(f"--for: must be more than 0 seconds, and {LONGEST:g} at most")
    if not 0 < options.orders <= MOST_ORDERS // len(loads):
        raise ValueError(
            f"--orders: must be 1 or more, and {MOST_ORDERS // len(loads)} at most for each step"
        )
    if options.connections < 1:
        raise ValueError("--connections: must be 1 or more")
    return LoadPlan(
        loop="open" if is_open else "closed",
        loads=loads,
        schedule=options.schedule,
        limits=StepLimits(options.seconds, options.orders),
        seed=options.seed,
        journal=options.journal,
        connections=options.connections,
        faults=tuple(options.fault),
        url=options.url,
        order=made_order if options.order is None else order_from(options.order),
    )


def _loads(name: str, text: str) -> tuple[float, ...]:
    most = FASTEST if name == "--rate" else MOST_AT_ONCE
    read = float if name == "--rate" else int
    try:
        loads = tuple(read(one) for one in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: must be a number, or some with commas between") from None
    if not all(0 < load <= most for load in loads) or len(set(loads)) < len(loads):
        raise ValueError(f"{name}: must be more than 0, {most:g} at most, and none twice")
    return loads


@contextmanager
def _service(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    if plan.url is not None:
        yield plan.url, os.environ["TRANSFER_API_TOKEN"]
        return
    with run_service(faults=plan.faults, seed=plan.seed) as running:
        yield running.base_url, running.token


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, show and report; return the exit code."""
    options = parser().parse_args(arguments)
    try:
        plan = plan_from(options)
        if plan.url is not None and not os.environ.get("TRANSFER_API_TOKEN"):
            raise ValueError("TRANSFER_API_TOKEN: must be set in the environment, with --url")  # noqa: TRY301
    except ValueError as error:
        print(f"load: {error}", file=sys.stderr)
        return USAGE
    with live_or_plain(_say, live=sys.stdout.isatty()) as board, _service(plan) as (base_url, token):
        found = run(put_load(plan, base_url=base_url, token=token, board=board))
    report = LoadReport(plan, found)
    print(report.text())
    if options.report is not None:
        for path in report.write(options.report):
            print(f"written: {path}")
    return DISAGREES if found.comparison is not None and not found.comparison.agrees else 0


def _say(line: str) -> None:
    print(line, flush=True)


# --- progress -------------------------------------------------------------------------------------


class Board(Protocol):
    """Shows how far a step has come.

    Attributes:
        every: seconds between two looks at it.
    """

    every: float

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Show the state of things."""
        ...


class PlainBoard:
    """A line now and then."""

    every = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Write a line."""
        del limits
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(tally.kinds.items()))
        self._say(
            f"{title}: {seconds:5.1f} s, {tally.begun} begun, {tally.begun - tally.done} on their way; "
            f"{kinds or 'none ended yet'}; median {_ms(tally.latency.at(50))}, "
            f"99 % {_ms(tally.latency.at(99))}"
        )


class LiveBoard:
    """A table that changes while orders end, by rich."""

    every = 0.25

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, title: str, seconds: float, limits: StepLimits, tally: LoadTally) -> None:
        """Redraw: a bar, the outcomes, and the latencies so far."""
        from rich.console import Group  # with the extra, and only on a terminal
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        part = max(seconds / limits.seconds, tally.begun / limits.orders)
        table = Table(
            "so far", "", title=f"{title}, {seconds:.1f} s", title_justify="left", show_header=False
        )
        for kind in (*KINDS.values(), "broken"):
            if kind in tally.kinds or kind == "created":
                table.add_row(kind, str(tally.kinds[kind]))
        table.add_row("on their way", str(tally.begun - tally.done))
        for percent in (50, 99, 100):
            name = "slowest" if percent == 100 else f"{percent} % within"
            table.add_row(name, _ms(tally.latency.at(percent)))
        self._live.update(Group(ProgressBar(total=1.0, completed=min(part, 1.0), width=40), table))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@contextmanager
def live_or_plain(say: Say, *, live: bool) -> Iterator[Board]:
    """Give a live view where that is wanted; plain lines otherwise."""
    if not live:
        yield PlainBoard(say)
        return
    from rich.live import Live  # with the extra, and only on a terminal

    with Live(refresh_per_second=8, transient=True) as view:
        yield LiveBoard(view)


@asynccontextmanager
async def shown(board: Board, title: str, limits: StepLimits, tally: LoadTally) -> AsyncIterator[None]:
    """Show a step on the board while the block runs."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def show() -> None:
        while True:
            board.show(title, loop.time() - began, limits, tally)
            await asyncio.sleep(board.every)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
