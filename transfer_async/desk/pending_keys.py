"""What waits, a line a key, read from the journal in the background: what a request costs does not grow.

A journal gives its keys a page at a time, each with all that is on record of it. Of that, a line keeps
what a list shows, some hundred bytes. How often the journal is read again depends on how much there is to
read, and a list that has become too old is not shown. What somebody changes at this desk replaces one line,
without another reading, and a key's own page always asks the journal.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import copy
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

import attrs
from attrs import frozen

from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock
from transfer_async.journal.model import FOUR_EYES, KeyState

PAGE = 100
"""Keys that are asked for at once: all else in the process waits while they are taken from their records."""

AT_ONCE, PAUSE = 20, 0.01
"""After so many pages others come first: seconds between two."""

MOST = 250_000
"""Keys that are listed at most, some 100 MB; the rest is counted."""

PATIENCE = 1.0
"""Seconds that a request waits for a reading before it shows what there is."""

FRESH = 2.0
"""Seconds for which a reading is believed, and `PER_KEY` for each key beside."""

PER_KEY = 0.003

LATE = 60.0
"""Seconds after which a list that should have been read again is shown no more."""

ANSWER = 60.0
"""Seconds that a reading waits for one page: then it has failed, and whoever asks next begins another."""

IN_DOUBT, PROPOSED, OWED = "doubt", "proposed", "owed"
ABANDONED, UNTOLD, UNREADABLE = "abandoned", "untold", "unreadable"
KINDS = (IN_DOUBT, PROPOSED, OWED, ABANDONED, UNTOLD, UNREADABLE)
"""Why a key waits; it may be for several reasons."""

_NOTHING = Decimal(0)
_SINCE = attrgetter("since")


@frozen(kw_only=True)
class Row:
    """A key that waits.

    Args:
        key: the key.
        kinds: of `KINDS`, in their order.
        since: when work on it began, in seconds since 1970; minus infinity where that cannot be told.
        amount: what the poster is to pay, if that is still known.
        weight: about so much, as a float: the lines are sorted by it.
        currency: of the amount; empty if it is not known.
        cause: why, in a few words; empty if it is not known.
        by: who has proposed how it ends.
        has_candidate: an answer named an order.
    """

    key: str
    kinds: tuple[str, ...]
    since: float
    amount: Decimal | None
    weight: float
    currency: str
    cause: str
    by: str | None
    has_candidate: bool

    @property
    def is_dated(self) -> bool:
        """Whether its age can be told."""
        return math.isfinite(self.since)


class PendingKeysSnapshot:
    """What waited when the journal was read.

    Args:
        lines: of the keys, the oldest first.
        beyond: how many keys are not among them, for there are too many.
        read_at: when the reading began.
        is_complete: whether it has come to its end.

    Attributes:
        chosen: lines that somebody has asked for, by how: see `listing`.
    """

    def __init__(
        self, *, lines: list[Row], beyond: int = 0, read_at: datetime, is_complete: bool = True
    ) -> None:
        self.lines: list[Row] = lines
        self.beyond: int = beyond
        self.read_at: datetime = read_at
        self.is_complete: bool = is_complete
        self.chosen: dict[object, list[Row]] = {}
        _ = self.counts, self.stakes, self.causes  # counted in the background, and not for a request

    def changed(self, key: str, line: Row | None) -> PendingKeysSnapshot:
        """Return the same with ``line`` in place of the key's; what nobody asks for is not counted anew."""
        made = copy.copy(self)
        for name in ("counts", "stakes", "causes"):
            made.__dict__.pop(name, None)
        made.lines = [item for item in self.lines if item.key != key]
        if line is not None:
            bisect.insort(made.lines, line, key=_SINCE)
        made.chosen = {}
        return made

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many keys wait for which reason."""
        counts = dict.fromkeys(KINDS, 0)
        for line in self.lines:
            for kind in line.kinds:
                counts[kind] += 1
        return counts

    @cached_property
    def stakes(self) -> dict[str, dict[str, Decimal]]:
        """By currency, and for which reason, how much is at stake."""
        stakes: dict[str, dict[str, Decimal]] = {}
        for line in self.lines:
            if line.amount is not None:
                sums = stakes.setdefault(line.currency, dict.fromkeys(KINDS, _NOTHING))
                for kind in line.kinds:
                    sums[kind] += line.amount
        return dict(sorted(stakes.items()))

    @cached_property
    def causes(self) -> tuple[str, ...]:
        """Why keys are in doubt, each once."""
        return tuple(sorted({line.cause for line in self.lines} - {""}))


class PendingKeysCache:
    """What waits, as it was read last; read again, in the background, when somebody asks and it is old.

    Args:
        operators: where it is read.
        clock: how old a reading is.
    """

    def __init__(self, operators: Operators, clock: Clock) -> None:
        self._operators, self._clock = operators, clock
        self._snapshot = PendingKeysSnapshot(lines=[], read_at=clock.utc(), is_complete=False)
        self._reading: asyncio.Task[None] | None = None
        self._as_of = float("-inf")
        """When the reading of a complete list began."""

        self._changed: dict[str, Row | None] = {}

    async def shown(self) -> PendingKeysSnapshot:
        """What there is to show: new if the journal is small, else what the last reading found.

        A list is shown for no longer than `LATE` seconds after it should have been read again; then what the
        reading has found so far takes its place.

        Raises:
            JournalFailed: the journal could not be read just now.
        """
        if self._snapshot.is_complete and self._age >= self._fresh_for + LATE:
            self._snapshot = PendingKeysSnapshot(lines=[], read_at=self._clock.utc(), is_complete=False)
        joined = self._reading
        reading = self._read_again()
        if reading is not None:
            await asyncio.wait([reading], timeout=PATIENCE)
            if reading is joined and _has_failed(reading):
                # It began before anybody asked for this page: the journal may have recovered since.
                reading = self._read_again() or reading
                await asyncio.wait([reading], timeout=PATIENCE)
            if reading.done():
                reading.result()
        return self._snapshot

    async def at_hand(self) -> PendingKeysSnapshot:
        """Return the list as it is, without an error: nobody waits for it, but where there is none yet."""
        if self._snapshot.is_complete:
            self._read_again()
        else:
            with contextlib.suppress(JournalFailed):
                await self.shown()
        return self._snapshot

    def changed(self, view: KeyView) -> None:
        """Somebody changed a key at this desk: it shows at once, whatever is read meanwhile."""
        if view.key == FOUR_EYES:  # the scope's own entry, which no list shows
            return
        line = line_of(view)
        if self._reading is not None:
            self._changed[view.key] = line
        self._snapshot = self._snapshot.changed(view.key, line)

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    # --- reading --------------------------------------------------------------------------------

    @property
    def _fresh_for(self) -> float:
        return FRESH + PER_KEY * len(self._snapshot.lines)

    @property
    def _age(self) -> float:
        return self._clock.now() - self._as_of

    def _read_again(self) -> asyncio.Task[None] | None:
        """The reading that is under way, which begins here if what there is has become old."""
        if self._reading is None and self._age >= self._fresh_for:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._ended)
        return self._reading

    def _ended(self, reading: asyncio.Task[None]) -> None:
        """Forget a reading that has ended: if it has failed, whoever asks next begins another."""
        self._reading = None
        _has_failed(reading)  # so that asyncio does not report an error that nobody waited for

    async def _read(self) -> None:
        began, read_at, beyond, last = self._clock.now(), self._clock.utc(), 0, ""
        lines: list[Row] = []
        self._changed.clear()
        pages = 0
        while page := await self._page(after=last):
            found = [line for view in page if (line := line_of(view)) is not None]
            room = MOST - len(lines)
            lines += found[:room]
            beyond += len(found[room:])
            last = page[-1].key
            if not self._snapshot.is_complete and len(lines) >= 2 * len(self._snapshot.lines):
                # What there is, of a large journal that nobody has seen yet.
                self._snapshot = PendingKeysSnapshot(
                    lines=self._with_changes(lines), beyond=beyond, read_at=read_at, is_complete=False
                )
            pages += 1
            await (asyncio.sleep(0) if pages < AT_ONCE else self._clock.sleep(PAUSE))
        self._snapshot = PendingKeysSnapshot(lines=self._with_changes(lines), beyond=beyond, read_at=read_at)
        self._as_of = began

    async def _page(self, *, after: str) -> tuple[KeyView, ...]:
        try:
            async with asyncio.timeout(ANSWER):
                return await self._operators.page(limit=PAGE, after=after)
        except TimeoutError:
            raise JournalFailed(f"the journal did not answer within {ANSWER:.0f} s") from None

    def _with_changes(self, lines: list[Row]) -> list[Row]:
        """A list of its own, with what was changed at this desk since the reading began; the oldest first."""
        changed = [line for line in self._changed.values() if line is not None]
        return sorted([line for line in lines if line.key not in self._changed] + changed, key=_SINCE)


def _has_failed(reading: asyncio.Task[None]) -> bool:
    return reading.done() and not reading.cancelled() and reading.exception() is not None


def line_of(view: KeyView) -> Row | None:
    """The line of a key; None if it waits for nobody."""
    kinds = kinds_of(view)
    if not kinds:
        return None
    order = view.order
    return Row(
        key=view.key,
        kinds=kinds,
        since=began_at(view),
        amount=None if order is None else order.poster_amount,
        weight=0.0 if order is None else float(order.poster_amount),
        currency="" if order is None else sys.intern(order.poster_currency),
        cause=view.cause_in_short,
        by=None if view.proposal is None else view.proposal.by,
        has_candidate=bool(view.candidates),
    )


def began_at(view: KeyView) -> float:
    """When work on it began; where that cannot be told, it is shown first."""
    return -math.inf if view.began is None else view.began.timestamp()


def kinds_of(view: KeyView) -> tuple[str, ...]:
    """Why the key waits; empty if it does not."""
    return _KINDS_OF[
        view.state is KeyState.IN_DOUBT,
        view.proposal is not None,
        bool(view.owed),
        view.state in (KeyState.CLAIMED, KeyState.SENDING),
        bool(view.untold),
        not view.readable,
    ]


def _every_combination() -> dict[tuple[bool, ...], tuple[str, ...]]:
    """Each is made once: a hundred thousand lines share them."""
    flags: list[tuple[bool, ...]] = [()]
    for _ in KINDS:
        flags = [(*flag, has) for flag in flags for has in (False, True)]
    return {flag: tuple(kind for kind, has in zip(KINDS, flag, strict=True) if has) for flag in flags}


_KINDS_OF = _every_combination()


# --- listing -----------------------------------------------------------------------------------------
# The list of what waits: which lines, in which order, which page of them; all of it from the address.


PER_PAGE = 50
KEPT = 8
"""How many choices of one snapshot are kept: somebody pages through one of them."""

SORTS: dict[str, tuple[Callable[[Row], Any], bool]] = {
    "age": (attrgetter("since"), False),  # the oldest first
    "amount": (attrgetter("weight"), True),  # the largest first
    "cause": (attrgetter("cause"), False),
    "key": (attrgetter("key"), False),
}
"""What may be sorted by, and whether the largest come first: floats and texts, for there may be many."""

_DEFAULT = "age"
_GREATEST_FIRST = ("age", "amount")


@frozen(kw_only=True)
class Choice:
    """What somebody wants to see; what is not known is as if it were not asked for.

    Nothing of it is free text: an address is kept in logs.
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
        """What an address asks for, of what there is in ``snapshot``."""
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

    def at(self, page: int) -> Choice:
        """The same, on that page."""
        return attrs.evolve(self, page=page)

    def address(self, **changes: Any) -> str:
        """The address, within the desk, of this choice with ``changes``."""
        wanted = attrs.asdict(attrs.evolve(self, **changes))
        given = {name: int(value) if isinstance(value, bool) else value for name, value in wanted.items()}
        query = {name: value for name, value in given.items() if value != _UNCHOSEN[name]}
        return f"./?{urlencode(query)}" if query else "./"

    @property
    def is_descending(self) -> bool:
        """Whether what the sorted column shows gets smaller: the oldest first is the greatest age first."""
        return self.turned != (self.sort in _GREATEST_FIRST)

    def sorted_by(self, sort: str) -> str:
        """The address of the same, sorted by ``sort``; or the other way round, if it is already."""
        return self.address(sort=sort, turned=sort == self.sort and not self.turned, page=1)


def _among(given: str | None, known: Collection[str]) -> str:
    return given if given is not None and given in known else ""


_UNCHOSEN = attrs.asdict(Choice())


@frozen(kw_only=True)
class Listing:
    """A page of what was chosen.

    Args:
        lines: of this page.
        number: how many were chosen, on all pages.
        page: the page's number, from 1.
        pages: how many there are; at least one.
    """

    lines: list[Row]
    number: int
    page: int
    pages: int


def listing(snapshot: PendingKeysSnapshot, choice: Choice) -> Listing:
    """The page of ``snapshot`` that was chosen; the last one for whoever asks for one beyond."""
    chosen = _chosen(snapshot, choice)
    pages = max(1, -(-len(chosen) // PER_PAGE))
    page = min(max(1, choice.page), pages)
    return Listing(
        lines=chosen[(page - 1) * PER_PAGE : page * PER_PAGE], number=len(chosen), page=page, pages=pages
    )


def next_after(snapshot: PendingKeysSnapshot, key: str, *, since: float) -> Row | None:
    """The line after the key's, the oldest first, whether it waits still or not; after the last, the first.

    Args:
        snapshot: what waits.
        key: the key.
        since: when work on it began.
    """
    oldest, by_age = _chosen(snapshot, Choice()), SORTS["age"][0]
    begin = bisect_left(oldest, since, key=by_age)
    at_once = oldest[begin : bisect_right(oldest, since, key=by_age)]
    before = next((number + 1 for number, line in enumerate(at_once) if line.key == key), 0)
    there = oldest[begin + before : begin + before + 1] + oldest[:1]
    return next((line for line in there if line.key != key), None)


def found_by_text(snapshot: PendingKeysSnapshot, text: str) -> list[Row]:
    """Lines whose keys hold ``text``, whatever its case; the oldest first."""
    wanted = text.casefold()
    return [line for line in _chosen(snapshot, Choice()) if wanted in line.key.casefold()]


def _chosen(snapshot: PendingKeysSnapshot, choice: Choice) -> list[Row]:
    which = (choice.kind, choice.currency, choice.cause, choice.sort, choice.turned)
    kept = snapshot.chosen
    if which not in kept:
        if len(kept) >= KEPT:
            del kept[next(iter(kept))]
        kept[which] = _sorted(_wanted(snapshot.lines, choice), choice)
    return kept[which]


def _wanted(lines: list[Row], choice: Choice) -> list[Row]:
    """A list of its own."""
    kind, currency, cause = choice.kind, choice.currency, choice.cause
    if kind:
        lines = [line for line in lines if kind in line.kinds]
    if currency:
        lines = [line for line in lines if line.currency == currency]
    if cause:
        lines = [line for line in lines if line.cause == cause]
    return lines[:]


def _sorted(lines: list[Row], choice: Choice) -> list[Row]:
    by, largest_first = SORTS[choice.sort]
    lines.sort(key=by, reverse=choice.turned != largest_first)
    if choice.sort == "amount":  # amounts of two currencies are not compared
        lines.sort(key=attrgetter("currency"))
    return lines
