"""Compare `transfer-async create FILE` with a minimal program that calls ``create_orders``.

    python -m benchmarks file
    python -m benchmarks file --lines 10000 --rounds 5

The program is `benchmarks.contenders.bare_file`. Each runs in its own process, in interleaved rounds, with
the same lines, a `SQLiteJournal` on a real disk, the same sandbox, a no-op hold and 16 concurrent orders.

Each reports the rate at which it creates orders. The command's rate excludes its start and its check of all
lines; the program's rate excludes its start and the time to read the file. The table also shows the rate over
the whole lifetime of each process.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.measuring.journals import disk_directory
from benchmarks.measuring.machine import ROOT
from benchmarks.measuring.services import RunningService, run_service
from benchmarks.measuring.workload import new_orders
from benchmarks.programs.workers import HOOKS
from transfer_async._converters.messages import OrderCommand

CONCURRENCY = 16
_RATE = re.compile(r"([\d,]+) a second")


PROGRAMS = (
    ("program", ("benchmarks.contenders.bare_file",)),
    ("command", ("transfer_async", "create", f"--hooks={HOOKS}")),
)
"""The modules to run, with the arguments that only one of them takes."""


def measure(
    arguments: Sequence[str], service: RunningService, directory: Path, *, lines: int, name: str
) -> tuple[float, float]:
    """Run one program; return the rate it reports and the rate of the whole process, in orders per second."""
    file = directory / f"{name}.jsonl"
    commands = (
        OrderCommand(key=f"{name}-{line}", order=order) for line, order in enumerate(new_orders(lines))
    )
    file.write_bytes(b"".join(row.to_json() + b"\n" for row in commands))
    arguments = [sys.executable, "-m", *arguments, str(file), f"--journal={file.with_suffix('.journal')}"]
    arguments += [f"--base-url={service.base_url}", f"--concurrency={CONCURRENCY}"]
    environment = os.environ | {"TRANSFER_API_TOKEN": service.token}
    began = time.perf_counter()
    output = subprocess.run(  # noqa: S603 - our own command
        arguments, cwd=ROOT, env=environment, check=True, encoding="utf-8", capture_output=True
    ).stdout
    process_rate = lines / (time.perf_counter() - began)
    rows = _RATE.search(output)
    assert rows is not None  # noqa: S101 - both print a rate
    return float(rows[1].replace(",", "")), process_rate


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in interleaved rounds; print the rates and their ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks file", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    rows = []
    print(
        "| program, orders per second | whole process | command, orders per second | whole process |",
        flush=True,
    )
    with run_service() as service, tempfile.TemporaryDirectory(dir=disk_directory()) as directory:
        for number in range(options.rounds):
            rates = {}
            for program, command in (
                PROGRAMS if number % 2 else reversed(PROGRAMS)
            ):  # alternate which one is first
                size = {"lines": options.lines, "name": f"{program}-{number}"}
                rates[program] = measure(command, service, Path(directory), **size)
            row = *rates["program"], *rates["command"]
            rows.append(row)
            print("|" + "|".join(f" {rate:,.0f} " for rate in row) + "|", flush=True)
    program_rate, program_process_rate, command_rate, command_process_rate = (
        median(each) for each in zip(*rows, strict=True)
    )
    print(
        "\nOrders per second of the command, divided by those of the program: "
        f"{command_rate / program_rate:.2f} while sending"
    )
    print(f"{command_process_rate / program_process_rate:.2f} over the lifetime of both processes")
    print(
        f"{command_process_rate / program_rate:.2f} over the command's lifetime, "
        "compared with the program while sending"
    )
