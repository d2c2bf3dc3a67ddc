"""The command in a process of its own: Ctrl-C, SIGTERM, a second Ctrl-C, SIGKILL, and two runs at once."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Running, asked, running
from tests.support.order_files import csv_file, told
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async.sandbox import Sandbox, StallAfterProcessing

LINES = 60


class Bench:
    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox, self.directory = sandbox, directory
        self.outcomes = directory / "orders.csv.outcomes.jsonl"
        self.settings = {
            "TRANSFER_BASE_URL": sandbox.base_url,
            "TRANSFER_API_TOKEN": sandbox.token,
            "TRANSFER_JOURNAL": str(directory / "journal.db"),
        }

    def started(self, *options: str, **streams: int) -> AbstractAsyncContextManager[Running]:
        return running("create", self.directory / "orders.csv", *options, **streams, **self.settings)

    async def ran(self, *options: str) -> int | None:
        async with self.started(*options) as command:
            return (await command.end())[0]

    async def ran_here(self, monkeypatch: pytest.MonkeyPatch, *options: str, code: int) -> str:
        """Run the command in this process. Return its output."""
        for name, value in self.settings.items():
            monkeypatch.setenv(name, value)
        return (await asked("create", self.directory / "orders.csv", *options, code=code)).output

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


STOPPING = "stopping: finishing the orders in flight"


async def test_a_stopped_and_a_killed_run_are_continued_and_no_order_is_sent_twice(bench, monkeypatch):
    options = ("--concurrency", "4", "--lease", "1.5", "--deadline", "1")
    bench.sandbox.faults.add(StallAfterProcessing(), times=4)
    async with bench.started(*options) as command:
        await bench.sandbox.stalled(4)
        command.process.send_signal(signal.SIGINT)
        await command.line(STOPPING)
        bench.sandbox.faults.release()
        stopped, output = await command.end()
    part = await asyncio.to_thread(told, bench.outcomes.with_name(bench.outcomes.name + ".part"))
    bench.sandbox.faults.add(StallAfterProcessing(), times=3)
    async with bench.started("--concurrency", "3", *options[2:]) as command:
        await bench.sandbox.stalled(3)
        command.process.kill()
        await command.end()
    bench.sandbox.faults.release()
    summary = await bench.ran_here(monkeypatch, *options, code=5)

    assert stopped == 130
    assert "stopped by SIGINT after " in output
    assert "run the same command again" in output
    assert [item["outcome"] for item in part] == ["created"] * 4
    assert "57 created, 3 unknown" in summary
    assert len(bench.sandbox.orders) == len(await bench.told()) == LINES


@ONLY_IN_TRIALS
async def test_two_concurrent_runs_create_no_order_twice(bench):
    codes = await asyncio.gather(bench.ran(), bench.ran("--outcomes", str(bench.directory / "other")))

    assert {*codes} <= {0, 4}  # 4 means that a key which the other run held stayed busy
    assert len(bench.sandbox.orders) == LINES


@ONLY_IN_TRIALS
async def test_a_terminal_shows_a_bar_and_the_result_goes_to_stdout(bench):
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
    with contextlib.suppress(OSError):  # the process has closed its end
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    return seen


@ONLY_IN_TRIALS
async def test_a_run_continues_when_its_output_is_closed(bench):
    read, write = os.pipe()
    os.close(read)
    async with bench.started(stdout=write, stderr=write) as command:
        os.close(write)
        code, _ = await command.end()

    assert code == 0
    assert len(await bench.told()) == LINES
