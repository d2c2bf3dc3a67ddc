"""A client made of what the options say and what the bank brings, and the journal that an option names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transfer_async._cli.console.hook_loading import BankSide
from transfer_async._cli.console.options import TOKEN
from transfer_async._client import TransferClient
from transfer_async._models.events import Observer
from transfer_async.journal.address import journal_at, seal_from_env
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import Journal
from transfer_async.journal.sqlite import SQLiteJournal


def client_of(
    base_url: str,
    token: str | None,
    side: BankSide,
    *,
    journal: Journal,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> TransferClient:
    """The client; a setting that the bank brings counts more than an option.

    Raises:
        ValueError: nobody brings a token, or a setting is no good.
    """
    settings = {"token": token, **settings, **side.settings}
    if settings["token"] is None:
        raise ValueError(f"{TOKEN}: must be given, unless the factory brings one")
    settings["observers"] = [*observers, *settings.get("observers", ())]
    return TransferClient(base_url, journal=journal, hooks=side.hooks, resolve=side.resolve, **settings)


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
