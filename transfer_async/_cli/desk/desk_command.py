"""The command ``desk``: its options, its words and its exit codes."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.output import fail, failing, tell
from transfer_async._cli.journal.terminal import explained, journal_named, scope_of
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.operators import Operators


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
    settle_after: options.SettleAfter = 300.0,
) -> None:
    """Serve the operators' page on this machine until Ctrl-C.

    It shows what waits in a journal and, to who may, how to end it; it sends nothing to the service.
    Prints an address that lets one browser in, once. Nobody else can use it, and no other machine.

    ROLE is change (end doubts), approve (what another has proposed) or parties (see who pays whom).
    Exit codes: 0 stopped; 1 the journal or the port is not to be had; 2 a wrong use.
    """
    with failing("desk", {ImportError: USAGE}):
        from transfer_async._cli.desk import loopback  # brings Jinja2 and aiohttp's server: 90 ms
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
    served = loopback.serve(operators, store, operator, port=port, say=tell)
    with failing("desk", {TransferError: FAILED, OSError: FAILED}, words=explained):
        run(served)
