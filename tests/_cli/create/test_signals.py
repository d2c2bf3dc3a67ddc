"""The command as a process of its own: Ctrl-C, SIGTERM, a second Ctrl-C, SIGKILL, and two at once."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Running, running
from tests.support.order_files import csv_file, told
from transfer_async.sandbox import Sandbox, StallAfterProcessing

LINES = 60


class Bench:
    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox, self.directory = sandbox, directory
        self.outcomes = directory / "orders.csv.outcomes.jsonl"

    def started(self, *options: str, **streams: int) -> AbstractAsyncContextManager[Running]:
        there = {
            "TRANSFER_BASE_URL": self.sandbox.base_url,
            "TRANSFER_API_TOKEN": self.sandbox.token,
            "TRANSFER_JOURNAL": str(self.directory / "journal.db"),
        }
        return running("create", self.directory / "orders.csv", *options, **streams, **there)

    async def ran(self, *options: str) -> tuple[int | None, str]:
        async with self.started(*options) as command:
            return await command.end()

    async def told(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(told, self.outcomes)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    csv_file(tmp_path / "orders.csv", LINES)
    return tmp_path


@pytest.fixture
async def bench(directory: Path) -> AsyncIterator[Bench]:
    async with Sandbox() as sandbox:
        yield Bench(sandbox, directory)


STOPPING = "stopping: no new line is started"


async def test_a_signal_lets_those_in_flight_come_to_their_end_and_the_next_run_goes_on(bench):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        bench.sandbox.faults.add(StallAfterProcessing(), times=4)
        async with bench.started("--concurrency", "4") as command:
            await bench.sandbox.stalled(4)
            command.process.send_signal(number)
            await command.line(STOPPING)
            bench.sandbox.faults.release()
            ended, said = await command.end()
        part = await asyncio.to_thread(told, bench.outcomes.with_name(bench.outcomes.name + ".part"))

        assert ended == code
        assert f"stopped by {number.name} after " in said
        assert "run the same command again" in said
        assert {one["outcome"] for one in part} == {"created"}
    assert len(bench.sandbox.orders) == 8


@pytest.mark.trial(ci=1, long=1)
async def test_a_second_ctrl_c_cuts_off_what_is_in_flight_and_leaves_it_in_doubt(bench):
    bench.sandbox.faults.add(StallAfterProcessing(), times=2)
    async with bench.started("--concurrency", "2") as command:
        await bench.sandbox.stalled(2)
        command.process.send_signal(signal.SIGINT)
        await command.line(STOPPING)
        command.process.send_signal(signal.SIGINT)
        first = await command.end()
    second = await bench.ran()

    assert first[0] == 130
    assert "2 unknown" in first[1]
    assert second[0] == 5
    assert "58 created, 2 unknown" in second[1]
    assert "in doubt: 2." in second[1]
    assert len(bench.sandbox.orders) == LINES  # the two exist, and were not sent again


async def test_a_run_that_is_killed_is_gone_on_with(bench):
    bench.sandbox.faults.add(StallAfterProcessing(), times=3)
    options = ("--concurrency", "3", "--lease", "1.5", "--deadline", "1")
    async with bench.started(*options) as command:
        await bench.sandbox.stalled(3)
        command.process.kill()
        await command.end()
    bench.sandbox.faults.release()
    code, said = await bench.ran(*options)

    assert code == 5
    assert "57 created, 3 unknown" in said
    assert len(bench.sandbox.orders) == len(await bench.told()) == LINES


@pytest.mark.trial(ci=1, long=1)
async def test_two_runs_at_once_with_outcome_files_of_their_own_create_no_order_twice(bench):
    other = str(bench.directory / "other")
    first, second = await asyncio.gather(bench.ran(), bench.ran("--outcomes", other))

    assert {first[0], second[0]} <= {0, 4}  # what the other is at work on is tried again, and mostly done
    assert len(bench.sandbox.orders) == LINES


@pytest.mark.trial(ci=1, long=1)
async def test_on_a_terminal_there_is_a_bar_and_the_result_is_where_it_belongs(bench):
    ours, theirs = os.openpty()
    async with bench.started(stderr=theirs) as command:
        os.close(theirs)
        seen = await asyncio.to_thread(all_of, ours)
        ended, said = await command.end()

    assert b"creating: 60 of 60 lines: 60 created" in seen
    assert "━".encode() in seen
    assert b"a second: 60 created" not in seen
    assert said.startswith("60 orders in ")
    assert ended == 0


def all_of(terminal: int) -> bytes:
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    return seen


async def test_it_goes_on_when_nobody_listens_any_more(bench):
    read, write = os.pipe()
    os.close(read)
    async with bench.started(stdout=write, stderr=write) as command:
        os.close(write)
        code, _ = await command.end()

    assert code == 0
    assert len(await bench.told()) == LINES
