"""Read orders from a CSV or JSON Lines file: once to check every line, and once to send the orders.

`ORDERS` is the layout of an order file. This module's functions can also read other layouts.

An order file is read twice, because no order may be sent before the last line is checked, and memory use must
not grow with the size of the file. Storing the checked orders on disk would take longer than reading the file
again (60 microseconds per line instead of 51), and would create a second copy of customers' data.
`UnchangedFile` compares the content that both passes read, because a file can change while its size and
modification time stay the same.
"""

from __future__ import annotations

import enum
import hashlib
import io
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import attrs
from attrs import frozen

from transfer_async._cli.output import BadLine, TemporaryDatabase, TextLines, csv_rows, each_line, shown
from transfer_async._converters.messages import OPTIONAL_FIELDS, VERSION, OrderCommand
from transfer_async._models.errors import LIMITS, InvalidOrder
from transfer_async._models.requests import EXACT, NewExternalOrder, NewOrder, PersonName, is_optional

# --- CSV ---------------------------------------------------------------------------------------------
# A header, then a row for each order. Cells are separated by commas and may be quoted, as in RFC 4180.
# An empty cell means that the field is absent.


COLUMNS = {
    "key": "key",
    **{item.name: f"order.{item.name}" for item in attrs.fields(NewOrder) if item.name != "external_order"},
    **{item.name: f"order.external_order.{item.name}" for item in attrs.fields(NewExternalOrder)},
    **{f"beneficiary_{item.name}": f"beneficiary.{item.name}" for item in attrs.fields(PersonName)},
    **{name: name for name in OPTIONAL_FIELDS if name != "beneficiary"},
}
"""The path of each column's field in an `OrderCommand`, by the name of the column."""

OPTIONAL = frozenset(
    [name for name, place in COLUMNS.items() if place.partition(".")[0] in OPTIONAL_FIELDS]
    + [item.name for kind in (NewOrder, NewExternalOrder) for item in attrs.fields(kind) if is_optional(item)]
)
"""The optional columns."""


@frozen(kw_only=True)
class Layout:
    """The columns of an input file, and the functions that parse its lines."""

    columns: Collection[str]  # the names of the columns
    optional: Collection[str]  # the columns that may be absent
    # Reads a row, with the names of its columns; raises `InvalidOrder` with every fault.
    from_cells: Callable[[Sequence[str], Sequence[str]], Any]
    from_json: Callable[[str], Any]  # reads a line of JSON; raises `InvalidOrder` with every fault
    named: Mapping[str, str] = {}  # the column's name by the path of its field, if they differ


def _command(header: Sequence[str], cells: Sequence[str]) -> OrderCommand:
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
    return OrderCommand.from_tree(tree)


ORDERS = Layout(
    columns=COLUMNS,
    optional=OPTIONAL,
    from_cells=_command,
    from_json=OrderCommand.from_json,
    named={place: name for name, place in COLUMNS.items()},
)


def csv_records(lines: TextLines, known: Iterator[Record], layout: Layout = ORDERS) -> Iterator[Record]:
    """Yield a record for each row, or, if the header is invalid, a single record that contains its errors.

    ``known`` yields the records kept by an earlier pass, so that the first rows need not be parsed again.
    """
    header: list[str] | None = None
    for line, row in csv_rows(lines):
        if isinstance(row, BadLine):
            yield next(known, None) or Record(line=row.line, faults=(("", row.why),))
            if header is None:
                return
        elif row and header is None:
            header = row
            if faults := tuple(_header_faults(header, layout)):
                yield Record(line=line, faults=faults)
                return
        elif row and header is not None:
            yield next(known, None) or _csv_record(line, row, header, layout)
    if header is None:
        yield Record(line=1, faults=(("", "has no header: the first line must contain the column names"),))


_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_NAME_LENGTH = 40
"""The maximum number of characters of an unknown column's name in a message."""


def _header_faults(header: Sequence[str], layout: Layout) -> Iterator[LineFault]:
    if not set(header) & set(layout.columns):
        yield "", _why_none_is_known(header, layout.columns)
        return
    for number, name in enumerate(header, 1):
        if name not in layout.columns:
            short = name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…"
            yield f"column {number}, '{shown(short)}'", "is unknown: correct or remove it"
    for name in layout.columns:
        if header.count(name) > 1:
            yield name, "is the name of more than one column: keep one of them"
        elif name not in header and name not in layout.optional:
            yield name, "is missing: add this column"


def _why_none_is_known(header: Sequence[str], columns: Collection[str]) -> str:
    """Explain why a header contains no known column.

    The header is not quoted, because it may contain personal data.
    """
    for separator, plural in _OTHER_SEPARATORS.items():
        if len(set(",".join(header).split(separator)) & set(columns)) > 1:
            return f"uses {plural} as separators: use commas, and a decimal point in amounts"
    return "contains no known column name: the first line must be the header"


_LINE_BREAK = "contains a line break: check that every quote is closed"


def _csv_record(line: int, cells: Sequence[str], header: Sequence[str], layout: Layout = ORDERS) -> Record:
    if len(cells) != len(header):
        more = "more" if len(cells) > len(header) else "fewer"
        return Record(line=line, faults=(("", f"has {more} values than the header has columns"),))
    if broken := [name for name, cell in zip(header, cells, strict=True) if {"\n", "\r"} & set(cell)]:
        # A line break in a cell shows an unclosed quote. The cell contains all orders up to the next quote.
        return Record(line=line, faults=tuple((name, _LINE_BREAK) for name in broken))
    try:
        command = layout.from_cells(header, cells)
    except InvalidOrder as error:
        faults = tuple((layout.named.get(place, place), why) for place, why in error.problems)
        return Record(line=line, key=error.key, faults=faults)
    return Record(line=line, key=command.key, command=command)


# --- JSON Lines --------------------------------------------------------------------------------------
# Each line is a command, as a worker receives it from a broker. Blank lines are skipped.


def json_records(lines: TextLines, known: Iterator[Record], layout: Layout = ORDERS) -> Iterator[Record]:
    """Yield a record for each line that is not blank. For ``known``, see `csv_records`."""
    for text in each_line(lines):
        yield next(known, None) or _json_record(lines.number, text, layout)


def _json_record(line: int, text: str | BadLine, layout: Layout) -> Record:
    if isinstance(text, BadLine):
        return Record(line=text.line, faults=(("", text.why),))
    try:
        command = layout.from_json(text)
    except InvalidOrder as error:
        faults = tuple((name.removeprefix("$"), why) for name, why in error.problems)
        return Record(line=line, key=error.key, faults=faults)
    return Record(line=line, key=command.key, command=command)


class Format(enum.StrEnum):
    """The format of an input file."""

    CSV = "csv"
    JSONL = "jsonl"


KEPT = 8192
"""The maximum number of records that the first pass keeps for the second, because parsing costs more than
reading bytes. A record takes 1.5 kB. Further lines of a longer file are parsed again."""

_SUFFIXES = {".csv": Format.CSV, ".jsonl": Format.JSONL, ".ndjson": Format.JSONL}
_READERS = {Format.CSV: csv_records, Format.JSONL: json_records}


def format_of(path: Path, given: Format | None) -> Format:
    """Return ``given`` or, if it is None, the format implied by the file's suffix.

    Raises:
        ValueError: ``given`` is None, and the suffix is unknown.
    """
    found = given or _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ValueError(
            "--format is required (csv or jsonl): the name of FILE does not end in .csv, .jsonl or .ndjson"
        )
    return found


class OrderFile:
    """An input file that is read twice. The second pass fails if the file has changed since the first."""

    def __init__(self, file: UnchangedFile, form: Format, layout: Layout = ORDERS) -> None:
        self._file, self._form, self._layout = file, form, layout
        self._kept: deque[Record] | None = None

    def records(self) -> Iterator[Record]:
        """Yield a record for each line, in the file's order.

        Every later pass compares the bytes that it reads with those of the first pass. The second pass yields
        the records kept by the first pass, so that exactly the checked orders are sent.

        Raises:
            Changed: the file has changed since the first pass.
        """
        lines, read = TextLines(self._file.reading()), _READERS[self._form]
        if self._kept is not None:
            kept, self._kept = self._kept, deque()
            yield from read(lines, _handed_out(kept), self._layout)
            return
        kept = self._kept = deque()
        for record in read(lines, iter(()), self._layout):
            if len(kept) < KEPT:
                kept.append(record)
            yield record


def _handed_out(kept: deque[Record]) -> Iterator[Record]:
    """Remove and yield each record, so that a record stays in memory only while the caller uses it."""
    while kept:
        yield kept.popleft()


@contextmanager
def opened(path: Path, form: Format, layout: Layout = ORDERS) -> Iterator[OrderFile]:
    """Keep the file open during the block.

    Raises:
        ValueError: the file does not exist, cannot be read, or is not a regular file.
    """
    try:
        # Opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(
                "FILE: must be a regular file, because it is read twice; save the pipe's data to a file first"
            )
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise ValueError(f"FILE: cannot be read ({error.strerror or error})") from None
    with file:
        yield OrderFile(UnchangedFile(file), form, layout)


# --- record ------------------------------------------------------------------------------------------

LineFault = tuple[str, str]
"""The name of a field (empty for the whole line), and the rule that it breaks; never the field's value."""


@frozen(kw_only=True)
class Record:
    """The content of a line, or of a CSV row that spans several lines."""

    line: int  # the number of the first line
    key: str | None = None  # the order's key, if it is valid
    command: Any = None  # the result of the layout, such as an `OrderCommand`; None if there are faults
    faults: tuple[LineFault, ...] = ()


# --- unchanged file ----------------------------------------------------------------------------------

_CHANGED = "FILE was changed after it was checked"
BLOCK = 1 << 20
_DIGEST = 16  # bytes for each block of 1 MiB: 160 kB for a file of 10 GB


class Changed(Exception):
    """Raised if the file has changed since it was checked."""


class UnchangedFile:
    """Detects whether a file changes between passes, by comparing digests of its blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests: bytearray | None = None

    def reading(self) -> io.BufferedReader:
        """Return a reader that starts at the beginning of the file.

        The first pass must end before the next pass begins.

        Raises:
            Changed: raised by the reader, before it returns any byte that differs from the first pass.
        """
        self._file.seek(0)
        return io.BufferedReader(_BlockReader(self._blocks()), BLOCK)

    def _blocks(self) -> Iterator[bytes]:
        known, digests = self._digests, bytearray()
        while block := self._file.read(BLOCK):
            at = len(digests)
            digests += hashlib.blake2b(block, digest_size=_DIGEST).digest()
            if known is not None and digests[at:] != known[at : at + _DIGEST]:
                raise Changed(_CHANGED)
            yield block
        if known is not None and len(digests) != len(known):
            raise Changed(_CHANGED)
        self._digests = digests


class _BlockReader(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._left = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override] # as io.BufferedReader calls it
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


# --- check -------------------------------------------------------------------------------------------

SHOWN = 1000
"""The maximum number of errors that are listed; further errors are only counted."""


class Stopped(Exception):
    """Raised if a signal stopped the check."""


class Checking:
    """Checks all lines of a file before the first order is sent.

    Args:
        needs_held: whether every order must contain the reference of a hold, because no hook holds the funds.
        now: the current time. An order whose time limit has passed is reported as an error. If ``now`` is
            None, time limits are not checked: a key that already has an order returns that order even after
            its time limit has passed.
        is_stopped: called before every 64th line. The check stops if ``is_stopped`` returns true.

    Attributes:
        records: the number of orders, with or without errors.
        faulty: the number of orders with errors.
        faults: the number of errors.
        listed: the first errors found, one per line.
        sums: the total amounts to be sent and received, by currency, of the orders without errors.
    """

    one_each = "give each order its own key"
    none_done = "Nothing was sent."

    def __init__(
        self,
        *,
        needs_held: bool,
        now: datetime | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._needs_held, self._now, self._is_stopped = needs_held, now, is_stopped
        self.records = self.faulty = self.faults = 0
        self.listed: list[str] = []
        self.sums: dict[str, dict[str, Decimal]] = {"sent": {}, "to arrive": {}}

    def run(self, records: Iterable[Record], keys: Keys) -> None:
        """Check every record, and add its key to ``keys``.

        Raises:
            Stopped: ``is_stopped`` returned true.
            sqlite3.Error: the temporary database of keys cannot be written.
        """
        for record in records:
            if self.records % 64 == 0 and self._is_stopped():
                raise Stopped
            self.records += 1
            faults = list(self._faults(record, keys))
            if record.command is None or faults:
                self.faulty += 1
                self._note(record.line, faults)
            else:
                self._add(record.command)

    def _faults(self, record: Record, keys: Keys) -> Iterator[LineFault]:
        yield from record.faults
        if record.key is not None and (first := keys.seen(record.key, record.line)) is not None:
            yield "key", f"is already used on line {first}: {self.one_each}"
        if self._needs_held and record.command is not None and record.command.held is None:
            yield "held", "is missing: add the hold's reference, or pass --hooks with a hold hook"
        for name in LIMITS:
            limit = getattr(record.command, name, None)
            if self._now is not None and limit is not None and limit <= self._now:
                yield (
                    name,
                    (
                        "has passed: set a later time (if the key already has an order, that order is "
                        "still returned)"
                    ),
                )

    def _note(self, line: int, faults: list[LineFault]) -> None:
        self.faults += len(faults)
        room = SHOWN - len(self.listed)
        self.listed += [
            f"line {line}: {shown(f'{name}: {why}' if name else why)}" for name, why in faults[:room]
        ]

    def _add(self, command: Any) -> None:
        order: NewOrder = command.order
        for side, currency, amount in (
            ("sent", order.poster_currency, order.poster_amount),
            ("to arrive", order.matcher_currency, order.matcher_amount),
        ):
            sums = self.sums[side]
            sums[currency] = EXACT.add(sums.get(currency, Decimal(0)), amount)

    def summary(self) -> list[str]:
        """Return lines that show the number of orders and the total amounts."""
        lines = [f"{self.records:,} orders" if self.records != 1 else "1 order"]
        for side, sums in self.sums.items():
            lines += [f"  {side:<10}{currency:<11}{amount:,f}" for currency, amount in sorted(sums.items())]
        return lines

    def complaint(self) -> list[str]:
        """Return lines that show the listed errors and the total number of errors."""
        more = f"; only the first {len(self.listed):,} are shown" if self.faults > len(self.listed) else ""
        faults = "1 error" if self.faults == 1 else f"{self.faults:,} errors"
        records = "1 line" if self.faulty == 1 else f"{self.faulty:,} lines"
        return [*self.listed, f"{faults} in {records}{more}. {self.none_done}"]


_TABLE = "CREATE TABLE keys (key TEXT PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID;"
# Neighbouring lines mostly have similar keys, so this index is faster than an index of digests.


class Keys(TemporaryDatabase):
    """The keys found so far in a file, stored in a temporary database. `Keys` is a context manager."""

    def __init__(self) -> None:
        super().__init__(_TABLE)

    def seen(self, key: str, line: int) -> int | None:
        """Record the line number of ``key``.

        If an earlier line has the same key, return that line's number.
        """
        if self.database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key, line)).rowcount:
            return None
        found: tuple[int] = self.database.execute("SELECT line FROM keys WHERE key = ?", (key,)).fetchone()
        return found[0]

    def __contains__(self, key: str) -> bool:
        return self.database.execute("SELECT 1 FROM keys WHERE key = ?", (key,)).fetchone() is not None
