"""What an operator does at a terminal, and what there is to see of a key; never who pays whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from attrs import frozen

from transfer_async._cli.console import clients
from transfer_async._cli.console.hook_loading import made_by
from transfer_async._cli.console.output import in_one_line, shown
from transfer_async._http import urls
from transfer_async._models import causes
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support import addresses
from transfer_async.journal.entries import KeyState, Step
from transfer_async.journal.postgres import PostgresJournal
from transfer_async.journal.protocol import Journal, NotToBeForgotten, forgettable
from transfer_async.journal.scoped import ScopedJournal
from transfer_async.journal.sqlite import SQLiteJournal

_AGES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@frozen(kw_only=True)
class OpenJournal:
    """A journal, opened for one scope, and what operators may do with it."""

    journal: ScopedJournal
    operators: Operators

    async def one(self, key: str) -> tuple[KeyView, tuple[Step, ...]]:
        """What is on record of ``key``, and its history.

        Raises:
            ValueError: nothing is.
            JournalFailed: the journal could not be read.
        """
        return await self.operators.view(key), await self.operators.history(key)


# --- sums ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Totals:
    """How many keys wait in which state, and what is at stake."""

    keys: int
    states: Counter[str]
    undos_owed: int
    in_doubt: dict[str, Decimal]


def totals(views: Sequence[KeyView]) -> Totals:
    """What ``views`` add up to."""
    amounts: dict[str, Decimal] = {}
    for view in views:
        if view.entry.state is KeyState.IN_DOUBT and view.order is not None:
            currency = view.order.poster_currency
            amounts[currency] = amounts.get(currency, Decimal(0)) + view.order.poster_amount
    return Totals(
        keys=len(views),
        states=Counter(view.entry.state.value for view in views),
        undos_owed=sum(len(view.owed) for view in views),
        in_doubt=amounts,
    )


# --- opening ------------------------------------------------------------------------------------


def scope_of(scope: str | None, base_url: str | None) -> str:
    """The scope that was named, or the one of the service's address.

    Raises:
        ValueError: neither was, or the address is none.
    """
    if scope:
        return scope
    if not base_url:
        raise ValueError("--scope: name it, or the service's address by --base-url or TRANSFER_BASE_URL")
    return urls.normalised(base_url)


def journal_named(address: str) -> SQLiteJournal | PostgresJournal:
    """The journal at ``address``; a file must be there: a wrong path would show an empty journal.

    Raises:
        ValueError: there is none.
    """
    if "://" not in address and not Path(address).is_file():
        raise ValueError(f"--journal: there is no file {shown(addresses.public(address))}")
    return clients.journal_named(address)


@asynccontextmanager
async def opened(journal: Journal, scope: str, *, settle_after: float = 300.0) -> AsyncIterator[OpenJournal]:
    """``journal``, to be closed in the end."""
    try:
        yield OpenJournal(
            journal=ScopedJournal(journal, scope),
            operators=Operators(journal, scope, settle_after=settle_after),
        )
    finally:
        await journal.close()


async def recovered(
    journal: Journal, factory: Callable[[], object], *, base_url: str, token: str | None, **settings: Any
) -> RecoveryReport:
    """Run ``recover`` with the bank's hooks, and its token or else ``token``; then close the journal.

    Raises:
        ValueError: the hooks or the settings are no good, or there is no token.
        TransferError: the journal failed.
    """
    try:
        side = await made_by(factory)
        async with clients.client_of(base_url, token or None, side, journal=journal, **settings) as client:
            return await client.recover()
    finally:
        await journal.close()


def explained(error: Exception) -> str:
    """``error``; of the client's own also its kind, and what the store said, where that is safe."""
    if not isinstance(error, TransferError):
        return str(error)
    said = "" if error.__cause__ is None else causes.said(error.__cause__)
    return in_one_line(error) + (f": {said}" if said else "")


# --- times --------------------------------------------------------------------------------------


def time_named(before: str | None, older_than: str | None, *, now: datetime) -> datetime:
    """The time that ``--before`` or ``--older-than`` means.

    Raises:
        ValueError: it is none, or lies ahead, or both or neither were given.
    """
    time = _time(before, older_than, now=now)
    try:
        forgettable(time, now=now.timestamp())
    except NotToBeForgotten as error:
        raise ValueError(f"--{error}") from None
    return time


def _time(before: str | None, older_than: str | None, *, now: datetime) -> datetime:
    if (before is None) == (older_than is None):
        raise ValueError("--before or --older-than: give one of them")
    if before is not None:
        try:
            time = datetime.fromisoformat(before)
        except ValueError:
            raise ValueError("--before: must be a date or a time, as in 2026-01-01") from None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    age = re.fullmatch(r"(\d{1,5})([mhdw])", older_than or "")
    if age is None:
        raise ValueError("--older-than: must be a number of minutes, hours, days or weeks, as in 90d")
    return now - timedelta(**{_AGES[age[2]]: int(age[1])})
