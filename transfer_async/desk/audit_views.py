"""The audit: a page and a CSV file that list operators' actions on all keys, newest first."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from attrs import asdict, evolve, field, frozen

from transfer_async._models.requests import NewOrder
from transfer_async._models.responses import Order
from transfer_async._pipeline.decisions import approved_proposal
from transfer_async._pipeline.key_views import order_of_intent
from transfer_async._support.clock import moment
from transfer_async.desk.pending_keys import PAGE, PER_PAGE, csv_of, utc_text
from transfer_async.desk.views import Shared, did, fields_of, name_of, operator_at
from transfer_async.journal.operator_transitions import WITHOUT_CHANGE
from transfer_async.journal.protocol import AuditLine

AUDIT_CSV = "decisions.csv"
"""The name of the audit's CSV file, which is also its URL relative to the list."""

MAX_SEARCHES = 40
"""The maximum number of calls to `Operators.audit` for one page. The first search may take many of them."""

MAX_NAMES = 10_000
"""The maximum number of operators' names that a process remembers."""

_HEADER = ("at", "key", "did", "by", "proposed by", "proposed at", "order id", "reason", "amount", "currency")

_Order = NewOrder | Order | None


@frozen(kw_only=True)
class AuditChoice:
    """The filters in an audit page's URL.

    URLs are logged, so the URL contains only a hash of a person's name.
    """

    person: str = ""  # the hash of the person's name
    since: date | None = None  # the first day
    until: date | None = None  # the last day
    decisions: bool = False  # whether to leave out the lines that changed nothing, such as notes
    after: str = ""  # where the previous page ended

    @classmethod
    def of(cls, query: Mapping[str, str]) -> AuditChoice:
        """Return the filters in a URL's query. Invalid days are ignored."""
        given = {name: query.get(name, "") for name in ("person", "after")}
        since, until = (_day(query.get(name, "")) for name in ("since", "until"))
        return cls(**given, since=since, until=until, decisions=query.get("decisions") == "1")

    def address(self, page: str = "audit", **changes: Any) -> str:
        """Return the URL of the page with the filters after applying ``changes`` to them."""
        wanted = evolve(self, **changes)
        given = asdict(wanted, recurse=False) | {"decisions": "1" if wanted.decisions else ""}
        query = urlencode({name: str(value) for name, value in given.items() if value})
        return f"{page}?{query}" if query else page


@frozen
class AuditViews:
    """The audit's page, its search form and its CSV file."""

    _shared: Shared
    _names: dict[str, str] = field(factory=dict, init=False)  # by hash

    async def show(self, request: web.Request) -> web.Response:
        """Return a page of audit lines."""
        choice, me = AuditChoice.of(request.query), operator_at(request)
        lines, number, after = list[AuditLine](), 0, ""
        try:
            async for found, after in self._pages(choice, limit=PER_PAGE):  # noqa: B007 - used below
                lines, number = lines + found, number + 1
                if len(lines) >= PER_PAGE or number == MAX_SEARCHES:
                    break
        except ValueError as error:
            return self._cannot(request, error)
        for _, step, _ in lines:
            self._mark(step.by or "")
        return self._shared.answer(
            "audit",
            operator=me,
            choice=choice,
            name=self._names.get(choice.person, ""),
            names=sorted({*self._names.values(), me.name}),
            lines=await self._with_orders(lines),
            after=after,
            csv=choice.address(AUDIT_CSV, after=""),
            proposal_of=approved_proposal,
            at=moment,
            name_of=name_of,
        )

    async def search(self, request: web.Request) -> web.Response:
        """Redirect to the audit lines for a person or a range of days. The URL does not contain the name."""
        fields = await fields_of(request)
        name = fields.get("person", "").strip()
        choice = AuditChoice.of({**fields, "person": self._mark(name) if name else "", "after": ""})
        raise web.HTTPSeeOther(choice.address())

    async def csv(self, request: web.Request) -> web.Response:
        """Return all audit lines that match the filters, as a CSV file."""
        pages = self._pages(AuditChoice.of(request.query), limit=PAGE)
        try:
            first, _ = await anext(pages)
        except ValueError as error:
            return self._cannot(request, error)

        async def rows() -> AsyncIterator[Iterable[Sequence[str]]]:
            yield map(_csv_line, await self._with_orders(first))
            async for lines, _ in pages:
                yield map(_csv_line, await self._with_orders(lines))

        return csv_of(AUDIT_CSV, _HEADER, rows())

    async def _pages(self, choice: AuditChoice, *, limit: int) -> AsyncIterator[tuple[list[AuditLine], str]]:
        """Yield the lines that each search found, with the value of ``after`` for the next search."""
        wanted: dict[str, Any] = {"by": await self._name(choice.person) if choice.person else None}
        zone = self._shared.style.zone or UTC
        for name, day in (("since", choice.since), ("until", choice.until and choice.until + timedelta(1))):
            wanted[name] = None if day is None else datetime.combine(day, day_time.min, zone)
        after, is_more = choice.after, True
        while is_more:
            lines, after = await self._shared.operators.audit(limit=limit, after=after, **wanted)
            yield [line for line in lines if not (choice.decisions and line[1].move in WITHOUT_CHANGE)], after
            is_more = bool(after)

    async def _with_orders(self, lines: Sequence[AuditLine]) -> list[tuple[AuditLine, _Order]]:
        """Return each line with its order, or with None if the order has been deleted from the journal."""
        keys, read = {key for key, _, _ in lines}, self._shared.operators._journal.read
        entries = dict(zip(keys, await asyncio.gather(*map(read, keys)), strict=True))
        found = [(line, entries[line[0]]) for line in lines]  # None if the key was pruned just now
        return [(line, order_of_intent(entry, line[1].intent_id) if entry else None) for line, entry in found]

    def _mark(self, name: str) -> str:
        """Return the hash of a person's name, and store the name for `_name`."""
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        mark = hashlib.sha256(f"{self._shared.operators.scope}\n{name}".encode()).hexdigest()[:16]
        self._names[mark] = name
        return mark

    async def _name(self, mark: str) -> str:
        """Return the name for a hash. If this process has not cached the name, search the history."""
        after = ""
        while mark not in self._names:
            found, after = await self._shared.operators.audit(limit=500, after=after)
            for _, step, _ in found:
                self._mark(step.by or "")
            if not after and mark not in self._names:
                raise ValueError("the history contains no entry by the person in this URL: enter the name")
        return self._names[mark]

    def _cannot(self, request: web.Request, error: ValueError) -> web.Response:
        why, operator = str(error).removeprefix("journal: "), operator_at(request)
        text = f"{why[:1].upper()}{why[1:]}."
        return self._shared.answer("message", status=404, title="No audit", text=text, operator=operator)


def _csv_line(given: tuple[AuditLine, _Order]) -> Sequence[str]:
    line, order = given
    (key, step, _), proposal = line, approved_proposal(line)
    proposed = ("", "") if proposal is None else (proposal.by or "", utc_text(proposal.at))
    amount = ("", "") if order is None else (f"{order.poster_amount:f}", order.poster_currency)
    text, reason = did(step)
    order_id = step.order_id or ""
    return (utc_text(step.at), name_of(key), text, step.by or "", *proposed, order_id, reason or "", *amount)


def _day(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if 1970 <= found.year < 9999 else None
