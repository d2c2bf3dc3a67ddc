"""Load test with the real client: throughput, latency, CPU cost, and a check of every outcome.

    python -m benchmarks load --rate 500 --for 30
    python -m benchmarks load --concurrency 1,8,64,512 --for 10 --report here
    python -m benchmarks load --rate 100 --fault close-after-processing=0.05 --journal payments.sqlite
    TRANSFER_API_TOKEN=... python -m benchmarks load --url http://127.0.0.1:8080 --order order.json --rate 50

Without ``--url``, this command starts the sandbox in its own process. At the end, it compares the sandbox's
orders with the outcomes: no order may be duplicated, missing or unexpected. ``--rate`` runs an open loop,
``--concurrency`` a closed one; see `benchmarks.programs.load_driver`. Ctrl-C stops the test cleanly and
reports what was measured until then.
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
from benchmarks.programs.load_driver import OUTCOME_NAMES, Driver, StepLimits, StepStats, Stop
from benchmarks.programs.load_report import LoadPlan, LoadReport, LoadResult
from benchmarks.programs.load_target import (
    MAX_ORDERS,
    Sender,
    check_host,
    compare_outcomes,
    fetch_amounts,
    journal_for,
    order_for,
    order_from_file,
    wait_until_stable,
)
from transfer_async import TransferClient
from transfer_async._cli.output import Say
from transfer_async._cli.process import run
from transfer_async._cli.servers import fault_shares

MAX_SECONDS = 3_600.0
"""The maximum duration of one step, in seconds."""

MAX_RATE, MAX_CONCURRENCY = 20_000.0, 10_000
WARM_UP = 20
"""The number of warm-up orders before the first step, which are not measured."""

USAGE, DISAGREEMENT = 2, 1
"""Exit codes for a usage error, and for outcomes that contradict the sandbox's orders."""


# --- the run --------------------------------------------------------------------------------------


async def run_load(plan: LoadPlan, *, base_url: str, token: str, progress: Progress) -> LoadResult:
    """Run the steps one after the other, each with its own client."""
    sender, steps = Sender(plan.order), dict[float, StepStats]()
    with _stop_on_ctrl_c() as stop:
        warm_up = StepLimits(plan.limits.seconds, min(WARM_UP, plan.limits.orders))
        async with _client(plan, base_url, token) as sender.client:
            await Driver(sender.send, warm_up, StepStats(), stop).run_closed(4)
        for load in plan.loads:
            if stop.requested:
                break
            steps[load] = StepStats()
            driver = Driver(sender.send, plan.limits, steps[load], stop, first=len(sender.outcomes))
            async with _client(plan, base_url, token) as sender.client:
                await _run_step(plan, load, driver, progress)
    comparison = None
    if plan.url is None:
        amounts = await wait_until_stable(lambda: fetch_amounts(base_url, token))
        comparison = compare_outcomes(sender.outcomes, amounts)
    return LoadResult(steps, comparison, stop.requested)


async def _run_step(plan: LoadPlan, load: float, driver: Driver, progress: Progress) -> None:
    gc.collect()  # collect the garbage of the previous step
    async with show_progress(progress, plan.title(load), plan.limits, driver.stats):
        if plan.loop == "open":
            await driver.run_open(SCHEDULES[plan.schedule](load, seed=plan.seed))
        else:
            await driver.run_closed(int(load))


@asynccontextmanager
async def _client(plan: LoadPlan, base_url: str, token: str) -> AsyncIterator[TransferClient]:
    async with (
        journal_for(plan.journal) as journal,
        TransferClient(base_url, token, journal=journal, max_connections=plan.connections) as client,
    ):
        yield client


@contextmanager
def _stop_on_ctrl_c() -> Iterator[Stop]:
    """Stop cleanly at the first Ctrl-C. A second one raises `KeyboardInterrupt`."""
    stop = Stop()

    def handle(*_: object) -> None:
        stop.requested = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


# --- the command line -----------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks load", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--rate", metavar="N[,N...]", help="arrival rates: orders per second (open loop)")
    kind.add_argument("--concurrency", metavar="N[,N...]", help="numbers of concurrent orders (closed loop)")
    add(
        "--for",
        dest="seconds",
        type=float,
        default=10.0,
        help=f"seconds per step (10; at most {MAX_SECONDS:g})",
    )
    add(
        "--orders",
        type=int,
        default=100_000,
        help=f"maximum number per step (100000; {MAX_ORDERS} in total)",
    )
    add(
        "--schedule",
        choices=SCHEDULES,
        default="poisson",
        help="distribution of arrival times with --rate (poisson)",
    )
    add("--seed", type=int, default=0, help="seed of the arrival times and the faults (0)")
    add("--journal", default="memory", help="memory, a path, or postgresql://... (memory)")
    add("--connections", type=int, default=512, help="maximum number of connections (512)")
    add(
        "--fault",
        action="append",
        default=[],
        help="NAME=SHARE[:SETTINGS], as in transfer-async sandbox --fault",
    )
    add("--url", help="base URL of the service (default: start a sandbox); needs TRANSFER_API_TOKEN")
    add("--order", type=Path, help="with --url: JSON file with the order to send repeatedly")
    add("--i-own-this-host", action="store_true", help="confirm a --url that is not loopback")
    add("--report", type=Path, metavar="DIRECTORY", help="directory for a page, plots and figures")
    return parser


def plan_from(options: argparse.Namespace) -> LoadPlan:
    """Return the plan.

    Raises:
        ValueError: an option is invalid.
    """
    if options.url is not None:
        check_host(options.url, owned=options.i_own_this_host)
        if options.fault:
            raise ValueError("--fault: works only with the sandbox, without --url")
    elif options.order is not None:
        raise ValueError("--order: works only with --url; with the sandbox, each order has a unique amount")
    fault_shares(options.fault)
    journal_for(options.journal)
    is_open = options.rate is not None
    loads = _loads("--rate", options.rate) if is_open else _loads("--concurrency", options.concurrency)
    if not 0 < options.seconds <= MAX_SECONDS:
        raise ValueError(f"--for: must be more than 0 and at most {MAX_SECONDS:g} seconds")
    if not 0 < options.orders <= MAX_ORDERS // len(loads):
        raise ValueError(f"--orders: must be between 1 and {MAX_ORDERS // len(loads)} for each step")
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
        order=order_for if options.order is None else order_from_file(options.order),
    )


def _loads(name: str, text: str) -> tuple[float, ...]:
    most = MAX_RATE if name == "--rate" else MAX_CONCURRENCY
    read = float if name == "--rate" else int
    try:
        loads = tuple(read(load) for load in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: must be a number or a comma-separated list of numbers") from None
    if not all(0 < load <= most for load in loads) or len(set(loads)) < len(loads):
        raise ValueError(f"{name}: must be more than 0 and at most {most:g}, without duplicates")
    return loads


@contextmanager
def _service(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    if plan.url is not None:
        yield plan.url, os.environ["TRANSFER_API_TOKEN"]
        return
    with run_service(faults=plan.faults, seed=plan.seed) as running:
        yield running.base_url, running.token


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load test, print the report and return the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        plan = plan_from(options)
        if plan.url is not None and not os.environ.get("TRANSFER_API_TOKEN"):
            raise ValueError("TRANSFER_API_TOKEN: must be set in the environment when --url is used")  # noqa: TRY301
    except ValueError as error:
        print(f"load: {error}", file=sys.stderr)
        return USAGE
    with progress_display(_print, live=sys.stdout.isatty()) as progress, _service(plan) as (base_url, token):
        result = run(run_load(plan, base_url=base_url, token=token, progress=progress))
    report = LoadReport(plan, result)
    print(report.text())
    if options.report is not None:
        for path in report.write(options.report):
            print(f"Wrote {path}")
    return DISAGREEMENT if result.comparison is not None and not result.comparison.agrees else 0


def _print(line: str) -> None:
    print(line, flush=True)


# --- progress -------------------------------------------------------------------------------------


class Progress(Protocol):
    """Displays the progress of a step.

    Attributes:
        interval: the seconds between two updates.
    """

    interval: float

    def show(self, title: str, seconds: float, limits: StepLimits, stats: StepStats) -> None:
        """Display the current state."""
        ...


class PlainProgress:
    """Prints a line every two seconds."""

    interval = 2.0

    def __init__(self, say: Say) -> None:
        self._print = say

    def show(self, title: str, seconds: float, limits: StepLimits, stats: StepStats) -> None:
        del limits
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(stats.kinds.items()))
        self._print(
            f"{title}: {seconds:5.1f} s, {stats.started} started, "
            f"{stats.started - stats.completed} in flight; {kinds or 'none completed yet'}; "
            f"median {_ms(stats.latency.percentile(50))}, "
            f"p99 {_ms(stats.latency.percentile(99))}"
        )


class LiveProgress:
    """Updates a table on the terminal, with rich."""

    interval = 0.25

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, title: str, seconds: float, limits: StepLimits, stats: StepStats) -> None:
        """Redraw: a bar, the outcomes, and the latencies so far."""
        from rich.console import Group  # optional, and only used on a terminal
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        part = max(seconds / limits.seconds, stats.started / limits.orders)
        table = Table(
            "so far", "", title=f"{title}, {seconds:.1f} s", title_justify="left", show_header=False
        )
        for kind in (*OUTCOME_NAMES.values(), "broken"):
            if kind in stats.kinds or kind == "created":
                table.add_row(kind, str(stats.kinds[kind]))
        table.add_row("in flight", str(stats.started - stats.completed))
        for percent in (50, 99, 100):
            name = "max" if percent == 100 else f"p{percent}"
            table.add_row(name, _ms(stats.latency.percentile(percent)))
        self._live.update(Group(ProgressBar(total=1.0, completed=min(part, 1.0), width=40), table))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@contextmanager
def progress_display(say: Say, *, live: bool) -> Iterator[Progress]:
    """Yield a live display or one that prints plain lines."""
    if not live:
        yield PlainProgress(say)
        return
    from rich.live import Live  # optional, and only used on a terminal

    with Live(refresh_per_second=8, transient=True) as view:
        yield LiveProgress(view)


@asynccontextmanager
async def show_progress(
    progress: Progress, title: str, limits: StepLimits, stats: StepStats
) -> AsyncIterator[None]:
    """Display the progress of a step while the block runs."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def show() -> None:
        while True:
            progress.show(title, loop.time() - began, limits, stats)
            await asyncio.sleep(progress.interval)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
