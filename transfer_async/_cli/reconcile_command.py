"""``journal reconcile``: its options, its words and its exit codes, and how the export is read."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
import typer
from attrs import frozen

from transfer_async._cli import options
from transfer_async._cli.journal_output import OpenJournal
from transfer_async._cli.journal_session import By, JournalTarget, named, usage, who
from transfer_async._cli.output import (
    BadLine,
    TextLines,
    complain,
    each_line,
    fail,
    failing,
    shown,
    shown_json,
    tell,
)
from transfer_async._cli.process import DIFFERENT, FAILED, USAGE
from transfer_async._cli.reconcile_comparison import (
    Ambiguous,
    Books,
    ExportedOrder,
    Finding,
    Lacking,
    Match,
    NotFound,
    Unknown,
    WrongOrder,
    add_journal,
    propose_match,
    wish,
)
from transfer_async._models import requests
from transfer_async._pipeline.key_views import checked_order_id, checked_settle_after, checked_text
from transfer_async._support.util import is_positive
from transfer_async.journal.model import SETTLE_AFTER

SHOWN = 20
"""How many findings of a kind are told without ``--json``."""


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


def reconcile(
    export: Annotated[
        Path, typer.Argument(metavar="EXPORT", help="The service's orders, as .csv or .jsonl.")
    ],
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help=f"Where the export has a field: {', '.join(PLACES)}; by default under that name, or as the "
            "service's order object has it. May be repeated.",
        ),
    ] = None,
    slack: Annotated[float, typer.Option(help="Seconds by which the service's clock may differ.")] = 300.0,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    propose: Annotated[
        bool, typer.Option("--propose", help="Propose to resolve each match, for another person to approve.")
    ] = False,
    by: By = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON Lines: first the figures, then each finding.")
    ] = False,
) -> None:
    """Compare an export of the service's orders with the journal.

    Finds the order of a doubt where one fits and no other can be meant, and says how to resolve it; doubts
    that more than one order fits; orders that no key has, a duplicate among them; created keys that the
    export lacks; and keys that were resolved with the wrong order. It ends no doubt, and never says that
    one has no order: what the export lacks may come later, and moves no money until it is matched.
    Exit codes: 0 nothing to look at; 1 the journal or the export cannot be read; 2 a wrong use; 3 something
    to look at; 4 the journal has keys of other scopes only.
    """
    place = named(journal, scope, base_url)
    with usage():
        places = columns_named(column or [])
        checked_settle_after(settle_after)
        if not (slack == 0 or is_positive(slack)):
            raise ValueError("--slack: must be a finite number of seconds, 0 or more")
    place.checked()
    proposer = who(by) if propose else None
    with Books() as books:
        _read_export(books, export, places)
        were_times_compared = place.at_desk(
            lambda at: add_journal(books, at.journal, at.operators, slack=slack, settle_after=settle_after)
        )
        books.compare()
        found = books.figures()
        is_time_assumed = not (books.has_zones or were_times_compared)
        if as_json:
            _tell_as_json(books, found | {"is_time_assumed": is_time_assumed})
        else:
            _tell(books, found)
            if is_time_assumed:
                complain(_ASSUMED)
        if proposer is not None:
            assumed = ", if the export's times are in UTC" if is_time_assumed else ""
            reason = f"reconciled with {export.name}: the one order that fits{assumed}"
            _propose(books, place, by=proposer, reason=reason)
    if any(found[name] for name in _NAMES.values()):
        raise typer.Exit(DIFFERENT)


def _read_export(books: Books, export: Path, places: Mapping[str, Sequence[str]]) -> None:
    with failing("journal", {ValueError: USAGE, OSError: FAILED}, words=_unread):
        faults = add_export(books, export, places)
    for fault in faults:
        complain(shown(f"line {fault.line}: {fault.why}" if fault.line else fault.why))
    if faults:
        fail("journal: nothing was compared: an order that cannot be read may be anybody's", FAILED)


def _propose(books: Books, place: JournalTarget, *, by: str, reason: str) -> None:
    """What fits is proposed; what somebody has proposed already, or has moved since, is left and told."""
    matches = list(books.matches())

    async def proposed(at: OpenJournal) -> int:
        count = 0
        for match in matches:
            try:
                await propose_match(at.operators, match, by=by, reason=reason)
            except ValueError as why:
                complain(shown(f"{match.key}: not proposed: {why}"))
            else:
                count += 1
        return count

    with usage("--by"):
        reason = checked_text("reason", reason)
    complain(f"{place.at_desk(proposed):,} proposed: another person may approve each")


def _unread(error: Exception) -> str:
    return f"EXPORT: cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


_ASSUMED = (
    "posted_at: has no zone, and was read as UTC; no order that the service itself answered with shows "
    "whether that is right. Make sure of it before you resolve anything"
)

_FIGURES = {
    "orders": "orders in the export",
    "known": "of them known to a key",
    "matched": "doubts with the one order that fits",
    "ambiguous": "doubts that more than one order or key fits",
    "not_found": "doubts that no order fits: it may come later",
    "unknown": "orders that no key has",
    "lacking": "created keys that the export lacks",
    "wrong_order": "keys that were resolved with an order that is not theirs",
}


def _tell(books: Books, found: dict[str, int]) -> None:
    for name, words in _FIGURES.items():
        tell(f"{found[name]:>9,}  {words}")
    told: Counter[type[Finding]] = Counter()
    for finding in books.findings():
        kind = type(finding)
        told[kind] += 1
        if told[kind] <= SHOWN:
            tell(shown(_in_words(finding)))
    for kind, count in told.items():
        if count > SHOWN:
            tell(f"and {count - SHOWN:,} more {_NAMES[kind]}: --json tells all")


def _in_words(finding: Finding) -> str:
    match finding:
        case Match(key, order_id):
            return (
                f"{key}: only {order_id} fits; transfer-async journal resolve {shlex.quote(key)} "
                f"--order-id {shlex.quote(order_id)}"
            )
        case Ambiguous(key, order_ids, refuted):
            others = f"; refuted, and may have sent it: {', '.join(refuted)}" if refuted else ""
            return f"{key}: cannot be told from the export; what fits: {', '.join(order_ids)}{others}"
        case NotFound(key):
            return f"{key}: no order fits so far, which proves nothing"
        case Unknown(order_id, None):
            return f"{order_id}: no key has it"
        case Unknown(order_id, like, like_key):
            return f"{order_id}: no key has it; the same was ordered as {like}, by {like_key}: a duplicate?"
        case Lacking(key, order_id):
            return f"{key}: its order {order_id} is not in the export"
        case WrongOrder(key, order_id, fitting):
            fits = ", ".join(fitting) or "none so far"
            return (
                f"{key}: was resolved with {order_id}, an order of other users, amounts or time; what fits: "
                f"{fits}. Correct it with transfer-async journal amend {shlex.quote(key)}"
            )


_NAMES: dict[type[Finding], str] = {
    Match: "matched",
    Ambiguous: "ambiguous",
    NotFound: "not_found",
    Unknown: "unknown",
    Lacking: "lacking",
    WrongOrder: "wrong_order",
}


def _tell_as_json(books: Books, found: Mapping[str, int | bool]) -> None:
    tell(shown_json(json.dumps({"finding": "figures", **found})))
    for finding in books.findings():
        told = attrs.asdict(finding, filter=lambda _, value: value != ())
        line = {"finding": _NAMES[type(finding)], **told}
        tell(shown_json(json.dumps(line, ensure_ascii=False)))


# --- export file -------------------------------------------------------------------------------------
# An export of the service's orders, as CSV or JSON Lines: one order a row, read as far as it is compared.


_DATE_AND_TIME = re.compile(r"\d{4}-?\d\d-?\d\d.\d\d:?\d\d")

_JSON = msgspec.json.Decoder(float_hook=Decimal).decode


@frozen
class RowFault:
    """A row that cannot be read: on which line, and why; never a value of it."""

    line: int
    why: str


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


MAX_FAULTS = 20
"""How many rows that cannot be read are told."""


def add_export(books: Books, path: Path, places: Mapping[str, Sequence[str]]) -> list[RowFault]:
    """Take in every order of a file; what is wrong with it, each fault once.

    Raises:
        ValueError: it is no such file.
        OSError: it cannot be read.
    """
    faults: dict[str, tuple[int, int]] = {}
    for row in rows(path, places):
        if isinstance(row, RowFault):
            line, count = faults.get(row.why, (row.line, 0))
            faults[row.why] = line, count + 1
        elif not books.add_order(row):
            faults[f"the order {row.order_id} stands there twice, and not the same"] = 0, 1
        if len(faults) == MAX_FAULTS:
            break
    books.all_orders_added()
    if not faults and books.first is None:
        return [RowFault(0, "the export has no orders in it")]  # not even one: that is no export to compare
    return [
        RowFault(line, why if count == 1 else f"{why} (and {count - 1:,} more lines)")
        for why, (line, count) in faults.items()
    ]
