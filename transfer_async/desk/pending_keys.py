"""The list of keys that need attention. The list is read from the journal in the background, and is filtered,
sorted and paginated.

The list is kept in memory. A row takes a few hundred bytes, and contains no data about the parties. The
larger a journal is, the less often it is read. A list that is too old is not shown. A decision made on the
desk updates its key's row immediately. A key's own page always reads the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import csv
import io
import math
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache, cached_property
from itertools import compress
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

import attrs
from aiohttp import web
from attrs import define, field, frozen

from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.decisions import proposed_row
from transfer_async._pipeline.key_views import KeyView, amount_in, money
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock, in_two_units, moment, time_after
from transfer_async._support.util import log
from transfer_async.desk.auth import Operator, Role
from transfer_async.journal.model import BELIEVED, FOUR_EYES, KeyState, Proposal, Watcher, is_same_person

PAGE = 100
"""The number of keys that are read at once. Decoding them blocks the event loop."""

PAGES_AT_ONCE, PAUSE = 20, 0.01
"""The number of pages of keys to read without a pause, and the seconds to pause before each further page."""

MAX_ROWS = 250_000
"""The maximum number of listed keys. Further keys are only counted. A full list takes about 130 MB of memory,
and twice as much while the journal is being read.
"""

READ_TIMEOUT = 1.0
"""How long a request waits for the journal, in seconds, before it shows the keys read so far."""

FRESH_FOR = 2.0
"""The age in seconds at which an empty list is read again.

Each key on the list adds `FRESH_PER_KEY` seconds.
"""

FRESH_PER_KEY = 0.003

STALE_AFTER = 60.0
"""How long an old list is still shown while it is being read again, in seconds."""

PAGE_TIMEOUT = 60.0
"""The timeout in seconds for reading one page of keys from the journal."""

KINDS = ("doubt", "proposed", "owed", "abandoned", "untold", "unreadable")
"""The reasons why a key may need attention. A key may have several reasons."""

_NOTHING = Decimal(0)
_SINCE, _CURRENCY = attrgetter("since"), attrgetter("currency")


@frozen(kw_only=True, eq=False)  # Rows are compared by identity, because there are many.
class KeyRow:
    """The list's row for a key that needs attention."""

    key: str
    kinds: tuple[str, ...]  # the reasons why it needs attention, in the order of `KINDS`
    since: float  # when work on it began, in seconds since 1970; minus infinity if unknown
    amount: Decimal | None  # the amount that the poster pays; None if it is no longer recorded
    weight: float  # the amount as a float, for sorting
    currency: str  # the amount's currency; empty if unknown
    cause: str  # a short text why the order is in doubt; empty if unknown
    by: str | None  # the name of the person who has proposed a decision
    proposed: str  # the proposed decision with its order's id, as a clause; empty without a proposal
    proposed_at: float  # the time of the proposal, in seconds since 1970; minus infinity if unknown
    watched_by: str | None  # the name of the person who is looking at the key
    watched_at: float  # when this person began, in seconds since 1970; minus infinity if unknown
    has_candidate: bool  # whether a response named an order
    # The ids by which the key can be found, in lower case, one per line. They may be personal data.
    ids: str = field(repr=False)

    @property
    def is_dated(self) -> bool:
        """Whether the key's age is known."""
        return math.isfinite(self.since)


class Totals:
    """The counts and total amounts of the listed keys, which each decision updates.

    Attributes:
        counts: the number of keys for each reason.
        proposals: the number of proposals by each person.
    """

    def __init__(self, rows: Collection[KeyRow]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.proposals: Counter[str] = Counter()
        self._sums: dict[str, dict[str, Decimal]] = {}  # by currency and reason
        self._amounts: Counter[str] = Counter()  # the number of amounts, by currency
        self._causes: Counter[str] = Counter()
        for row in rows:
            self.add(row, 1)

    @property
    def causes(self) -> list[str]:
        """The distinct causes of doubt, sorted."""
        return sorted(+self._causes)

    @property
    def stakes(self) -> dict[str, dict[str, Decimal]]:
        """The total amounts of the listed keys, by currency and reason."""
        return {currency: self._sums[currency] for currency in sorted(+self._amounts)}

    def by_me(self, me: str) -> set[str]:
        """Return the proposers whose names look like ``me``; this person cannot approve their proposals."""
        return {by for by in self.proposals if is_same_person(by, me)}

    def add(self, row: KeyRow, number: int) -> None:
        """Add a row to the totals, or subtract it if ``number`` is -1."""
        for kind in row.kinds:
            self.counts[kind] += number
        if row.cause:
            self._causes[row.cause] += number
        if row.by is not None:
            self.proposals[row.by] += number
        if row.amount is not None:
            self._amounts[row.currency] += number
            sums = self._sums.setdefault(row.currency, dict.fromkeys(KINDS, _NOTHING))
            for kind in row.kinds:
                sums[kind] += number * row.amount


@define(kw_only=True, eq=False, slots=False)  # without slots for the cached property
class PendingKeysSnapshot:
    """The list of keys that needed attention when the journal was last read."""

    rows: list[KeyRow]  # the keys, oldest first
    beyond: int = 0  # the number of keys that are not listed because the list is full
    read_at: datetime  # the time when reading the journal began
    is_complete: bool = True  # whether the whole journal was read
    totals: Totals = field(init=False)  # over `rows`, computed in the background and not during a request
    # The filtered and sorted rows for the most recent choices; see `listing`.
    chosen: dict[Choice, list[KeyRow]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.totals = Totals(self.rows)

    def row_of(self, key: str, since: float) -> KeyRow | None:
        """Return the row with this ``key`` and start time ``since``, or None."""
        begin, end = (find(self.rows, since, key=_SINCE) for find in (bisect_left, bisect_right))
        return next((row for row in self.rows[begin:end] if row.key == key), None)

    def changed(self, key: str, row: KeyRow | None, *, since: float = 0.0) -> PendingKeysSnapshot:
        """Return a copy of the list with the new ``row`` of ``key``, or without this key if ``row`` is None.

        Cached lists are not filtered or sorted again. The start time ``since`` only speeds up the search for
        the old row.
        """
        old = self.row_of(key, since) or next((item for item in self.rows if item.key == key), None)
        made = copy.copy(self)
        made.__dict__.pop("search_texts", None)
        made.totals = copy.deepcopy(self.totals)
        for item, number in ((old, -1), (row, 1)):
            if item is not None:
                made.totals.add(item, number)
        made.rows = _exchanged(self.rows, old, row, choice=Choice())
        new = [] if row is None else [row]
        made.chosen = {
            choice: _exchanged(rows, old, *_wanted(new, made.totals, choice), choice=choice)
            for choice, rows in self.chosen.items()
        }
        return made

    @cached_property
    def search_texts(self) -> tuple[list[str], str]:
        """The rows' keys in lower case, and the ids of all rows as one string, for fast searching."""
        return [row.key.casefold() for row in self.rows], "".join([row.ids for row in self.rows])


@define(eq=False, slots=False)
class PendingKeysCache:
    """Caches the list of keys that need attention, and refreshes it in the background."""

    _operators: Operators
    _clock: Clock  # measures the age of the list
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    _as_of: float = field(default=-math.inf, init=False)  # when reading the last complete list began
    _changed: dict[str, KeyRow | None] = field(factory=dict, init=False)
    _snapshot: PendingKeysSnapshot = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._snapshot = PendingKeysSnapshot(rows=[], read_at=self._clock.utc(), is_complete=False)

    @property
    def waiting(self) -> int | None:
        """The number of keys that need attention, or None until the journal has first been read."""
        return len(self._snapshot.rows) + self._snapshot.beyond if self._snapshot.is_complete else None

    async def shown(self) -> PendingKeysSnapshot:
        """Return the list that a page shows.

        If the list is old and the journal is small, read the journal again first. For a large journal, an old
        list is still shown while the journal is being read again. Once the list has been outdated for
        `STALE_AFTER` seconds, the keys read so far are shown instead.
        """
        if self._snapshot.is_complete and self._age >= self._fresh_for + STALE_AFTER:
            self._snapshot = PendingKeysSnapshot(rows=[], read_at=self._clock.utc(), is_complete=False)
        joined = self._reading
        reading = self._read_again()
        if reading is not None:
            await asyncio.wait([reading], timeout=READ_TIMEOUT)
            if reading is joined and _has_failed(reading):
                # This attempt began before the request, and the journal may be working again by now.
                reading = self._read_again() or reading
                await asyncio.wait([reading], timeout=READ_TIMEOUT)
            if reading.done():
                reading.result()
        return self._snapshot

    async def at_hand(self) -> PendingKeysSnapshot:
        """Return the current list without waiting, or wait for the first one. Never raise `JournalFailed`."""
        if self._snapshot.is_complete:
            self._read_again()
        else:
            with contextlib.suppress(JournalFailed):
                await self.shown()
        return self._snapshot

    def changed(self, view: KeyView) -> None:
        """Update the row of ``view`` immediately after a decision made on the desk."""
        if view.key == FOUR_EYES:  # the scope's own entry, which no list shows
            return
        row = pending_row(view)
        if self._reading is not None:
            self._changed[view.key] = row
        self._snapshot = self._snapshot.changed(view.key, row, since=began_at(view))

    async def close(self) -> None:
        """Stop reading the journal."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    # --- reading --------------------------------------------------------------------------------

    @property
    def _fresh_for(self) -> float:
        return FRESH_FOR + FRESH_PER_KEY * len(self._snapshot.rows)

    @property
    def _age(self) -> float:
        return self._clock.now() - self._as_of

    def _read_again(self) -> asyncio.Task[None] | None:
        """If the list is out of date, start a task that reads it again. Return the running task, or None."""
        if self._reading is None and self._age >= self._fresh_for:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._ended)
        return self._reading

    def _ended(self, reading: asyncio.Task[None]) -> None:
        """Discard a finished task, so that the next request can start another."""
        self._reading = None
        _has_failed(reading)  # Reads the error, so that asyncio does not report it as never retrieved.

    async def _read(self) -> None:
        began, read_at, beyond, last = self._clock.now(), self._clock.utc(), 0, ""
        rows: list[KeyRow] = []
        self._changed.clear()
        pages = 0
        while page := await self._page(after=last):
            found = [row for view in page if (row := pending_row(view)) is not None]
            room = MAX_ROWS - len(rows)
            rows += found[:room]
            beyond += len(found[room:])
            last = page[-1].key
            if not self._snapshot.is_complete and len(rows) >= 2 * len(self._snapshot.rows):
                # This is the first time that the large journal is being read, so show the part read so far.
                self._snapshot = PendingKeysSnapshot(
                    rows=self._with_changes(rows), beyond=beyond, read_at=read_at, is_complete=False
                )
            pages += 1
            await (asyncio.sleep(0) if pages < PAGES_AT_ONCE else self._clock.sleep(PAUSE))
        self._snapshot = PendingKeysSnapshot(rows=self._with_changes(rows), beyond=beyond, read_at=read_at)
        self._as_of = began

    async def _page(self, *, after: str) -> tuple[KeyView, ...]:
        try:
            async with asyncio.timeout(PAGE_TIMEOUT):
                return await self._operators.page(limit=PAGE, after=after)
        except TimeoutError:
            raise JournalFailed(f"the journal did not respond within {PAGE_TIMEOUT:.0f} s") from None

    def _with_changes(self, rows: list[KeyRow]) -> list[KeyRow]:
        """Return ``rows``, oldest first, updated with the decisions made while the journal was being read."""
        changed = [row for row in self._changed.values() if row is not None]
        return sorted([row for row in rows if row.key not in self._changed] + changed, key=_SINCE)


def _has_failed(reading: asyncio.Task[None]) -> bool:
    return reading.done() and not reading.cancelled() and reading.exception() is not None


def pending_row(view: KeyView) -> KeyRow | None:
    """Return the row for a key, or None if the key does not need attention."""
    kinds = kinds_of(view)
    if not kinds:
        return None
    order, proposal = view.order, view.proposal
    return KeyRow(
        key=view.key,
        kinds=kinds,
        since=began_at(view),
        amount=None if order is None else order.poster_amount,
        weight=0.0 if order is None else float(order.poster_amount),
        currency="" if order is None else sys.intern(order.poster_currency),
        cause=view.cause_in_short,
        by=None if proposal is None else proposal.by,
        proposed=" ".join(filter(None, (proposed_row(proposal).explained, proposal.order_id)))
        if proposal
        else "",
        proposed_at=time_of(view, proposal),
        watched_by=None if view.watcher is None else view.watcher.by,
        watched_at=time_of(view, view.watcher),
        has_candidate=bool(view.candidates),
        ids=_ids(view),
    )


def _ids(view: KeyView) -> str:
    """Return the ids by which a search finds a key, such as those of its intent, order and holds."""
    attempts = () if view.cause is None else view.cause.attempts
    requests = (attempt.request_id for attempt in attempts)
    ids = (
        view.intent_id,
        view.attempt_id,
        view.order_id,
        *view.candidates,
        *view.receipts.values(),
        *requests,
    )
    return "\n".join(("", *dict.fromkeys(item.casefold() for item in ids if item), ""))


def began_at(view: KeyView) -> float:
    """Return the start time of the key's first call in seconds since 1970; minus infinity if unknown."""
    return -math.inf if view.began is None else view.began.timestamp()


def time_of(view: KeyView, made: Proposal | Watcher | None) -> float:
    """Return the time when ``made`` was recorded, in seconds since 1970; minus infinity if unknown.

    The times in a record come from the journal's clock, which may differ from this machine's clock.
    """
    return began_at(view) + (0.0 if made is None else made.at - view.entry.claimed_at)


def kinds_of(view: KeyView) -> tuple[str, ...]:
    """Return the reasons why a key needs attention; empty if it does not."""
    return _kinds(
        view.state is KeyState.IN_DOUBT,
        view.proposal is not None,
        bool(view.pending_undos),
        view.state in (KeyState.CLAIMED, KeyState.SENDING) and not _is_in_use(view),
        bool(view.pending_notifications),
        not view.readable,
    )


def _is_in_use(view: KeyView) -> bool:
    """Return whether a worker's lease is valid. A lease with an implausibly late end is ignored."""
    entry = view.entry
    return view.age is not None and 0 < entry.lease_until - entry.claimed_at - view.age <= BELIEVED


@cache  # Many thousands of rows share each combination.
def _kinds(*flags: bool) -> tuple[str, ...]:
    return tuple(compress(KINDS, flags))


# --- listing -----------------------------------------------------------------------------------------
# The filters, sort order and page number of the list. All of them are part of the URL.


PER_PAGE = 50
CSV = "pending-keys.csv"
"""The name of the list's CSV file, which is also its URL relative to the list."""

CACHED_CHOICES = 8
"""The number of choices whose rows are cached, so that their next page is not filtered and sorted again."""


@frozen(kw_only=True)
class Column:
    """A column of the list."""

    name: str  # the column's name in addresses and templates
    heading: str
    # Returns the cell's text for a row at the current time, empty if unknown. The template renders other
    # cells.
    cell: Callable[[KeyRow, float], str] = lambda *_: ""
    # Returns the value by which rows are sorted: a float or a string, which sort fast. None if not sortable.
    sort: Callable[[KeyRow], Any] | None = None
    sort_labels: tuple[str, str] = ("", "")  # the labels of the default and the reversed order in the form
    is_number: bool = False  # whether the cells are aligned like numbers


COLUMNS = (
    Column(
        name="key",
        heading="Key",
        sort=attrgetter("key"),
        sort_labels=("by key", "by key, reversed"),
    ),
    Column(name="kinds", heading="Reason"),
    Column(
        name="amount",
        heading="Amount",
        cell=lambda row, _: "" if row.amount is None else money(row.amount, row.currency),
        sort=attrgetter("weight"),
        sort_labels=("largest first", "smallest first"),
        is_number=True,
    ),
    Column(
        name="age",
        heading="Age",
        cell=lambda row, now: in_two_units(now - row.since) if row.is_dated else "",
        sort=attrgetter("since"),
        sort_labels=("oldest first", "newest first"),
        is_number=True,
    ),
    Column(
        name="cause",
        heading="Cause",
        cell=lambda row, _: row.cause or "–",
        sort=attrgetter("cause"),
        sort_labels=("by cause", "by cause, reversed"),
    ),
)
"""The columns of the list."""

SORTS = {column.name: column for column in COLUMNS if column.sort is not None}
"""The columns by which the list can be sorted, by name."""

PROPOSALS = {
    "yes": "proposed",
    "no": "not proposed",
    "approve": "for me to approve",
    "mine": "proposed by me",
}
"""The filters by proposal. A URL contains no name, so "me" is the person who opens it."""

AGES = {"1h": ("over 1 hour", 3_600.0), "1d": ("over 1 day", 86_400.0), "7d": ("over 7 days", 604_800.0)}
"""The filters by age: the label and the minimum age in seconds. Keys of unknown age match every filter."""

AMOUNTS = {str(10**digits): f"{10**digits:,} or more" for digits in range(3, 8)}
"""The filters by minimum amount, in any currency.

Limits are round numbers, so that no URL reveals an amount.
"""


@frozen(kw_only=True)
class Choice:
    """The filters, the sort order and the page number of the list, from its URL.

    URLs are logged, so the URL contains no free text.
    """

    kind: str = ""
    currency: str = ""
    cause: str = ""
    proposal: str = ""
    older: str = ""
    least: str = ""
    sort: str = "age"
    turned: bool = False
    page: int = 1
    live: bool = False  # whether the page refreshes itself and has no form fields
    wall: bool = False  # whether the page is for a wall display: it refreshes itself and has large letters
    me: str = ""  # the operator's name, for `PROPOSALS`; not part of the address
    minute: int = 0  # the current time in minutes since 1970, for `AGES`; not part of the address

    @classmethod
    def of(
        cls,
        query: Mapping[str, str],
        snapshot: PendingKeysSnapshot,
        *,
        me: Operator | None = None,
        now: float = 0.0,
    ) -> Choice:
        """Return the filters, the sort order and the page number in a URL's query.

        Unknown values are ignored. The form sends a reversed sort order as ``sort=-age``. For an operator
        without `Role.APPROVE`, the filter "for me to approve" becomes "proposed".
        """
        page, sort = query.get("page", ""), query.get("sort", "")
        proposal = _among(query.get("proposal"), PROPOSALS)
        if proposal == "approve" and not (me and me.may(Role.APPROVE)):
            proposal = "yes"
        older = _among(query.get("older"), AGES)
        return cls(
            kind=_among(query.get("kind"), KINDS),
            currency=_among(query.get("currency"), snapshot.totals.stakes),
            cause=_among(query.get("cause"), snapshot.totals.causes),
            proposal=proposal,
            older=older,
            least=_among(query.get("least"), AMOUNTS),
            sort=_among(sort.removeprefix("-"), SORTS) or "age",
            turned=sort.startswith("-") or query.get("turned") == "1",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
            live="1" in (query.get("live"), query.get("wall")),
            wall=query.get("wall") == "1",
            me=me.name if me and proposal in ("approve", "mine") else "",
            minute=int(now // 60) if older else 0,
        )

    def query(self, **changes: Any) -> dict[str, Any]:
        """Return the query parameters, after applying ``changes``; default values are omitted."""
        wanted = attrs.asdict(attrs.evolve(self, **changes), recurse=False)
        given = {name: int(value) if isinstance(value, bool) else value for name, value in wanted.items()}
        return {name: value for name, value in given.items() if value != _UNCHOSEN.get(name, value)}

    def address(self, **changes: Any) -> str:
        """Return the list's relative URL with these filters, after applying ``changes``."""
        query = self.query(**changes)
        return f"./?{urlencode(query)}" if query else "./"

    @property
    def csv_address(self) -> str:
        """The URL, relative to the list, of the CSV file with all rows that match the filters."""
        query = self.query(page=1, live=False, wall=False)
        return f"{CSV}?{urlencode(query)}" if query else CSV

    @property
    def for_a_key(self) -> dict[str, Any]:
        """The query parameters with which a key's page identifies the list that it was opened from."""
        return self.query(page=1, live=False, wall=False)

    @property
    def filters(self) -> list[str]:
        """The labels of the chosen filters, except the filter by reason."""
        age = AGES[self.older][0] if self.older else ""
        texts = (self.currency, self.cause, PROPOSALS.get(self.proposal), age, AMOUNTS.get(self.least))
        return [text for text in texts if text]

    @property
    def value(self) -> Callable[[KeyRow], Any]:
        """The function that returns the value by which to sort a row."""
        return SORTS[self.sort].sort or _SINCE

    @property
    def is_reversed(self) -> bool:
        """Whether rows are sorted by descending value."""
        return self.turned != (self.sort == "amount")

    @property
    def is_descending(self) -> bool:
        """Whether the displayed values are in descending order, like the ages in "oldest first" order."""
        return self.turned != (self.sort in ("age", "amount"))

    def sorted_by(self, sort: str) -> str:
        """Return the URL of the list sorted by ``sort``, reversed if the list already has this order."""
        return self.address(sort=sort, turned=sort == self.sort and not self.turned, page=1)


def _among(given: str | None, known: Collection[str]) -> str:
    return given if given is not None and given in known else ""


_UNCHOSEN = {name: value for name, value in attrs.asdict(Choice()).items() if name not in ("me", "minute")}


@frozen(kw_only=True)
class Listing:
    """One page of the rows that match the chosen filters."""

    rows: list[KeyRow]  # the rows of this page
    number: int  # the number of rows on all pages
    page: int  # the page's number, from 1
    pages: int  # the number of pages; at least one

    @property
    def near(self) -> list[int]:
        """The numbers of the first page, the last page and the pages near the current page."""
        return sorted({1, *range(max(1, self.page - 2), min(self.pages, self.page + 2) + 1), self.pages})


def listing(snapshot: PendingKeysSnapshot, choice: Choice) -> Listing:
    """Return the chosen page of the list, or the last page if the page number is too large."""
    chosen = _chosen(snapshot, choice)
    pages = max(1, -(-len(chosen) // PER_PAGE))
    page = min(max(1, choice.page), pages)
    return Listing(
        rows=chosen[(page - 1) * PER_PAGE : page * PER_PAGE], number=len(chosen), page=page, pages=pages
    )


_CSV_HEADER = ("key", "reasons", "amount", "currency", "began", "cause", "proposed", "by", "proposed at")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_AT_ONCE = 1_000  # the number of rows that are written before other requests get a turn


def as_csv(snapshot: PendingKeysSnapshot, choice: Choice) -> web.Response:
    """Return all rows that match the chosen filters, as a CSV file."""
    rows = _chosen(snapshot, choice)

    async def pages() -> AsyncIterator[Iterable[Sequence[str]]]:
        for begin in range(0, len(rows), _AT_ONCE):
            await asyncio.sleep(0)
            yield map(_csv_row, rows[begin : begin + _AT_ONCE])

    return csv_of(CSV, _CSV_HEADER, pages())


def _csv_row(row: KeyRow) -> Sequence[str]:
    amount = "" if row.amount is None else f"{row.amount:f}"
    order = (row.key, ", ".join(row.kinds), amount, row.currency, utc_text(row.since), row.cause)
    proposal = ("", "", "") if row.by is None else (row.proposed, row.by, utc_text(row.proposed_at))
    return (*order, *proposal)


def csv_of(name: str, header: Sequence[str], pages: AsyncIterable[Iterable[Sequence[str]]]) -> web.Response:
    """Return a CSV file that is sent page by page. No cell in it can be run as a formula by a spreadsheet.

    If reading a page fails, the connection is closed, so that the browser reports an incomplete download.
    """

    async def body() -> AsyncIterator[bytes]:
        yield _csv_text([header]).encode("utf-8-sig")  # Excel recognises UTF-8 by the byte order mark.
        try:
            async for rows in pages:
                yield _csv_text(rows).encode()
        except Exception as error:  # noqa: BLE001 - its text may contain personal data
            log.error("the desk could not send all of %s (%s)", name, type(error).__name__)
            raise ConnectionResetError from None

    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(body=body(), content_type="text/csv", charset="utf-8", headers=disposition)


def _csv_text(rows: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    inert = ([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in row] for row in rows)
    csv.writer(file).writerows(inert)
    return file.getvalue()


def utc_text(time: float) -> str:
    """Return seconds since 1970 as a UTC time, or an empty string if the time is invalid."""
    when = time_after(moment(0), time)  # None for example for infinity
    return "" if when is None else when.isoformat(timespec="seconds")


def next_after(
    snapshot: PendingKeysSnapshot, key: str, *, since: float, choice: Choice | None = None, noted: str = ""
) -> KeyRow | None:
    """Return the row that follows ``key`` in the chosen list, or the first row if none follows.

    After a decision has removed ``key`` from the default list, the key's start time ``since`` determines its
    former position. In any other list, ``noted`` is the key that followed ``key`` before the decision.
    """
    choice = choice or Choice()
    listed, row = _chosen(snapshot, choice), snapshot.row_of(key, since)
    if row is not None and (place := _place(listed, row, choice)) is not None:
        begin = place + 1
    elif choice.for_a_key:
        keys = [item.key for item in listed]
        begin = keys.index(key) + 1 if key in keys else keys.index(noted) if noted in keys else 0
    else:
        begin = bisect_left(listed, since, key=_SINCE)
    there = listed[begin : begin + 1] + listed[:1]
    return next((item for item in there if item.key != key), None)


def found_by_text(snapshot: PendingKeysSnapshot, text: str) -> list[KeyRow]:
    """Return the rows that match ``text``, oldest first. The search ignores case.

    If ``text`` is the id of any rows, return these rows. If ``text`` is no row's id, return the rows whose
    key contains ``text``, or whose exact amount is ``text``, with or without the currency.
    """
    wanted, rows = text.casefold(), snapshot.rows
    names, ids = snapshot.search_texts
    line = f"\n{wanted}\n"
    if wanted and line in ids:
        return [row for row in rows if line in row.ids]
    amount, currency = amount_in(text)
    if amount is None:
        return [row for row, name in zip(rows, names, strict=True) if wanted in name]
    weight = float(amount)  # Comparing floats first is faster.
    return [
        row
        for row, name in zip(rows, names, strict=True)
        if wanted in name
        or (row.weight == weight and row.amount == amount and currency in ("", row.currency))
    ]


def _chosen(snapshot: PendingKeysSnapshot, choice: Choice) -> list[KeyRow]:
    which = attrs.evolve(choice, page=1, live=False)
    kept = snapshot.chosen
    if which not in kept:
        if len(kept) >= CACHED_CHOICES:
            del kept[next(iter(kept))]
        rows = _wanted(snapshot.rows, snapshot.totals, choice)
        rows.sort(key=choice.value, reverse=choice.is_reversed)
        if choice.sort == "amount":  # Amounts of different currencies cannot be compared.
            rows.sort(key=_CURRENCY)
        kept[which] = rows
    return kept[which]


def _exchanged(
    rows: list[KeyRow], old: KeyRow | None, new: KeyRow | None = None, *, choice: Choice
) -> list[KeyRow]:
    """Return a copy of the sorted ``rows`` without ``old``, and with ``new`` at its sorted position."""
    left = rows.copy()
    if old is not None and (place := _place(left, old, choice)) is not None:
        del left[place]
    if new is not None:
        left.insert(_edge(left, new, choice, after=True), new)
    return left


def _place(rows: list[KeyRow], row: KeyRow, choice: Choice) -> int | None:
    """Return the index of ``row`` in the sorted ``rows``, or None if ``rows`` does not contain it."""
    begin, end = (_edge(rows, row, choice, after=after) for after in (False, True))
    return next((place for place in range(begin, end) if rows[place] is row), None)


def _edge(rows: list[KeyRow], row: KeyRow, choice: Choice, *, after: bool) -> int:
    """Return the first index or, if ``after``, the last index at which ``row`` can be inserted in order."""
    begin, end, value = 0, len(rows), choice.value
    if choice.sort == "amount":
        begin, end = (find(rows, row.currency, key=_CURRENCY) for find in (bisect_left, bisect_right))
    wanted = value(row)
    while begin < end:  # like bisect, which does not support descending order
        middle = (begin + end) // 2
        found = value(rows[middle])
        if (found > wanted if choice.is_reversed else found < wanted) or (after and found == wanted):
            begin = middle + 1
        else:
            end = middle
    return begin


def _wanted(rows: list[KeyRow], totals: Totals, choice: Choice) -> list[KeyRow]:
    """Return a new list of the ``rows`` that match the filters. ``rows`` must be sorted by age."""
    kind, currency, cause = choice.kind, choice.currency, choice.cause
    if choice.older:
        rows = rows[: bisect_right(rows, choice.minute * 60 - AGES[choice.older][1], key=_SINCE)]
    if choice.proposal == "no":
        rows = [row for row in rows if row.by is None]
    elif choice.proposal:
        mine, others = totals.by_me(choice.me) if choice.me else set(), totals.proposals.keys()
        wanted = {"yes": others, "approve": others - mine, "mine": mine}[choice.proposal]
        rows = [row for row in rows if row.by in wanted]
    if kind:
        rows = [row for row in rows if kind in row.kinds]
    if currency:
        rows = [row for row in rows if row.currency == currency]
    if cause:
        rows = [row for row in rows if row.cause == cause]
    if choice.least:
        least = float(choice.least)
        rows = [row for row in rows if row.weight >= least]
    return rows[:]
