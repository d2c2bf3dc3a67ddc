"""Faults of our own making, one for each promise: a harness that does not notice them proves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.deaths.books import Book
from tests.deaths.trial import Trial
from transfer_async.errors import OutcomeUnknown
from transfer_async.journal import files, sqlite, states
from transfer_async.journal.base import Journal
from transfer_async.journal.moves import Claim, Create, Entry, KeyState, Mark, Move, Verdict

RESEND = "takes over what is sending"
UNMARKED = "forgets the mark"
UNSETTLED = "forgets to settle"
RELEASED = "releases when in doubt"
UNLOCKED = "closes a descriptor of the file"
MUTANTS = (RESEND, UNMARKED, UNSETTLED, RELEASED, UNLOCKED)


def spoil(journal: Journal, mutant: str | None) -> Journal:
    """The journal as a mutant has it."""
    if mutant == UNLOCKED:
        sqlite.found, files.Files.remember = _touched, _forget  # type: ignore[assignment] # that is the fault
    if mutant == RESEND and states._claim.__module__ == states.__name__:
        states._claim = _take_over_sending(states._claim)
    if mutant == UNMARKED:
        return _Forgetful(journal, Mark, KeyState.SENDING)
    if mutant == UNSETTLED:
        return _Forgetful(journal, Create, KeyState.CREATED)
    return journal


def recovers_never(mutant: str | None) -> bool:
    """Whether a mutant could not be seen where others put dead workers' requests into doubt."""
    return mutant == RESEND


def after_a_doubt(trial: Trial, key: str, doubt: OutcomeUnknown) -> None:
    """What a careless bank does when nobody knows."""
    if trial.mutant == RELEASED:
        receipt = doubt.receipts["funds_hold"] or ""
        Book(Path(trial.directory) / "bank").write("release", key, receipt.removeprefix("hold-"))


def _touched(path: Path, *, make: bool) -> Path:
    """As it once was: making the file private opened and closed it, which drops SQLite's locks."""
    real = files.found(path, make=make)
    if not make:
        os.close(os.open(real, os.O_RDWR))
    return real


def _forget(_: files.Files) -> None:
    """As it once was: nobody looks at the log."""


def _take_over_sending(claim: Callable[..., Verdict]) -> Callable[..., Verdict]:
    def mutated(entry: Entry | None, move: Claim, now: float) -> Verdict:
        if entry is not None and entry.state is KeyState.SENDING and entry.lease_until <= now:
            entry = attrs.evolve(entry, state=KeyState.CLAIMED)
        return claim(entry, move, now)

    return mutated


class _Forgetful:
    """A journal that says it made a kind of move, and did not."""

    def __init__(self, journal: Journal, kind: type, state: KeyState) -> None:
        self._journal = journal
        self._kind = kind
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def move(self, scope: str, key: str, move: Move) -> Verdict | None:
        """Make a move, or say so."""
        if not isinstance(move, self._kind):
            return await self._journal.move(scope, key, move)
        entry = await self._journal.read(scope, key)
        if entry is None:
            return None
        made = attrs.evolve(entry, state=self._state, order_id=getattr(move, "order_id", None))
        return Verdict(entry=made, now=0.0)
