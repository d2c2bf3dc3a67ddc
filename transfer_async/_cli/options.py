"""The options that more than one command takes: their names, their environment variables and their words."""

from __future__ import annotations

from typing import Annotated

import typer

from transfer_async._http.retry import Rate

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
