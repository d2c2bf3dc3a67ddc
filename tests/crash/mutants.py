"""Faults of our own making: each is one that somebody might write, and a trial must notice it.

Each changes the process that it is called in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.crash.bank import Book
from tests.crash.setting import Place
from transfer_async import PostgresJournal, SQLiteJournal, TransferClient
from transfer_async._cli.probe_orders import Ledger
from transfer_async._models.errors import OutcomeUnknown
from transfer_async._models.responses import Order
from transfer_async.journal import postgres, sqlite, sqlite_file
from transfer_async.journal.model import Entry, KeyState, TransitionResult
from transfer_async.journal.rows import statements_from
from transfer_async.journal.transitions import Claim, Create, MarkSending, Move
from transfer_async.worker.consumer import Worker
from transfer_async.worker.handler import Handler

# --- of a client ----------------------------------------------------------------------------------------


def resend() -> None:
    """A journal that lets a worker take over what another is sending."""
    decide = Claim.decide

    def mutated(self: Claim, entry: Entry | None, now: float) -> TransitionResult:
        if entry is not None and entry.state is KeyState.SENDING and entry.lease_until <= now:
            entry = replace(entry, state=KeyState.CLAIMED)
        return decide(self, entry, now)

    async def nothing(_: TransferClient) -> None:
        """It could not be seen where others put dead workers' requests into doubt."""

    Claim.decide, TransferClient.recover = mutated, nothing  # type: ignore[method-assign] # a mutant


def unmarked() -> None:
    """A journal that forgets the mark."""
    _forget_moves(MarkSending, KeyState.SENDING)


def unsettled() -> None:
    """A journal that forgets to settle."""
    _forget_moves(Create, KeyState.CREATED)


def _forget_moves(kind: type, state: KeyState) -> None:
    """Have journals say that they made a kind of move, when they did not."""
    for journal in (SQLiteJournal, PostgresJournal):
        journal.move = _forgetful(journal.move, kind, state)  # type: ignore[method-assign] # a mutant


def _forgetful(make: Callable[..., Any], kind: type, state: KeyState) -> Callable[..., Any]:
    async def move(self: Any, scope: str, key: str, move: Move) -> TransitionResult | None:
        if not isinstance(move, kind):
            return await make(self, scope, key, move)
        entry = await self.read(scope, key)
        if entry is None:
            return None
        made = replace(entry, state=state, order_id=getattr(move, "order_id", None))
        return TransitionResult(entry=made, now=0.0)

    return move


def released() -> None:
    """A careless bank, that releases when nobody knows."""
    create_order = TransferClient.create_order

    async def careless(self: TransferClient, *order: Any, **settings: Any) -> Order:
        try:
            return await create_order(self, *order, **settings)
        except OutcomeUnknown as doubt:
            receipt = doubt.receipts["funds_hold"] or ""
            Book(Place.here().path("bank")).write("release", doubt.key, receipt.removeprefix("hold-"))
            raise

    TransferClient.create_order = careless  # type: ignore[method-assign] # a mutant


def unlocked() -> None:
    """A journal that closes a descriptor of its file, as it once was, which drops SQLite's locks."""

    prepare = sqlite_file.prepared_path

    def touched(path: Path, *, make: bool) -> Path:
        real = prepare(path, make=make)
        if not make:
            os.close(os.open(real, os.O_RDWR))
        return real

    def forget(_: sqlite_file.Files) -> None:
        """As it once was: nobody looks at the log."""

    sqlite_file.prepared_path, sqlite_file.Files.remember = touched, forget  # type: ignore[assignment,method-assign] # a mutant


def send_again() -> None:
    """A journal that takes a dead worker's request for one that was never sent."""
    decide = Claim.decide

    def trusting(self: Claim, entry: Entry | None, now: float) -> TransitionResult:
        sent = entry is not None and entry.state in (KeyState.SENDING, KeyState.IN_DOUBT)
        if entry is not None and sent and now >= entry.lease_until:
            return TransitionResult(now=now, entry=self._begin(now, before=entry))
        return decide(self, entry, now)

    Claim.decide = trusting  # type: ignore[method-assign] # a mutant


# --- of an upgrade --------------------------------------------------------------------------------------


def half_upgraded() -> None:
    """An upgrade whose steps are committed before the version is."""
    for module in (sqlite, postgres):
        module.statements_from = _in_halves  # type: ignore[attr-defined] # a mutant


def _in_halves(version: int, schema: str) -> list[str]:
    return [*statements_from(version, schema), "COMMIT", "BEGIN"]


# --- of a worker on a broker ----------------------------------------------------------------------------


def acknowledge_first() -> None:
    """A worker that acknowledges a message before it has carried it out."""
    process = Worker._process

    async def hasty(self: Worker, delivery: Any) -> None:
        await delivery.ack()
        await process(self, delivery)

    Worker._process = hasty  # type: ignore[method-assign] # a mutant


def never_tell() -> None:
    """A sweeper that forgets whoever was told that it is unknown."""

    async def nothing(self: Handler) -> AsyncIterator[Any]:
        for outcome in ():
            yield outcome

    Handler.untold = nothing  # type: ignore[method-assign] # a mutant


# --- of a probe -----------------------------------------------------------------------------------------


def uncounted() -> None:
    """A probe that does not count what was turned away: its key is free again."""

    async def in_use(_: Ledger, __: str, entry: Entry) -> bool:
        return entry.state is not KeyState.FREE

    Ledger._was_sent = in_use  # type: ignore[method-assign] # a mutant


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__.replace("_", "-"): mutant
    for mutant in (
        *(resend, unmarked, unsettled, released, unlocked, send_again, half_upgraded),
        *(acknowledge_first, never_tell, uncounted),
    )
}
"""What changes a process, by name."""
