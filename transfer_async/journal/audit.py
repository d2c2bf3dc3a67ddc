"""Implements ``audit`` for durable journals: it lists people's actions on all keys, newest first.

The history table has no index on the person's name, so the first audit reads the whole history, one range of
line ids at a time. Audits cache the id, scope, person and time of the few lines that name a person. Later
audits read only the newest lines from the store.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from transfer_async.journal.operator_transitions import WITHOUT_CHANGE
from transfer_async.journal.protocol import AuditLine
from transfer_async.journal.rows import STEP_COLUMNS, step_of

SPAN = 5_000
"""The number of consecutive history line ids in one range."""

MAX_RANGES = 10
"""The maximum number of ranges that one call reads from the store."""

MAX_KNOWN = 500_000
"""The maximum number of cached lines, which take about 60 MB."""

Query = Callable[..., Awaitable[list[Any]]]
"""Runs an SQL statement with parameter values, and returns its rows."""


class AuditStatements:
    """The SQL statements of the audit.

    Everything that differs between the SQLite and PostgreSQL statements is an argument.

    Args:
        keys: the table of entries with the alias ``k``, joined with the table of scopes if that exists.
        history: the table of history lines.
        scope: the column that contains the scope's name.
        members: the SQL function that returns the elements of a JSON array as rows.
        parameter: the character that precedes a parameter's number.
    """

    def __init__(self, keys: str, history: str, *, scope: str, members: str, parameter: str = "$") -> None:
        first, latest = f"FROM {history} ORDER BY id LIMIT 1", f"FROM {history} ORDER BY id DESC LIMIT 1"
        steps = ", ".join(f"{table}.{name}" for table in "hp" for name in STEP_COLUMNS)
        unchanged = ", ".join(f"'{name}'" for name in sorted(WITHOUT_CHANGE))
        one, two = f"CAST({parameter}1 AS bigint)", f"CAST({parameter}2 AS bigint)"
        self.edges: str = (
            f"SELECT (SELECT id {first}), (SELECT at {first}), (SELECT at FROM {history} WHERE id = {one}), "
            f"(SELECT id {latest}), (SELECT at {latest})"
        )
        self.last_below: str = f"SELECT max(id) FROM {history} WHERE id < {one}"
        # ``CROSS JOIN`` makes SQLite read the history once, in the order of the ids.
        self.people: str = (
            f"SELECT h.id, {scope}, h.by_whom, h.at FROM {history} h CROSS JOIN {keys} "
            f"WHERE h.id >= {one} AND h.id < {two} AND h.by_whom IS NOT NULL "
            "AND k.id = h.key_id ORDER BY h.id DESC"
        )
        self.lines: str = f"""
            SELECT k.key, {steps} FROM {history} h CROSS JOIN {keys}
            LEFT JOIN {history} p ON p.move = 'propose' AND p.id = (
                SELECT q.id FROM {history} q WHERE q.key_id = h.key_id AND q.id < h.id
                AND q.move NOT IN ({unchanged}) ORDER BY q.id DESC LIMIT 1)
            WHERE h.id IN (SELECT CAST(value AS bigint) FROM {members}) AND k.id = h.key_id
            ORDER BY h.id DESC"""


class _Range:
    """The lines in one range of the history that name a person.

    Args:
        rows: a tuple (id, scope, person, time) for each line, newest first.
    """

    def __init__(self, rows: Sequence[tuple[int, str, str, Any]]) -> None:
        self.number: int = len(rows)
        self._lines: dict[tuple[str, str], list[tuple[int, float]]] = {}  # by scope and person
        for line, scope, by, at in rows:  # a damaged line's time is not always a number
            time = at if isinstance(at, (int, float)) else math.nan
            self._lines.setdefault((scope, by), []).append((line, time))
        times = [at for lines in self._lines.values() for _, at in lines]
        self._earliest, self._latest = min(times, default=0.0), max(times, default=0.0)

    def found(
        self, scope: str, *, below: int, by: str | None, since: float | None, until: float | None
    ) -> list[int]:
        """Return the ids of all matching lines with an id less than ``below``, newest first."""
        begin, end = -math.inf if since is None else since, math.inf if until is None else until
        if self._latest < begin or self._earliest >= end:
            return []
        some = [
            line
            for (at, person), lines in self._lines.items()
            if at == scope and by in (None, person)
            for line in lines
            if line[0] < below
        ]
        if since is not None or until is not None:
            some = [line for line in some if begin <= line[1] < end]
        return sorted([number for number, _ in some], reverse=True)


class Audit:
    """Finds the history lines that name a person, and caches them.

    Args:
        query: runs a statement on the store.
        statements: the SQL statements for the store.
    """

    def __init__(self, query: Query, statements: AuditStatements) -> None:
        self._query = query
        self._sql = statements
        self._known: dict[int, _Range] = {}
        # The id and time of the oldest and newest lines when the ranges were read.
        self._first: tuple[int | None, Any] = (None, None)
        self._last: tuple[int, Any] = (0, None)

    async def page(
        self,
        scope: str,
        *,
        limit: int,
        after: str = "",
        by: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> tuple[list[AuditLine], str]:
        """Return one page of the lines that name a person; see ``audit`` in `Journal`."""
        [(first, at, known_at, last, last_at)] = await self._query(self._sql.edges, self._last[0])
        if (first, at) != self._first or known_at != self._last[1]:
            self._known.clear()  # The oldest or the newest line was pruned, and SQLite may use its id again.
        self._first, self._last = (first, at), (last or 0, last_at)
        if first is None:
            return [], ""
        below = int(after) if after else last + 1
        ids: list[int] = []
        reads = 0
        while below > first and len(ids) < limit:
            number = (below - 1) // SPAN
            known = self._known.get(number)
            if known is None:
                [(there,)] = await self._query(self._sql.last_below, below)
                if there is None or reads == MAX_RANGES:
                    break
                below, number = there + 1, there // SPAN  # Pruning may have left a gap.
                known = await self._read(number, last=last)
                reads += 1
            found = known.found(scope, below=below, by=by, since=since, until=until)
            ids += found[: limit - len(ids)]
            below = ids[-1] if len(ids) == limit else number * SPAN
        return await self._lines(ids), str(below) if below > first else ""

    async def _read(self, number: int, *, last: int) -> _Range:
        """Read a range, and cache it unless lines may still be added to it.

        A transaction in progress may commit a line with a slightly lower id than the newest line's.
        """
        rows = await self._query(self._sql.people, number * SPAN, (number + 1) * SPAN)
        made = _Range(rows)
        if (number + 2) * SPAN <= last:
            if sum(known.number for known in self._known.values()) + made.number > MAX_KNOWN:
                self._known.clear()
            self._known[number] = made
        return made

    async def _lines(self, ids: list[int]) -> list[AuditLine]:
        if not ids:
            return []
        found = await self._query(self._sql.lines, msgspec.json.encode(ids).decode())
        return [_line(*row) for row in found]


def _line(key: str, *values: Any) -> AuditLine:
    columns = len(STEP_COLUMNS)
    step, proposal = values[:columns], values[columns:]
    return key, step_of(step), None if proposal[0] is None else step_of(proposal)
