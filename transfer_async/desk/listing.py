"""The list of what waits: which lines, in which order, which page of them; all of it from the address."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlencode

import attrs
from attrs import frozen

from transfer_async.desk.board import KINDS, Line, Snapshot

PER_PAGE = 50
KEPT = 8
"""How many choices of one snapshot are kept: somebody pages through one of them."""

SORTS: dict[str, Callable[[Line], Any]] = {
    "age": lambda line: line.since,  # the oldest first
    "amount": lambda line: 0.0 if line.amount is None else -float(line.amount),  # the largest first
    "cause": lambda line: line.cause,
    "key": lambda line: line.key,
}
"""What may be sorted by, and how: as floats and texts, which a hundred thousand of are sorted at once."""

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


def next_after(snapshot: Snapshot, key: str) -> Line | None:
    """The line after the key's, the oldest first; the first of all, if the key waits no more or is last."""
    oldest = _chosen(snapshot, Choice())
    at = next((number for number, line in enumerate(oldest) if line.key == key), -1)
    return next((line for line in (*oldest[at + 1 : at + 2], *oldest[:1]) if line.key != key), None)


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
        kept[which] = _sorted([line for line in snapshot.lines if _is_wanted(line, choice)], choice)
    return kept[which]


def _is_wanted(line: Line, choice: Choice) -> bool:
    return (
        (not choice.kind or choice.kind in line.kinds)
        and (not choice.currency or choice.currency == line.currency)
        and (not choice.cause or choice.cause == line.cause)
    )


def _sorted(lines: list[Line], choice: Choice) -> list[Line]:
    lines.sort(key=SORTS[choice.sort], reverse=choice.turned)
    if choice.sort == "amount":  # amounts of two currencies are not compared
        lines.sort(key=lambda line: line.currency)
    return lines
