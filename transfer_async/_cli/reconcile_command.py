"""The ``journal reconcile`` command: its options, how it reads the export, its report and exit codes."""

from __future__ import annotations

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

from transfer_async._cli import options
from transfer_async._cli.journal_session import By, JournalTarget, Person, target_of, usage
from transfer_async._cli.output import (
    BadLine,
    TextLines,
    complain,
    csv_rows,
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
    Comparison,
    ExportedOrder,
    Finding,
    Lacking,
    Match,
    NotFound,
    Unknown,
    WrongOrder,
    add_journal,
    order_content,
)
from transfer_async._models import requests
from transfer_async._pipeline.call import checked_settle_after
from transfer_async._pipeline.key_views import checked_order_id, checked_text
from transfer_async._pipeline.operators import Operators
from transfer_async._support.util import is_positive
from transfer_async.journal.model import SETTLE_AFTER, Decision

MAX_SHOWN = 20
"""The maximum number of findings of each kind that are printed without ``--json``, and of faults in the
export.
"""

Columns = Mapping[str, Sequence[str]]
"""The names of the columns that may contain a field, by the field's name."""

COLUMNS: Columns = {
    "order_id": ("order_id", "id"),
    "poster_username": ("poster_username", "user.username"),
    "poster_recipient_username": ("poster_recipient_username", "postersBeneficiary.username"),
    "poster_currency": ("poster_currency",),
    "poster_amount": ("poster_amount",),
    "matcher_currency": ("matcher_currency",),
    "matcher_amount": ("matcher_amount",),
    "posted_at": ("posted_at",),
}
"""The default columns of each field: our name, then the name in the service's order object (specification
2.1). A dot separates a nested member from its parent.
"""


def reconcile(
    export: Annotated[
        Path, typer.Argument(metavar="EXPORT", help="A .csv or .jsonl file of the service's orders.")
    ],
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help=f"The column that contains FIELD, which is one of {', '.join(COLUMNS)}. By default, a "
            "column named FIELD, or named as the field in the service's order object, is used. "
            "May be repeated.",
        ),
    ] = None,
    slack: Annotated[
        float,
        typer.Option(help="Maximum difference between the service's clock and the journal's, in seconds."),
    ] = 300.0,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    propose: Annotated[
        bool, typer.Option("--propose", help="Propose to resolve each match, for another person to approve.")
    ] = False,
    by: By = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON Lines: the counts, then one line per finding.")
    ] = False,
) -> None:
    """Compare an export of the service's orders with the journal.

    If exactly one order matches a key in doubt, the command prints how to resolve the key with that order.
    The command also reports keys in doubt with several matching orders, orders that belong to no key (such as
    duplicates), keys whose recorded order is not in the export, and keys that were resolved with the wrong
    order. The command never resolves or refutes a key itself. The command never concludes that an order does
    not exist, because an order that is missing from the export may appear later.

    Exit codes: 0 the export and the journal agree; 1 the journal or the export cannot be read or compared; 2
    usage error; 3 something needs attention; 4 the journal contains only keys in other scopes.
    """
    target = target_of(journal, scope, base_url)
    with usage():
        columns = _columns(column or [])
        checked_settle_after(settle_after)
        if not (slack == 0 or is_positive(slack)):
            raise ValueError("--slack: must be a finite number of seconds, 0 or more")
    target.checked()
    proposer = Person(by, reason=None).name if propose else None
    with Comparison() as comparison:
        _read_export(comparison, export, columns)
        are_times_compared = target.with_journal(
            lambda operators: add_journal(
                comparison, operators._journal, operators, slack=slack, settle_after=settle_after
            )
        )
        comparison.compare()
        figures = comparison.figures()
        is_time_assumed = not (comparison.has_zones or are_times_compared)
        if as_json:
            _print_json(comparison, figures | {"is_time_assumed": is_time_assumed})
        else:
            _print_report(comparison, figures)
            if is_time_assumed:
                complain(_ASSUMED)
        if proposer is not None:
            assumed = ", if the export's times are in UTC" if is_time_assumed else ""
            reason = f"reconciled with {export.name}: the only matching order{assumed}"
            _propose(comparison, target, by=proposer, reason=reason)
    if any(figures[name] for name in _FIGURES if name not in ("orders", "known")):
        raise typer.Exit(DIFFERENT)


def _propose(comparison: Comparison, target: JournalTarget, *, by: str, reason: str) -> None:
    """Propose to resolve each match, unless its key already has a proposal or has changed."""
    matches = list(comparison.matches())

    async def proposed(operators: Operators) -> int:
        count = 0
        for match in matches:
            try:
                view = await operators.view(match.key)
                if view.proposal is not None:
                    raise ValueError(f"{view.proposal.by} has already proposed a decision")  # noqa: TRY301 - like `propose`
                await operators.propose(
                    match.key,
                    Decision.RESOLVE,
                    order_id=match.order_id,
                    by=by,
                    reason=reason,
                    seen=view.version,
                )
                count += 1
            except ValueError as error:
                complain(shown(f"{match.key}: not proposed: {error}"))
        return count

    with usage():
        reason = checked_text("EXPORT", reason)  # The reason contains the file's name.
    complain(f"{target.with_journal(proposed):,} proposed: another person must approve each proposal")


# --- the report --------------------------------------------------------------------------------------


_ASSUMED = (
    "posted_at: has no time zone, and was read as UTC. No order that is in both the export and the journal "
    "confirms this. Check the time zone before you resolve any key"
)

_FIGURES = {
    "orders": "orders in the export",
    "known": "orders in the export that belong to a key",
    Match.kind: "keys in doubt with exactly one matching order",
    Ambiguous.kind: (
        "keys in doubt with several matching orders, or with an order that may belong to another key"
    ),
    NotFound.kind: "keys in doubt with no matching order so far",
    Unknown.kind: "orders that belong to no key",
    Lacking.kind: "keys whose recorded order is not in the export",
    WrongOrder.kind: "keys resolved with the wrong order",
}


def _print_report(comparison: Comparison, figures: Mapping[str, int]) -> None:
    for name, text in _FIGURES.items():
        tell(f"{figures[name]:>9,}  {text}")
    counts: Counter[str] = Counter()
    for finding in comparison.findings():
        counts[finding.kind] += 1
        if counts[finding.kind] <= MAX_SHOWN:
            tell(shown(_text(finding)))
    for kind, count in counts.items():
        if count > MAX_SHOWN:
            tell(f"and {count - MAX_SHOWN:,} more {kind}: --json prints all")


def _text(finding: Finding) -> str:
    match finding:
        case Match(key, order_id):
            command = f"transfer-async journal resolve {shlex.quote(key)} --order-id {shlex.quote(order_id)}"
            return f"{key}: only {order_id} matches; to resolve the key, run {command}"
        case Ambiguous(key, order_ids, refuted):
            others = (
                f"; one of these orders may belong to a refuted key: {', '.join(refuted)}" if refuted else ""
            )
            return f"{key}: ambiguous; matching orders: {', '.join(order_ids)}{others}"
        case NotFound(key):
            return f"{key}: no matching order so far; the order may appear later"
        case Unknown(order_id, None):
            return f"{order_id}: belongs to no key"
        case Unknown(order_id, like, like_key):
            return f"{order_id}: belongs to no key; may be a duplicate of {like}, the order of key {like_key}"
        case Lacking(key, order_id):
            return f"{key}: the recorded order {order_id} is not in the export"
        case WrongOrder(key, order_id, fitting):
            return (
                f"{key}: was resolved with {order_id}, whose users, amounts or time do not "
                f"match; matching orders: {', '.join(fitting) or 'none so far'}. To correct the "
                f"order id, run transfer-async journal amend {shlex.quote(key)}"
            )


def _print_json(comparison: Comparison, figures: Mapping[str, int | bool]) -> None:
    tell(shown_json(json.dumps({"finding": "figures", **figures})))
    for finding in comparison.findings():
        values = attrs.asdict(finding, filter=lambda _, value: value != ())
        tell(shown_json(json.dumps({"finding": finding.kind, **values}, ensure_ascii=False)))


# --- the export --------------------------------------------------------------------------------------
# CSV or JSON Lines, one order per row. Messages contain the line and the field, but never a value.


_DATE_AND_TIME = re.compile(r"\d{4}-?\d\d-?\d\d.\d\d:?\d\d")

_JSON = msgspec.json.Decoder(float_hook=Decimal).decode


def _columns(given: Sequence[str]) -> Columns:
    columns = dict(COLUMNS)
    for pair in given:
        name, _, column = pair.partition("=")
        if name not in COLUMNS or not column:
            raise ValueError(f"--column: must be FIELD=COLUMN, where FIELD is one of {', '.join(COLUMNS)}")
        columns[name] = (column,)
    return columns


def _read_export(comparison: Comparison, export: Path, columns: Columns) -> None:
    with failing("journal", {ValueError: USAGE, OSError: FAILED}, words=_unreadable):
        faults = _add_export(comparison, export, columns)
    for fault in faults:
        complain(shown(f"line {fault.line}: {fault.why}" if fault.line else fault.why))
    if faults:
        fail(
            (
                "journal: EXPORT: nothing was compared, because an order that cannot be read may belong to "
                "any key: correct the export first"
            ),
            FAILED,
        )


def _unreadable(error: Exception) -> str:
    return f"EXPORT: cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


def _add_export(comparison: Comparison, path: Path, columns: Columns) -> list[BadLine]:
    """Add every order in the export. Return one example of each kind of error."""
    faults: dict[str, tuple[int, int]] = {}
    for row in _rows(path, columns):
        if isinstance(row, BadLine):
            line, count = faults.get(row.why, (row.line, 0))
            faults[row.why] = line, count + 1
        elif not comparison.add_order(row):
            faults[f"the export contains order {row.order_id} twice, with different values"] = 0, 1
        if len(faults) == MAX_SHOWN:
            break
    if not faults and comparison.first > comparison.last:  # No service has an empty export.
        faults["the export contains no orders"] = 0, 1
    return [
        BadLine(line, why if count == 1 else f"{why} (and {count - 1:,} more lines)")
        for why, (line, count) in faults.items()
    ]


def _rows(path: Path, columns: Columns) -> Iterator[ExportedOrder | BadLine]:
    """Yield each order, or a `BadLine` for a row that cannot be read.

    Raises:
        ValueError: the file's name does not end in .csv, .jsonl or .ndjson.
        OSError: the file cannot be read.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError("EXPORT: the file's name must end in .csv, .jsonl or .ndjson")
    with path.open("rb") as file:
        lines = TextLines(file)
        for line, row in reader(lines, columns):
            yield row if isinstance(row, BadLine) else _order(line, row, columns)


def _csv_rows(lines: TextLines, columns: Columns) -> Iterator[tuple[int, Any]]:
    header: list[str] | None = None
    for line, row in csv_rows(lines):
        if isinstance(row, BadLine):
            yield line, row
        elif header is None:
            header = row
            try:
                _check_header(header, columns)
            except ValueError as error:
                yield line, BadLine(line, str(error))
                return  # Otherwise every row would have the same fault.
        elif row and len(row) != len(header):
            yield line, BadLine(line, "has a different number of values than the header")
        elif row:
            yield line, dict(zip(header, row, strict=True))


def _check_header(header: Sequence[str], columns: Columns) -> None:
    _cells(dict(zip(header, header, strict=True)), columns)
    for name, wanted in columns.items():
        for column in wanted:
            if header.count(column) > 1:
                raise ValueError(
                    f"{name}: two columns have the name {column}; rename one of them in the export"
                )


def _json_rows(lines: TextLines, _: Columns) -> Iterator[tuple[int, Any]]:
    for text in each_line(lines):
        row: Any = text
        if isinstance(text, str):
            try:
                row = _JSON(text)
            except (msgspec.DecodeError, ArithmeticError):
                row = BadLine(lines.number, "is not JSON")
        yield lines.number, row


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}


def _order(line: int, row: Any, columns: Columns) -> ExportedOrder | BadLine:
    try:
        cells = _cells(row, columns)
        time = _time(cells["posted_at"])
        sums = [(_amount(name, cells[name]), cells[currency]) for name, currency in _SUMS.items()]
        return ExportedOrder(
            order_id=checked_order_id(cells["order_id"]),
            content=order_content(cells["poster_username"], cells["poster_recipient_username"], *sums),
            posted_at=(time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp(),
            has_zone=time.tzinfo is not None,
        )
    except ValueError as error:
        return BadLine(line, str(error))


_SUMS = {"poster_amount": "poster_currency", "matcher_amount": "matcher_currency"}


def _cells(row: Any, columns: Columns) -> dict[str, Any]:
    """Return the value of each field. Error messages contain no column names except those in ``columns``."""
    cells = {name: _cell(row, name, wanted) for name, wanted in columns.items()}
    if missing := [name for name, value in cells.items() if value is None]:
        looked_for = ", ".join(f"{name} (looked for as {' or '.join(columns[name])})" for name in missing)
        raise ValueError(
            f"missing: {looked_for}. If a column has another name, pass --column {missing[0]}=COLUMN"
        )
    return cells


def _cell(row: Any, name: str, columns: Sequence[str]) -> Any:
    """Return the value of a field from its columns or nested members, or None if it is empty."""
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
            if not isinstance(value, str) and name not in _SUMS:
                raise ValueError(f"{name}: must be text")
            found[column] = value
    if len(set(map(str, found.values()))) > 1:
        given = [*found]
        raise ValueError(
            f"{name}: found in {' and in '.join(given)}; choose one of these columns with "
            f"--column {name}={given[0]}"
        )
    return next(iter(found.values()), None)


def _amount(name: str, value: Any) -> Decimal:
    amount = requests.to_decimal(value)
    if problem := requests.number_problem(amount):
        raise ValueError(f"{name}: {problem}")
    return Decimal(amount)


def _time(text: str) -> datetime:
    problem = "is not a time"
    try:
        time = datetime.fromisoformat(text)
        if _DATE_AND_TIME.match(text):
            return time
        problem = "is a date without a time"  # Python would read it as midnight.
    except ValueError:
        pass
    raise ValueError(f"posted_at: {problem}; export it as, for example, 2026-01-31T12:00:00.000Z")
