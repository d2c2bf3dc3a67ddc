"""What waits, a line a key, read from the journal in the background: what a request costs does not grow.

A journal gives its keys a page at a time, each with all that is on record of it. Of that, a line keeps
what a list shows, some hundred bytes. How often the journal is read again depends on how much there is to
read; what somebody changes at this desk shows at once, and a key's own page always asks the journal.
"""

from __future__ import annotations

import asyncio
import math
import sys
from datetime import datetime
from decimal import Decimal

from attrs import field, frozen

from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock
from transfer_async.desk import words
from transfer_async.journal.entries import KeyState

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

IN_DOUBT, PROPOSED, OWED = "doubt", "proposed", "owed"
ABANDONED, UNTOLD, UNREADABLE = "abandoned", "untold", "unreadable"
KINDS = (IN_DOUBT, PROPOSED, OWED, ABANDONED, UNTOLD, UNREADABLE)
"""Why a key waits; it may be for several reasons."""

_NOTHING = Decimal(0)


@frozen(kw_only=True)
class Line:
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


@frozen(kw_only=True)
class Snapshot:
    """What waited when the journal was read.

    Args:
        lines: in the journal's own order.
        beyond: how many keys are not among them, for there are too many.
        read_at: when the reading began.
        is_complete: whether it has come to its end.
        counts: how many keys wait for which reason.
        stakes: by currency, and for which reason, how much.
        causes: why keys are in doubt, each once.
        chosen: lines that somebody has asked for, by how: see `listing`.
    """

    lines: list[Line]
    beyond: int = 0
    read_at: datetime
    is_complete: bool = True
    counts: dict[str, int] = field(init=False)
    stakes: dict[str, dict[str, Decimal]] = field(init=False)
    causes: tuple[str, ...] = field(init=False)
    chosen: dict[object, list[Line]] = field(init=False, factory=dict)

    @counts.default
    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(KINDS, 0)
        for line in self.lines:
            for kind in line.kinds:
                counts[kind] += 1
        return counts

    @stakes.default
    def _stakes(self) -> dict[str, dict[str, Decimal]]:
        stakes: dict[str, dict[str, Decimal]] = {}
        for line in self.lines:
            if line.amount is not None:
                sums = stakes.setdefault(line.currency, dict.fromkeys(KINDS, _NOTHING))
                for kind in line.kinds:
                    sums[kind] += line.amount
        return dict(sorted(stakes.items()))

    @causes.default
    def _causes(self) -> tuple[str, ...]:
        return tuple(sorted({line.cause for line in self.lines} - {""}))


class Board:
    """What waits, as it was read last; read again, in the background, when somebody asks and it is old.

    Args:
        operators: where it is read.
        clock: how old a reading is.
    """

    def __init__(self, operators: Operators, clock: Clock) -> None:
        self._operators, self._clock = operators, clock
        self._snapshot = Snapshot(lines=[], read_at=clock.utc(), is_complete=False)
        self._reading: asyncio.Task[None] | None = None
        self._begun = float("-inf")
        self._changed: dict[str, Line | None] = {}

    async def shown(self) -> Snapshot:
        """What there is to show: new if the journal is small, else what the last reading found.

        Raises:
            JournalFailed: the journal could not be read.
        """
        if self._reading is None and self._is_old():
            self._begun = self._clock.now()
            self._reading = asyncio.create_task(self._read())
        if (reading := self._reading) is not None:
            await asyncio.wait([reading], timeout=PATIENCE)
            if reading.done():
                self._ended(reading)
        return self._snapshot

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if self._reading is reading:
            self._reading = None
        try:
            reading.result()
        except BaseException:
            self._begun = float("-inf")  # whoever asks next tries again
            raise

    def changed(self, view: KeyView) -> None:
        """Somebody changed a key at this desk: it shows at once, whatever is read meanwhile."""
        self._changed[view.key] = line = line_of(view)
        lines = [one for one in self._snapshot.lines if one.key != view.key]
        self._show(lines if line is None else [*lines, line])
        self._begun = float("-inf") if self._reading is None else self._begun

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _is_old(self) -> bool:
        return self._clock.now() - self._begun >= FRESH + PER_KEY * len(self._snapshot.lines)

    def _show(self, lines: list[Line]) -> None:
        was = self._snapshot
        self._snapshot = Snapshot(
            lines=lines, beyond=was.beyond, read_at=was.read_at, is_complete=was.is_complete
        )

    async def _read(self) -> None:
        read_at, beyond, last = self._clock.utc(), 0, ""
        lines: list[Line] = []
        self._changed.clear()
        pages = 0
        while page := await self._operators.page(limit=PAGE, after=last):
            found = [line for view in page if (line := line_of(view)) is not None]
            room = MOST - len(lines)
            lines += found[:room]
            beyond += len(found[room:])
            last = page[-1].key
            if not self._snapshot.is_complete and len(lines) >= 2 * len(self._snapshot.lines):
                self._show(lines[:])  # what there is, of a large journal that nobody has seen yet
            pages += 1
            await (asyncio.sleep(0) if pages < AT_ONCE else self._clock.sleep(PAUSE))
        if self._changed:
            lines = [line for line in lines if line.key not in self._changed]
            lines += [line for line in self._changed.values() if line is not None]
        self._snapshot = Snapshot(lines=lines, beyond=beyond, read_at=read_at)


def line_of(view: KeyView) -> Line | None:
    """The line of a key; None if it waits for nobody."""
    kinds = kinds_of(view)
    if not kinds:
        return None
    order = view.order
    return Line(
        key=view.key,
        kinds=kinds,
        since=began_at(view),
        amount=None if order is None else order.poster_amount,
        weight=0.0 if order is None else float(order.poster_amount),
        currency="" if order is None else sys.intern(order.poster_currency),
        cause=words.cause_in_short(view.cause),
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
        flags = [(*one, has) for one in flags for has in (False, True)]
    return {one: tuple(kind for kind, has in zip(KINDS, one, strict=True) if has) for one in flags}


_KINDS_OF = _every_combination()
