"""The ``worker`` command, which creates orders from a broker's messages, and the ``send`` command."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from codecs import BOM_UTF8
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from transfer_async._cli import options
from transfer_async._cli.options import factory_named
from transfer_async._cli.output import complain, fail, failing, in_words, tell
from transfer_async._cli.process import FAILED, USAGE, run
from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import InvalidOrder
from transfer_async._support.util import public
from transfer_async.integrations.faststream.broker import TooLarge, WorkerSettings, broker_at, reason
from transfer_async.journal.model import LEASE, SETTLE_AFTER

OR_TRY = "; or use --try, which starts a broker, a sandbox and a journal"


def worker(
    context: typer.Context,
    *,
    broker: options.Broker = None,
    journal: options.Journal = None,
    base_url: options.BaseUrl = None,
    token: options.Token = None,
    scope: options.Scope = None,
    hooks: options.Hooks = None,
    commands: options.Commands = "transfer.commands",
    outcomes: Annotated[str, typer.Option(help="The subject or stream for outcomes.")] = "transfer.outcomes",
    dead_letters: Annotated[
        str, typer.Option(help="The subject or stream for messages that can never be processed.")
    ] = "transfer.parked",
    concurrency: Annotated[
        int, typer.Option(help="The maximum number of commands in progress at once.")
    ] = 16,
    max_deliveries: Annotated[
        int,
        typer.Option(help="Dead-letter a command after this many deliveries if its order was never sent."),
    ] = 50,
    ack_wait: Annotated[
        float, typer.Option(help="Seconds without a heartbeat before another worker takes over a command.")
    ] = 30.0,
    sweep_every: Annotated[float, typer.Option(help="Seconds between sweeps of the journal.")] = 60.0,
    lease: Annotated[
        float, typer.Option(help="Seconds until another worker may use a worker's keys, if that worker dies.")
    ] = LEASE,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
    rate: options.PerSecond = None,
    burst: options.Burst = None,
    health: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to serve /live and /ready; port 0 picks a free port."),
    ] = "127.0.0.1:0",
    telemetry: Annotated[
        bool,
        typer.Option("--telemetry", help="Record traces and metrics; opentelemetry-instrument exports them."),
    ] = False,
    try_it: Annotated[
        bool, typer.Option("--try", help="Try out a worker with its own broker, sandbox and journal.")
    ] = False,
    network: options.Network,
) -> None:
    """Create orders from a broker's messages and publish their outcomes, until Ctrl-C.

    A key has at most one order, however often its message is delivered. Any number of workers may share a
    broker and a PostgreSQL journal. A message is acknowledged once its outcome is published; until then, the
    broker may deliver the message again.

    --hooks: FACTORY returns a sequence of hooks, or a mapping or an object that contains hooks and,
    optionally, resolve (which finds out whether an order in doubt exists), token, retry and other settings.
    FACTORY may be async.

    --rate and --burst limit this worker only: divide the service's limit by the number of workers.

    After SIGINT (Ctrl-C) or SIGTERM, the worker finishes the commands in progress. After a second signal, the
    worker stops immediately, and the broker delivers the unfinished commands again.

    Exit codes: 0 stopped; 1 stopped by a second signal, or the broker closed the connection permanently; 2
    usage error.
    """
    settings: dict[str, Any] = {
        "commands": commands,
        "outcomes": outcomes,
        "dead_letters": dead_letters,
        "concurrency": concurrency,
        "ack_wait": ack_wait,
        "sweep_every": sweep_every,
    }
    if try_it:
        with _usage("worker"):
            _refuse_beside_try(context)
        _try(settings)
        return
    from transfer_async._cli import worker_process  # takes 7 ms; --help does not need it

    with _usage("worker"):
        plan = worker_process.WorkerPlan(
            broker=_given(options.BROKER, broker, instead=OR_TRY),
            journal=_given(options.JOURNAL, journal, instead=OR_TRY),
            base_url=_given(options.BASE_URL, base_url, instead=OR_TRY),
            token=token or None,
            factory=None if hooks is None else factory_named(hooks),
            settings=WorkerSettings(**settings),
            max_deliveries=max_deliveries,
            client={
                "scope": scope,
                "lease": lease,
                "settle_after": settle_after,
                "abandoned_settle_after": abandoned_settle_after,
                "rate": options.rate_given(rate, burst),
                **network(),
            },
            health=host_and_port(health),
            telemetry=telemetry,
        )
    _run("worker", worker_process.work(plan, say=tell, log=complain))


def send(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Commands, one JSON object per line; - is stdin.")
    ],
    *,
    broker: options.Broker = None,
    commands: options.Commands = "transfer.commands",
) -> None:
    """Send commands to workers.

    All lines are checked before the first command is sent. If any line is not a valid command, nothing is
    sent. It is safe to send a command again, because its key has at most one order.

    Exit codes: 0 the broker accepted all commands; 1 the broker did not accept all commands, so send the file
    again; 2 usage error, and nothing was sent.
    """
    with _usage("send"):
        where = _given(options.BROKER, broker)
        settings = WorkerSettings(commands=commands)
        try:
            read = commands_in(file)
        except OSError as error:
            raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from None
    _run("send", publish(where, read, settings))
    tell(f"commands sent to {commands}: {len(read)}")


def _try(settings: dict[str, Any]) -> None:
    from transfer_async._cli import worker_process

    with _usage("worker"):
        program, made = worker_process.nats_program(), WorkerSettings(**settings)
    with tempfile.TemporaryDirectory(prefix="transfer-async-") as home:
        _run("worker", worker_process.run_trial(program, Path(home), made, say=tell, log=complain))


def _refuse_beside_try(context: typer.Context) -> None:
    """Refuse options that --try would ignore, but silently ignore their environment variables.

    Raises:
        ValueError: options were given that --try would ignore; the message names them.
    """
    allowed = {"try_it", "commands", "outcomes", "dead_letters", "concurrency", "ack_wait", "sweep_every"}
    beside = [
        param.opts[0]
        for param in context.command.params
        if param.name and param.name not in allowed
        if (source := context.get_parameter_source(param.name)) and source.name == "COMMANDLINE"
    ]
    if beside:
        raise ValueError(f"--try starts its own broker, sandbox and journal: remove {', '.join(beside)}")


def _given(what: str, value: str | None, *, instead: str = "") -> str:
    if not value:
        raise ValueError(f"{what}, is required{instead}")
    return value


def _usage(command: str) -> AbstractContextManager[None]:
    return failing(command, {ValueError: USAGE}, words=_as_typed)


def _run(command: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        codes = {ConnectionError: FAILED, ValueError: USAGE, OSError: USAGE}
        with failing(command, codes, words=_as_typed):
            run(work)
    except asyncio.CancelledError:
        fail((f"{command}: stopped immediately; the broker will redeliver the commands in progress"), FAILED)


def _as_typed(error: Exception) -> str:
    return options.as_typed(in_words(error))


# --- sending -----------------------------------------------------------------------------------------


SEND_TIMEOUT = 10.0
"""Maximum seconds for the broker to accept a connection, or to accept one command."""


def commands_in(file: Path) -> list[OrderCommand]:
    """Read the commands in ``file``, one per line; ``-`` is stdin.

    Raises:
        ValueError: a line is not a valid command. The message contains the line's number and faults.
        OSError: the file cannot be read.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    commands = []
    for number, line in enumerate(data.removeprefix(BOM_UTF8).splitlines(), 1):
        if line.strip():
            try:
                commands.append(OrderCommand.from_json(line))
            except InvalidOrder as error:
                raise ValueError(f"line {number}: {error}") from None
    return commands


async def publish(broker: str, commands: list[OrderCommand], settings: WorkerSettings) -> None:
    """Send ``commands`` in sequence, and return when the broker has accepted all of them.

    Raises:
        ValueError: the address is invalid.
        ConnectionError: the broker did not accept all commands.
    """
    line = broker_at(broker, settings)
    try:
        await _with_timeout(line.open(only_to_send=True))
        for command in commands:
            await _with_timeout(line.order(command))
    except TooLarge as error:
        why = f"the command {command.key!r} was not sent: {error}; only earlier commands were sent"
        raise ConnectionError(why) from error
    except Exception as error:
        why = (
            f"the broker at {public(broker)} did not accept all commands ({reason(error)}): "
            "send the file again"
        )
        raise ConnectionError(why) from error
    finally:
        with contextlib.suppress(Exception):  # The connection may be lost already.
            await _with_timeout(line.close())


async def _with_timeout(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` for at most `SEND_TIMEOUT` seconds, because the broker drivers retry forever."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT) as limit:
            await work
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"no response within {SEND_TIMEOUT:g} s") from error
        raise


def host_and_port(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``.

    Raises:
        ValueError: ``text`` is not ``HOST:PORT``, or the port is too large.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("--health: must be HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]"), int(port)
