"""CSV: a header, then a row for each order; amounts are text, and exact.

Cells are separated by commas and may be quoted, as RFC 4180 has it. An empty cell is absent.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from transfer_async._cli.console.output import shown
from transfer_async._cli.console.text_lines import BadLine, TextLines
from transfer_async._cli.create.record import LineFault, Record
from transfer_async._converters.messages import VERSION, OrderCommand
from transfer_async._models.errors import InvalidOrder
from transfer_async._models.requests import NewExternalOrder, NewOrder, PersonName

_BESIDE = ("held", "send_before", "deadline")


def _columns() -> dict[str, str]:
    """Where in a command each column belongs."""
    placed = {"key": "key"}
    placed |= {
        one.name: f"order.{one.name}" for one in attrs.fields(NewOrder) if one.name != "external_order"
    }
    placed |= {one.name: f"order.external_order.{one.name}" for one in attrs.fields(NewExternalOrder)}
    placed |= {f"beneficiary_{one.name}": f"beneficiary.{one.name}" for one in attrs.fields(PersonName)}
    return placed | {name: name for name in _BESIDE}


COLUMNS = _columns()
"""Every column, and its place in a command."""

OPTIONAL = frozenset(
    name for name, place in COLUMNS.items() if place.startswith("beneficiary.") or place in _BESIDE
)
"""The columns that may be left out."""

_NAMED = {place: name for name, place in COLUMNS.items()}


def records(lines: TextLines, known: Iterator[Record]) -> Iterator[Record]:
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
            yield next(known, None) or _record(row, header)
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


def _record(row: _CsvRow, header: Sequence[str]) -> Record:
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
