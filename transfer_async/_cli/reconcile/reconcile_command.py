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
from transfer_async._cli.console.exit_codes import DIFFERENT, FAILED, USAGE
from transfer_async._cli.console.output import complain, fail, failing, shown, shown_json, tell
from transfer_async._cli.journal.asking import By, Place, named, usage, who
from transfer_async._cli.journal.terminal import OpenJournal
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
from transfer_async._cli.reconcile.reconciliation import add_export, add_journal, propose_match
from transfer_async._pipeline.refusals import checked_settle_after, checked_text
from transfer_async._support.validators import is_positive

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
    that more than one order fits; orders that no key has, a duplicate among them; and created keys that the
    export lacks. It ends no doubt, and never says that one has no order: what the export lacks may come
    later, and moves no money until it is matched.
    Exit codes: 0 nothing to look at; 1 the journal or the export cannot be read; 2 a wrong use; 3 something
    to look at.
    """
    place = named(journal, scope, base_url)
    with usage():
        places = columns_named(column or [])
        checked_settle_after(settle_after)
        if not (slack == 0 or is_positive(slack)):
            raise ValueError("--slack: must be a finite number of seconds, 0 or more")
    proposer = who(by) if propose else None
    with Books() as books:
        _read_export(books, export, places)
        place.at_desk(
            lambda at: add_journal(books, at.journal, at.operators, slack=slack, settle_after=settle_after)
        )
        books.compare()
        found = books.figures()
        _tell_as_json(books, found) if as_json else _tell(books, found)
        if proposer is not None:
            reason = f"reconciled with {export.name}: the one order that fits"
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


def _propose(books: Books, place: Place, *, by: str, reason: str) -> None:
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
        told = attrs.asdict(finding, filter=lambda _, value: value != ())
        line = {"finding": _NAMES[type(finding)], **told}
        tell(shown_json(json.dumps(line, ensure_ascii=False)))
