"""The list of keys that need attention: read in the background, filtered, sorted and cut into pages.

The journal returns its keys in pages, with the whole record of each. A row keeps only what the list shows, a
few hundred bytes, and nothing about a person. So the cost of a request does not grow with the number of keys.
A large journal is read less often, and a list that is too old is not shown. A decision on this page replaces
one row without reading the journal again. A key's own page always reads the journal.
`COLUMNS` defines the list's columns.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import re
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache, cached_property
from itertools import compress
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

import attrs
from attrs import define, field, frozen

from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock, in_two_units
from transfer_async.journal.model import FOUR_EYES, KeyState

PAGE = 100
"""The number of keys that are read at once: nothing else in the process runs while they are decoded."""

PAGES_AT_ONCE, PAUSE = 20, 0.01
"""The number of pages after which the reading pauses, and the seconds between two pages from then on."""

MAX_ROWS = 250_000
"""The maximum number of listed keys, some 100 MB; the others are only counted."""

READ_TIMEOUT = 1.0
"""Seconds that a request waits for a reading before it shows what has been read so far."""

FRESH_FOR = 2.0
"""Seconds for which a reading is shown without another, plus `FRESH_PER_KEY` for each key."""

FRESH_PER_KEY = 0.003

STALE_AFTER = 60.0
"""Seconds after which a list that should have been read again is no longer shown."""

PAGE_TIMEOUT = 60.0
"""Seconds that a reading waits for a page of keys. Then it fails, and the next request starts another."""

IN_DOUBT, PROPOSED, OWED = "doubt", "proposed", "owed"
ABANDONED, UNTOLD, UNREADABLE = "abandoned", "untold", "unreadable"
KINDS = (IN_DOUBT, PROPOSED, OWED, ABANDONED, UNTOLD, UNREADABLE)
"""Why a key needs attention; there may be several reasons."""

_NOTHING = Decimal(0)
_AMOUNT = re.compile(
    r"(?P<before>[A-Za-z]{3,10})?\s*(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)"
    r"\s*(?P<after>[A-Za-z]{3,10})?",
    re.ASCII,
)
_SINCE = attrgetter("since")


@frozen(kw_only=True)
class KeyRow:
    """A key that needs attention, as the list shows it."""

    key: str
    kinds: tuple[str, ...]  # why it needs attention: some of `KINDS`, in their order
    since: float  # when work on it began, in seconds since 1970; minus infinity if unknown
    amount: Decimal | None  # what the poster pays, if that is still on record
    weight: float  # the amount as a float, for sorting
    currency: str  # the amount's currency; empty if unknown
    cause: str  # why it is in doubt, in a few words; empty if unknown
    by: str | None  # the person who has proposed a decision
    has_candidate: bool  # whether a response named an order
    # What it is found by beside its key, one id a line, in small letters. Not in the ``repr``, because the
    # bank's own references may be personal data.
    ids: str = field(repr=False)

    @property
    def is_dated(self) -> bool:
        """Whether its age is known."""
        return math.isfinite(self.since)


@define(kw_only=True, eq=False, slots=False)  # without slots for the cached properties
class PendingKeysSnapshot:
    """The keys that needed attention when the journal was read."""

    rows: list[KeyRow]
    """The keys, oldest first."""
    beyond: int = 0
    """The number of keys that are not listed, because there are too many."""
    read_at: datetime
    """When the reading began."""
    is_complete: bool = True
    """Whether the reading is finished."""
    chosen: dict[object, list[KeyRow]] = field(factory=dict, init=False)
    """The rows of the latest choices: see `listing`."""

    def __attrs_post_init__(self) -> None:
        _ = self.counts, self.stakes, self.causes  # counted in the background, not during a request

    def changed(self, key: str, row: KeyRow | None) -> PendingKeysSnapshot:
        """Return a copy with ``row`` in place of the key's; its sums are computed only when needed."""
        made = copy.copy(self)
        for name in ("counts", "stakes", "causes", "search_texts"):
            made.__dict__.pop(name, None)
        made.rows = [item for item in self.rows if item.key != key]
        if row is not None:
            insort(made.rows, row, key=_SINCE)
        made.chosen = {}
        return made

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of keys for each reason."""
        counts = dict.fromkeys(KINDS, 0)
        for row in self.rows:
            for kind in row.kinds:
                counts[kind] += 1
        return counts

    @cached_property
    def stakes(self) -> dict[str, dict[str, Decimal]]:
        """The amounts at stake, by currency and reason."""
        stakes: dict[str, dict[str, Decimal]] = {}
        for row in self.rows:
            if row.amount is not None:
                sums = stakes.setdefault(row.currency, dict.fromkeys(KINDS, _NOTHING))
                for kind in row.kinds:
                    sums[kind] += row.amount
        return dict(sorted(stakes.items()))

    @cached_property
    def causes(self) -> tuple[str, ...]:
        """The causes of all doubts, without duplicates."""
        return tuple(sorted({row.cause for row in self.rows} - {""}))

    @cached_property
    def search_texts(self) -> tuple[list[str], str]:
        """The name of each row in small letters, and the ids of all rows in one text: fast to search."""
        return [row.key.casefold() for row in self.rows], "".join([row.ids for row in self.rows])


@define(eq=False, slots=False)
class PendingKeysCache:
    """The last reading of the journal; an old one is replaced in the background when a request needs it."""

    _operators: Operators
    _clock: Clock  # gives a reading's age
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    _as_of: float = field(default=-math.inf, init=False)  # when the reading of a complete list began
    _changed: dict[str, KeyRow | None] = field(factory=dict, init=False)
    _snapshot: PendingKeysSnapshot = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._snapshot = PendingKeysSnapshot(rows=[], read_at=self._clock.utc(), is_complete=False)

    @property
    def waiting(self) -> int | None:
        """The number of keys that need attention, as last read; None before the first reading has ended."""
        return len(self._snapshot.rows) + self._snapshot.beyond if self._snapshot.is_complete else None

    async def shown(self) -> PendingKeysSnapshot:
        """Return the list to show: new if the journal is small, otherwise the last reading.

        A list is shown for no longer than `STALE_AFTER` seconds after it should have been read again; then
        what the reading has found so far takes its place.

        Raises:
            JournalFailed: the journal could not be read just now.
        """
        if self._snapshot.is_complete and self._age >= self._fresh_for + STALE_AFTER:
            self._snapshot = PendingKeysSnapshot(rows=[], read_at=self._clock.utc(), is_complete=False)
        joined = self._reading
        reading = self._read_again()
        if reading is not None:
            await asyncio.wait([reading], timeout=READ_TIMEOUT)
            if reading is joined and _has_failed(reading):
                # It began before this request: the journal may have recovered since.
                reading = self._read_again() or reading
                await asyncio.wait([reading], timeout=READ_TIMEOUT)
            if reading.done():
                reading.result()
        return self._snapshot

    async def at_hand(self) -> PendingKeysSnapshot:
        """Return the last list, and raise no error; wait only if there is none yet."""
        if self._snapshot.is_complete:
            self._read_again()
        else:
            with contextlib.suppress(JournalFailed):
                await self.shown()
        return self._snapshot

    def changed(self, view: KeyView) -> None:
        """Show a decision of this page at once, even if a reading is in progress."""
        if view.key == FOUR_EYES:  # the scope's own entry, which no list shows
            return
        row = pending_row(view)
        if self._reading is not None:
            self._changed[view.key] = row
        self._snapshot = self._snapshot.changed(view.key, row)

    async def close(self) -> None:
        """Cancel a reading that is in progress."""
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
        """Return the reading in progress; start one if the list is old."""
        if self._reading is None and self._age >= self._fresh_for:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._ended)
        return self._reading

    def _ended(self, reading: asyncio.Task[None]) -> None:
        """Forget a finished reading: if it has failed, the next request starts another."""
        self._reading = None
        _has_failed(reading)  # so that asyncio does not report an error that no request waited for

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
                # The first reading of a large journal: show a part of it.
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
            raise JournalFailed(f"the journal did not answer within {PAGE_TIMEOUT:.0f} s") from None

    def _with_changes(self, rows: list[KeyRow]) -> list[KeyRow]:
        """Return a new list with the decisions of this page since the reading began, oldest first."""
        changed = [row for row in self._changed.values() if row is not None]
        return sorted([row for row in rows if row.key not in self._changed] + changed, key=_SINCE)


def _has_failed(reading: asyncio.Task[None]) -> bool:
    return reading.done() and not reading.cancelled() and reading.exception() is not None


def pending_row(view: KeyView) -> KeyRow | None:
    """Return the row of a key; None if it needs no attention."""
    kinds = kinds_of(view)
    if not kinds:
        return None
    order = view.order
    return KeyRow(
        key=view.key,
        kinds=kinds,
        since=began_at(view),
        amount=None if order is None else order.poster_amount,
        weight=0.0 if order is None else float(order.poster_amount),
        currency="" if order is None else sys.intern(order.poster_currency),
        cause=view.cause_in_short,
        by=None if view.proposal is None else view.proposal.by,
        has_candidate=bool(view.candidates),
        ids=_ids(view),
    )


def _ids(view: KeyView) -> str:
    """Return the ids by which a key is found: of its intent, attempt, order, holds and requests."""
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
    """Return when work on a key began; unknown sorts first."""
    return -math.inf if view.began is None else view.began.timestamp()


def kinds_of(view: KeyView) -> tuple[str, ...]:
    """Return why a key needs attention; empty if it does not."""
    return _kinds(
        view.state is KeyState.IN_DOUBT,
        view.proposal is not None,
        bool(view.owed),
        view.state in (KeyState.CLAIMED, KeyState.SENDING),
        bool(view.untold),
        not view.readable,
    )


@cache  # a hundred thousand rows share each combination
def _kinds(*flags: bool) -> tuple[str, ...]:
    return tuple(compress(KINDS, flags))


# --- listing -----------------------------------------------------------------------------------------
# The page of the list to show: which rows, in which order. All of it is in the address.


PER_PAGE = 50
CACHED_CHOICES = 8
"""The number of choices of one snapshot that are kept, for a person who pages through one."""


@frozen(kw_only=True)
class Column:
    """A column of the list."""

    name: str  # its name in addresses and templates
    heading: str  # its heading
    # Returns the cell's text for a row and the time now; empty if unknown. The template adds links and badges
    # to some.
    cell: Callable[[KeyRow, float], str]
    # The sort key, if the list can be sorted by it: a float or a text, for there may be many rows.
    sort: Callable[[KeyRow], Any] | None = None
    sort_label: str = ""  # the order's name in the filter form
    largest_first: bool = False  # whether the default order is descending
    is_number: bool = False  # whether the cells are aligned like numbers


def money(amount: Decimal, currency: str) -> str:
    """Return an amount with all its digits, and with thousands separators."""
    return f"{amount:,f} {currency}".rstrip()


COLUMNS = (
    Column(
        name="key",
        heading="Key",
        cell=lambda row, _: row.key,
        sort=attrgetter("key"),
        sort_label="by key",
    ),
    Column(name="kinds", heading="Reason", cell=lambda row, _: ", ".join(row.kinds)),
    Column(
        name="amount",
        heading="Amount",
        cell=lambda row, _: "" if row.amount is None else money(row.amount, row.currency),
        sort=attrgetter("weight"),
        sort_label="largest first",
        largest_first=True,
        is_number=True,
    ),
    Column(
        name="age",
        heading="Age",
        cell=lambda row, now: in_two_units(now - row.since) if row.is_dated else "",
        sort=attrgetter("since"),
        sort_label="oldest first",
        is_number=True,
    ),
    Column(
        name="cause",
        heading="Cause",
        cell=lambda row, _: row.cause or "–",
        sort=attrgetter("cause"),
        sort_label="by cause",
    ),
)
"""The columns of the list."""

SORTS = {column.name: column for column in COLUMNS if column.sort is not None}
"""The columns that the list can be sorted by."""

_DEFAULT = "age"
_GREATEST_FIRST = ("age", "amount")


@frozen(kw_only=True)
class Choice:
    """The filter, order and page that the address asks for; unknown values are ignored.

    It has no free text, because addresses are kept in logs.
    """

    kind: str = ""
    currency: str = ""
    cause: str = ""
    sort: str = _DEFAULT
    turned: bool = False
    page: int = 1
    live: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str], snapshot: PendingKeysSnapshot) -> Choice:
        """Return the choice that an address asks for; values must occur in ``snapshot``."""
        page = query.get("page", "")
        return cls(
            kind=_among(query.get("kind"), KINDS),
            currency=_among(query.get("currency"), snapshot.stakes),
            cause=_among(query.get("cause"), snapshot.causes),
            sort=_among(query.get("sort"), SORTS) or _DEFAULT,
            turned=query.get("turned") == "1",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
            live=query.get("live") == "1",
        )

    def address(self, **changes: Any) -> str:
        """Return the address of this choice with ``changes``, relative to the list."""
        wanted = attrs.asdict(attrs.evolve(self, **changes))
        given = {name: int(value) if isinstance(value, bool) else value for name, value in wanted.items()}
        query = {name: value for name, value in given.items() if value != _UNCHOSEN[name]}
        return f"./?{urlencode(query)}" if query else "./"

    @property
    def is_descending(self) -> bool:
        """Whether the values of the sorted column decrease; oldest first means the greatest age first."""
        return self.turned != (self.sort in _GREATEST_FIRST)

    def sorted_by(self, sort: str) -> str:
        """Return the address of this choice sorted by ``sort``, or in reverse if it is already."""
        return self.address(sort=sort, turned=sort == self.sort and not self.turned, page=1)


def _among(given: str | None, known: Collection[str]) -> str:
    return given if given is not None and given in known else ""


_UNCHOSEN = attrs.asdict(Choice())


@frozen(kw_only=True)
class Listing:
    """A page of the chosen rows."""

    rows: list[KeyRow]  # the rows of this page
    number: int  # the number of rows on all pages
    page: int  # the page's number, from 1
    pages: int  # the number of pages; at least one


def listing(snapshot: PendingKeysSnapshot, choice: Choice) -> Listing:
    """Return the chosen page of ``snapshot``; the last one if the number is too high."""
    chosen = _chosen(snapshot, choice)
    pages = max(1, -(-len(chosen) // PER_PAGE))
    page = min(max(1, choice.page), pages)
    return Listing(
        rows=chosen[(page - 1) * PER_PAGE : page * PER_PAGE], number=len(chosen), page=page, pages=pages
    )


def next_after(snapshot: PendingKeysSnapshot, key: str, *, since: float) -> KeyRow | None:
    """Return the row after the key's, oldest first, even if the key is not listed; then the first."""
    oldest = _chosen(snapshot, Choice())
    begin = bisect_left(oldest, since, key=_SINCE)
    at_once = oldest[begin : bisect_right(oldest, since, key=_SINCE)]
    before = next((number + 1 for number, row in enumerate(at_once) if row.key == key), 0)
    there = oldest[begin + before : begin + before + 1] + oldest[:1]
    return next((row for row in there if row.key != key), None)


def found_by_text(snapshot: PendingKeysSnapshot, text: str) -> list[KeyRow]:
    """Return the rows that ``text`` finds, oldest first, in any case.

    The text is an id of the record, or else an exact amount (with or without its currency), or a part of
    a key.
    """
    wanted, rows = text.casefold(), snapshot.rows
    names, ids = snapshot.search_texts
    line = f"\n{wanted}\n"
    if wanted and line in ids:
        return [row for row in rows if line in row.ids]
    amount, currency = _amount_in(text)
    if amount is None:
        return [row for row, name in zip(rows, names, strict=True) if wanted in name]
    weight = float(amount)  # compared first, because it is faster
    return [
        row
        for row, name in zip(rows, names, strict=True)
        if wanted in name
        or (row.weight == weight and row.amount == amount and currency in ("", row.currency))
    ]


def _amount_in(text: str) -> tuple[Decimal | None, str]:
    """Return the amount in ``text`` and its currency, empty if not given; None if it is not an amount."""
    match = _AMOUNT.fullmatch(text)
    if match is None or (match["before"] and match["after"]):
        return None, ""
    return Decimal(match["number"].replace(",", "")), (match["before"] or match["after"] or "").upper()


def _chosen(snapshot: PendingKeysSnapshot, choice: Choice) -> list[KeyRow]:
    which = (choice.kind, choice.currency, choice.cause, choice.sort, choice.turned)
    kept = snapshot.chosen
    if which not in kept:
        if len(kept) >= CACHED_CHOICES:
            del kept[next(iter(kept))]
        rows, column = _wanted(snapshot.rows, choice), SORTS[choice.sort]
        rows.sort(key=column.sort, reverse=choice.turned != column.largest_first)
        if choice.sort == "amount":  # amounts of two currencies are not compared
            rows.sort(key=attrgetter("currency"))
        kept[which] = rows
    return kept[which]


def _wanted(rows: list[KeyRow], choice: Choice) -> list[KeyRow]:
    """Return the rows that the filters leave, as a new list."""
    kind, currency, cause = choice.kind, choice.currency, choice.cause
    if kind:
        rows = [row for row in rows if kind in row.kinds]
    if currency:
        rows = [row for row in rows if row.currency == currency]
    if cause:
        rows = [row for row in rows if row.cause == cause]
    return rows[:]
