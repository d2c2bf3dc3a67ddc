"""An export and a journal side by side, in a temporary database: as large as the disk, and not as memory.

An order of the export belongs to a doubt where it is the only one that fits: the same users, currencies
and amounts, posted while the doubt's requests can have taken effect, known by no other key, and no other
key that may have sent the same: nor one whose doubt was refuted, for whoever did so may have been wrong.
That an order is *not* in the export proves nothing: it may come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import astuple, frozen

from transfer_async._cli.console.temporary_database import TemporaryDatabase
from transfer_async._cli.reconcile.export_file import ExportedOrder

SHOWN = 5
"""How many orders, or keys, are named for a doubt that more than one fits."""

_TABLES = """
CREATE TABLE orders (
    id TEXT PRIMARY KEY, wish TEXT NOT NULL, posted_at REAL NOT NULL, key TEXT
) WITHOUT ROWID;
CREATE TABLE keys (
    key TEXT, wish TEXT, since REAL NOT NULL, until REAL NOT NULL, in_doubt INTEGER NOT NULL,
    was_refuted INTEGER NOT NULL, found TEXT, order_id TEXT
);
CREATE TABLE lacking (key TEXT NOT NULL, order_id TEXT NOT NULL);
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


Finding = Match | Ambiguous | NotFound | Unknown | Lacking


class Books(TemporaryDatabase):
    """What was compared, and what was found; a context manager.

    First the orders of the export, then the keys that may have sent one, then those whose order is known:
    in another order, a key that is settled meanwhile would be seen in neither of its states.
    """

    def __init__(self) -> None:
        super().__init__(_TABLES)
        self.first: float | None = None
        self.last = 0.0

    # --- what is compared -------------------------------------------------------------------------

    def add_order(self, order: ExportedOrder) -> bool:
        """An order of the export; false if it stands there twice, and not the same."""
        values = (order.order_id, order.wish, order.posted_at)
        if self.database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL)", values).rowcount:
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

    def add_created(self, created: Iterable[tuple[str, str, float | None]]) -> None:
        """Orders that are known: their ids, their keys, and since when."""
        for order_id, key, at in created:
            if self.database.execute("UPDATE orders SET key = ? WHERE id = ?", (key, order_id)).rowcount:
                continue
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


_UNKNOWN = "o.key IS NULL AND NOT EXISTS (SELECT 1 FROM keys k WHERE k.order_id = o.id)"
_LIKE = "FROM orders l WHERE l.wish = o.wish AND l.key IS NOT NULL ORDER BY l.posted_at, l.id LIMIT 1"
_UNKNOWN_ORDERS = f"SELECT o.id, (SELECT l.id {_LIKE}), (SELECT l.key {_LIKE}) FROM orders o WHERE {_UNKNOWN}"  # noqa: S608
