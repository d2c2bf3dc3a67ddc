"""The commands of ``transfer-async``: their options, help texts and exit codes.

Each command imports its implementation only when it runs, so that help texts appear quickly.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

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
    in_words,
    login_name,
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


def desk(
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    by: Annotated[
        str | None, typer.Option(help="The operator's name in the history; the login name by default.")
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE", help="What the operator may do besides viewing; repeat for several roles."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    label: Annotated[
        str, typer.Option(help="The environment's name, such as live, shown on every page.")
    ] = "",
    colour: Annotated[
        str | None, typer.Option(metavar="#RRGGBB", help="The colour of the band behind the label.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The URL of your own look-up page, containing {order_id} or another field."
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Your time zone, such as Africa/Lagos; times are also shown in UTC."
        ),
    ] = None,
    settle_after: options.SettleAfter = SETTLE_AFTER,
) -> None:
    """Serve the operators' page on this machine until Ctrl-C.

    The page lists the pending keys of a journal and, depending on your roles, lets you act on them. The page
    never sends requests to the service. The command prints a one-time address: only the first browser on this
    machine to open it gets access.

    ROLE is change (resolve or refute orders in doubt), approve (approve another operator's proposals) or
    parties (see who pays whom). --link may contain the fields {key}, {order_id}, {request_id}, {intent_id}
    and {attempt_id}.

    Exit codes: 0 stopped; 1 the journal or the port cannot be used; 2 usage error.
    """
    with failing("desk", {ImportError: USAGE}):
        from transfer_async._cli import servers  # imports Jinja2 and aiohttp's server: 90 ms
        from transfer_async.desk import Operator
        from transfer_async.desk.views import PageStyle
    if by is None:
        by = login_name("desk")
    with failing("desk", {ValueError: USAGE}):
        where, store = scope_of(scope, base_url), journal_named(journal)
        operator = Operator(by, may or ())
        operators = Operators(store, where, settle_after=settle_after)
        style = PageStyle(label=label, colour=colour, link=link, zone=zone)
    served = servers.serve_desk(operators, store, operator, port=port, say=tell, style=style)
    with failing("desk", {TransferError: FAILED, OSError: FAILED}, words=lambda error: _why(error, port)):
        run(served)


def _why(error: Exception, port: int) -> str:
    if not isinstance(error, OSError):
        return explained(error)
    return (
        f"--port: cannot listen on port {port} ({error.strerror or error}): choose "
        "another port, or 0 for any free port"
    )


def _as_typed(error: Exception) -> str:
    return options.as_typed(in_words(error))


app = typer.Typer(
    help="Create cross-border transfer orders, develop against a sandbox of the service, "
    "and operate a journal.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # Plain text looks the same on every terminal.
    pretty_exceptions_enable=False,  # These would show local variables, including the token.
)
app.add_typer(journal_commands.app, name="journal")
journal_commands.app.command(cls=PlainUsage)(reconcile_command.reconcile)
app.command(cls=PlainUsage)(options.with_network(create_command.create))
app.command()(options.with_network(worker_command.worker))
app.command(cls=PlainUsage)(worker_command.send)
app.command()(desk)
app.command()(options.with_network(probe_command.probe))


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
    """Handle the options that come before a command."""


@app.command()
def demo() -> None:
    """Show how the client works, using a sandbox of the service.

    The sandbox creates one order, loses the response to a second order, and refuses a third order. The client
    then resolves the second order. Next, the demo matches orders, verifies beneficiaries' names, and sends
    many orders at once while faults occur. Everything runs in one process and takes a few seconds. The demo
    checks every claim that it prints. If all claims are true, the last line begins with "demo ok" and the
    exit code is 0; otherwise the exit code is 1.
    """
    from transfer_async._cli import demo as tour  # imports the sandbox: 80 ms

    with failing("demo failed", {tour.FalseClaim: FAILED}):
        run(tour.run(tell))


@app.command()
def sandbox(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    match_every: Annotated[float, typer.Option(help="Seconds between runs of the matcher bot.")] = 300.0,
    seed: Annotated[int, typer.Option(help="The seed for order ids and random faults.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARE[:SETTINGS]",
            help="A fault and the share of orders to apply it to; repeat for several faults.",
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(help="The API token; a random one by default.")] = None,
    accounts: Annotated[
        Path | None, typer.Option(help="A JSON file of accounts that replace the built-in ones.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Imitate the service from which transfer-async probe recorded the profile."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A PEM file with the certificate for https.")] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="A PEM file with the key, if --tls-cert does not contain it.")
    ] = None,
    beyond_loopback: Annotated[
        bool,
        typer.Option(
            "--beyond-loopback", help="Allow --host to be an address that other machines can reach."
        ),
    ] = False,
) -> None:
    """Serve the sandbox until Ctrl-C.

    The sandbox is a small implementation of the transfer order service, for development. The command prints
    the sandbox's address, its token and two environment variables to export. The running sandbox writes one
    line per request to stderr. After SIGINT (Ctrl-C) or SIGTERM, the sandbox shuts down cleanly with exit
    code 0.

    Exit codes: 0 stopped; 1 the sandbox cannot listen on the port; 2 usage error.

    --fault applies a fault to a fraction of all orders, from 0 to 1. --seed determines which orders are
    affected: with the same seed, the same sequence of orders gets the same faults. SETTINGS configures the
    fault, as setting=value,... or as JSON:

    \b
      --fault close-after-processing=0.05
      --fault status=0.1:status=429
      --fault 'status=0.02:{"status": 503, "headers": {"Retry-After": "1"}}'

    After these faults the order exists, and its response is lost or wrong:

    \b
      close-after-processing    reset-after-processing    stall-after-processing
      status-after-processing   truncated-head            truncated-body
      broken-chunk              garbage-body              wrong-types
      another-order             slow-bytes                huge-body
      compressed-huge-body      unsolicited-reply

    After these faults the order does not exist, or does not exist yet:

    \b
      close-before-reading      stall-before-processing   status
      redirect
    """
    from transfer_async._cli import servers  # imports the sandbox: 80 ms
    from transfer_async.sandbox import Sandbox, load_accounts, load_profile

    if not (beyond_loopback or servers.is_loopback(host)):
        fail(
            (
                f"--host: {host} is not a loopback address, and the sandbox is only for "
                "development. To listen on this address anyway, pass --beyond-loopback. "
                "Clients then require https, so also pass --tls-cert"
            ),
            USAGE,
        )
    if not is_positive(match_every):
        fail("--match-every: must be a finite number of seconds above 0", USAGE)
    with failing("sandbox", {ValueError: USAGE, OSError: USAGE}, words=_as_typed):
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
        fail(
            f"sandbox: cannot listen on {host}, port {port} ({error.strerror or error}): use another --port",
            FAILED,
        )


@app.command()
@options.with_network
def whoami(
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    *,
    network: options.Network,
) -> None:
    """Show the account that the token belongs to.

    The command prints the account's id, username and role, and whether it is active. The command never prints
    the token. The command reads the service's base URL from TRANSFER_BASE_URL, and the token from
    TRANSFER_API_TOKEN.

    Exit codes: 0 the service returned the account; 1 the service refused the request or could not be reached;
    2 an environment variable is missing or invalid.
    """
    with failing("whoami", {ValueError: USAGE}):
        client = _client_from_env(network())
    with failing("whoami", {TransferError: FAILED}, words=_explained_failure):
        user = run(_ask(client))
    tell("\n".join(account_lines(user, as_json=as_json)))


@app.command(name="verify-hooks")
def verify_hooks(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY", help="A function that returns a mapping with hooks and held."
        ),
    ],
    *,
    seed: Annotated[int, typer.Option(help="The seed for the random sequences.")] = 0,
    sequences: Annotated[
        int, typer.Option(min=0, help="The number of random sequences to try; 0 for none.")
    ] = 100,
    late: Annotated[float, typer.Option(min=0, help="Seconds to wait for holds that appear late.")] = 1.0,
    patience: Annotated[float, typer.Option(help="Maximum seconds for each call to a hook.")] = 10.0,
) -> None:
    """Check that the bank's hooks stay correct under retries, crashes and cancellation.

    The hooks place and release several hundred holds, at most six at a time. Connect the hooks to a test
    ledger with enough funds for six holds. The command calls each hook twice in a row, concurrently, and from
    a new worker; it also cancels the hook at each await, and interrupts it with timeouts and lost
    connections. In addition, the command undoes each hook in three ways: without a receipt, twice in a row,
    and with nothing to undo. After each step, the command compares held(intent_id) and, if the factory
    returns it, balance() with the expected values.

    For each broken rule, the command prints the calls that broke it, the observed result and a suggested fix.

    Exit codes: 0 the hooks follow all rules; 1 a rule is broken; 2 the factory does not exist, or its result
    is invalid.
    """
    from transfer_async import testing  # imports the sandbox: 80 ms

    if not is_positive(patience):
        fail("--patience: must be a finite number of seconds above 0", USAGE)
    with failing("verify-hooks", {ValueError: USAGE}):
        make = _hooks_made_by(options.factory_named(factory, option="MODULE:FACTORY"))
        report = run(testing.verify_hooks(make, seed=seed, sequences=sequences, late=late, patience=patience))
    tell(shown_lines(str(report)))  # The report may quote the ledger.
    raise typer.Exit(FAILED if report.broken else DONE)


def _hooks_made_by(factory: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """Wrap ``factory`` so that any error it raises becomes a `ValueError` with a one-line message."""

    @functools.wraps(factory)  # Another process imports the factory by name.
    async def make() -> object:
        try:
            made = factory()
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            raise ValueError(f"the factory failed ({in_one_line(error)})") from error

    return make


# --- who am i ----------------------------------------------------------------------------------------

_VARIABLES = {"base_url": "TRANSFER_BASE_URL", "token": "TRANSFER_API_TOKEN"}


def _client_from_env(network: dict[str, Any]) -> TransferClient:
    """Create a client that is only used for reads and ignores TRANSFER_JOURNAL.

    Raises:
        ValueError: an environment variable is missing or invalid. The message never contains the token.
    """
    try:
        return TransferClient.from_env(journal=MemoryJournal(), **network)
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
    raise ValueError(f"{_VARIABLES.get(name, name)}{colon}{rest}")


async def _ask(client: TransferClient) -> User:
    async with client:
        return await client.who_am_i()


def account_lines(user: User, *, as_json: bool) -> list[str]:
    """Return the account as one line of JSON, or as four lines of text."""
    if as_json:
        account = {"id": user.id, "username": user.username, "role": user.role, "active": user.is_active}
        return [json.dumps(account)]
    active = {True: "yes", False: "no", None: "-"}[user.is_active]
    texts = {
        "id": shown(user.id),
        "username": shown(user.username),
        "role": shown(user.role),
        "active": active,
    }
    return [f"{name:<10}{text}" for name, text in texts.items()]


def _explained_failure(error: Exception) -> str:
    """Describe ``error`` in one line and, for some errors, suggest what to check."""
    message = in_one_line(error)
    if isinstance(error.__cause__, aiohttp.ClientSSLError):
        return (
            f"{message}; the server is reachable, but the TLS connection failed: check that "
            "the port in TRANSFER_BASE_URL accepts https, and that this machine trusts the "
            "server's certificate"
        )
    if isinstance(error, Unauthorized):
        return f"{message}; check that TRANSFER_API_TOKEN is the token of this service"
    if isinstance(error, ConnectionFailed):
        return f"{message}; check that the service at TRANSFER_BASE_URL is running"
    if getattr(error, "status", None) in (404, 405):
        return f"{message}; check TRANSFER_BASE_URL: it must include any path prefix, but not /api/api/v1"
    return message
