"""A journal in front of another that measures how long each move takes."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from transfer_async._support.log import log
from transfer_async.integrations.opentelemetry import names
from transfer_async.integrations.opentelemetry.ages import Oldest
from transfer_async.integrations.opentelemetry.metrics import Instruments
from transfer_async.journal.entries import Entry, Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.protocol import Journal

SYSTEMS = {"SQLiteJournal": "sqlite", "PostgresJournal": "postgresql", "MemoryJournal": "memory"}
"""``db.system.name`` by the journal's class; it is ``other`` for a journal of the bank's own."""

_OPERATIONS = {"takeover": "take_over", "layaside": "lay_aside"}
"""``db.operation.name`` of the moves that have another one than in the journal."""


class TimedJournal:
    """``journal``, its moves measured; everything else is handed on as it is.

    Args:
        journal: the journal that does the work.
        instruments: where it is measured.
    """

    def __init__(self, journal: Journal, instruments: Instruments) -> None:
        self._journal = journal
        self._instruments = instruments
        known = (SYSTEMS[one.__name__] for one in type(journal).__mro__ if one.__name__ in SYSTEMS)
        self._system = next(known, "other")
        self._read_by: WeakKeyDictionary[asyncio.Task[Any], Oldest] = WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def __aenter__(self) -> Self:
        await self._journal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._journal.__aexit__(kind, error, traceback)

    async def move(self, scope: str, key: str, move: Move) -> Verdict | None:
        """Make ``move``, and measure it."""
        began = perf_counter()
        try:
            verdict = await self._journal.move(scope, key, move)
        except BaseException as error:
            self._measure(began, move, error)
            raise
        self._measure(began, move, None)
        return verdict

    async def count_in_doubt(self, scope: str) -> int:
        """How many keys are in doubt; every run of ``recover`` asks, so the gauge is never older."""
        count = await self._journal.count_in_doubt(scope)
        oldest = self._read_by.pop(_this_task(), None)
        try:
            self._instruments.in_doubt(count)
            if oldest is not None:
                self._instruments.oldest(oldest.ages(await self._journal.now()))
        except Exception as broken:  # noqa: BLE001 - as below
            _tell(broken)
        return count

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """What waits; a run of ``recover`` reads through all of it, and the oldest is noted on the way."""
        found = await self._journal.work(scope, limit=limit, after=after)
        oldest = self._read_by.setdefault(_this_task(), Oldest()) if after else Oldest()
        self._read_by[_this_task()] = oldest
        for _, entry in found:
            oldest.note(entry)
        return found

    def _measure(self, began: float, move: Move, error: BaseException | None) -> None:
        seconds = perf_counter() - began
        operation = _OPERATIONS.get(move.name, move.name)
        done = {names.DB_SYSTEM: self._system, names.DB_OPERATION: operation}
        if error is not None:
            done[names.ERROR_TYPE] = type(error).__name__
        try:
            self._instruments.operation(seconds=seconds, done=done)
        except Exception as broken:  # noqa: BLE001 - what is in the journal must not look as if it were not
            _tell(broken)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine is run by one
    return task


def _tell(broken: Exception) -> None:
    log.warning("the journal's time could not be measured (%s)", type(broken).__name__)
