"""The audit: what operators did to all keys, newest first, as a page and as a CSV file."""

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
from transfer_async.desk.views import Shared, did, fields_of, name_of, operator_at
from transfer_async.journal.protocol import AuditLine

AUDIT_CSV = "decisions.csv"
"""The name of the audit's CSV file, which is also its address relative to the list."""

MAX_SEARCHES = 40
"""The maximum number of calls of `Operators.audit` for one page. The first search may take many of them."""

MAX_LINES = 100_000
"""The maximum number of lines of the audit's CSV file."""

MAX_NAMES = 10_000
"""The maximum number of operators' names that a process keeps."""

_CSV_HEADER = ("at", "key", "did", "by", "proposed by", "proposed at", "order id", "reason")


@frozen(kw_only=True)
class AuditChoice:
    """The filters in the address of an audit page.

    Addresses are kept in logs, so an address contains a hash of a person's name instead of the name.
    """

    person: str = ""  # the hash of the person's name
    since: date | None = None  # the first day
    until: date | None = None  # the last day
    after: str = ""  # where the previous page ended

    @classmethod
    def of(cls, query: Mapping[str, str]) -> AuditChoice:
        """Return the filters in the query of an address. Invalid days are ignored."""
        since, until = _day(query.get("since", "")), _day(query.get("until", ""))
        return cls(person=query.get("person", ""), since=since, until=until, after=query.get("after", ""))

    def address(self, page: str = "audit", **changes: Any) -> str:
        """Return the address of the page with these filters, changed by ``changes``."""
        wanted = evolve(self, **changes)
        days = {"since": str(wanted.since or ""), "until": str(wanted.until or "")}
        given = {"person": wanted.person, **days, "after": wanted.after}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"{page}?{query}" if query else page


@frozen
class AuditViews:
    """The audit's page, its search form and its CSV file."""

    _shared: Shared
    _names: dict[str, str] = field(factory=dict, init=False)  # by hash

    async def show(self, request: web.Request) -> web.Response:
        """Return a page of audit lines."""
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
        """Redirect to the audit lines of a person or of some days. The address does not contain the name."""
        fields = await fields_of(request)
        name = fields.get("person", "").strip()
        choice = AuditChoice.of({**fields, "person": self._mark(name) if name else "", "after": ""})
        raise web.HTTPSeeOther(choice.address())

    async def csv(self, request: web.Request) -> web.Response:
        """Return all audit lines that the filters leave, as a CSV file."""
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
        """Return a page of audit lines, and the ``after`` of the next page, empty on the last page."""
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
        """Return the hash of a person's name, and store the name for `_name`."""
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        mark = hashlib.sha256(f"{self._shared.operators.scope}\n{name}".encode()).hexdigest()[:16]
        self._names[mark] = name
        return mark

    async def _name(self, mark: str) -> str:
        """Return the name for a hash. If this process does not know the name, search the history."""
        after = ""
        while mark not in self._names:
            found, after = await self._shared.operators.audit(limit=500, after=after)
            for _, step, _ in found:
                self._mark(step.by or "")
            if not after and mark not in self._names:
                raise ValueError("the history has no line by the person in this address: enter the name")
        return self._names[mark]

    def _cannot(self, request: web.Request, error: ValueError) -> web.Response:
        text = str(error).removeprefix("journal: ")
        text = f"{text[:1].upper()}{text[1:]}."
        return self._shared.answer(
            "message", status=404, title="No audit", text=text, operator=operator_at(request)
        )


def proposal_of(line: AuditLine) -> Any:
    """Return the history line of the proposal that ``line`` approves, or None if it approves none."""
    _, step, proposal = line
    return proposal if proposal is not None and is_approval(step, proposal) else None


def _csv_line(line: AuditLine) -> list[str]:
    key, step, _ = line
    proposal = proposal_of(line)
    proposed = ("", "") if proposal is None else (proposal.by, utc_text(proposal.at))
    text, reason = did(step)
    return [
        utc_text(step.at),
        name_of(key),
        text,
        step.by or "",
        *proposed,
        step.order_id or "",
        reason or "",
    ]


def _day(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if 1970 <= found.year < 9999 else None
