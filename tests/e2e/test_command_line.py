"""The command line in separate processes: output, signals and exit codes."""

import asyncio
import os
import re
import signal

import pytest

from tests.support.commands import running
from tests.support.trials import ONLY_IN_TRIALS

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
            code, output = await asking.end()
        sandbox.process.send_signal(number)
        rest, log = await sandbox.process.communicate()

    assert code == 0
    assert "username  lagoon-bank" in output
    assert sandbox.process.returncode == 0
    assert rest.decode().splitlines()[-1] == "sandbox stopped"
    assert re.fullmatch(r"[0-9:]{8} GET '/api/api/v1/user/who-am-i' -> 200, fault -", log.decode().strip())
