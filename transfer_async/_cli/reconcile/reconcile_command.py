"""The command: its options, its words and its exit codes."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import DIFFERENT, FAILED, USAGE
from transfer_async._cli.console.output import complain, fail, failing, shown, shown_json, tell
from transfer_async._cli.journal import desk
from transfer_async._cli.reconcile.comparison import (
    Ambiguous,
    Books,
    Finding,
    Lacking,
    Match,
    NotFound,
    Unknown,
)
from transfer_async._cli.reconcile.export_file import PLACES, columns_named
from transfer_async._cli.reconcile.reconciliation import add_export, add_journal
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.refusals import checked_settle_after
from transfer_async._support.validators import is_positive
from transfer_async.journal.protocol import Journal

SHOWN = 20
"""How many findings of a kind are told without ``--json``."""


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
    settle_after: options.SettleAfter = 300.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON Lines: first the figures, then each finding.")
    ] = False,
) -> None:
    """Compare an export of the service's orders with the journal.

    Finds the order of a doubt where one fits and no other can be meant, and says how to resolve it; doubts
    that more than one order fits; orders that no key has, a duplicate among them; and created keys that the
    export lacks. It changes nothing, and never says that a doubt has no order: what the export lacks may
    come later, and moves no money until it is matched.
    Exit codes: 0 nothing to look at; 1 the journal or the export cannot be read; 2 a wrong use; 3 something
    to look at.
    """
    with failing("journal", {ValueError: USAGE}):
        places = columns_named(column or [])
        where, store = desk.scope_of(scope, base_url), desk.journal_named(journal)
        checked_settle_after(settle_after)
        if not (slack == 0 or is_positive(slack)):
            raise ValueError("--slack: must be a finite number of seconds, 0 or more")
    with Books() as books:
        _read_export(books, export, places)
        with failing("journal", {TransferError: FAILED, ValueError: FAILED}, words=desk.explained):
            run(_read_journal(books, store, where, slack=slack, settle_after=settle_after))
        books.compare()
        found = books.figures()
        _tell_as_json(books, found) if as_json else _tell(books, found)
    if any(found[name] for name in _NAMES.values()):
        raise typer.Exit(DIFFERENT)


def _read_export(books: Books, export: Path, places: Mapping[str, Sequence[str]]) -> None:
    with failing("journal", {ValueError: USAGE, OSError: FAILED}, words=_unread):
        faults = add_export(books, export, places)
    for fault in faults:
        complain(shown(f"line {fault.line}: {fault.why}" if fault.line else fault.why))
    if faults:
        fail("journal: nothing was compared: an order that cannot be read may be anybody's", FAILED)


async def _read_journal(books: Books, store: Journal, scope: str, **times: float) -> None:
    async with desk.opened(store, scope) as at:
        await add_journal(books, at.journal, at.operators, **times)


def _unread(error: Exception) -> str:
    return f"EXPORT: cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


_FIGURES = {
    "orders": "orders in the export",
    "known": "of them known to a key",
    "matched": "doubts with the one order that fits",
    "ambiguous": "doubts that more than one order or key fits",
    "not_found": "doubts that no order fits: it may come later",
    "unknown": "orders that no key has",
    "lacking": "created keys that the export lacks",
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
        case Ambiguous(key, order_ids):
            return f"{key}: cannot be told from the export; what fits: {', '.join(order_ids)}"
        case NotFound(key):
            return f"{key}: no order fits so far, which proves nothing"
        case Unknown(order_id, None):
            return f"{order_id}: no key has it"
        case Unknown(order_id, like, like_key):
            return f"{order_id}: no key has it; the same was ordered as {like}, by {like_key}: a duplicate?"
        case Lacking(key, order_id):
            return f"{key}: its order {order_id} is not in the export"


_NAMES: dict[type[Finding], str] = {
    Match: "matched",
    Ambiguous: "ambiguous",
    NotFound: "not_found",
    Unknown: "unknown",
    Lacking: "lacking",
}


def _tell_as_json(books: Books, found: dict[str, int]) -> None:
    tell(shown_json(json.dumps({"finding": "figures", **found})))
    for finding in books.findings():
        line = {"finding": _NAMES[type(finding)], **attrs.asdict(finding)}
        tell(shown_json(json.dumps(line, ensure_ascii=False)))
