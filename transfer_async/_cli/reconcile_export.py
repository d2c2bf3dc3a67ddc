"""An export and a journal side by side, in a temporary database: as large as the disk, and not as memory.

An order of the export belongs to a doubt where it is the only one that fits: the same users, currencies
and amounts, posted while the doubt's requests can have taken effect, known by no other key, and no other
key that may have sent the same: nor one whose doubt was refuted, for whoever did so may have been wrong.
That an order is *not* in the export proves nothing: it may come later.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from attrs import astuple, frozen

from transfer_async._cli.output import BadLine, TemporaryDatabase, TextLines, each_line
from transfer_async._models import requests
from transfer_async._models.requests import NewOrder
from transfer_async._pipeline.key_views import checked_order_id

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


# --- export file -------------------------------------------------------------------------------------
# An export of the service's orders, as CSV or JSON Lines: one order a row, read as far as it is compared.


PLACES: Mapping[str, tuple[str, ...]] = {
    "order_id": ("order_id", "id"),
    "poster_username": ("poster_username", "user.username"),
    "poster_recipient_username": ("poster_recipient_username", "postersBeneficiary.username"),
    "poster_currency": ("poster_currency",),
    "poster_amount": ("poster_amount",),
    "matcher_currency": ("matcher_currency",),
    "matcher_amount": ("matcher_amount",),
    "posted_at": ("posted_at",),
}
"""What is read of a row, and the columns that it is looked for in: our names, then those of the service's
order object (specification 2.1), a point before what is inside."""

_DATE_AND_TIME = re.compile(r"\d{4}-?\d\d-?\d\d.\d\d:?\d\d")

_JSON = msgspec.json.Decoder(float_hook=Decimal).decode


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


@frozen
class RowFault:
    """A row that cannot be read: on which line, and why; never a value of it."""

    line: int
    why: str


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


def columns_named(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`PLACES`, with those that were given as ``FIELD=COLUMN``.

    Raises:
        ValueError: one is no such pair, or names no field.
    """
    places = dict(PLACES)
    for pair in given:
        name, _, column = pair.partition("=")
        if name not in PLACES or not column:
            raise ValueError(f"--column: must be FIELD=COLUMN, and FIELD one of {', '.join(PLACES)}")
        places[name] = (column,)
    return places


def rows(path: Path, places: Mapping[str, Sequence[str]]) -> Iterator[ExportedOrder | RowFault]:
    """Every row, or what is wrong with it.

    Raises:
        ValueError: the file's name ends neither in .csv nor in .jsonl.
        OSError: it cannot be read.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError("EXPORT: its name must end in .csv, .jsonl or .ndjson")
    with path.open("rb") as file:
        lines = TextLines(file)
        for line, row in reader(lines, places):
            yield row if isinstance(row, RowFault) else _order(line, row, places)


def _csv_rows(lines: TextLines, places: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        line = lines.number + 1
        try:
            cells = next(reader, None)
        except (BadLine, csv.Error) as error:
            why = error.why if isinstance(error, BadLine) else f"is not CSV that can be read ({error})"
            yield line, RowFault(line, why)
            continue
        if cells is None:
            return
        if header is None:
            header = cells
            if problem := _header_problem(header, places):
                yield line, RowFault(line, problem)
                return  # every row would have the same fault
        elif cells and len(cells) != len(header):
            yield line, RowFault(line, "has not as many cells as there are columns")
        elif cells:
            yield line, dict(zip(header, cells, strict=True))


def _header_problem(header: Sequence[str], places: Mapping[str, Sequence[str]]) -> str | None:
    """What is wrong with the names of the columns; it names only those that were looked for."""
    found = {name: [column for column in header if column in columns] for name, columns in places.items()}
    missing = [name for name, columns in found.items() if not columns]
    if missing:
        return _missing(missing, places)
    for name, columns in found.items():
        if len(set(columns)) > 1:
            return _two_columns(name, columns)
        if len(columns) > 1:
            return f"{name}: two columns have the name {columns[0]}: rename one of them in the export"
    return None


def _missing(names: Sequence[str], places: Mapping[str, Sequence[str]]) -> str:
    looked_for = ", ".join(f"{name} (looked for as {' or '.join(places[name])})" for name in names)
    return f"missing: {looked_for}. If the export has another name for it, give --column {names[0]}=COLUMN"


def _two_columns(name: str, columns: Sequence[str]) -> str:
    return f"{name}: is in {' and in '.join(columns)}: say which one with --column {name}={columns[0]}"


def _json_rows(lines: TextLines, _: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, Any]]:
    for text in each_line(lines):
        if isinstance(text, BadLine):
            yield text.line, RowFault(text.line, text.why)
            continue
        try:
            yield lines.number, _JSON(text)
        except (msgspec.DecodeError, ArithmeticError):
            yield lines.number, RowFault(lines.number, "is not JSON")


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}


def _order(line: int, row: Any, places: Mapping[str, Sequence[str]]) -> ExportedOrder | RowFault:
    try:
        cells = {name: _cell(row, name, columns) for name, columns in places.items()}
        if missing := [name for name, value in cells.items() if value is None]:
            return RowFault(line, _missing(missing, places))
        time = _time(cells["posted_at"])
        return ExportedOrder(
            order_id=checked_order_id(cells["order_id"]),
            wish=wish(
                cells["poster_username"],
                cells["poster_recipient_username"],
                (_amount("poster_amount", cells["poster_amount"]), cells["poster_currency"]),
                (_amount("matcher_amount", cells["matcher_amount"]), cells["matcher_currency"]),
            ),
            posted_at=(time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp(),
            has_zone=time.tzinfo is not None,
        )
    except ValueError as error:
        return RowFault(line, str(error))


def _cell(row: Any, name: str, columns: Sequence[str]) -> Any:
    """What the row has in one of ``columns``, by itself or as a path into what is nested; None if nothing."""
    found = {}
    for column in columns:
        value = row.get(column) if isinstance(row, dict) else None
        if value is None:
            value = row
            for part in column.split("."):
                value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            value = value.strip()
        if value not in (None, ""):
            if not isinstance(value, str) and "amount" not in name:
                raise ValueError(f"{name}: is no text")
            found[column] = value
    if len(set(map(str, found.values()))) > 1:
        raise ValueError(_two_columns(name, [*found]))
    return next(iter(found.values()), None)


def _amount(name: str, value: Any) -> Decimal:
    amount = requests.to_decimal(value)
    if problem := requests.number_problem(amount):
        raise ValueError(f"{name}: {problem}")
    return Decimal(amount)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("posted_at: is no time as 2026-01-31T12:00:00.000Z") from None
    if not _DATE_AND_TIME.match(text):  # midnight would stand for any time of that day
        raise ValueError(
            "posted_at: is a date without a time; a time such as 2026-01-31T12:00:00.000Z is needed"
        )
    return time
