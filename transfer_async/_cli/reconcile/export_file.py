"""An export of the service's orders, as CSV or JSON Lines: one order a row, read as far as it is compared."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from attrs import frozen

from transfer_async._cli.console.text_lines import BadLine, TextLines, each_line
from transfer_async._models import amounts
from transfer_async._models.requests import NewOrder

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

_JSON = msgspec.json.Decoder(float_hook=Decimal).decode


@frozen
class ExportedOrder:
    """An order that the service has.

    Args:
        order_id: its id.
        wish: see `wish`.
        posted_at: in seconds since 1970.
    """

    order_id: str
    wish: str
    posted_at: float


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
    """Who pays whom how much, as one text: alike whatever the case of a name and the zeros of an amount."""
    told = (f"{amount.normalize(amounts.EXACT):f} {currency.upper()}" for amount, currency in sums)
    return "\n".join([poster.strip().casefold(), recipient.strip().casefold(), *told])


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
        for line, row in reader(lines):
            yield row if isinstance(row, RowFault) else _order(line, row, places)


def _csv_rows(lines: TextLines) -> Iterator[tuple[int, Any]]:
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
        elif cells and len(cells) != len(header):
            yield line, RowFault(line, "has not as many cells as there are columns")
        elif cells:
            yield line, dict(zip(header, cells, strict=True))


def _json_rows(lines: TextLines) -> Iterator[tuple[int, Any]]:
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
        return ExportedOrder(
            order_id=cells["order_id"],
            wish=wish(
                cells["poster_username"],
                cells["poster_recipient_username"],
                (_amount("poster_amount", cells["poster_amount"]), cells["poster_currency"]),
                (_amount("matcher_amount", cells["matcher_amount"]), cells["matcher_currency"]),
            ),
            posted_at=_time(cells["posted_at"]),
        )
    except ValueError as error:
        return RowFault(line, str(error))


def _cell(row: Any, name: str, columns: Sequence[str]) -> Any:
    """The first of ``columns`` that is there, by itself or as a path into what is nested."""
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
            return value
    raise ValueError(f"{name}: is missing (looked for as {' or '.join(columns)})")


def _amount(name: str, value: Any) -> Decimal:
    amount = amounts.to_decimal(value)
    if problem := amounts.number_problem(amount):
        raise ValueError(f"{name}: {problem}")
    return Decimal(amount)


def _time(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("posted_at: is no time as 2026-01-31T12:00:00.000Z") from None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
