"""An export and a journal side by side, in a temporary database: as large as the disk, and not as memory.

An order of the export belongs to a doubt where it is the only one that fits: the same users, currencies
and amounts, posted while the doubt's requests can have taken effect, known by no other key, and no other
key that may have sent the same: nor one whose doubt was refuted, for whoever did so may have been wrong.
That an order is *not* in the export proves nothing: it may come later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from attrs import astuple, evolve, frozen

from transfer_async._cli.output import TemporaryDatabase
from transfer_async._models import requests
from transfer_async._models.requests import NewOrder
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.model import Decision, Entry, HistoryEvent, KeyState
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.journal.transitions import Create, MarkSending, Refute

SHOWN = 5
"""How many orders, or keys, are named for a doubt that more than one fits."""

_TABLES = """
CREATE TABLE orders (
    id TEXT PRIMARY KEY, wish TEXT NOT NULL, posted_at REAL NOT NULL, key TEXT, known_at REAL
) WITHOUT ROWID;
CREATE TABLE keys (
    key TEXT, wish TEXT, since REAL NOT NULL, until REAL NOT NULL, in_doubt INTEGER NOT NULL,
    was_refuted INTEGER NOT NULL, found TEXT, order_id TEXT
);
CREATE TABLE resolved (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE lacking (key TEXT NOT NULL, order_id TEXT NOT NULL);
CREATE TABLE wrong (key TEXT, order_id TEXT, wish TEXT, since REAL NOT NULL, until REAL NOT NULL);
"""


@frozen
class Sender:
    """A key that may have sent an order.

    Args:
        key: the key.
        wish: what it wished for; None if that cannot be read: any order may be its own.
        since: no order of it was posted before.
        until: nor after.
        is_in_doubt: its order is looked for.
        was_refuted: somebody has said that there is none.
    """

    key: str
    wish: str | None
    since: float
    until: float
    is_in_doubt: bool
    was_refuted: bool = False


@frozen
class Match:
    """The one order that fits a doubt."""

    key: str
    order_id: str


@frozen
class Ambiguous:
    """A doubt that more than one order fits, or whose order fits more than one key.

    Args:
        key: the key in doubt.
        order_ids: the first orders that fit.
        refuted: some keys that were refuted, and may have sent one of these.
    """

    key: str
    order_ids: tuple[str, ...]
    refuted: tuple[str, ...] = ()


@frozen
class NotFound:
    """A doubt that no order of the export fits: which proves nothing."""

    key: str


@frozen
class Unknown:
    """An order at the service that no key has: somebody else's, or a duplicate.

    Args:
        order_id: the order.
        like: an order of the same users, currencies and amounts that a key does have.
        like_key: that key.
    """

    order_id: str
    like: str | None
    like_key: str | None


@frozen
class Lacking:
    """A key whose order the export lacks, although it was created in the export's time."""

    key: str
    order_id: str


@frozen
class WrongOrder:
    """A key that was resolved with an order of other users, amounts or time: somebody gave a wrong id.

    Args:
        key: the key.
        order_id: the order that it was resolved with.
        fitting: the first orders that fit it, and that no key has.
    """

    key: str
    order_id: str
    fitting: tuple[str, ...] = ()


Finding = Match | Ambiguous | NotFound | Unknown | Lacking | WrongOrder


@frozen
class ExportedOrder:
    """An order that the service has.

    Args:
        order_id: its id.
        wish: see `wish`.
        posted_at: in seconds since 1970.
        has_zone: whether the export names the zone of that time; without one it is read as UTC.
    """

    order_id: str
    wish: str
    posted_at: float
    has_zone: bool = True


class Books(TemporaryDatabase):
    """What was compared, and what was found; a context manager.

    First the orders of the export, then the keys that may have sent one, then those whose order is known:
    in another order, a key that is settled meanwhile would be seen in neither of its states.
    """

    def __init__(self) -> None:
        super().__init__(_TABLES)
        self.first: float | None = None
        self.last = 0.0
        self.has_zones = True
        """Whether every order of the export names the zone of its time."""

    # --- what is compared -------------------------------------------------------------------------

    def add_order(self, order: ExportedOrder) -> bool:
        """An order of the export; false if it stands there twice, and not the same."""
        self.has_zones &= order.has_zone
        values = (order.order_id, order.wish, order.posted_at)
        if self.database.execute(
            "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL, NULL)", values
        ).rowcount:
            return True
        same = "SELECT count(*) FROM orders WHERE id = ? AND wish = ? AND posted_at = ?"
        return bool(self._one(same, *values))

    def all_orders_added(self) -> None:
        """From here on it is known when the first and the last were posted."""
        span = "SELECT min(posted_at), max(posted_at) FROM orders"
        self.first, self.last = self.database.execute(span).fetchone()

    def add_senders(self, senders: Iterable[Sender]) -> None:
        """Keys that may have sent an order."""
        self.database.executemany(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)", map(astuple, senders)
        )

    def add_resolved(self, sender: Sender, order_id: str, *, claimed_at: float) -> None:
        """A key that was resolved with an id: unless the order fits, the key may have sent another."""
        self.database.execute("INSERT OR IGNORE INTO resolved VALUES (?)", (sender.key,))
        found = self.database.execute(
            "SELECT wish, posted_at FROM orders WHERE id = ?", (order_id,)
        ).fetchone()
        wish, posted_at = found or (None, claimed_at)
        is_in_time = sender.since <= posted_at <= sender.until
        if found and is_in_time and wish == sender.wish:
            return
        self.add_senders([sender])
        if not found:
            self._add_lacking(sender.key, order_id, claimed_at)
        elif sender.wish is not None or not is_in_time:
            values = (sender.key, order_id, sender.wish, sender.since, sender.until)
            self.database.execute("INSERT INTO wrong VALUES (?, ?, ?, ?, ?)", values)

    def add_created(self, created: Iterable[tuple[str, str, float | None]]) -> None:
        """Orders that are known: their ids, their keys, and since when."""
        for order_id, key, at in created:
            values = (key, at, order_id)
            if self.database.execute("UPDATE orders SET key = ?, known_at = ? WHERE id = ?", values).rowcount:
                continue
            if not self._one("SELECT count(*) FROM resolved WHERE key = ?", key):
                self._add_lacking(key, order_id, at)

    def times_agree(self, slack: float) -> bool:
        """Whether an order is known since about when it was posted."""
        sql = f"SELECT EXISTS (SELECT 1 FROM orders WHERE {_AGREES})"  # noqa: S608 - all of it is in this file
        return bool(self._one(sql, slack))

    def other_times(self, slack: float, *, after: str, limit: int) -> list[tuple[str, str, float]]:
        """The orders that were not known when they were posted: their ids, their keys, and when that was."""
        where = f"key IS NOT NULL AND ({_AGREES}) IS NOT TRUE AND id > ? ORDER BY id LIMIT ?"
        sql = f"SELECT id, key, posted_at FROM orders WHERE {where}"  # noqa: S608 - both parts are in this file
        return self.database.execute(sql, (slack, after, limit)).fetchall()

    def _add_lacking(self, key: str, order_id: str, at: float | None) -> None:
        if at is not None and self.first is not None and self.first <= at <= self.last:
            self.database.execute("INSERT INTO lacking VALUES (?, ?)", (key, order_id))

    # --- what is found ----------------------------------------------------------------------------

    def compare(self) -> None:
        """Look for the order of each doubt."""
        self.database.execute("CREATE INDEX nobodys ON orders (wish, posted_at, id) WHERE key IS NULL")
        self.database.execute("CREATE INDEX known ON orders (wish, posted_at, id) WHERE key IS NOT NULL")
        self.database.execute("CREATE INDEX senders ON keys (wish, until)")
        doubts = self.database.execute("SELECT rowid, key, wish, since, until FROM keys WHERE in_doubt")
        while some := doubts.fetchmany(1_000):
            found = [(*self._sought(*doubt[1:]), doubt[0]) for doubt in some]
            self.database.executemany("UPDATE keys SET found = ?, order_id = ? WHERE rowid = ?", found)
        self.database.execute("CREATE INDEX matched ON keys (order_id) WHERE order_id IS NOT NULL")

    def _sought(self, key: str, wish: str | None, since: float, until: float) -> tuple[str, str | None]:
        fitting = self._fitting(wish, since, until, limit=2)
        if not fitting:
            return "not_found", None
        if len(fitting) > 1 or self._others(key, wish, fitting[0][1], limit=1):
            return "ambiguous", None
        return "match", fitting[0][0]

    def _fitting(
        self, wish: str | None, since: float, until: float, *, limit: int
    ) -> list[tuple[str, float]]:
        """Orders that nobody has, of that wish, posted in that time."""
        where = "wish = ? AND posted_at BETWEEN ? AND ? AND key IS NULL ORDER BY posted_at, id LIMIT ?"
        sql = f"SELECT id, posted_at FROM orders WHERE {where}"  # noqa: S608 - both parts are above
        return self.database.execute(sql, (wish, since, until, limit)).fetchall()

    def _others(
        self, key: str, wish: str | None, posted_at: float, *, limit: int, kind: str = "true"
    ) -> list[str]:
        """Other keys, of a kind, that may have sent an order of that wish, posted then."""
        where = f"AND since <= ? AND until >= ? AND key <> ? AND {kind} LIMIT ?"
        found: list[str] = []
        for of_wish, values in (("wish = ?", [wish]), ("wish IS NULL", [])):
            sql = f"SELECT DISTINCT key FROM keys WHERE {of_wish} {where}"  # noqa: S608 - all of it is in this file
            keys = self.database.execute(sql, (*values, posted_at, posted_at, key, limit))
            found += [one for (one,) in keys]
        return found[:limit]

    def figures(self) -> dict[str, int]:
        """How many of each there are."""
        count = "SELECT count(*) FROM "
        return {
            "orders": self._one(f"{count}orders"),
            "known": self._one(f"{count}orders WHERE key IS NOT NULL"),
            "matched": self._one(f"{count}keys WHERE found = 'match'"),
            "ambiguous": self._one(f"{count}keys WHERE found = 'ambiguous'"),
            "not_found": self._one(f"{count}keys WHERE found = 'not_found'"),
            "unknown": self._one(f"{count}orders o WHERE {_UNKNOWN}"),
            "lacking": self._one(f"{count}lacking"),
            "wrong_order": self._one(f"{count}wrong"),
        }

    def matches(self) -> Iterator[Match]:
        """The doubts that one order fits."""
        for row in self.database.execute("SELECT key, order_id FROM keys WHERE found = 'match'"):
            yield Match(*row)

    def findings(self) -> Iterator[Finding]:
        """Everything that somebody should look at, kind by kind."""
        ask = self.database.execute
        yield from self.matches()
        for key, *doubt in ask("SELECT key, wish, since, until FROM keys WHERE found = 'ambiguous'"):
            yield self._ambiguous(key, *doubt)
        yield from (NotFound(*row) for row in ask("SELECT key FROM keys WHERE found = 'not_found'"))
        yield from (Unknown(*row) for row in ask(_UNKNOWN_ORDERS))
        yield from (Lacking(*row) for row in ask("SELECT key, order_id FROM lacking"))
        for key, order_id, *sent in ask("SELECT key, order_id, wish, since, until FROM wrong"):
            fitting = self._fitting(*sent, limit=SHOWN)
            yield WrongOrder(key, order_id, tuple(one for one, _ in fitting))

    def _ambiguous(self, key: str, wish: str | None, since: float, until: float) -> Ambiguous:
        fitting = self._fitting(wish, since, until, limit=SHOWN)
        refuted: dict[str, None] = {}
        for _, posted_at in fitting:
            found = self._others(key, wish, posted_at, limit=SHOWN, kind="was_refuted")
            refuted |= dict.fromkeys(found)
        return Ambiguous(key, tuple(order_id for order_id, _ in fitting), tuple(refuted)[:SHOWN])

    def _one(self, sql: str, *values: Any) -> int:
        found: int = self.database.execute(sql, values).fetchone()[0]
        return found


_AGREES = "abs(posted_at - known_at) <= ?"
_UNKNOWN = "o.key IS NULL AND NOT EXISTS (SELECT 1 FROM keys k WHERE k.order_id = o.id)"
_LIKE = "FROM orders l WHERE l.wish = o.wish AND l.key IS NOT NULL ORDER BY l.posted_at, l.id LIMIT 1"
_UNKNOWN_ORDERS = f"SELECT o.id, (SELECT l.id {_LIKE}), (SELECT l.key {_LIKE}) FROM orders o WHERE {_UNKNOWN}"  # noqa: S608


def wish_of(order: NewOrder) -> str:
    """What an order of the bank is compared by."""
    return wish(
        order.poster_username,
        order.poster_recipient_username,
        (order.poster_amount, order.poster_currency),
        (order.matcher_amount, order.matcher_currency),
    )


def wish(poster: str, recipient: str, *sums: tuple[Decimal, str]) -> str:
    """Who pays whom how much, as one text, whatever the case of ASCII letters and the zeros of an amount."""
    told = (
        f"{amount.normalize(requests.EXACT):f} {requests.ascii_lower(currency)}" for amount, currency in sums
    )
    return "\n".join([requests.ascii_lower(poster.strip()), requests.ascii_lower(recipient.strip()), *told])


# --- reconciliation ----------------------------------------------------------------------------------
# The way from a file and a journal to what somebody should look at.


PAGE = 500
"""Keys asked for at once."""

EVER = float("inf")

ROUNDED = 1.0
"""Seconds: an export may show whole ones."""


class ClocksDiffer(ValueError):
    """The export has another time for an order than the journal: no order can be told by its time."""


@frozen(kw_only=True)
class Span:
    """The time in which the order of a doubt may have been posted.

    Args:
        slack: seconds by which the service's clock may differ.
        settle_after: seconds after the last possible send in which a request may still take effect.
        since_1970: makes seconds since 1970 of the journal's own.
    """

    slack: float
    settle_after: float
    since_1970: Callable[[float], float]

    def sender(self, key: str, entry: Entry) -> Sender:
        """A key in doubt, and when its order was posted if there is one."""
        since = self.since_1970(entry.claimed_at) - self.slack
        until = self._until(self.since_1970(entry.sent_until))
        if entry.unread is not None and not entry.unread.is_sealed:  # its times may be what is lost
            since, until = -EVER, EVER
        wish = None if entry.intent is None else wish_of(entry.intent.order)
        return Sender(key, wish, since, until, is_in_doubt=True)

    def refuted(self, key: str, entry: Entry, steps: Sequence[HistoryEvent]) -> Iterator[Sender]:
        """The attempts of a key that were refuted, which may be a mistake, and when their orders were posted.

        What they wished for is not kept once their undos are done: any order of that time may be theirs.
        """
        marked = {step.attempt: step.at for step in steps if step.move == MarkSending.name}
        wishes = {undo.intent.id: wish_of(undo.intent.order) for undo in entry.pending_undos}
        for step in steps:
            if step.move != Refute.name:
                continue
            since = marked.get(step.attempt, math.nan) - self.slack
            is_last = entry.is_readable and step.attempt is not None and entry.attempt == step.attempt
            until = self._until(self.since_1970(entry.sent_until) if is_last else step.at)
            yield Sender(
                key,
                wishes.get(step.intent_id),
                -EVER if math.isnan(since) else since,
                EVER if math.isnan(until) else until,
                is_in_doubt=False,
                was_refuted=True,
            )

    def _until(self, sent_until: float) -> float:
        return sent_until + self.settle_after + self.slack


async def add_journal(
    books: Books, journal: ScopedJournal, operators: Operators, *, slack: float, settle_after: float
) -> bool:
    """Take in every key that may have sent an order, and then every key whose order is known.

    Returns:
        Whether the export's times were compared with the journal's, by an order that both know.

    Raises:
        ClocksDiffer: they are further apart than ``slack``.
        JournalFailed: the journal could not be read.
        ValueError: it cannot list its orders.
    """
    utc = await operators.times()
    span = Span(slack=slack, settle_after=settle_after, since_1970=lambda time: utc(time).timestamp())
    doubts = dict(await journal.in_doubt())
    await asyncio.to_thread(books.add_senders, [span.sender(key, entry) for key, entry in doubts.items()])
    last = ""
    while page := await journal.work(limit=PAGE, after=last):
        others = [other for key, entry in page if key not in doubts for other in _others(key, entry)]
        await asyncio.to_thread(books.add_senders, others)
        last = page[-1][0]
    await _add_refuted(books, journal, span)
    await _add_resolved(books, journal, span)
    last = ""
    while orders := await journal.orders(limit=PAGE, after=last):
        created = [(id_, key, None if at is None else span.since_1970(at)) for id_, key, at in orders]
        await asyncio.to_thread(books.add_created, created)
        last = orders[-1][0]
    return await _compare_clocks(books, journal, slack=slack + ROUNDED)


async def _compare_clocks(books: Books, journal: ScopedJournal, *, slack: float) -> bool:
    """Whether the times of orders were compared that the service itself answered with.

    Raises:
        ClocksDiffer: one was posted neither while it was sent nor within ``slack`` of that.
    """
    is_compared = await asyncio.to_thread(books.times_agree, slack)
    last = ""
    # Since when an order is known may be later by days: when somebody was told of it, for one.
    while others := await asyncio.to_thread(books.other_times, slack, after=last, limit=PAGE):
        for order_id, key, posted_at in others:
            apart = _apart(order_id, posted_at, await journal.history(key))
            if apart is not None and apart > slack:
                raise ClocksDiffer(
                    f"EXPORT: nothing was compared: its posted_at of {order_id} is {apart:,.0f} s from the "
                    f"time at which the journal has it created, for {key}. A time without a zone is read as "
                    "UTC: export the times in UTC, or with their zone, as 2026-01-31T13:00:00+01:00. If the "
                    "service's clock does differ by as much, give --slack"
                )
            is_compared |= apart is not None
            last = order_id
    return is_compared


def _apart(order_id: str, posted_at: float, steps: Sequence[HistoryEvent]) -> float | None:
    """Seconds between posting an order and sending it; None where the service did not answer with it."""
    end = next((step for step in steps if step.move == Create.name and step.order_id == order_id), None)
    if end is None:  # somebody gave its id, and that may be the wrong one
        return None
    marks = [step.at for step in steps if step.move == MarkSending.name and step.attempt == end.attempt]
    return max(min([end.at, *marks]) - posted_at, posted_at - end.at)


async def _add_refuted(books: Books, journal: ScopedJournal, span: Span) -> None:
    """Take in every key of which a doubt was refuted: whoever did so may be wrong."""
    keys, after = await journal.refuted()
    while True:
        for key in keys:
            entry = await journal.read(key)
            if entry is not None:  # or it was forgotten just now
                attempts = list(span.refuted(key, entry, await journal.history(key)))
                await asyncio.to_thread(books.add_senders, attempts)
        if not after:
            return
        keys, after = await journal.refuted(after=after)


async def _add_resolved(books: Books, journal: ScopedJournal, span: Span) -> None:
    """Take in every key whose order somebody named by its id alone: that may be the wrong id."""
    after = ""
    while True:
        keys, after = await journal.resolved(after=after)
        for key in dict.fromkeys(keys):
            entry = await journal.read(key)
            if entry is not None and entry.is_amendable and entry.order_id is not None:
                sender = evolve(span.sender(key, entry), is_in_doubt=False)
                claimed_at = span.since_1970(entry.claimed_at)
                await asyncio.to_thread(books.add_resolved, sender, entry.order_id, claimed_at=claimed_at)
        if not after:
            return


def _others(key: str, entry: Entry) -> Iterator[Sender]:
    """A key that was not in doubt, but whose wish, or an earlier one, may exist as an order all the same."""
    intents = [undo.intent for undo in entry.pending_undos]
    if entry.state in (KeyState.SENDING, KeyState.IN_DOUBT) and entry.intent is not None:
        intents.append(entry.intent)
    wishes: set[str | None] = {wish_of(intent.order) for intent in intents}
    for wish in wishes if entry.is_readable else {None}:
        yield Sender(key, wish, -EVER, EVER, is_in_doubt=False)


async def propose_match(operators: Operators, match: Match, *, by: str, reason: str) -> None:
    """Propose that a doubt is resolved with the order that fits, for another person to approve.

    Raises:
        ValueError: somebody has proposed something already, or the key has moved.
        JournalFailed: the journal could not be read or written.
    """
    view = await operators.view(match.key)
    if view.proposal is not None:
        raise ValueError(f"{view.proposal.by} has proposed something already")
    await operators.propose(
        match.key, Decision.RESOLVE, order_id=match.order_id, by=by, reason=reason, seen=view.moves
    )
