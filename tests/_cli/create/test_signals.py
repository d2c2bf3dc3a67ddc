"""The command in a process of its own: Ctrl-C, a second Ctrl-C, SIGKILL, and two runs at once."""

import asyncio
import contextlib
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.commands import Running, running
from tests.support.order_files import csv_file, outcomes_in
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async.sandbox import StallAfterProcessing

from .conftest import Bench

LINES = 60


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Path:
    return csv_file(tmp_path / "orders.csv", LINES)


def started(bench: Bench, *options: str, **streams: int) -> AbstractAsyncContextManager[Running]:
    return running("create", bench.directory / "orders.csv", *options, **streams, **bench.settings)


async def ended(bench: Bench, *options: str) -> int | None:
    async with started(bench, *options) as command:
        return (await command.end())[0]


STOPPING = "stopping: finishing the orders in flight"


async def test_a_stopped_and_a_killed_run_are_continued_and_no_order_is_sent_twice(bench, file):
    options = ("--concurrency", "4", "--lease", "1.5", "--deadline", "1")
    bench.sandbox.faults.add(StallAfterProcessing(), times=4)
    async with started(bench, *options) as command:
        await bench.sandbox.stalled(4)
        command.process.send_signal(signal.SIGINT)
        await command.line(STOPPING)
        bench.sandbox.faults.release()
        stopped, output = await command.end()
    part = await asyncio.to_thread(outcomes_in, bench.part)
    bench.sandbox.faults.add(StallAfterProcessing(), times=3)
    async with started(bench, "--concurrency", "3", *options[2:]) as command:
        await bench.sandbox.stalled(3)
        command.process.kill()
        await command.end()
    bench.sandbox.faults.release()
    summary = (await bench.run(file, *options, code=5)).output

    assert stopped == 130
    assert "stopped by SIGINT after " in output
    assert "run the same command again" in output
    assert [item["outcome"] for item in part] == ["created"] * 4
    assert "57 created, 3 unknown" in summary
    assert len(bench.sandbox.orders) == len(await bench.outcome_lines()) == LINES


@ONLY_IN_TRIALS
async def test_a_second_ctrl_c_cuts_off_orders_in_flight_and_leaves_them_in_doubt(bench, file):
    bench.sandbox.faults.add(StallAfterProcessing(), times=2)
    async with started(bench, "--concurrency", "2") as command:
        await bench.sandbox.stalled(2)
        command.process.send_signal(signal.SIGINT)
        await command.line(STOPPING)
        command.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(10.0):  # shorter than the deadline, which would also end the orders
            code, output = await command.end()
    summary = (await bench.run(file, code=5)).output

    assert code == 130
    assert "2 unknown" in output
    assert "58 created, 2 unknown" in summary
    assert "in doubt: 2." in summary
    assert len(bench.sandbox.orders) == LINES  # the two orders in doubt exist and were not sent again


@ONLY_IN_TRIALS
async def test_two_concurrent_runs_create_no_order_twice(bench):
    codes = await asyncio.gather(ended(bench), ended(bench, "--outcomes", str(bench.directory / "other")))

    assert {*codes} <= {0, 4}  # 4 means that a key which the other run held stayed busy
    assert len(bench.sandbox.orders) == LINES


@ONLY_IN_TRIALS
async def test_a_terminal_shows_a_bar_and_the_result_goes_to_stdout(bench):
    ours, theirs = os.openpty()
    async with started(bench, stderr=theirs) as command:
        os.close(theirs)
        seen = await asyncio.to_thread(all_of, ours)
        ended, output = await command.end()

    assert b"creating: 60 of 60 lines: 60 created" in seen
    assert "━".encode() in seen
    assert b"a second: 60 created" not in seen
    assert output.startswith("60 orders in ")
    assert ended == 0


def all_of(terminal: int) -> bytes:
    seen = b""
    with contextlib.suppress(OSError):  # the process has closed its end
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    return seen


@ONLY_IN_TRIALS
async def test_a_run_continues_when_its_output_is_closed(bench):
    read, write = os.pipe()
    os.close(read)
    async with started(bench, stdout=write, stderr=write) as command:
        os.close(write)
        code, _ = await command.end()

    assert code == 0
    assert len(await bench.outcome_lines()) == LINES
