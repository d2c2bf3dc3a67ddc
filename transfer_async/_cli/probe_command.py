"""The command that finds out what a service does: its options, its words and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transfer_async._cli import options
from transfer_async._cli.output import complain, fail, failing, in_one_line, somebody_is_there, tell
from transfer_async._cli.process import FAILED, USAGE, run
from transfer_async._http import request
from transfer_async._http.urls import normalised
from transfer_async._models.errors import JournalFailed
from transfer_async._support.util import is_positive

if TYPE_CHECKING:
    from transfer_async._cli.probe_run import OrderSettings

LONGEST_PATIENCE = 300.0
NOT_LIVE = (
    "--this-is-not-live is required. Wrong tokens may lock an account, and levels 1 and 2 create orders: "
    "a probe is for the service's test environment"
)


def probe(
    *,
    this_is_not_live: Annotated[
        bool, typer.Option("--this-is-not-live", help="Say that the address is that of a test environment.")
    ] = False,
    level: Annotated[
        list[int] | None,
        typer.Option(min=0, max=2, help="0, 1 or 2; may be repeated. 0 by default."),
    ] = None,
    base_url: options.BaseUrl = None,
    token: options.Token = None,
    profile: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Where to write what was seen; one that is there is gone on with."),
    ] = Path("service-profile.json"),
    yes: Annotated[bool, typer.Option("--yes", help="Begin each level without being asked.")] = False,
    on_one_connection: Annotated[
        int, typer.Option(min=1, max=1000, help="Level 0: requests on one connection, at most.")
    ] = 20,
    idle: Annotated[
        float, typer.Option(min=0, max=300, help="Level 0: seconds to watch an idle connection, at most.")
    ] = 60.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 30.0,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Levels 1, 2: the file in which orders are counted.")
    ] = None,
    order: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Levels 1, 2: a good order, as a JSON object.")
    ] = None,
    most_orders: Annotated[
        int | None, typer.Option(min=1, help="Levels 1, 2: orders at most, of all runs together.")
    ] = None,
    most_amount: Annotated[
        str | None, typer.Option(help="Levels 1, 2: what they may amount to, in the poster's currency.")
    ] = None,
    apart: Annotated[
        str, typer.Option(help="Levels 1, 2: by how much matcher_amount differs from one order to the next.")
    ] = "1",
) -> None:
    """Find out what a service's test environment really does.

    The specification shows no statuses, no limits, no required fields and no habits of connections.
    The probe asks, in levels. Each says in full what it will do, and what it can cost, before it begins:

    \b
      0  reads only: a wrong token, an unknown path, how long a connection is kept, headers, proxies
      1  orders that must be refused; one that is created all the same stops the probe
      2  real orders: the same body twice, fields left out, amounts at and beyond limits, a cut connection

    Levels 1 and 2 send orders through the client and its journal. Each is counted, at its full amount, before
    it is sent, whatever becomes of it. All runs on one journal together keep to --most-orders and
    --most-amount, however often one is killed and run again. What the service had no time for (429, 503)
    is sent again later, and counted again. The probe stops if the service does not answer, or does not know
    the token.

    Writes a profile, without persons, tokens or bodies, and proposes settings for the client, each with its
    reason: you apply them. transfer-async sandbox --profile FILE then behaves like that service.

    Exit codes: 0 done; 1 it was stopped, or could not go on; 2 a wrong use, or nobody said yes.
    """
    from transfer_async._cli import probe_run  # brings the sandbox: 80 ms
    from transfer_async._cli.probe_http import Service, Stopped
    from transfer_async._cli.probe_run import ReadLimits

    if not this_is_not_live:
        fail(NOT_LIVE, USAGE)
    if not (is_positive(patience) and patience <= LONGEST_PATIENCE):
        fail(f"--patience: must be more than 0 seconds, and {LONGEST_PATIENCE:g} at most", USAGE)
    stops = {ValueError: USAGE, probe_run.Declined: USAGE, Stopped: FAILED, OSError: FAILED}
    with failing("probe", {**stops, JournalFailed: FAILED}, words=_words):
        levels = frozenset(level or [0])
        wanted = probe_run.ProbeRun(
            service=Service(base_url=_address(base_url), token=_token(token), patience=patience),
            levels=levels,
            limits=ReadLimits(requests=on_one_connection, idle=idle),
            orders=_orders(order, journal, most_orders, most_amount, apart) if levels - {0} else None,
            path=profile,
            say=tell,
            agreed=lambda question: yes or _asked(question),
        )
        run(wanted.run())


def _words(error: Exception) -> str:
    return in_one_line(error) if isinstance(error, OSError | JournalFailed) else str(error)


def _address(base_url: str | None) -> str:
    if base_url is None:
        raise ValueError(f"{options.BASE_URL}, is required")
    return _as_typed(normalised, base_url)


def _token(token: str | None) -> str:
    if token is None:
        raise ValueError(f"{options.TOKEN}, is required")
    return _as_typed(request.checked, token)


def _as_typed(check: Callable[[str], str], value: str) -> str:
    try:
        return check(value)
    except ValueError as error:
        why = options.as_typed(str(error))
    del value  # tracebacks are drawn with what the variables of their frames hold
    raise ValueError(why)


def _orders(
    order: Path | None, journal: Path | None, most_orders: int | None, most_amount: str | None, apart: str
) -> OrderSettings:
    from transfer_async._cli.probe_orders import Cap
    from transfer_async._cli.probe_run import OrderSettings
    from transfer_async._models.requests import NewOrder

    if order is None or journal is None or most_orders is None or most_amount is None:
        raise ValueError(
            "--order, --journal, --most-orders and --most-amount are required for levels 1 and 2"
        )
    if not journal.parent.is_dir():
        raise ValueError("--journal: there is no such directory")
    cap = Cap(orders=most_orders, amount=_amount("--most-amount", most_amount))
    return OrderSettings(
        order=NewOrder.from_json(order.read_bytes()),
        apart=_amount("--apart", apart),
        cap=cap,
        journal=journal.absolute(),
    )


def _amount(name: str, text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount <= 0:
        raise ValueError(f"{name}: must be a plain number, more than 0")
    return amount


def _asked(question: str) -> bool:
    if not somebody_is_there():
        complain("nobody is there to be asked: --yes begins without")
        return False
    return typer.confirm(question)
