"""The commands ``worker``, which takes orders' commands from a broker, and ``send``, which gives it some."""

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
from transfer_async._cli.output import complain, fail, failing, tell
from transfer_async._cli.process import FAILED, USAGE, run
from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import InvalidOrder
from transfer_async._support.util import public
from transfer_async.integrations.faststream.broker import TooLarge, WorkerSettings, broker_at, reason
from transfer_async.journal.model import LEASE, SETTLE_AFTER

OR_TRY = "; or --try, for a broker, a sandbox and a journal of its own"


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
    outcomes: Annotated[str, typer.Option(help="Where outcomes are published.")] = "transfer.outcomes",
    dead_letters: Annotated[
        str, typer.Option(help="Where what cannot be carried out is put, with the reason.")
    ] = "transfer.parked",
    concurrency: Annotated[int, typer.Option(help="How many commands it has in hand at most.")] = 16,
    max_deliveries: Annotated[
        int, typer.Option(help="How often a command may certainly not be sent before it is dead-lettered.")
    ] = 50,
    ack_wait: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which another worker takes over.")
    ] = 30.0,
    sweep_every: Annotated[float, typer.Option(help="Seconds between two sweeps of the journal.")] = 60.0,
    lease: Annotated[float, typer.Option(help="Seconds that a claim outlives its worker.")] = LEASE,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
    rate: options.PerSecond = None,
    burst: options.Burst = None,
    health: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /live and /ready answer; port 0 picks one.")
    ] = "127.0.0.1:0",
    telemetry: Annotated[
        bool,
        typer.Option("--telemetry", help="Traces and metrics, to where opentelemetry-instrument sends them."),
    ] = False,
    try_it: Annotated[
        bool, typer.Option("--try", help="Try it: with a broker, a sandbox and a journal of its own.")
    ] = False,
) -> None:
    """Take commands from a broker and publish what became of them, until Ctrl-C.

    One key, at most one order, however often a message comes. Any number of workers may share a broker and
    a PostgreSQL journal. A message is acknowledged once its outcome is published, and comes again otherwise.

    --hooks: FACTORY returns a sequence of hooks; or a mapping, or an object, with hooks, and perhaps
    resolve, the bank's own means to end a doubt, token, retry and other settings. It may be async.

    --rate and --burst are this worker's alone: divide what the service allows by how many there are.

    Stopped by SIGINT (Ctrl-C) or SIGTERM it finishes what is in flight, and exits with 0; stopped again,
    it leaves that to come again, and exits with 1; so it does when the broker closes the connection for
    good. Exit code 2: a wrong use.
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
    from transfer_async._cli import worker_process  # 20 M instructions of 1,900 M, which no --help needs
    from transfer_async.integrations.faststream.broker import WorkerSettings

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
            },
            health=host_and_port(health),
            telemetry=telemetry,
        )
    _run("worker", worker_process.work(plan, say=tell, log=complain))


def send(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Commands, one JSON object a line; - is stdin.")
    ],
    *,
    broker: options.Broker = None,
    commands: options.Commands = "transfer.commands",
) -> None:
    """Send commands to workers.

    Each line is checked first: where one is no command, nothing is sent at all. What was sent once may be
    sent again: its key has one order at most.

    Exit codes: 0 the broker has them all; 1 it does not, send again; 2 a wrong use, nothing was sent.
    """
    from transfer_async.integrations.faststream.broker import WorkerSettings

    with _usage("send"):
        where = _given(options.BROKER, broker)
        settings = WorkerSettings(commands=commands)
        try:
            read = commands_in(file)
        except OSError as error:
            raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from None
    _run("send", publish(where, read, settings, patience=SEND_TIMEOUT))
    tell(f"{len(read)} sent to {commands}")


# --- what they share ----------------------------------------------------------------------------


def _try(settings: dict[str, Any]) -> None:
    from transfer_async._cli import worker_process
    from transfer_async.integrations.faststream.broker import WorkerSettings

    with _usage("worker"):
        program, made = worker_process.nats_program(), WorkerSettings(**settings)
    with tempfile.TemporaryDirectory(prefix="transfer-async-") as home:
        _run("worker", worker_process.run_trial(program, Path(home), made, say=tell, log=complain))


def _refuse_beside_try(context: typer.Context) -> None:
    """What was given on the command line, and would be passed over; the environment may have it."""
    ours = {"try_it", "commands", "outcomes", "dead_letters", "concurrency", "ack_wait", "sweep_every"}
    others = (param for param in context.command.params if param.name not in ours)
    if beside := [other.opts[0] for other in others if _is_on_the_command_line(context, other.name)]:
        raise ValueError(f"--try: does not go with {', '.join(beside)}: it brings its own")


def _is_on_the_command_line(context: typer.Context, name: str | None) -> bool:
    source = None if name is None else context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _given(what: str, value: str | None, *, instead: str = "") -> str:
    if not value:
        raise ValueError(f"{what}, is required{instead}")
    return value


def _usage(command: str) -> AbstractContextManager[None]:
    return failing(command, {ValueError: USAGE})


def _run(command: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        with failing(command, {ConnectionError: FAILED, ValueError: USAGE, OSError: USAGE}):
            run(work)
    except asyncio.CancelledError:
        fail(f"{command}: stopped at once; what was in flight comes again", FAILED)


# --- publishing --------------------------------------------------------------------------------------
# Commands for workers: read, checked, and sent to their broker.


SEND_TIMEOUT = 10.0
"""Seconds that a broker may take."""


def commands_in(file: Path) -> list[OrderCommand]:
    """The commands in ``file``, one a line; of ``-``, those on stdin.

    Raises:
        ValueError: a line is none; names it, and what is wrong with it.
        OSError: it cannot be read.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    lines = data.removeprefix(BOM_UTF8).splitlines()
    return [_command(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _command(number: int, line: bytes) -> OrderCommand:
    try:
        return OrderCommand.from_json(line)
    except InvalidOrder as error:
        raise ValueError(f"line {number}: {error}") from None


async def publish(
    broker: str, commands: list[OrderCommand], settings: WorkerSettings, *, patience: float = SEND_TIMEOUT
) -> None:
    """Send ``commands``; returns once the broker has them all.

    Args:
        broker: its address.
        commands: what is sent.
        settings: where to.
        patience: seconds that the broker may take to be there, and then for each command.

    Raises:
        ValueError: the address names no broker.
        ConnectionError: the broker did not take them all.
    """
    line = broker_at(broker, settings)
    try:
        await _within(patience, line.open(only_to_send=True))
        for command in commands:
            await _within(patience, line.order(command))
    except TooLarge as error:
        why = f"{command.key!r}: {error}; those before it are sent, those after it are not"
        raise ConnectionError(why) from error
    except Exception as error:
        why = f"the broker at {public(broker)} did not take them all ({reason(error)}); send again"
        raise ConnectionError(why) from error
    finally:
        with contextlib.suppress(Exception):  # it is gone, or it is let go
            await _within(patience, line.close())


async def _within(patience: float, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``; a broker's driver would try again for ever."""
    try:
        async with asyncio.timeout(patience) as limit:
            await work
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"no answer within {patience:g} s") from error
        raise


# --- address option ----------------------------------------------------------------------------------
# Addresses: read from options, and shown without their secrets.


__all__ = ["host_and_port", "public"]


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts.

    Raises:
        ValueError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("--health: must be HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]"), int(port)
