"""A file of orders beside a program of its own: `transfer-async create FILE` and ``create_orders``, by turns.

    python -m benchmarks file
    python -m benchmarks file --lines 10000 --rounds 5

Both have a `SQLiteJournal` on a real disk, the same sandbox, a hold that costs nothing and 16 orders at once.
The program's rate is that of its loop. The command tells its own, which is without its start and the check of
every line before the first is sent; that of the whole command is beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.measuring.data import new_orders
from benchmarks.measuring.journals import disk
from benchmarks.measuring.machine import ROOT
from benchmarks.measuring.sandbox_process import RunningSandbox, sandbox
from benchmarks.programs.workers import HOOKS, hooks
from transfer_async import OrderRequest, SQLiteJournal, TransferClient
from transfer_async._cli.console.event_loop import loop_factory
from transfer_async._converters.messages import OrderCommand

AT_ONCE = 16
_TOLD = re.compile(r"([\d,]+) a second")


def program(service: RunningSandbox, directory: Path, *, lines: int, number: int) -> float:
    """Orders a second of a program's own loop."""
    requests = [
        OrderRequest(order, f"program-{number}-{line}") for line, order in enumerate(new_orders(lines))
    ]

    async def create() -> float:
        async with (
            SQLiteJournal(directory / f"program-{number}.journal") as journal,
            TransferClient(service.base_url, service.token, hooks=hooks(), journal=journal) as client,
        ):
            began = time.perf_counter()
            async for result in client.create_orders(requests, concurrency=AT_ONCE):
                assert result.order is not None  # noqa: S101 - or the rate is another's
            return lines / (time.perf_counter() - began)

    # As a program does it, which leaves the garbage collector alone.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(create())


def command(service: RunningSandbox, directory: Path, *, lines: int, number: int) -> tuple[float, float]:
    """Lines a second, as the command tells them; and with its start and the check of every line."""
    file = directory / f"command-{number}.jsonl"
    commands = (
        OrderCommand(key=f"command-{number}-{line}", order=order)
        for line, order in enumerate(new_orders(lines))
    )
    file.write_bytes(b"".join(one.to_json() + b"\n" for one in commands))
    words = [sys.executable, "-m", "transfer_async", "create", str(file), f"--hooks={HOOKS}"]
    words += [f"--journal={file.with_suffix('.journal')}", f"--outcomes={file.with_suffix('.outcomes')}"]
    words += [f"--base-url={service.base_url}", f"--concurrency={AT_ONCE}"]
    environment = os.environ | {"TRANSFER_API_TOKEN": service.token}
    began = time.perf_counter()
    told = subprocess.run(  # noqa: S603 - our own command
        words, cwd=ROOT, env=environment, check=True, text=True, capture_output=True
    ).stdout
    whole = lines / (time.perf_counter() - began)
    found = _TOLD.search(told)
    assert found is not None  # noqa: S101 - it tells
    return float(found[1].replace(",", "")), whole


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure by turns, and print the rates and their ratio."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks file", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    found = []
    print("| program, orders a second | command, lines a second | with start and check |", flush=True)
    with sandbox() as service, tempfile.TemporaryDirectory(dir=disk()) as directory:
        for number in range(options.rounds):
            size = {"lines": options.lines, "number": number}
            one = program(service, Path(directory), **size), *command(service, Path(directory), **size)
            found.append(one)
            print("|" + "|".join(f" {rate:,.0f} " for rate in one) + "|", flush=True)
    theirs, ours, whole = (median(each) for each in zip(*found, strict=True))
    print(
        f"\nThe command's lines a second: {ours / theirs:.2f} of a program's; with all: {whole / theirs:.2f}"
    )
