"""A journal that a bank might write after reading the documentation of `transfer_async.journal`."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Self
from uuid import uuid4

from transfer_async.journal import (
    FOUR_EYES,
    Entry,
    EntryRow,
    HistoryEvent,
    KeyState,
    Move,
    TransitionResult,
    decide,
    entry_of,
    forgettable,
    history_step,
    is_told,
    is_waiting,
    row_of,
    step_of,
    step_values,
)


class OwnJournal:
    """Keeps its rows in a dictionary instead of a database. It never waits, so its transitions are atomic.

    Args:
        utc: returns the journal's time.
        beside: another journal that shares its rows.
    """

    durable = False

    def __init__(self, utc: Callable[[], datetime], beside: "OwnJournal | None" = None) -> None:
        self._utc = utc
        self._rows: dict[tuple[str, str], EntryRow] = {} if beside is None else beside._rows
        self._steps: dict[tuple[str, str], list[tuple[Any, ...]]] = {} if beside is None else beside._steps

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        pass

    async def now(self) -> float:
        return self._utc().timestamp()

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        now, place = await self.now(), (scope, key)
        rule = await self._rule(scope) if move.is_by_one_person else None
        before = await self.read(scope, key)
        taken = self._is_taken(scope, key, move)
        verdict = decide(before, move, now=now, id_taken=taken, four_eyes=rule)
        if verdict is not None and verdict.entry is not before:
            self._rows[place] = row_of(verdict.entry, token=uuid4().hex, now=now, place=place)
            if is_told(move, verdict):
                step = history_step(verdict.entry, move, now=now)
                self._steps.setdefault(place, []).append(step_values(step))
        return verdict

    async def _rule(self, scope: str) -> Entry | None:
        return await self.read(scope, FOUR_EYES)

    def _is_taken(self, scope: str, key: str, move: Move) -> bool:
        return move.order_bound is not None and any(
            row.order_id == move.order_bound and place[0] == scope and place[1] != key
            for place, row in self._rows.items()
        )

    async def read(self, scope: str, key: str) -> Entry | None:
        row = self._rows.get((scope, key))
        return None if row is None else entry_of(row, place=(scope, key))

    def _of(self, scope: str) -> Iterator[tuple[str, Entry]]:
        return (
            (key, entry_of(row, place=(at, key)))
            for (at, key), row in sorted(self._rows.items())
            if at == scope
        )

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        now = await self.now()
        found = [one for one in self._of(scope) if one[0] > after and is_waiting(one[1], now)]
        return found[:limit]

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        doubts = [one for one in self._of(scope) if one[1].state is KeyState.IN_DOUBT]
        return sorted(doubts, key=lambda one: one[1].sent_until)

    async def count_in_doubt(self, scope: str) -> int:
        return len(await self.in_doubt(scope))

    async def orders(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        known = [
            (row.order_id, key, row.ended_at)
            for (at, key), row in self._rows.items()
            if at == scope and row.order_id is not None and row.order_id > after
        ]
        return sorted(known)[:limit]

    async def history(self, scope: str, key: str) -> tuple[HistoryEvent, ...]:
        return tuple(map(step_of, self._steps.get((scope, key), ())))

    async def prune(self, scope: str, *, before: datetime) -> int:
        until = forgettable(before, now=await self.now())
        old = [
            place
            for place, row in self._rows.items()
            if place[0] == scope and row.ended_at is not None and row.ended_at <= until
        ]
        for place in old:
            del self._rows[place]
            self._steps.pop(place, None)
        return len(old)
