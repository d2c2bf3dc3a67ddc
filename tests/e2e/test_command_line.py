"""The command line as people run it: processes of their own, their lines, signals and exit codes."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import transfer_async
from tests.support.bank import new_order
from transfer_async import AlreadyCreated, OutcomeUnknown, SQLiteJournal, TransferClient
from transfer_async.sandbox import CloseAfterProcessing, Sandbox

ROOT = Path(transfer_async.__file__).parent.parent
TX = r"tx-[a-z0-9]{20}"
AT_LENGTH = pytest.mark.trial(ci=1, long=1)


@asynccontextmanager
async def started(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFER_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "transfer_async",
        *arguments,
        cwd=ROOT,
        env=kept | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ran(*arguments: str, **environment: str) -> tuple[int | None, list[str], list[str]]:
    async with started(*arguments, **environment) as process:
        out, err = await process.communicate()
        return process.returncode, out.decode().splitlines(), err.decode().splitlines()


async def exports(process: asyncio.subprocess.Process) -> dict[str, str]:
    """What a sandbox says is to be exported, as soon as it has said it."""
    assert process.stdout is not None
    told: dict[str, str] = {}
    while len(told) < 2:
        line = (await process.stdout.readline()).decode()
        assert line, "the sandbox ended too early"
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").strip().partition("=")
            told[name] = value
    return told


@AT_LENGTH
async def test_the_demo_tells_its_story_and_ends_well():
    code, out, err = await ran("demo")

    assert code == 0
    assert err == []
    happened = ["created: tx-", "in doubt", "resolved: created", "hold-3 released", "matched: tx-", "demo ok"]
    at = [next(number for number, line in enumerate(out) if words in line) for words in happened]
    assert at == sorted(at)
    assert re.fullmatch(rf"demo ok: {TX} matched, {TX} matched, 1 refused, 0 in doubt", out[-1])


@AT_LENGTH
async def test_the_demo_goes_on_quietly_when_nobody_reads_it():
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "transfer_async", "demo", cwd=ROOT, stdout=write, stderr=asyncio.subprocess.PIPE
    )
    os.close(write)
    _, err = await process.communicate()

    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=AT_LENGTH)])
async def test_the_sandbox_serves_until_a_signal_and_stops_cleanly(number):
    async with started("sandbox", "--match-every", "60") as sandbox:
        environment = await exports(sandbox)
        code, out, _ = await ran("whoami", **environment)
        sandbox.send_signal(number)
        rest, log = await sandbox.communicate()

    assert code == 0
    assert "username  lagoon-bank" in out
    assert sandbox.returncode == 0
    assert rest.decode().splitlines()[-1] == "sandbox stopped"
    assert re.fullmatch(r"[0-9:]{8} GET '/api/api/v1/user/who-am-i' -> 200, fault -", log.decode().strip())


@AT_LENGTH
async def test_a_port_that_is_taken_ends_the_second_sandbox():
    async with started("sandbox", "--token", "abc") as first:
        environment = await exports(first)
        port = environment["TRANSFER_BASE_URL"].rpartition(":")[2]
        code, out, err = await ran("sandbox", "--port", port)

    assert environment["TRANSFER_API_TOKEN"] == "abc"
    assert (code, out) == (1, [])
    assert len(err) == 1
    assert "cannot listen" in err[0]


@AT_LENGTH
async def test_a_missing_environment_is_a_wrong_use():
    code, out, err = await ran("whoami")

    assert (code, out) == (2, [])
    assert err == ["whoami: TRANSFER_BASE_URL and TRANSFER_API_TOKEN: must be set in the environment"]


async def test_an_operator_ends_a_doubt_that_another_process_left(tmp_path: Path):
    path = str(tmp_path / "journal.db")
    async with Sandbox() as sandbox, SQLiteJournal(path) as journal:
        sandbox.faults.add(CloseAfterProcessing())
        async with TransferClient(sandbox.base_url, sandbox.token, journal=journal) as client:
            with pytest.raises(OutcomeUnknown):
                await client.create_order(new_order(), key="payment-1", held="hold-1")
            (order_id,) = sandbox.orders
            there = {"TRANSFER_JOURNAL": path, "TRANSFER_BASE_URL": sandbox.base_url}
            said = ["--order-id", order_id, "--by", "ada", "--reason", "seen"]
            done = await ran("journal", "resolve", "payment-1", *said, **there)
            with pytest.raises(AlreadyCreated) as given_back:
                await client.create_order(new_order(), key="payment-1", held="hold-1")

    assert done == (0, [f"payment-1: created; its order is {order_id}"], [])
    assert given_back.value.order_id == order_id
