"""Compare the orders in an export with the keys in a journal, using a temporary database on disk.

An order fits a key in doubt if it has the same users, currencies and amounts, and was posted while the key's
requests could take effect. An order is a match if no other order fits the key, the order belongs to no key,
and it cannot have been sent for another key, not even for a refuted key. Refuted keys are included because a
refutation may be a mistake. An order's absence from the export proves nothing, because the order may appear
later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from attrs import astuple, evolve, frozen

from transfer_async._cli.output import TemporaryDatabase
from transfer_async._models import requests
from transfer_async._models.requests import NewOrder
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.model import Entry, HistoryEvent, KeyState
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.journal.transitions import Create, MarkSending, Refute

MAX_NAMED = 5  # maximum number of orders, and of keys, in one finding

_TABLES = """
CREATE TABLE orders (
    id TEXT PRIMARY KEY, content TEXT NOT NULL, posted_at REAL NOT NULL, key TEXT, known_at REAL
) WITHOUT ROWID;
CREATE TABLE keys (
    key TEXT, content TEXT, since REAL NOT NULL, until REAL NOT NULL, in_doubt INTEGER NOT NULL,
    was_refuted INTEGER NOT NULL, found TEXT, order_id TEXT
);
CREATE TABLE resolved (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE lacking (key TEXT NOT NULL, order_id TEXT NOT NULL);
CREATE TABLE wrong (key TEXT, order_id TEXT, content TEXT, since REAL NOT NULL, until REAL NOT NULL);
"""


@frozen
class ExportedOrder:
    """An order in the export."""

    order_id: str
    content: str  # see `order_content`
    posted_at: float  # the time it was posted, in seconds since 1970
    has_zone: bool = True  # whether that time has a zone; without one, it was read as UTC


@frozen
class Sender:
    """A key for which an order may have been sent."""

    key: str
    content: str | None  # see `order_content`; None if it is unknown, so that any order fits
    since: float  # the earliest time at which its order may have been posted, in seconds since 1970
    until: float  # the latest time at which it may have been posted
    is_in_doubt: bool  # whether the key is in doubt; only then its order is searched
    was_refuted: bool = False  # whether a doubt of the key was refuted


# --- findings ----------------------------------------------------------------------------------------


@frozen
class Match:
    """A key in doubt, and the only order that fits it."""

    kind: ClassVar[str] = "matched"
    key: str
    order_id: str


@frozen
class Ambiguous:
    """A key in doubt with several matching orders, or with one that may also belong to another key."""

    kind: ClassVar[str] = "ambiguous"
    key: str
    order_ids: tuple[str, ...]
    refuted: tuple[str, ...] = ()


@frozen
class NotFound:
    """A key in doubt for which the export contains no matching order. The order may still exist."""

    kind: ClassVar[str] = "not_found"
    key: str


@frozen
class Unknown:
    """An order that belongs to no key.

    The order may be a duplicate of ``like``, which belongs to ``like_key``.
    """

    kind: ClassVar[str] = "unknown"
    order_id: str
    like: str | None
    like_key: str | None


@frozen
class Lacking:
    """A key whose order is missing from the export, although the export covers the order's creation time."""

    kind: ClassVar[str] = "lacking"
    key: str
    order_id: str


@frozen
class WrongOrder:
    """A key resolved with an order that does not match it. ``fitting`` lists the orders that match."""

    kind: ClassVar[str] = "wrong_order"
    key: str
    order_id: str
    fitting: tuple[str, ...] = ()


Finding = Match | Ambiguous | NotFound | Unknown | Lacking | WrongOrder


# --- the comparison ----------------------------------------------------------------------------------


class Comparison(TemporaryDatabase):
    """The orders, the keys and the findings. `Comparison` is a context manager.

    First add the orders in the export, then the keys for which an order may have been sent, and then the
    known orders. In any other sequence, the comparison can miss a key that is settled between two steps.

    Attributes:
        first: the time of the earliest order in the export; infinity if there is none.
        last: the time of the latest order in the export; minus infinity if there is none.
        has_zones: whether the time of every order has a time zone.
    """

    def __init__(self) -> None:
        super().__init__(_TABLES)
        self.first, self.last = math.inf, -math.inf
        self.has_zones = True

    def add_order(self, order: ExportedOrder) -> bool:
        """Add an order in the export. Return false if the order was already added with different values."""
        self.has_zones &= order.has_zone
        self.first, self.last = min(self.first, order.posted_at), max(self.last, order.posted_at)
        values = (order.order_id, order.content, order.posted_at)
        sql = "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL, NULL)"
        if self.database.execute(sql, values).rowcount:
            return True
        return bool(self._count("orders WHERE id = ? AND content = ? AND posted_at = ?", *values))

    def add_senders(self, senders: Iterable[Sender]) -> None:
        """Add keys for which an order may have been sent."""
        self.database.executemany(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)", map(astuple, senders)
        )

    def add_resolved(self, sender: Sender, order_id: str, *, claimed_at: float) -> None:
        """Add a key that a person resolved.

        If the order does not match the key, another order may have been sent for the key.
        """
        self.database.execute("INSERT OR IGNORE INTO resolved VALUES (?)", (sender.key,))
        found = self.database.execute(
            "SELECT content, posted_at FROM orders WHERE id = ?", (order_id,)
        ).fetchone()
        content, posted_at = found or (None, claimed_at)
        is_in_time = sender.since <= posted_at <= sender.until
        if found and is_in_time and content == sender.content:
            return
        self.add_senders([sender])
        if not found:
            self._add_lacking(sender.key, order_id, claimed_at)
        elif sender.content is not None or not is_in_time:
            values = (sender.key, order_id, sender.content, sender.since, sender.until)
            self.database.execute("INSERT INTO wrong VALUES (?, ?, ?, ?, ?)", values)

    def add_created(self, created: Iterable[tuple[str, str, float | None]]) -> None:
        """Add known orders, each as its id, its key, and the time at which the order became known."""
        for order_id, key, at in created:
            values = (key, at, order_id)
            if self.database.execute("UPDATE orders SET key = ?, known_at = ? WHERE id = ?", values).rowcount:
                continue
            if not self._count("resolved WHERE key = ?", key):
                self._add_lacking(key, order_id, at)

    def _add_lacking(self, key: str, order_id: str, at: float | None) -> None:
        if at is not None and self.first <= at <= self.last:
            self.database.execute("INSERT INTO lacking VALUES (?, ?)", (key, order_id))

    def times_agree(self, slack: float) -> bool:
        """Return whether at least one order was recorded in the journal at about the time it was posted."""
        return bool(self._count(f"orders WHERE {_AGREES}", slack))

    def other_times(self, slack: float, *, after: str, limit: int) -> list[tuple[str, str, float]]:
        """Return known orders whose recorded and posted times disagree: id, key and posted time."""
        where = f"key IS NOT NULL AND ({_AGREES}) IS NOT TRUE AND id > ? ORDER BY id LIMIT ?"
        sql = f"SELECT id, key, posted_at FROM orders WHERE {where}"  # noqa: S608 - both parts are in this file
        return self.database.execute(sql, (slack, after, limit)).fetchall()

    def compare(self) -> None:
        """Find the orders that match each key in doubt."""
        self.database.execute("CREATE INDEX unclaimed ON orders (content, posted_at, id) WHERE key IS NULL")
        self.database.execute("CREATE INDEX known ON orders (content, posted_at, id) WHERE key IS NOT NULL")
        self.database.execute("CREATE INDEX senders ON keys (content, until)")
        doubts = self.database.execute("SELECT rowid, key, content, since, until FROM keys WHERE in_doubt")
        while rows := doubts.fetchmany(1_000):
            found = [(*self._find(*doubt), rowid) for rowid, *doubt in rows]
            self.database.executemany("UPDATE keys SET found = ?, order_id = ? WHERE rowid = ?", found)
        self.database.execute("CREATE INDEX matched ON keys (order_id) WHERE order_id IS NOT NULL")

    def _find(self, key: str, content: str | None, since: float, until: float) -> tuple[str, str | None]:
        fitting = self._fitting(content, since, until, limit=2)
        if not fitting:
            return NotFound.kind, None
        if len(fitting) > 1 or self._other_keys(key, content, fitting[0][1], limit=1):
            return Ambiguous.kind, None
        return Match.kind, fitting[0][0]

    def _fitting(
        self, content: str | None, since: float, until: float, *, limit: int
    ) -> list[tuple[str, float]]:
        """Return orders with the given content that belong to no key and were posted in the given period."""
        where = "content = ? AND posted_at BETWEEN ? AND ? AND key IS NULL ORDER BY posted_at, id LIMIT ?"
        sql = f"SELECT id, posted_at FROM orders WHERE {where}"  # noqa: S608 - both parts are above
        return self.database.execute(sql, (content, since, until, limit)).fetchall()

    def _other_keys(
        self, key: str, content: str | None, posted_at: float, *, limit: int, kind: str = "true"
    ) -> list[str]:
        """Return other keys for which an order with the given content and posting time may have been sent.

        ``kind`` is an SQL condition that the keys must meet.
        """
        where = f"AND since <= ? AND until >= ? AND key <> ? AND {kind} LIMIT ?"
        found: list[str] = []
        for same_content, values in (("content = ?", [content]), ("content IS NULL", [])):
            sql = f"SELECT DISTINCT key FROM keys WHERE {same_content} {where}"  # noqa: S608 - all parts are in this file
            rows = self.database.execute(sql, (*values, posted_at, posted_at, key, limit))
            found += [found_key for (found_key,) in rows]
        return found[:limit]

    def figures(self) -> dict[str, int]:
        """Return the number of orders, of known orders, and of findings of each kind."""
        return {
            "orders": self._count("orders"),
            "known": self._count("orders WHERE key IS NOT NULL"),
            **{
                kind: self._count("keys WHERE found = ?", kind)
                for kind in ("matched", "ambiguous", "not_found")
            },
            "unknown": self._count(f"orders o WHERE {_UNKNOWN}"),
            "lacking": self._count("lacking"),
            "wrong_order": self._count("wrong"),
        }

    def matches(self) -> Iterator[Match]:
        """Yield the keys in doubt that have exactly one matching order."""
        for row in self.database.execute("SELECT key, order_id FROM keys WHERE found = 'matched'"):
            yield Match(*row)

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, one kind after another."""
        select = self.database.execute
        yield from self.matches()
        for key, *doubt in select("SELECT key, content, since, until FROM keys WHERE found = 'ambiguous'"):
            yield self._ambiguous(key, *doubt)
        yield from (NotFound(*row) for row in select("SELECT key FROM keys WHERE found = 'not_found'"))
        yield from (Unknown(*row) for row in select(_UNKNOWN_ORDERS))
        yield from (Lacking(*row) for row in select("SELECT key, order_id FROM lacking"))
        for key, order_id, *sent in select("SELECT key, order_id, content, since, until FROM wrong"):
            fitting = self._fitting(*sent, limit=MAX_NAMED)
            yield WrongOrder(key, order_id, tuple(found for found, _ in fitting))

    def _ambiguous(self, key: str, content: str | None, since: float, until: float) -> Ambiguous:
        fitting = self._fitting(content, since, until, limit=MAX_NAMED)
        refuted: dict[str, None] = {}
        for _, posted_at in fitting:
            found = self._other_keys(key, content, posted_at, limit=MAX_NAMED, kind="was_refuted")
            refuted |= dict.fromkeys(found)
        return Ambiguous(key, tuple(order_id for order_id, _ in fitting), tuple(refuted)[:MAX_NAMED])

    def _count(self, rows: str, *values: Any) -> int:
        sql = f"SELECT count(*) FROM {rows}"  # noqa: S608 - `rows` is written in this file
        found: int = self.database.execute(sql, values).fetchone()[0]
        return found


_AGREES = "abs(posted_at - known_at) <= ?"
_UNKNOWN = "o.key IS NULL AND NOT EXISTS (SELECT 1 FROM keys k WHERE k.order_id = o.id)"
_LIKE = "FROM orders l WHERE l.content = o.content AND l.key IS NOT NULL ORDER BY l.posted_at, l.id LIMIT 1"
_UNKNOWN_ORDERS = f"SELECT o.id, (SELECT l.id {_LIKE}), (SELECT l.key {_LIKE}) FROM orders o WHERE {_UNKNOWN}"  # noqa: S608


def order_content(poster: str, recipient: str, *sums: tuple[Decimal, str]) -> str:
    """Return an order's users, amounts and currencies as one string, for comparison.

    The comparison ignores trailing zeros in amounts, and the case of ASCII letters.
    """
    shown = (
        f"{amount.normalize(requests.EXACT):f} {requests.ascii_lower(currency)}" for amount, currency in sums
    )
    return "\n".join([*(requests.ascii_lower(user.strip()) for user in (poster, recipient)), *shown])


def content_of(order: NewOrder) -> str:
    """Return the `order_content` of an order in the journal."""
    sums = ((order.poster_amount, order.poster_currency), (order.matcher_amount, order.matcher_currency))
    return order_content(order.poster_username, order.poster_recipient_username, *sums)


# --- the journal -------------------------------------------------------------------------------------


PAGE = 500  # number of keys that are read at once
ROUNDING = 1.0  # seconds: an export may show times in whole seconds


@frozen(kw_only=True)
class PostingTime:
    """Calculates the period in which a key's order may have been posted."""

    slack: float  # the maximum difference of the service's clock from the journal's, in seconds
    settle_after: float  # seconds after the last possible send during which a request may still take effect
    since_1970: Callable[[float], float]  # converts the journal's seconds to seconds since 1970

    def sender(self, key: str, entry: Entry) -> Sender:
        """Return the `Sender` for a key in doubt."""
        since = self.since_1970(entry.claimed_at) - self.slack
        until = self._until(self.since_1970(entry.sent_until))
        if entry.unread is not None and not entry.unread.is_sealed:  # Its times may be damaged, too.
            since, until = -math.inf, math.inf
        content = None if entry.intent is None else content_of(entry.intent.order)
        return Sender(key, content, since, until, is_in_doubt=True)

    def refuted(self, key: str, entry: Entry, steps: Sequence[HistoryEvent]) -> Iterator[Sender]:
        """Yield a `Sender` for each refuted attempt of a key, because a refutation may be a mistake.

        The order's data is deleted once the undos of the refuted attempt are done. The content is
        then unknown, so any order posted at the time of the attempt matches.
        """
        marked = {step.attempt: step.at for step in steps if step.move == MarkSending.name}
        contents = {undo.intent.id: content_of(undo.intent.order) for undo in entry.pending_undos}
        for step in steps:
            if step.move != Refute.name:
                continue
            since = marked.get(step.attempt, math.nan) - self.slack
            is_last = entry.is_readable and step.attempt is not None and entry.attempt == step.attempt
            until = self._until(self.since_1970(entry.sent_until) if is_last else step.at)
            yield Sender(
                key,
                contents.get(step.intent_id),
                -math.inf if math.isnan(since) else since,
                math.inf if math.isnan(until) else until,
                is_in_doubt=False,
                was_refuted=True,
            )

    def _until(self, sent_until: float) -> float:
        return sent_until + self.settle_after + self.slack


async def add_journal(
    comparison: Comparison, journal: ScopedJournal, operators: Operators, *, slack: float, settle_after: float
) -> bool:
    """Add every key for which an order may have been sent, and then every known order.

    Returns:
        True if the journal confirms the time of at least one order in the export.

    Raises:
        ValueError: the time of an order in the export differs by more than ``slack`` from its time in the
            journal, or the journal does not implement ``orders`` or ``refuted``.
        JournalFailed: the journal could not be read.
    """
    utc = await operators.times()
    times = PostingTime(
        slack=slack, settle_after=settle_after, since_1970=lambda seconds: utc(seconds).timestamp()
    )
    doubts = dict(await journal.in_doubt())
    senders = [times.sender(key, entry) for key, entry in doubts.items()]
    await asyncio.to_thread(comparison.add_senders, senders)
    last = ""
    while page := await journal.unfinished(limit=PAGE, after=last):
        senders = [
            sender for key, entry in page if key not in doubts for sender in _other_senders(key, entry)
        ]
        await asyncio.to_thread(comparison.add_senders, senders)
        last = page[-1][0]
    await _add_refuted(comparison, journal, times)
    await _add_resolved(comparison, journal, times)
    last = ""
    while orders := await journal.orders(limit=PAGE, after=last):
        created = [(id_, key, None if at is None else times.since_1970(at)) for id_, key, at in orders]
        await asyncio.to_thread(comparison.add_created, created)
        last = orders[-1][0]
    return await _compare_clocks(comparison, journal, slack=slack + ROUNDING)


async def _compare_clocks(comparison: Comparison, journal: ScopedJournal, *, slack: float) -> bool:
    """Compare the export's times with the journal's.

    Return whether the time of at least one order could be compared.
    """
    is_compared = await asyncio.to_thread(comparison.times_agree, slack)
    # Other orders may have become known days later, for example when a person resolved them.
    last = ""
    while rows := await asyncio.to_thread(comparison.other_times, slack, after=last, limit=PAGE):
        for order_id, key, posted_at in rows:
            difference = _time_difference(order_id, posted_at, await journal.history(key))
            if difference is not None and difference > slack:
                raise ValueError(
                    f"EXPORT: nothing was compared, because posted_at of {order_id} differs by "
                    f"{difference:,.0f} s from the time in the journal for {key}. A time without a "
                    "time zone is read as UTC: export the times in UTC, or with an offset "
                    "(2026-01-31T13:00:00+01:00). If the service's clock really differs by that "
                    "much, increase --slack"
                )
            is_compared |= difference is not None
            last = order_id
    return is_compared


def _time_difference(order_id: str, posted_at: float, steps: Sequence[HistoryEvent]) -> float | None:
    """Return by how many seconds ``posted_at`` is too early or too late for the order.

    A correct time is between the sending and the recording of the order; its result is not positive. Return
    None if the order's id did not come from the service.
    """
    end = next((step for step in steps if step.move == Create.name and step.order_id == order_id), None)
    if end is None:  # A person gave the order's id, which may be wrong.
        return None
    marks = [step.at for step in steps if step.move == MarkSending.name and step.attempt == end.attempt]
    return max(min([end.at, *marks]) - posted_at, posted_at - end.at)


async def _add_refuted(comparison: Comparison, journal: ScopedJournal, times: PostingTime) -> None:
    async for key, entry in _entries(journal, journal.refuted):
        attempts = list(times.refuted(key, entry, await journal.history(key)))
        await asyncio.to_thread(comparison.add_senders, attempts)


async def _add_resolved(comparison: Comparison, journal: ScopedJournal, times: PostingTime) -> None:
    """Add every key whose order id a person gave, because that id may be wrong."""
    async for key, entry in _entries(journal, journal.resolved):
        if entry.is_amendable and entry.order_id is not None:
            sender = evolve(times.sender(key, entry), is_in_doubt=False)
            claimed_at = times.since_1970(entry.claimed_at)
            await asyncio.to_thread(comparison.add_resolved, sender, entry.order_id, claimed_at=claimed_at)


async def _entries(
    journal: ScopedJournal, fetch: Callable[..., Awaitable[tuple[list[str], str]]]
) -> AsyncIterator[tuple[str, Entry]]:
    after = ""
    while True:
        keys, after = await fetch(after=after)
        for key in dict.fromkeys(keys):
            entry = await journal.read(key)
            if entry is not None:  # The key may have been deleted since.
                yield key, entry
        if not after:
            return


def _other_senders(key: str, entry: Entry) -> Iterator[Sender]:
    """Yield a `Sender` for each order that may have been sent for a key that was not in doubt."""
    intents = [undo.intent for undo in entry.pending_undos]
    if entry.state in (KeyState.SENDING, KeyState.IN_DOUBT) and entry.intent is not None:
        intents.append(entry.intent)
    contents: set[str | None] = {content_of(intent.order) for intent in intents}
    for content in contents if entry.is_readable else {None}:
        yield Sender(key, content, -math.inf, math.inf, is_in_doubt=False)
