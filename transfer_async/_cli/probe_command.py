"""The ``probe`` command: its options, messages and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from attrs import evolve

from transfer_async._cli import options
from transfer_async._cli.output import complain, fail, failing, in_one_line, is_interactive, tell
from transfer_async._cli.process import FAILED, USAGE, run
from transfer_async._http import request
from transfer_async._http.urls import normalised
from transfer_async._models.errors import JournalFailed
from transfer_async._support.util import is_positive

if TYPE_CHECKING:
    from transfer_async._cli.probe_run import OrderSettings, ProbeRun

MAX_PATIENCE = 300.0
NOT_LIVE = (
    "--this-is-not-live is required: run a probe only in the service's test environment. Wrong tokens may "
    "lock an account, and levels 1 and 2 create orders"
)


def probe(
    *,
    this_is_not_live: Annotated[
        bool,
        typer.Option("--this-is-not-live", help="Confirm that the base URL belongs to a test environment."),
    ] = False,
    level: Annotated[
        list[int] | None,
        typer.Option(min=0, max=2, help="The level to run: 0, 1 or 2; 0 by default; may be repeated."),
    ] = None,
    base_url: options.BaseUrl = None,
    token: options.Token = None,
    profile: Annotated[
        Path, typer.Option(metavar="FILE", help="The file for the profile. An existing profile is extended.")
    ] = Path("service-profile.json"),
    yes: Annotated[
        bool, typer.Option("--yes", help="Start each level without asking for confirmation.")
    ] = False,
    on_one_connection: Annotated[
        int,
        typer.Option(min=1, max=1000, help="For level 0, the maximum number of requests on one connection."),
    ] = 20,
    idle: Annotated[
        float,
        typer.Option(
            min=0, max=300, help="For level 0, the maximum number of seconds to watch an idle connection."
        ),
    ] = 60.0,
    patience: Annotated[
        float, typer.Option(help=f"Seconds to wait for a response; at most {MAX_PATIENCE:g}.")
    ] = 30.0,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For levels 1 and 2, the journal that records the probe's orders."),
    ] = None,
    order: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For levels 1 and 2, a valid order, as a JSON object.")
    ] = None,
    most_orders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=("For levels 1 and 2, the maximum number of orders in all runs that use this journal."),
        ),
    ] = None,
    most_amount: Annotated[
        str | None,
        typer.Option(
            help=("For levels 1 and 2, the maximum total amount of all orders, in the poster's currency.")
        ),
    ] = None,
    apart: Annotated[
        str,
        typer.Option(help="For levels 1 and 2, the difference between one matcher_amount and the next."),
    ] = "1",
    hooks: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="The factory that you pass to transfer-async worker. Only its headers and request_id_header "
            "are used.",
        ),
    ] = None,
    network: options.Network,
) -> None:
    """Find out how a service's test environment really behaves.

    The probe finds out what the specification does not state: statuses, limits, required fields, and how long
    connections last. The probe has three levels. Before each level, the probe shows what it will send and the
    maximum cost:

    \b
      0  reads only: a wrong token, an unknown path, headers, proxies, how long a connection stays open
      1  orders that must be refused; if one is created, the probe stops
      2  real orders: the same body twice, fields left out, amounts at and beyond limits, a cut connection

    Levels 1 and 2 send orders through the client and its journal. The full amount of each order is
    counted before the order is sent, whatever its outcome. --most-orders and --most-amount apply to the total
    of all runs that use the same journal, even if runs are killed and repeated. If the service is busy (429,
    503), the order is sent again later and counted again. The probe stops if the service does not respond or
    rejects the token.

    The probe writes a profile, which contains no personal names, tokens or bodies. The probe also prints
    suggested client settings and the reasons for them. To imitate the service, run transfer-async sandbox
    --profile FILE.

    Exit codes: 0 done; 1 stopped, or failed; 2 usage error, or not confirmed.
    """
    from transfer_async._cli import probe_run  # imports the sandbox: 80 ms
    from transfer_async._cli.probe_http import Service, Stopped

    if not this_is_not_live:
        fail(NOT_LIVE, USAGE)
    if not (is_positive(patience) and patience <= MAX_PATIENCE):
        fail(f"--patience: must be greater than 0 seconds, and at most {MAX_PATIENCE:g}", USAGE)
    codes = {ValueError: USAGE, Stopped: FAILED, OSError: FAILED, JournalFailed: FAILED}
    with failing("probe", codes, words=_message):
        levels = frozenset(level or [0])
        base_url = _checked(normalised, base_url, options.BASE_URL)
        token = _checked(request.checked, token, options.TOKEN)
        settings = network()
        if settings.get("proxy", "").lower().startswith("https:"):
            raise ValueError("--proxy, or TRANSFER_PROXY: must be an http:// address for a probe")
        factory = None if hooks is None else options.factory_named(hooks)
        requested = probe_run.ProbeRun(
            service=Service(base_url=base_url, token=token, timeout=patience, **settings),
            levels=levels,
            limits=probe_run.ReadLimits(requests=on_one_connection, idle=idle),
            orders=_order_settings(order, journal, most_orders, most_amount, apart) if levels - {0} else None,
            path=profile,
            say=tell,
            confirm=lambda question: yes or _confirmed(question),
        )
        run(_probed(requested, factory))


async def _probed(requested: ProbeRun, factory: Callable[[], object] | None) -> None:
    """Run the probe with the headers that the bank's factory returns."""
    async with await options.made_by(factory) as side:
        own = side.settings.get("headers", requested.service.headers)
        id_header = side.settings.get("request_id_header")
        try:
            headers = request.checked_headers(own, request_id_header=id_header)
        except ValueError as error:
            raise ValueError(f"--hooks: the factory returned an invalid setting: {error}") from None
        service = evolve(requested.service, headers=headers, request_id_header=id_header)
        await evolve(requested, service=service).run()


def _message(error: Exception) -> str:
    return in_one_line(error) if isinstance(error, OSError | JournalFailed) else str(error)


def _checked(check: Callable[[str], str], value: str | None, option: str) -> str:
    if value is None:
        raise ValueError(f"{option}, is required")
    try:
        return check(value)
    except ValueError as error:
        why = options.as_typed(str(error))
    del value  # The value may be the token, and a traceback may show local variables.
    raise ValueError(why)


def _order_settings(
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
        raise ValueError("--journal: the file's directory does not exist; create it first")
    return OrderSettings(
        order=NewOrder.from_json(order.read_bytes()),
        apart=_amount("--apart", apart),
        cap=Cap(orders=most_orders, amount=_amount("--most-amount", most_amount)),
        journal=journal.absolute(),
    )


def _amount(option: str, text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount <= 0:
        raise ValueError(f"{option}: must be a plain number greater than 0")
    return amount


def _confirmed(question: str) -> bool:
    if not is_interactive():
        complain("--yes is required when not interactive")
        return False
    return typer.confirm(question)
