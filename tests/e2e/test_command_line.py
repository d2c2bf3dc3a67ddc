"""The command line in separate processes: output, signals and exit codes."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.bank import new_order
from tests.support.commands import running
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import AlreadyCreated, OutcomeUnknown, SQLiteJournal, TransferClient
from transfer_async.sandbox import CloseAfterProcessing, Sandbox

PIPE = asyncio.subprocess.PIPE


@ONLY_IN_TRIALS
@pytest.mark.parametrize("is_read", [True, False])
async def test_the_demo_succeeds_even_if_its_output_is_closed(is_read: bool):
    read, write = os.pipe()
    if not is_read:
        os.close(read)
    async with running("demo", stdout=PIPE if is_read else write, stderr=PIPE) as demo:
        os.close(write)
        out, err = await demo.process.communicate()

    assert (demo.process.returncode, err) == (0, b"")
    assert not is_read or out.splitlines()[-1].startswith(b"demo ok: tx-")


@ONLY_IN_TRIALS  # tests/sandbox/test_command.py has a similar test
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_sandbox_serves_until_a_signal_and_stops_cleanly(number: signal.Signals):
    async with running("sandbox", "--match-every", "60", stderr=PIPE) as sandbox:
        exports = [await sandbox.line("export ") for _ in range(2)]
        async with running("whoami", **dict(line.split("=") for line in exports)) as asking:
            code, said = await asking.end()
        sandbox.process.send_signal(number)
        rest, log = await sandbox.process.communicate()

    assert code == 0
    assert "username  lagoon-bank" in said
    assert sandbox.process.returncode == 0
    assert rest.decode().splitlines()[-1] == "sandbox stopped"
    assert re.fullmatch(r"[0-9:]{8} GET '/api/api/v1/user/who-am-i' -> 200, fault -", log.decode().strip())


@ONLY_IN_TRIALS  # tests/_cli/test_launcher.py also resolves one in another process
async def test_an_operator_resolves_a_doubt_of_another_process(tmp_path: Path):
    path = str(tmp_path / "journal.db")
    async with Sandbox() as sandbox, SQLiteJournal(path) as journal:
        sandbox.faults.add(CloseAfterProcessing())
        async with TransferClient(sandbox.base_url, sandbox.token, journal=journal) as client:
            with pytest.raises(OutcomeUnknown):
                await client.create_order(new_order(), key="payment-1", held="hold-1")
            (order_id,) = sandbox.orders
            there = {"TRANSFER_JOURNAL": path, "TRANSFER_BASE_URL": sandbox.base_url}
            said = ["--order-id", order_id, "--by", "ada", "--reason", "seen"]
            async with running("journal", "resolve", "payment-1", *said, **there) as resolving:
                done = await resolving.end()
            with pytest.raises(AlreadyCreated) as given_back:
                await client.create_order(new_order(), key="payment-1", held="hold-1")

    assert done == (0, f"payment-1: created; its order is {order_id}\n")
    assert given_back.value.order_id == order_id
