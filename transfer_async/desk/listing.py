"""The list of what waits: which lines, in which order, which page of them; all of it from the address."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

import attrs
from attrs import frozen

from transfer_async.desk.board import KINDS, Line, Snapshot

PER_PAGE = 50
KEPT = 8
"""How many choices of one snapshot are kept: somebody pages through one of them."""

SORTS: dict[str, tuple[Callable[[Line], Any], bool]] = {
    "age": (attrgetter("since"), False),  # the oldest first
    "amount": (attrgetter("weight"), True),  # the largest first
    "cause": (attrgetter("cause"), False),
    "key": (attrgetter("key"), False),
}
"""What may be sorted by, and whether the largest come first: floats and texts, for there may be many."""

_DEFAULT = "age"


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
    still: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str], snapshot: Snapshot) -> Choice:
        """What an address asks for, of what there is in ``snapshot``."""
        page = query.get("page", "")
        return cls(
            kind=_among(query.get("kind"), KINDS),
            currency=_among(query.get("currency"), snapshot.stakes),
            cause=_among(query.get("cause"), snapshot.causes),
            sort=_among(query.get("sort"), SORTS) or _DEFAULT,
            turned=query.get("turned") == "1",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
            still=query.get("still") == "1",
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

    lines: list[Line]
    number: int
    page: int
    pages: int


def listing(snapshot: Snapshot, choice: Choice) -> Listing:
    """The page of ``snapshot`` that was chosen; the last one for whoever asks for one beyond."""
    chosen = _chosen(snapshot, choice)
    pages = max(1, -(-len(chosen) // PER_PAGE))
    page = min(max(1, choice.page), pages)
    return Listing(
        lines=chosen[(page - 1) * PER_PAGE : page * PER_PAGE], number=len(chosen), page=page, pages=pages
    )


def next_after(snapshot: Snapshot, key: str, *, since: float) -> Line | None:
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


def found_by_text(snapshot: Snapshot, text: str) -> list[Line]:
    """Lines whose keys hold ``text``, whatever its case; the oldest first."""
    wanted = text.casefold()
    return [line for line in _chosen(snapshot, Choice()) if wanted in line.key.casefold()]


def _chosen(snapshot: Snapshot, choice: Choice) -> list[Line]:
    which = (choice.kind, choice.currency, choice.cause, choice.sort, choice.turned)
    kept = snapshot.chosen
    if which not in kept:
        if len(kept) >= KEPT:
            del kept[next(iter(kept))]
        kept[which] = _sorted(_wanted(snapshot.lines, choice), choice)
    return kept[which]


def _wanted(lines: list[Line], choice: Choice) -> list[Line]:
    """A list of its own."""
    kind, currency, cause = choice.kind, choice.currency, choice.cause
    if kind:
        lines = [line for line in lines if kind in line.kinds]
    if currency:
        lines = [line for line in lines if line.currency == currency]
    if cause:
        lines = [line for line in lines if line.cause == cause]
    return lines[:]


def _sorted(lines: list[Line], choice: Choice) -> list[Line]:
    by, largest_first = SORTS[choice.sort]
    lines.sort(key=by, reverse=choice.turned != largest_first)
    if choice.sort == "amount":  # amounts of two currencies are not compared
        lines.sort(key=attrgetter("currency"))
    return lines
