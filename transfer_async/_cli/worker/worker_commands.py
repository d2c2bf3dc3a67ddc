"""The commands ``worker``, which takes orders' commands from a broker, and ``send``, which gives it some."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.hook_loading import factory_named
from transfer_async._cli.console.output import complain, fail, failing, tell
from transfer_async._cli.worker import address_option

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
    parked: Annotated[
        str, typer.Option(help="Where what cannot be carried out is put, with the reason.")
    ] = "transfer.parked",
    concurrency: Annotated[int, typer.Option(help="How many commands it has in hand at most.")] = 16,
    max_deliveries: Annotated[
        int, typer.Option(help="How often a command may certainly not be sent before it is parked.")
    ] = 50,
    ack_wait: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which another worker takes over.")
    ] = 30.0,
    sweep_every: Annotated[float, typer.Option(help="Seconds between two sweeps of the journal.")] = 60.0,
    lease: Annotated[float, typer.Option(help="Seconds that a claim outlives its worker.")] = 60.0,
    settle_after: options.SettleAfter = 300.0,
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
        "parked": parked,
        "concurrency": concurrency,
        "ack_wait": ack_wait,
        "sweep_every": sweep_every,
    }
    if try_it:
        with _usage("worker"):
            _refuse_beside_try(context)
        _try(settings)
        return
    from transfer_async._cli.worker import process  # 20 M instructions of 1,900 M, which no --help needs
    from transfer_async.integrations.faststream.line import WorkerSettings

    with _usage("worker"):
        plan = process.WorkerPlan(
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
                "rate": options.rate_given(rate, burst),
            },
            health=address_option.host_and_port(health),
            telemetry=telemetry,
        )
    _run("worker", process.work(plan, say=tell, log=complain))


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
    from transfer_async._cli.worker import publishing  # see `worker`
    from transfer_async.integrations.faststream.line import WorkerSettings

    with _usage("send"):
        where = _given(options.BROKER, broker)
        settings = WorkerSettings(commands=commands)
        try:
            read = publishing.commands_in(file)
        except OSError as error:
            raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from None
    _run("send", publishing.send(where, read, settings, patience=publishing.PATIENCE))
    tell(f"{len(read)} sent to {commands}")


# --- what they share ----------------------------------------------------------------------------


def _try(settings: dict[str, Any]) -> None:
    from transfer_async._cli.worker import trial  # brings the sandbox: 110 ms
    from transfer_async.integrations.faststream.line import WorkerSettings

    with _usage("worker"):
        program, made = trial.program(), WorkerSettings(**settings)
    with tempfile.TemporaryDirectory(prefix="transfer-async-") as home:
        _run("worker", trial.run(program, Path(home), made, say=tell, log=complain))


def _refuse_beside_try(context: typer.Context) -> None:
    """What was given on the command line, and would be passed over; the environment may have it."""
    ours = {"try_it", "commands", "outcomes", "parked", "concurrency", "ack_wait", "sweep_every"}
    others = (one for one in context.command.params if one.name not in ours)
    if beside := [one.opts[0] for one in others if _is_on_the_command_line(context, one.name)]:
        raise ValueError(f"--try: does not go with {', '.join(beside)}: it brings its own")


def _is_on_the_command_line(context: typer.Context, name: str | None) -> bool:
    source = None if name is None else context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _given(what: str, value: str | None, *, instead: str = "") -> str:
    if not value:
        raise ValueError(f"{what}: must be given{instead}")
    return value


def _usage(command: str) -> AbstractContextManager[None]:
    return failing(command, {ValueError: USAGE})


def _run(command: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        with failing(command, {ConnectionError: FAILED, ValueError: USAGE, OSError: USAGE}):
            run(work)
    except asyncio.CancelledError:
        fail(f"{command}: stopped at once; what was in flight comes again", FAILED)
