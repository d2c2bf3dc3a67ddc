"""The options that several commands share, and the client, hooks and journal that they name."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from attrs import field, frozen

from transfer_async._cli.output import in_one_line, shown
from transfer_async._client import TransferClient
from transfer_async._http.retry import Rate
from transfer_async._models.events import Observer
from transfer_async._pipeline.call import Resolver
from transfer_async._pipeline.hooks import Hook, checked_hooks, is_hold
from transfer_async.journal import journal_at, protocol, seal_from_env
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.sqlite import SQLiteJournal

# --- options -----------------------------------------------------------------------------------------

BASE_URL = "--base-url, or TRANSFER_BASE_URL"
JOURNAL = "--journal, or TRANSFER_JOURNAL"
TOKEN = "--token, or TRANSFER_API_TOKEN"  # noqa: S105 - where it is to be given
BROKER = "--broker, or TRANSFER_BROKER"

_journal = typer.Option(
    "--journal", envvar="TRANSFER_JOURNAL", metavar="ADDRESS", help="A file, or a postgresql:// address."
)
_base_url = typer.Option("--base-url", envvar="TRANSFER_BASE_URL", help="The service's address.")
_hooks = typer.Option(
    "--hooks",
    metavar="MODULE:FACTORY",
    help="A function that returns the bank's hooks, "
    "and perhaps its resolve, token, retry and other settings.",
)

Journal = Annotated[str | None, _journal]
JournalNeeded = Annotated[str, _journal]
BaseUrl = Annotated[str | None, _base_url]
BaseUrlNeeded = Annotated[str, _base_url]
Hooks = Annotated[str | None, _hooks]
HooksNeeded = Annotated[str, _hooks]

Token = Annotated[
    str | None, typer.Option(envvar="TRANSFER_API_TOKEN", help="The API token; safer in the environment.")
]
Scope = Annotated[
    str | None, typer.Option(help="Names the service in the journal; by default the service's address.")
]
SettleAfter = Annotated[
    float,
    typer.Option(help="Seconds after the last possible send before it is believed that no order exists."),
]
AbandonedSettleAfter = Annotated[
    float | None,
    typer.Option(
        help="The same for resolve's NO_ORDER where the sender never reported an end: "
        "it may be only stopped. A day (86400) by default."
    ),
]
PerSecond = Annotated[
    float | None,
    typer.Option("--rate", help="Orders a second at most, further attempts counted; no limit by default."),
]
Burst = Annotated[
    int | None, typer.Option(help="How many of them may follow one another at once; 1 by default.")
]
Broker = Annotated[
    str | None,
    typer.Option(envvar="TRANSFER_BROKER", metavar="ADDRESS", help="nats://, tls://, redis:// or rediss://"),
]
Commands = Annotated[str, typer.Option(help="The subject or stream that commands come from.")]


_TYPED = frozenset(
    {"base_url", "token", "scope", "settle_after", "lease", "deadline", "concurrency"}
    | {"by", "reason", "undone", "order_id"}
)
"""Arguments of the client and of operators that commands take as options."""


def as_typed(why: str) -> str:
    """``why``, which may begin with an argument's name, with the option that the user typed in its place."""
    name, colon, rest = why.partition(":")
    return f"--{name.replace('_', '-')}{colon}{rest}" if name in _TYPED else why


def rate_given(per_second: float | None, burst: int | None) -> Rate | None:
    """What ``--rate`` and ``--burst`` say together.

    Raises:
        ValueError: one of them is no good; names the option.
    """
    if per_second is None:
        if burst is not None:
            raise ValueError("--burst: goes with --rate")
        return None
    try:
        return Rate(per_second, burst=1 if burst is None else burst)
    except ValueError as error:
        raise ValueError(f"--{error}".replace("--per_second", "--rate")) from None


# --- client and journal ------------------------------------------------------------------------------


def client_of(
    base_url: str,
    token: str | None,
    side: BankSide,
    *,
    journal: protocol.Journal,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> TransferClient:
    """The client; a setting that the bank brings counts more than an option.

    Raises:
        ValueError: nobody brings a token, or a setting is no good.
    """
    settings = {"token": token, **settings, **side.settings}
    if settings["token"] is None:
        raise ValueError(f"{TOKEN}, is required, unless the factory of --hooks returns a token")
    settings["observers"] = [*observers, *settings.get("observers", ())]
    try:
        return TransferClient(base_url, journal=journal, hooks=side.hooks, resolve=side.resolve, **settings)
    except ValueError as error:
        why, is_factorys = str(error), str(error).partition(":")[0] in side.settings
    raise ValueError(f"--hooks: its factory returned a wrong {why}" if is_factorys else as_typed(why))


def journal_named(address: str) -> SQLiteJournal | PostgresJournal:
    """The journal that ``--journal`` names, with the seal that the environment names; not yet open.

    Raises:
        ValueError: there can be none.
    """
    seal = seal_from_env()
    try:
        return journal_at(address, seal=seal)
    except ValueError as error:
        raise ValueError(f"--journal: {error}") from None


# --- hook loading ------------------------------------------------------------------------------------
# The bank's own hooks, found by name: ``module:factory``.


SETTINGS = ("token", "retry", "timeouts", "observers", "ssl", "proxy", "max_connections", "rate")
"""What else of a client's settings a factory may return by name."""

_FOR_TRIALS = frozenset({"held", "balance", "order"})
"""What only ``verify-hooks`` reads: one factory serves every command."""

_logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class BankSide:
    """What a bank brings to a client; an async context manager, which closes it.

    Args:
        hooks: what runs before an order is sent.
        resolve: the bank's means to end a doubt.
        settings: those of `SETTINGS` that it chose, as `TransferClient` takes them.
        close: closes what the factory opened.
    """

    hooks: Sequence[Hook]
    resolve: Resolver | None = None
    settings: Mapping[str, Any] = field(factory=dict, repr=False)
    close: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self.close is not None and inspect.isawaitable(closing := self.close()):
                await closing
        except Exception as error:  # noqa: BLE001 - the outcomes of orders count more
            _logger.warning("--hooks: close() failed (%s)", in_one_line(error))

    @property
    def places_hold(self) -> bool:
        """Whether one of the hooks holds the funds.

        Raises:
            ValueError: one of them is no hook.
        """
        return any(map(is_hold, checked_hooks(self.hooks)))


def factory_named(spec: str, *, option: str = "--hooks") -> Callable[[], object]:
    """The factory that ``module:factory`` names; installed modules come before the caller's files.

    Args:
        spec: what was written.
        option: where; begins what an error says.

    Raises:
        ValueError: there is none, or its module cannot be imported; in one line.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"{option}: must be module:factory, as in our_bank.hooks:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: what lies about there must not stand for a library
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{option}: cannot import {shown(module_name)} ({in_one_line(error)})") from error
    factory: Callable[[], object] | None = getattr(module, name, None)
    if factory is None or not callable(factory):
        raise ValueError(f"{option}: there is no function {shown(name)} in {shown(module_name)}")
    return factory


async def made_by(factory: Callable[[], object] | None) -> BankSide:
    """What ``factory`` makes, awaited if it is async; without one, nothing.

    It returns a sequence of hooks; or a mapping, or an object, with ``hooks``, and perhaps ``resolve``,
    ``close``, any of `SETTINGS`, and what ``verify-hooks`` needs, which is left out here.

    Raises:
        ValueError: it failed, or made none of these; in one line.
    """
    if factory is None:
        return BankSide(hooks=())
    try:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
    except Exception as error:
        raise ValueError(f"--hooks: the factory failed ({in_one_line(error)})") from error
    parts = _parts(made)
    hooks, resolve, close = (parts.pop(name, None) for name in ("hooks", "resolve", "close"))
    has_hooks = isinstance(hooks, Sequence) and not isinstance(hooks, str | bytes)
    if not has_hooks:
        raise ValueError("--hooks: the factory must return a sequence of hooks, or hooks and resolve by name")
    if unknown := parts.keys() - {*SETTINGS, *_FOR_TRIALS}:
        raise ValueError(f"--hooks: the factory returned {shown(min(unknown))}, which is no setting of these")
    settings = {name: parts[name] for name in SETTINGS if name in parts}
    return BankSide(hooks=hooks, resolve=resolve, settings=settings, close=close)


def _parts(made: Any) -> dict[str, Any]:
    if isinstance(made, Mapping):
        return {str(name): value for name, value in made.items() if value is not None}
    if hasattr(made, "hooks"):
        found = {name: getattr(made, name, None) for name in ("hooks", "resolve", "close", *SETTINGS)}
        return {name: value for name, value in found.items() if value is not None}
    return {"hooks": made}
