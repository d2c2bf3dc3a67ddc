"""The commands: their options, their words and their exit codes. What they do is imported when they run."""

from __future__ import annotations

import functools
import getpass
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from transfer_async._cli import (
    create_command,
    journal_commands,
    options,
    probe_command,
    reconcile_command,
    worker_command,
)
from transfer_async._cli.journal_output import explained, journal_named, scope_of
from transfer_async._cli.output import (
    PlainUsage,
    complain,
    fail,
    failing,
    in_one_line,
    shown,
    shown_lines,
    tell,
)
from transfer_async._cli.process import DONE, FAILED, USAGE, run
from transfer_async._client import TransferClient
from transfer_async._http import request
from transfer_async._models.errors import ConnectionFailed, TransferError, Unauthorized
from transfer_async._models.responses import User
from transfer_async._pipeline.operators import Operators
from transfer_async._support.util import VERSION, is_positive
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.model import SETTLE_AFTER

# --- desk command ------------------------------------------------------------------------------------
# The command ``desk``: its options, its words and its exit codes.


def desk(
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    by: Annotated[str | None, typer.Option(help="Who sits there; the login name by default.")] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="What they may do beside looking; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    settle_after: options.SettleAfter = SETTLE_AFTER,
) -> None:
    """Serve the operators' page on this machine until Ctrl-C.

    It shows what waits in a journal and, to who may, how to end it; it sends nothing to the service.
    Prints an address that lets one browser in, once. Nobody else can use it, and no other machine.

    ROLE is change (end doubts), approve (what another has proposed) or parties (see who pays whom).
    Exit codes: 0 stopped; 1 the journal or the port is not to be had; 2 a wrong use.
    """
    with failing("desk", {ImportError: USAGE}):
        from transfer_async._cli import servers  # brings Jinja2 and aiohttp's server: 90 ms
        from transfer_async.desk import Operator
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):
            fail("desk: --by: must say who you are; there is no login name here", USAGE)
    with failing("desk", {ValueError: USAGE}):
        where, store = scope_of(scope, base_url), journal_named(journal)
        operator = Operator(by, may or ())
        operators = Operators(store, where, settle_after=settle_after)
    served = servers.serve_desk(operators, store, operator, port=port, say=tell)
    with failing("desk", {TransferError: FAILED, OSError: FAILED}, words=lambda error: _why(error, port)):
        run(served)


def _why(error: Exception, port: int) -> str:
    if not isinstance(error, OSError):
        return explained(error)
    return f"--port: cannot listen on port {port} ({error.strerror or error}): name a free one, or 0 for any"


app = typer.Typer(
    help="The async client for cross-border transfer orders: see it work, develop against a sandbox, "
    "and look after a journal.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text, the same everywhere
    pretty_exceptions_enable=False,  # they would show local variables, and the token among them
)
app.add_typer(journal_commands.app, name="journal")
journal_commands.app.command(cls=PlainUsage)(reconcile_command.reconcile)
app.command(cls=PlainUsage)(create_command.create)
app.command()(worker_command.worker)
app.command(cls=PlainUsage)(worker_command.send)
app.command()(desk)
app.command()(probe_command.probe)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"transfer-async {VERSION}")
        raise typer.Exit


@app.callback()
def common_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that come before a command; its help is the app's own."""


@app.command()
def demo() -> None:
    """Watch the client at work, against a sandbox.

    An order is created, one is lost and found again, one is refused, the matcher bot comes by, names are
    compared, and many orders are sent at once through faults; all in this process, in a few seconds.
    The demo checks what it tells: its last line begins with "demo ok" and the exit code is 0; after any
    surprise it is 1.
    """
    from transfer_async._cli import demo as narration  # bring the sandbox: 80 ms
    from transfer_async._cli import demo as tour

    with failing("demo failed", {narration.Surprise: FAILED}):
        run(tour.run(tell, live=sys.stdout.isatty()))


@app.command()
def sandbox(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    match_every: Annotated[float, typer.Option(help="Seconds between two runs of the matcher bot.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Order ids and the chances of faults are drawn from it.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARE[:SETTINGS]", help="A fault, and its share of all orders; may be repeated."
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(help="The API token; a new random one by default.")] = None,
    accounts: Annotated[
        Path | None, typer.Option(help="A JSON file of accounts, in place of the made-up people.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What transfer-async probe saw of a service, which is imitated."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="A PEM file with the certificate to serve https with.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="A PEM file with its key, if that is in a file of its own.")
    ] = None,
    beyond_loopback: Annotated[
        bool, typer.Option("--beyond-loopback", help="Allow a host that other machines can reach.")
    ] = False,
) -> None:
    """Serve the sandbox until Ctrl-C.

    The sandbox is a small, faithful copy of the transfer order service, for development.
    Prints its address, its token and the two variables to export; then one line a request, on stderr.
    Stopped by SIGINT (Ctrl-C) or SIGTERM it closes cleanly, with exit code 0: to be stopped is its end.

    --fault spoils a share of all orders, 0 to 1, drawn from --seed: the same orders, sent one after the
    other, meet the same faults. SETTINGS are the fault's own, as setting=value,... or a JSON object:

    \b
      --fault close-after-processing=0.05
      --fault status=0.1:status=429
      --fault 'status=0.02:{"status": 503, "headers": {"Retry-After": "1"}}'

    After these the order exists, and the answer is lost or spoiled:

    \b
      close-after-processing    reset-after-processing    stall-after-processing
      status-after-processing   truncated-head            truncated-body
      broken-chunk              garbage-body              wrong-types
      another-order             slow-bytes                huge-body
      compressed-huge-body      unsolicited-reply

    After these it does not, or not yet:

    \b
      close-before-reading      stall-before-processing   status
      redirect
    """
    from transfer_async._cli import servers  # brings the sandbox: 80 ms
    from transfer_async.sandbox import Sandbox, load_accounts, load_profile

    if not (beyond_loopback or servers.is_loopback(host)):
        fail(
            f"--host: {host} is not this machine's loopback. The sandbox is for development, and without "
            "--tls-cert the client would refuse it; --beyond-loopback says that you want it all the same",
            USAGE,
        )
    if not is_positive(match_every):
        fail("--match-every: must be a finite number of seconds, more than 0", USAGE)
    with failing("sandbox", {ValueError: USAGE, OSError: USAGE}):
        served = Sandbox(
            token=None if token is None else request.checked(token),
            accounts=None if accounts is None else load_accounts(accounts),
            profile=None if profile is None else load_profile(profile),
            faults=servers.fault_shares(fault or []),
            ssl=servers.tls_context(tls_cert, tls_key),
            host=host,
            port=port,
            match_every=match_every,
            seed=seed,
        )
    try:
        run(servers.serve_sandbox(served, say=tell, log=complain))
    except OSError as error:
        fail(f"sandbox: cannot listen on {host}, port {port}: {error.strerror or error}", FAILED)


@app.command()
def whoami(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Ask the service who the caller is.

    Prints id, username, role, and whether the account is active; never the token.
    The service is the one that TRANSFER_BASE_URL and TRANSFER_API_TOKEN name.
    Exit codes: 0 answered; 1 refused or out of reach; 2 the environment is not set, or wrong.
    """
    with failing("whoami", {ValueError: USAGE}):
        client = client_from_env()
    with failing("whoami", {TransferError: FAILED}, words=_explained_failure):
        user = run(ask(client))
    tell(_account_as_json(user) if as_json else "\n".join(as_lines(user)))


@app.command(name="verify-hooks")
def verify_hooks(
    factory: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY", help="A function that returns hooks and held, by name."),
    ],
    *,
    seed: Annotated[int, typer.Option(help="The same one gives the same sequences.")] = 0,
    sequences: Annotated[int, typer.Option(min=0, help="How many sequences are drawn; 0 for none.")] = 100,
    late: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for holds that arrive when nobody expects them.")
    ] = 1.0,
    patience: Annotated[float, typer.Option(help="Seconds that one hook may take.")] = 10.0,
) -> None:
    """Try a bank's hooks against what will happen to them in service.

    They place and release some hundreds of holds in the ledger that the factory connects them to: give them
    one for tests, with room for six holds. They are called twice, at once, by a new worker, cancelled at each
    await, with time-outs and lost connections, and undone without a receipt, twice, and without anything to
    undo. Then held(intent_id) is asked, and balance(), if the factory gives one.

    Says which rules were broken, what was done, what was seen, and what helps.
    Exit codes: 0 all rules kept; 1 a rule broken; 2 there is no such factory, or it makes something else.
    """
    from transfer_async import testing  # brings the sandbox: 80 ms

    if not is_positive(patience):
        fail("--patience: must be a finite number of seconds, more than 0", USAGE)
    with failing("verify-hooks", {ValueError: USAGE}):
        make = _hooks_made_by(options.factory_named(factory, option="MODULE:FACTORY"))
        report = run(testing.verify_hooks(make, seed=seed, sequences=sequences, late=late, patience=patience))
    tell(shown_lines(str(report)))  # a ledger's own words may be in it
    raise typer.Exit(FAILED if report.broken else DONE)


def _hooks_made_by(factory: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """``factory``, whose errors are told in one line."""

    @functools.wraps(factory)  # a worker in a process of its own imports it by its name
    async def make() -> object:
        try:
            made = factory()
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            raise ValueError(f"the factory failed ({in_one_line(error)})") from error

    return make


# --- who am i ----------------------------------------------------------------------------------------
# Who the caller is, asked of the service that the environment names.


_ADVICE: dict[type[TransferError], str] = {
    Unauthorized: "is TRANSFER_API_TOKEN the token of this service?",
    ConnectionFailed: "is the service at TRANSFER_BASE_URL up?",
}


_VARIABLES = {"base_url": "TRANSFER_BASE_URL", "token": "TRANSFER_API_TOKEN"}


def client_from_env() -> TransferClient:
    """A client that only reads: it leaves the journal that the environment may name alone.

    Raises:
        ValueError: a variable is missing or wrong; the message does not show the token.
    """
    try:
        return TransferClient.from_env(journal=MemoryJournal())
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
    raise ValueError(f"{_VARIABLES.get(name, name)}{colon}{rest}")


async def ask(client: TransferClient) -> User:
    """Ask who the caller is, and close the client."""
    async with client:
        return await client.who_am_i()


def _account_as_json(user: User) -> str:
    """``user`` as one line of JSON: ``id``, ``username``, ``role``, ``active``; null where not said."""
    told = {"id": user.id, "username": user.username, "role": user.role, "active": user.is_active}
    return json.dumps(told)


def as_lines(user: User) -> list[str]:
    """``user`` as four lines for people."""
    active = {True: "yes", False: "no", None: "-"}[user.is_active]
    return [
        f"id        {shown(user.id)}",
        f"username  {shown(user.username)}",
        f"role      {shown(user.role)}",
        f"active    {active}",
    ]


_NOT_THERE = "is TRANSFER_BASE_URL right, with the path before /api/api/v1 if there is one, and no more?"


_NO_TLS = (
    "something answers there, but no TLS connection could be made: is the port of TRANSFER_BASE_URL one for "
    "https, and is its certificate trusted on this machine?"
)


def _explained_failure(error: Exception) -> str:
    """``error`` in one line, with what to look at where that is known."""
    advice = next((said for kind, said in _ADVICE.items() if isinstance(error, kind)), None)
    if getattr(error, "status", None) in (404, 405) and not isinstance(error, Unauthorized):
        advice = _NOT_THERE
    if isinstance(error.__cause__, aiohttp.ClientSSLError):
        advice = _NO_TLS
    told = in_one_line(error)
    return f"{told}; {advice}" if advice else told
