"""Options that several commands share, and the client, hooks and journal that they configure."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from attrs import field, frozen

from transfer_async._cli.output import in_one_line, shown
from transfer_async._client import TransferClient
from transfer_async._http.network import VARIABLES, NetworkSettings
from transfer_async._http.retry import Rate
from transfer_async._models.events import Observer
from transfer_async._pipeline.call import Resolver
from transfer_async._pipeline.hooks import Hook, checked_hooks, is_hold
from transfer_async.journal import journal_at, protocol, seal_from_env
from transfer_async.journal.model import similar_scope, similar_scope_refusal
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.sqlite import SQLiteJournal

# --- options -----------------------------------------------------------------------------------------

BASE_URL = "--base-url, or TRANSFER_BASE_URL"
JOURNAL = "--journal, or TRANSFER_JOURNAL"
TOKEN = "--token, or TRANSFER_API_TOKEN"  # noqa: S105 - the names of the option and the variable
BROKER = "--broker, or TRANSFER_BROKER"

_journal = typer.Option(
    "--journal",
    envvar="TRANSFER_JOURNAL",
    metavar="ADDRESS",
    help="The journal: the path of a file, or a postgresql:// URL.",
)
_base_url = typer.Option("--base-url", envvar="TRANSFER_BASE_URL", help="The base URL of the service.")
_hooks = typer.Option(
    "--hooks",
    metavar="MODULE:FACTORY",
    help=(
        "A factory function that returns your hooks and, optionally, resolve, token, "
        "retry and other settings."
    ),
)

Journal = Annotated[str | None, _journal]
JournalNeeded = Annotated[str, _journal]
BaseUrl = Annotated[str | None, _base_url]
BaseUrlNeeded = Annotated[str, _base_url]
Hooks = Annotated[str | None, _hooks]
HooksNeeded = Annotated[str, _hooks]

Token = Annotated[
    str | None,
    typer.Option(
        envvar="TRANSFER_API_TOKEN", help="The API token. It is safer to set the environment variable."
    ),
]
Scope = Annotated[
    str | None, typer.Option(help="The service's name in the journal; by default, its base URL.")
]
SettleAfter = Annotated[
    float,
    typer.Option(
        help=(
            "Minimum seconds between the last moment at which an order could have been sent and its "
            "refutation."
        )
    ),
]
AbandonedSettleAfter = Annotated[
    float | None,
    typer.Option(
        help=(
            "Used instead of --settle-after if resolve returns NO_ORDER for an order whose sender never "
            "reported a result; 86400 (a day) by default."
        )
    ),
]
PerSecond = Annotated[
    float | None,
    typer.Option(
        "--rate", help=("The maximum number of orders per second, including retries; no limit by default.")
    ),
]
Burst = Annotated[
    int | None,
    typer.Option(
        help=("With --rate, the maximum number of orders sent at once after a pause; 1 by default.")
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        envvar="TRANSFER_BROKER",
        metavar="ADDRESS",
        help="The broker's URL: nats://, tls://, redis:// or rediss://.",
    ),
]
Commands = Annotated[str, typer.Option(help="The subject or stream that contains commands.")]


Options = Mapping[str, tuple[Any, Any]]
"""The type and the default of each option, by parameter name."""

_NETWORK_HELP = {
    "proxy": (
        "ADDRESS",
        (
            "The URL of an HTTP proxy, http://user:password@host:port. It is safer to set "
            "the environment variable."
        ),
    ),
    "ca": ("FILE", "A PEM file of CA certificates to trust instead of the system's."),
    "client_cert": ("FILE", "A PEM file that contains the client's certificate."),
    "client_key": (
        "FILE",
        ("A PEM file that contains the client's private key, if --client-cert does not contain the key."),
    ),
    "headers": (
        "FILE",
        ("A file with one header per line, such as X-Gateway-Key: 7f3a, to add to every request."),
    ),
}
NETWORK: Options = {
    name: (Annotated[str | None, typer.Option(envvar=VARIABLES[name], metavar=kind, help=text)], None)
    for name, (kind, text) in _NETWORK_HELP.items()
}
"""The network options of every command that sends requests to the service."""

Network = Callable[[], dict[str, Any]]
"""A function that returns the client settings from the network options.

Raises ValueError if an option is invalid; the message names the option or its environment variable.
"""


def network_given(*values: str | None) -> Network:
    """Return a function that builds client settings from the values of the options in `NETWORK`."""
    given = dict(zip(NETWORK, values, strict=True))
    names = {
        name: variable if given[name] and given[name] == os.environ.get(variable) else option_of(name)
        for name, variable in VARIABLES.items()
    }
    return partial(NetworkSettings(*values).client_settings, names)


def with_network(command: Callable[..., None]) -> Callable[..., None]:
    """Add the network options to a command, which receives them as `Network` in the ``network`` parameter."""
    return expanded(command, {"network": (network_given, NETWORK)})


def parameters_of(found: Options) -> list[inspect.Parameter]:
    """Return the options as parameters of a command's function."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, annotation=option, default=default)
        for name, (option, default) in found.items()
    ]


def expanded(
    command: Callable[..., None], groups: Mapping[str, tuple[Callable[..., Any], Options]]
) -> Callable[..., None]:
    """Return the command with each parameter that stands for a group of options replaced by those options.

    Args:
        command: the command's function.
        groups: for each parameter name, the group's options, and the function that builds the parameter's
            value from the values of these options.
    """
    wanted = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for item in wanted.parameters.values():
        parameters += parameters_of(groups[item.name][1]) if item.name in groups else [item]

    def run(**given: Any) -> None:
        for name, (make, fields) in groups.items():
            if name in wanted.parameters:
                given[name] = make(*[given.pop(field) for field in fields])
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = wanted.replace(parameters=parameters)  # type: ignore[attr-defined] # as `inspect.signature` reads it
    return run


_TYPED = frozenset(
    {"base_url", "token", "scope", "settle_after", "lease", "deadline", "concurrency"}
    | {"by", "reason", "undone", "order_id", "may", "accounts"}
    | {"broker", "commands", "outcomes", "dead_letters", "max_deliveries", "ack_wait", "sweep_every"}
)
"""Arguments of the package's classes that are also command-line options."""


def as_typed(why: str) -> str:
    """Replace argument names at the beginning of an error message with option names."""
    names, colon, rest = why.partition(":")
    if not _TYPED.issuperset(names.split(", ")):
        return why
    return ", ".join(map(option_of, names.split(", "))) + colon + rest


def option_of(name: str) -> str:
    """Return the name of the option for the argument ``name``."""
    return f"--{name.replace('_', '-')}"


def rate_given(per_second: float | None, burst: int | None) -> Rate | None:
    """Return the rate limit from ``--rate`` and ``--burst``.

    Raises:
        ValueError: an option is invalid; the message names it.
    """
    if per_second is None:
        if burst is not None:
            raise ValueError("--burst: can be used only with --rate")
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
    """Create a client. Settings from the bank's factory override command-line options.

    Raises:
        ValueError: the token is missing, or a setting is invalid.
    """
    settings = {"token": token, **settings, **side.settings}
    if settings["token"] is None:
        raise ValueError(
            "no token: pass --token, set TRANSFER_API_TOKEN, or return a token from the --hooks factory"
        )
    settings["observers"] = [*observers, *settings.get("observers", ())]
    try:
        return TransferClient(base_url, journal=journal, hooks=side.hooks, resolve=side.resolve, **settings)
    except ValueError as error:
        why, is_factorys = str(error), str(error).partition(":")[0] in side.settings
    raise ValueError(
        f"--hooks: the factory returned an invalid setting: {why}" if is_factorys else as_typed(why)
    )


def journal_named(address: str) -> SQLiteJournal | PostgresJournal:
    """Return the unopened journal for ``--journal``. Environment variables configure the journal's
    encryption.

    Raises:
        ValueError: the address or an encryption key in the environment is invalid.
    """
    seal = seal_from_env()
    try:
        return journal_at(address, seal=seal)
    except ValueError as error:
        raise ValueError(f"--journal: {error}") from None


def refuse_similar_scope(scope: str, known: Sequence[str]) -> None:
    """Refuse a scope without keys that looks like one of the scopes with keys, ``known``.

    The journal refuses every key of such a scope, in an error that looks temporary to a worker or a run.

    Raises:
        ValueError: the scope is refused; the message names the other scope.
    """
    if (other := similar_scope(scope, known)) is not None:
        raise ValueError(similar_scope_refusal(scope, other, argument="--scope="))


# --- hook loading ------------------------------------------------------------------------------------
SETTINGS = (
    *("token", "retry", "timeouts", "observers", "ssl", "proxy", "max_connections", "rate"),
    *("headers", "request_id_header", "response_id_header", "recover_concurrency"),
)
"""The client's settings that a factory may return in addition to ``hooks`` and ``resolve``."""

_FOR_TRIALS = frozenset({"held", "balance", "order"})
"""Names that only ``verify-hooks`` reads. Other commands ignore them, so that all commands can use the same
factory.
"""

_logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class BankSide:
    """The result of the bank's factory. `BankSide` is an async context manager that calls ``close`` on exit.

    Args:
        hooks: the hooks that run before an order is sent.
        resolve: finds out whether an order in doubt exists.
        settings: the arguments of `TransferClient` that the factory returned; see `SETTINGS`.
        close: releases the factory's resources.
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
        except Exception as error:  # noqa: BLE001 - the outcomes of the orders must still be reported
            _logger.warning("--hooks: close() failed (%s); the orders are not affected", in_one_line(error))

    @property
    def places_hold(self) -> bool:
        """Return whether one of the hooks places a hold.

        Raises:
            ValueError: one of the ``hooks`` is not a hook.
        """
        return any(map(is_hold, checked_hooks(self.hooks)))


def factory_named(spec: str, *, option: str = "--hooks") -> Callable[[], object]:
    """Import ``module:factory``. Installed modules take precedence over files in the current directory.

    Args:
        spec: the option's value, as the user typed it.
        option: the option to name at the beginning of error messages.

    Raises:
        ValueError: the factory does not exist, or its module cannot be imported. The message is one line.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"{option}: must be module:factory, as in our_bank.hooks:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # Last, so that a file there cannot replace a library.
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{option}: cannot import {shown(module_name)} ({in_one_line(error)})") from error
    factory: Callable[[], object] | None = getattr(module, name, None)
    if factory is None or not callable(factory):
        raise ValueError(f"{option}: the module {shown(module_name)} has no function {shown(name)}")
    return factory


async def made_by(factory: Callable[[], object] | None) -> BankSide:
    """Call the bank's factory, which may be async, and check its result. Without a factory, return no hooks.

    The factory returns a sequence of hooks, or a mapping or an object that contains ``hooks`` and,
    optionally, ``resolve``, ``close`` and the names in `SETTINGS`. Names that only ``verify-hooks`` uses are
    ignored.

    Raises:
        ValueError: the factory failed, or its result is invalid. The message is one line.
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
        raise ValueError(
            "--hooks: the factory must return a sequence of hooks, or a mapping or object with hooks"
        )
    if unknown := parts.keys() - {*SETTINGS, *_FOR_TRIALS}:
        raise ValueError(f"--hooks: the factory returned an unknown setting, {shown(min(unknown))!r}")
    settings = {name: parts[name] for name in SETTINGS if name in parts}
    return BankSide(hooks=hooks, resolve=resolve, settings=settings, close=close)


def _parts(made: Any) -> dict[str, Any]:
    if isinstance(made, Mapping):
        return {str(name): value for name, value in made.items() if value is not None}
    if hasattr(made, "hooks"):
        found = {name: getattr(made, name, None) for name in ("hooks", "resolve", "close", *SETTINGS)}
        return {name: value for name, value in found.items() if value is not None}
    return {"hooks": made}
