"""The file that the orders come from: one that can be read twice, as CSV or JSON Lines."""

from __future__ import annotations

import csv
import enum
import hashlib
import io
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import attrs
from attrs import frozen

from transfer_async._cli.output import BadLine, TemporaryDatabase, TextLines, each_line, shown
from transfer_async._converters.messages import OPTIONAL_FIELDS, VERSION, OrderCommand
from transfer_async._models.errors import LIMITS, InvalidOrder
from transfer_async._models.requests import EXACT, NewExternalOrder, NewOrder, PersonName, is_optional

# --- csv rows ----------------------------------------------------------------------------------------
# CSV: a header, then a row for each order; amounts are text, and exact.
#
# Cells are separated by commas and may be quoted, as RFC 4180 has it. An empty cell is absent.


def _columns() -> dict[str, str]:
    """Where in a command each column belongs."""
    placed = {"key": "key"}
    placed |= {
        field.name: f"order.{field.name}"
        for field in attrs.fields(NewOrder)
        if field.name != "external_order"
    }
    placed |= {field.name: f"order.external_order.{field.name}" for field in attrs.fields(NewExternalOrder)}
    placed |= {f"beneficiary_{field.name}": f"beneficiary.{field.name}" for field in attrs.fields(PersonName)}
    return placed | {name: name for name in OPTIONAL_FIELDS if name != "beneficiary"}


COLUMNS = _columns()
"""Every column, and its place in a command."""

OPTIONAL = frozenset(
    [name for name, place in COLUMNS.items() if place.partition(".")[0] in OPTIONAL_FIELDS]
    + [item.name for kind in (NewOrder, NewExternalOrder) for item in attrs.fields(kind) if is_optional(item)]
)
"""The columns that may be left out."""

_NAMED = {place: name for name, place in COLUMNS.items()}


def csv_records(lines: TextLines, known: Iterator[Record]) -> Iterator[Record]:
    """What each row comes to; if the header is not good, that alone is told.

    Args:
        lines: of the file.
        known: what the first rows came to in an earlier reading.
    """
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while (row := _next_row(reader, lines)) is not None:
        if isinstance(row, Record):
            yield next(known, None) or row
            if header is None:
                return
        elif header is None:
            header = row.cells
            if faults := tuple(_header_faults(header)):
                yield Record(line=row.line, faults=faults)
                return
        else:
            yield next(known, None) or _csv_record(row, header)
    if header is None:
        yield Record(line=1, faults=(("", "is not there: the first line names the columns"),))


@attrs.frozen
class _CsvRow:
    line: int
    cells: list[str]


def _next_row(reader: Iterator[list[str]], lines: TextLines) -> _CsvRow | Record | None:
    """The next row that is not empty, or the fault in its place."""
    while True:
        line = lines.number + 1
        try:
            cells = next(reader, None)
        except BadLine as bad:
            return Record(line=bad.line, faults=(("", bad.why),))
        except csv.Error as error:  # it says what rule of CSV is broken, and never quotes the line
            return Record(line=line, faults=(("", f"is not CSV that can be read ({error})"),))
        if cells is None:
            return None
        if cells:
            return _CsvRow(line, cells)


_OTHER_MARKS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_SHOWN = 40
"""Characters of a column's name that are shown."""


def _header_faults(header: Sequence[str]) -> Iterator[LineFault]:
    if not set(header) & set(COLUMNS):
        yield "", _why_none_is_known(header)
        return
    for number, name in enumerate(header, 1):
        if name not in COLUMNS:
            told = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
            yield f"column {number}, '{shown(told)}'", "is not known"
    for name in COLUMNS:
        if header.count(name) > 1:
            yield name, "is the name of more than one column"
        elif name not in header and name not in OPTIONAL:
            yield name, "is missing among the columns"


def _why_none_is_known(header: Sequence[str]) -> str:
    """Why no cell of a header is a column; none is shown: where one was forgotten, it is somebody's data."""
    for mark, marks in _OTHER_MARKS.items():
        if len(set(",".join(header).split(mark)) & set(COLUMNS)) > 1:
            return f"names columns with {marks} between them: write commas, and amounts with a point"
    return "names no column that is known: is it an order, and not the header?"


_LINES = "goes on over several lines: is a quote not closed?"


def _csv_record(row: _CsvRow, header: Sequence[str]) -> Record:
    if len(row.cells) != len(header):
        more = "more" if len(row.cells) > len(header) else "fewer"
        return Record(line=row.line, faults=(("", f"has {more} cells than there are columns"),))
    if broken := [name for name, cell in zip(header, row.cells, strict=True) if {"\n", "\r"} & set(cell)]:
        # No field has lines: a quote that is not closed would swallow the orders up to the next one.
        return Record(line=row.line, faults=tuple((name, _LINES) for name in broken))
    try:
        command = OrderCommand.from_tree(_tree(header, row.cells))
    except InvalidOrder as error:
        faults = tuple((_NAMED.get(place, place), why) for place, why in error.problems)
        return Record(line=row.line, key=error.key, faults=faults)
    return Record(line=row.line, key=command.key, command=command)


def _tree(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    external: dict[str, Any] = {}
    order: dict[str, Any] = {"external_order": external}
    beneficiary: dict[str, Any] = {}
    tree: dict[str, Any] = {"version": VERSION, "order": order}
    parts = {"": tree, "order": order, "order.external_order": external, "beneficiary": beneficiary}
    for name, cell in zip(header, cells, strict=True):
        if cell:
            part, _, field = COLUMNS[name].rpartition(".")
            parts[part][field] = cell
    if beneficiary:
        tree["beneficiary"] = beneficiary
    return tree


# --- json lines --------------------------------------------------------------------------------------
# JSON Lines: every line one command, as it would come through a broker; empty lines are passed over.


def json_records(lines: TextLines, known: Iterator[Record]) -> Iterator[Record]:
    """What each line comes to; that of the first ones may be ``known`` from an earlier reading."""
    for text in each_line(lines):
        yield next(known, None) or _json_record(lines.number, text)


def _json_record(line: int, text: str | BadLine) -> Record:
    if isinstance(text, BadLine):
        return Record(line=text.line, faults=(("", text.why),))
    try:
        command = OrderCommand.from_json(text)
    except InvalidOrder as error:
        faults = tuple((name.removeprefix("$"), why) for name, why in error.problems)
        return Record(line=line, key=error.key, faults=faults)
    return Record(line=line, key=command.key, command=command)


class Format(enum.StrEnum):
    """How the file is written."""

    CSV = "csv"
    JSONL = "jsonl"


KEPT = 8192
"""How many orders are kept from one reading to the next, where making them costs more than reading the bytes.
They take 1.5 kB each; of a longer file, the others are made anew."""

_SUFFIXES = {".csv": Format.CSV, ".jsonl": Format.JSONL, ".ndjson": Format.JSONL}
_READERS = {Format.CSV: csv_records, Format.JSONL: json_records}


def format_of(path: Path, given: Format | None) -> Format:
    """The format that was given, or the one that the file's suffix means.

    Raises:
        ValueError: neither says.
    """
    found = given or _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ValueError("--format: must say csv or jsonl, for the file's name does not")
    return found


class OrderFile:
    """Orders, read from the first line to the last as often as asked; the same each time.

    Args:
        steady: the file.
        form: how it is written.
    """

    def __init__(self, steady: SteadyFile, form: Format) -> None:
        self._steady, self._form = steady, form
        self._kept: deque[Record] | None = None

    def records(self) -> Iterator[Record]:
        """What each line comes to, in the file's order.

        The bytes are read each time, and held against those of the first reading. What the first reading
        has made of the first of them is kept, once: what was checked is what the second one hands out.

        Raises:
            Changed: on the way, if the file is not what it was.
        """
        lines, read = TextLines(self._steady.reading()), _READERS[self._form]
        if self._kept is not None:
            kept, self._kept = self._kept, deque()
            yield from read(lines, _handed_out(kept))
            return
        kept = self._kept = deque()
        for record in read(lines, iter(())):
            if len(kept) < KEPT:
                kept.append(record)
            yield record


def _handed_out(kept: deque[Record]) -> Iterator[Record]:
    """Each but once: who has it then says how long it stays in memory."""
    while kept:
        yield kept.popleft()


@contextmanager
def opened(path: Path, form: Format) -> Iterator[OrderFile]:
    """The file, to be closed in the end.

    Raises:
        ValueError: there is none, it cannot be read, or not twice.
    """
    try:
        # What is no file might never be opened: a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("FILE: must be a file: it is read twice, which a pipe or a directory cannot be")
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise ValueError(f"FILE: cannot be read ({error.strerror or error})") from None
    with file:
        yield OrderFile(SteadyFile(file), form)


# --- record ------------------------------------------------------------------------------------------
# What a line of the file comes to: an order to create, or what is wrong with it.


LineFault = tuple[str, str]
"""What is wrong with a line: the field (empty for the line itself), and the rule; never a value."""


@frozen(kw_only=True)
class Record:
    """What a line, or a row of more than one, comes to.

    Args:
        line: the number of its first line.
        key: of the order, where it has a good one.
        command: the order, if nothing is wrong with it.
        faults: otherwise, what is.
    """

    line: int
    key: str | None = None
    command: OrderCommand | None = None
    faults: tuple[LineFault, ...] = ()


# --- unchanged file ----------------------------------------------------------------------------------
# A file that is read more than once, and must hold the same bytes each time.


BLOCK = 1 << 20
_DIGEST = 16  # bytes; of a block of a mebibyte, so that ten gigabytes are remembered in 160 kB


class Changed(Exception):
    """The file is not what it was when it was checked."""


class SteadyFile:
    """The first reading remembers a digest of every block; no later one hands out a block that differs.

    Args:
        file: open, and seekable.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests: bytearray | None = None

    def reading(self) -> io.BufferedReader:
        """Read the file from its beginning. The first reading must have come to the end before the next.

        Raises:
            Changed: while it is read, before any byte that differs is handed out.
        """
        self._file.seek(0)
        return io.BufferedReader(_SteadyReader(self), BLOCK)

    def _first_reading_ended(self, digests: bytearray) -> None:
        self._digests = digests


class _SteadyReader(io.RawIOBase):
    def __init__(self, steady: SteadyFile) -> None:
        super().__init__()
        self._steady = steady
        self._known = steady._digests
        self._digests = bytearray()
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override] # as it is called
        if not self._left:
            self._left = memoryview(self._next_block())
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def _next_block(self) -> bytes:
        block = self._steady._file.read(BLOCK)
        at = len(self._digests)
        if block:
            self._digests += hashlib.blake2b(block, digest_size=_DIGEST).digest()
        if self._known is None:
            if not block:
                self._steady._first_reading_ended(self._digests)
        elif self._digests[at:] != self._known[at : at + _DIGEST]:
            raise Changed("the file has changed since it was checked")
        return block


# --- first pass --------------------------------------------------------------------------------------
# The first pass: every line is checked before any is sent.


SHOWN = 1000
"""How many faults are listed; the others are counted."""


class Stopped(Exception):
    """Somebody does not want to wait for the end."""


class Checking:
    """One pass.

    Args:
        needs_held: every order must say that its funds are held, for no hook would hold them.
        now: the time that it is, where an order that comes too late is a fault; None where it is not: one
            that was created in time is given back.
        is_stopped: asked now and then.

    Attributes:
        records: how many orders were looked at, good or not.
        faulty: how many of them have faults.
        faults: how many faults there are.
        told: the first of them, one a line.
        sums: of the good ones, what is sent and what arrives, by currency.
    """

    def __init__(
        self,
        *,
        needs_held: bool,
        now: datetime | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._needs_held, self._now, self._is_stopped = needs_held, now, is_stopped
        self.records = self.faulty = self.faults = 0
        self.told: list[str] = []
        self.sums: dict[str, dict[str, Decimal]] = {"sent": {}, "to arrive": {}}

    def run(self, records: Iterable[Record]) -> None:
        """Look at every record.

        Raises:
            Stopped: before the end, if asked to.
            sqlite3.Error: the disk has no room for the keys.
        """
        with Keys() as keys:
            for record in records:
                if self.records % 64 == 0 and self._is_stopped():
                    raise Stopped
                self.records += 1
                faults = list(self._faults(record, keys))
                if record.command is None or faults:
                    self.faulty += 1
                    self._note(record.line, faults)
                else:
                    self._add(record.command.order)

    def _faults(self, record: Record, keys: Keys) -> Iterator[LineFault]:
        yield from record.faults
        if record.key is not None and (first := keys.seen(record.key, record.line)) is not None:
            yield "key", f"stands on line {first} already"
        if self._needs_held and record.command is not None and record.command.held is None:
            yield "held", "is missing, and there is no hook that would hold the funds"
        for name in LIMITS:
            if self._has_passed(getattr(record.command, name, None)):
                yield name, "has passed: unless its key has an order already, none will be made"

    def _has_passed(self, moment: datetime | None) -> bool:
        return self._now is not None and moment is not None and moment <= self._now

    def _note(self, line: int, faults: list[LineFault]) -> None:
        self.faults += len(faults)
        room = SHOWN - len(self.told)
        self.told += [
            f"line {line}: {shown(f'{name}: {why}' if name else why)}" for name, why in faults[:room]
        ]

    def _add(self, order: NewOrder) -> None:
        for side, currency, amount in (
            ("sent", order.poster_currency, order.poster_amount),
            ("to arrive", order.matcher_currency, order.matcher_amount),
        ):
            sums = self.sums[side]
            sums[currency] = EXACT.add(sums.get(currency, Decimal(0)), amount)

    def summary(self) -> list[str]:
        """What is in the file, in lines."""
        lines = [f"{self.records:,} orders" if self.records != 1 else "1 order"]
        for side, sums in self.sums.items():
            lines += [f"  {side:<10}{currency:<11}{amount:,f}" for currency, amount in sorted(sums.items())]
        return lines

    def complaint(self) -> list[str]:
        """The faults, in lines, and how many there are."""
        more = f"; the first {len(self.told):,} are shown" if self.faults > len(self.told) else ""
        faults = "1 fault" if self.faults == 1 else f"{self.faults:,} faults"
        records = "1 line" if self.faulty == 1 else f"{self.faulty:,} lines"
        return [*self.told, f"{faults} in {records}{more}. Nothing was sent."]


# --- key index ---------------------------------------------------------------------------------------
# The keys of a file, and where each stood first.


_TABLE = "CREATE TABLE keys (key TEXT PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID;"
# Keys in the order of the file are mostly near each other, so digests would be slower.


class Keys(TemporaryDatabase):
    """Every key so far; a context manager."""

    def __init__(self) -> None:
        super().__init__(_TABLE)

    def seen(self, key: str, line: int) -> int | None:
        """The line on which ``key`` stood before; None if this is the first."""
        if self.database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key, line)).rowcount:
            return None
        found: tuple[int] = self.database.execute("SELECT line FROM keys WHERE key = ?", (key,)).fetchone()
        return found[0]
