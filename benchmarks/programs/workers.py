"""Measure workers on one machine, with NATS and a PostgreSQL journal.

    python -m benchmarks workers
    python -m benchmarks workers --orders 8000 --workers 1 2 4 --concurrency 32
    python -m benchmarks workers --bare 5      # compare one worker with a bare loop, in five rounds

All commands are in the broker's queue before the workers start. Each worker is a ``transfer-async worker``
process. Throughput and CPU time exclude the first and the last tenth of the outcomes, by the broker's
timestamps, so start-up and shutdown are not measured. The service, the database and the broker share the
machine with the workers. The CPU time of each shows which one is the bottleneck.

The bare loop is `benchmarks.contenders.bare_worker`: the same orders, journal and event loop with minimal
code. A shared machine may be a third slower in one round than in the next. Therefore the CPU time of a worker
is also divided by that of the service, whose work per order is constant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from attrs import asdict, frozen

from benchmarks.measuring.machine import ROOT
from benchmarks.measuring.services import RunningService, run_service
from benchmarks.measuring.workload import new_orders
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer
from transfer_async._converters.messages import OrderCommand
from transfer_async.integrations.faststream.broker import broker_at

ROLES = {
    "worker": "workers",
    "nats-server": "broker",
    "postgres": "database",
    "measuring.services": "service",
}
"""The role of a process, by a string in its command line."""

HOOKS = "benchmarks.programs.workers:hooks"

WORKER = ("transfer_async", "worker", f"--hooks={HOOKS}")
BARE_LOOP = ("benchmarks.contenders.bare_worker",)
"""The modules to run as a worker, with the arguments that only one of them takes."""


@frozen
class WorkersResult:
    """One measurement.

    Args:
        workers: the number of workers.
        rate: orders per second.
        cpu: CPU microseconds per order, by role.
        busy: the share of the machine's CPU time that was not idle."""

    workers: int
    rate: float
    cpu: dict[str, float]
    busy: float

    @property
    def against_service(self) -> float:
        """The workers' CPU time divided by the service's."""
        return self.cpu["workers"] / self.cpu["service"]


def hooks() -> list[Any]:
    """Return the hooks of each worker: a no-op hold."""
    from transfer_async import FundsHold, OrderIntent

    async def place(intent: OrderIntent) -> str:
        return f"hold-{intent.id}"

    async def release(_intent: OrderIntent, _receipt: str | None) -> None:
        pass

    return [FundsHold(place, release)]


def measure(*, workers: int, orders: int, concurrency: int, program: Sequence[str] = WORKER) -> WorkersResult:
    """Let ``workers`` process ``orders`` commands, starting with an empty journal."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer())
        nats = stack.enter_context(NatsServer())
        service = stack.enter_context(run_service())
        asyncio.run(_send(nats.address, orders))
        for _ in range(workers):
            stack.enter_context(_worker(program, nats.address, postgres.dsn, service, concurrency))
        first, last = asyncio.run(_wait_for_outcomes(nats.address, orders))
    measured_orders = orders - 2 * (orders // 10)
    cpu = {role: 1e6 * used / measured_orders for role, used in (last.cpu - first.cpu).items()}
    busy = _busy_share(last.machine, first.machine)
    return WorkersResult(workers, measured_orders / (last.at - first.at), cpu, busy)


async def _send(address: str, orders: int) -> None:
    connection = broker_at(address)
    await connection.open()
    for number, order in enumerate(new_orders(orders)):
        command = OrderCommand(key=f"payment-{number}", order=order)
        await connection.order(command)
    await connection.close()


async def _wait_for_outcomes(address: str, orders: int) -> list[_Snapshot]:
    """Wait for all outcomes; return a snapshot after the first tenth and one before the last tenth."""
    connection: Any = broker_at(address)
    await connection.open()
    manager = await connection._manager()
    reader = await manager.subscribe(connection.settings.outcomes, ordered_consumer=True)
    snapshots = []
    for number in range(1, orders + 1):
        message = await reader.next_msg(timeout=60)
        assert json.loads(message.data)["outcome"] == "created"  # noqa: S101 - the rate counts created orders only
        if number in (orders // 10, orders - orders // 10):
            snapshots.append(_Snapshot(message.metadata.timestamp.timestamp(), _cpu(), _cpu_ticks()))
    await connection.close()
    return snapshots


@contextmanager
def _worker(
    program: Sequence[str], broker: str, journal: str, service: RunningService, concurrency: int
) -> Iterator[None]:
    command = [sys.executable, "-m", *program, f"--broker={broker}", f"--journal={journal}"]
    command += [f"--base-url={service.base_url}", f"--concurrency={concurrency}"]
    environment = os.environ | {"TRANSFER_API_TOKEN": service.token}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


# --- CPU time by role -----------------------------------------------------------------------------


@frozen
class _Snapshot:
    """The CPU seconds of each role and the machine's CPU ticks, at one time."""

    at: float
    cpu: Counter[str]
    machine: tuple[float, float]


def _cpu() -> Counter[str]:
    """Return the CPU seconds used so far by all descendants of this process, by role."""
    parents: dict[int, int] = {}
    results: dict[int, tuple[str, float]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            command = (directory / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # the process has just exited
            continue
        pid = int(directory.name)
        parents[pid] = int(fields[1])
        role = next((role for word, role in ROLES.items() if word in command), "")
        results[pid] = role, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    used: Counter[str] = Counter()
    for pid, (role, seconds) in results.items():
        if role and _is_descendant(pid, parents):
            used[role] += seconds
    return used


def _is_descendant(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == os.getpid():
            return True
    return False


def _cpu_ticks() -> tuple[float, float]:
    """Return the CPU ticks of the machine so far: idle and total."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    return float(ticks[3] + ticks[4]), float(sum(ticks[:8]))


def _busy_share(after: tuple[float, float], before: tuple[float, float]) -> float:
    return 1 - (after[0] - before[0]) / max(1.0, after[1] - before[1])


def compare_with_bare_loop(rounds: int, *, orders: int, concurrency: int) -> dict[str, list[WorkersResult]]:
    """Compare one worker with a bare loop in interleaved rounds."""
    programs = {"worker": WORKER, "bare loop": BARE_LOOP}
    results: dict[str, list[WorkersResult]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            result = measure(workers=1, orders=orders, concurrency=concurrency, program=program)
            results[name].append(result)
            print(_row(name, result), flush=True)
    ours, theirs = (median(result.cpu["workers"] for result in each) for each in results.values())
    mine, bare = (median(result.against_service for result in each) for each in results.values())
    print(
        f"\nCPU per order of a worker's process: {ours:.0f} us, {ours / theirs:.2f} times that of a bare loop"
    )
    print(f"Divided by the service's CPU: {mine:.2f} and {bare:.2f}, ratio {mine / bare:.2f}")
    return results


def _row(name: str, result: WorkersResult) -> str:
    cpu = ", ".join(f"{result.cpu.get(role, 0):.0f} us" for role in ROLES.values())
    return f"| {name:>9} | {result.rate:17.0f} | {result.busy:15.0%} | {cpu}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each number of workers, or compare one with a bare loop; print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks workers",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--bare",
        type=int,
        default=0,
        metavar="ROUNDS",
        help="compare one worker with a bare loop, in this number of rounds",
    )
    parser.add_argument("--orders", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=16, help="concurrent orders per worker")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    size = {"orders": options.orders, "concurrency": options.concurrency}
    print("|   workers | orders per second | CPU utilization | CPU per order: " + ", ".join(ROLES.values()))
    results = compare_with_bare_loop(options.bare, **size) if options.bare else {"worker": []}
    for workers in [] if options.bare else options.workers:
        results["worker"].append(measure(workers=workers, **size))
        print(_row(str(workers), results["worker"][-1]), flush=True)
    if options.json:
        figures = {name: [asdict(result) for result in each] for name, each in results.items()}
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
