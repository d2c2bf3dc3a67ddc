"""The audit: what people did about all keys, newest first, by person and day; as a page and as CSV."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from attrs import evolve, field, frozen

from transfer_async._pipeline.decisions import is_approval
from transfer_async._support.clock import moment
from transfer_async.desk.pending_keys import PER_PAGE, csv_of, utc_text
from transfer_async.desk.views import Shared, fields_of, move_text, name_of, operator_at
from transfer_async.journal.protocol import AuditLine

AUDIT_CSV = "decisions.csv"
"""The audit as a file: its address, relative to the list, and its name."""

MAX_SEARCHES = 40
"""The maximum number of calls of `Operators.audit` for one page: the first look searches a long history."""

MAX_LINES = 100_000
"""The maximum number of lines of a file."""

MAX_NAMES = 10_000
"""The maximum number of names that are remembered."""

_CSV_HEADER = ("at", "key", "did", "by", "proposed by", "proposed at", "order id", "reason")


@frozen(kw_only=True)
class AuditChoice:
    """The filters in the address of the audit; invalid ones are ignored.

    The address has a hash of a person's name, the mark, because addresses are kept in logs.
    """

    person: str = ""
    since: date | None = None
    until: date | None = None  # the last day
    after: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> AuditChoice:
        """Return the filters in the query of an address."""
        since, until = _day(query.get("since", "")), _day(query.get("until", ""))
        return cls(person=query.get("person", ""), since=since, until=until, after=query.get("after", ""))

    def address(self, page: str = "audit", **changes: Any) -> str:
        """Return the address of this choice with ``changes``."""
        wanted = evolve(self, **changes)
        days = {"since": str(wanted.since or ""), "until": str(wanted.until or "")}
        given = {"person": wanted.person, **days, "after": wanted.after}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"{page}?{query}" if query else page


@frozen
class AuditViews:
    """The audit's page, its search and its file."""

    _shared: Shared
    _names: dict[str, str] = field(factory=dict, init=False)  # by mark

    async def show(self, request: web.Request) -> web.Response:
        """Return a page of lines."""
        choice, me = AuditChoice.of(request.query), operator_at(request)
        try:
            lines, after = await self._lines(choice, limit=PER_PAGE, searches=MAX_SEARCHES)
        except ValueError as error:
            return self._cannot(request, error)
        return self._shared.answer(
            "audit",
            operator=me,
            choice=choice,
            name=self._names.get(choice.person, ""),
            names=sorted({*self._names.values(), me.name}),
            lines=lines,
            after=after,
            csv=choice.address(AUDIT_CSV, after=""),
            proposal_of=proposal_of,
            at=moment,
            name_of=name_of,
        )

    async def search(self, request: web.Request) -> web.Response:
        """Redirect to the lines of a person and of days; no address contains the person's name."""
        fields = await fields_of(request)
        name = fields.get("person", "").strip()
        choice = AuditChoice.of({**fields, "person": self._mark(name) if name else "", "after": ""})
        raise web.HTTPSeeOther(choice.address())

    async def csv(self, request: web.Request) -> web.Response:
        """Return all lines of the choice as CSV."""
        choice = AuditChoice.of(request.query)
        try:
            lines, after = await self._lines(choice, limit=MAX_LINES)
        except ValueError as error:
            return self._cannot(request, error)
        if after:
            why = f"there are more than {MAX_LINES:,} lines: choose fewer days"
            return self._cannot(request, ValueError(why))
        return await csv_of(AUDIT_CSV, _CSV_HEADER, map(_csv_line, lines))

    async def _lines(
        self, choice: AuditChoice, *, limit: int, searches: int | None = None
    ) -> tuple[list[AuditLine], str]:
        """Return one page of lines, and the ``after`` for the next page, which is empty at the end.

        Raises:
            ValueError: the journal has no audit, or the person is unknown.
        """
        wanted: dict[str, Any] = {"by": await self._name(choice.person) if choice.person else None}
        zone = self._shared.style.zone or UTC
        for name, day in (("since", choice.since), ("until", choice.until and choice.until + timedelta(1))):
            wanted[name] = None if day is None else datetime.combine(day, day_time.min, zone)
        lines: list[AuditLine] = []
        after, number = choice.after, 0
        while number != searches and len(lines) < limit and (after or not number):
            some = min(limit - len(lines), 500)
            found, after = await self._shared.operators.audit(limit=some, after=after, **wanted)
            lines += found
            number += 1
        for _, step, _ in lines:
            self._mark(step.by or "")
        return lines, after

    def _mark(self, name: str) -> str:
        """Return the mark of a person, and remember the name."""
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        mark = hashlib.sha256(f"{self._shared.operators.scope}\n{name}".encode()).hexdigest()[:16]
        self._names[mark] = name
        return mark

    async def _name(self, mark: str) -> str:
        """Return the name for a mark; the history has it if this process does not know it yet."""
        after = ""
        while mark not in self._names:
            found, after = await self._shared.operators.audit(limit=500, after=after)
            for _, step, _ in found:
                self._mark(step.by or "")
            if not after and mark not in self._names:
                raise ValueError("no line on record is by the person of this address: type the name")
        return self._names[mark]

    def _cannot(self, request: web.Request, error: ValueError) -> web.Response:
        text = str(error).removeprefix("journal: ")
        text = f"{text[:1].upper()}{text[1:]}."
        return self._shared.answer(
            "message", status=404, title="No audit", text=text, operator=operator_at(request)
        )


def proposal_of(line: AuditLine) -> Any:
    """Return the line of the proposal that a decision approves; None for any other line."""
    _, step, proposal = line
    return proposal if proposal is not None and is_approval(step, proposal) else None


def _csv_line(line: AuditLine) -> list[str]:
    key, step, _ = line
    proposal = proposal_of(line)
    proposed = ("", "") if proposal is None else (proposal.by, utc_text(proposal.at))
    did = move_text(step.move)
    return [
        utc_text(step.at),
        name_of(key),
        did,
        step.by or "",
        *proposed,
        step.order_id or "",
        step.reason or "",
    ]


def _day(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if 1970 <= found.year < 9999 else None
