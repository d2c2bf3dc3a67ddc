"""The command: its options, its words and its exit codes."""

from __future__ import annotations

import asyncio
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer
from attrs import evolve, frozen

from transfer_async._cli import options
from transfer_async._cli.exit_codes import DIFFERENT, FAILED, USAGE
from transfer_async._cli.journal_output import OpenJournal
from transfer_async._cli.journal_session import By, JournalTarget, named, usage, who
from transfer_async._cli.output import complain, fail, failing, shown, shown_json, tell
from transfer_async._cli.reconcile_export import (
    PLACES,
    Ambiguous,
    Books,
    Finding,
    Lacking,
    Match,
    NotFound,
    RowFault,
    Sender,
    Unknown,
    WrongOrder,
    columns_named,
    rows,
    wish_of,
)
from transfer_async._pipeline.key_views import checked_settle_after, checked_text
from transfer_async._pipeline.operators import Operators
from transfer_async._support.util import is_positive
from transfer_async.journal.model import SETTLE_AFTER, Decision, Entry, HistoryEvent, KeyState
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.journal.transitions import Create, MarkSending, Refute

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


# --- reconciliation ----------------------------------------------------------------------------------
# The way from a file and a journal to what somebody should look at.


PAGE = 500
"""Keys asked for at once."""

MAX_FAULTS = 20
"""How many rows that cannot be read are told."""

EVER = float("inf")

ROUNDED = 1.0
"""Seconds: an export may show whole ones."""


class ClocksDiffer(ValueError):
    """The export has another time for an order than the journal: no order can be told by its time."""


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


@frozen(kw_only=True)
class Span:
    """The time in which the order of a doubt may have been posted.

    Args:
        slack: seconds by which the service's clock may differ.
        settle_after: seconds after the last possible send in which a request may still take effect.
        since_1970: makes seconds since 1970 of the journal's own.
    """

    slack: float
    settle_after: float
    since_1970: Callable[[float], float]

    def sender(self, key: str, entry: Entry) -> Sender:
        """A key in doubt, and when its order was posted if there is one."""
        since = self.since_1970(entry.claimed_at) - self.slack
        until = self._until(self.since_1970(entry.sent_until))
        if entry.unread is not None and not entry.unread.is_sealed:  # its times may be what is lost
            since, until = -EVER, EVER
        wish = None if entry.intent is None else wish_of(entry.intent.order)
        return Sender(key, wish, since, until, is_in_doubt=True)

    def refuted(self, key: str, entry: Entry, steps: Sequence[HistoryEvent]) -> Iterator[Sender]:
        """The attempts of a key that were refuted, which may be a mistake, and when their orders were posted.

        What they wished for is not kept once their undos are done: any order of that time may be theirs.
        """
        marked = {step.attempt: step.at for step in steps if step.move == MarkSending.name}
        wishes = {undo.intent.id: wish_of(undo.intent.order) for undo in entry.owed}
        for step in steps:
            if step.move != Refute.name:
                continue
            since = marked.get(step.attempt, math.nan) - self.slack
            is_last = entry.is_readable and step.attempt is not None and entry.attempt == step.attempt
            until = self._until(self.since_1970(entry.sent_until) if is_last else step.at)
            yield Sender(
                key,
                wishes.get(step.intent_id),
                -EVER if math.isnan(since) else since,
                EVER if math.isnan(until) else until,
                is_in_doubt=False,
                was_refuted=True,
            )

    def _until(self, sent_until: float) -> float:
        return sent_until + self.settle_after + self.slack


async def add_journal(
    books: Books, journal: ScopedJournal, operators: Operators, *, slack: float, settle_after: float
) -> bool:
    """Take in every key that may have sent an order, and then every key whose order is known.

    Returns:
        Whether the export's times were compared with the journal's, by an order that both know.

    Raises:
        ClocksDiffer: they are further apart than ``slack``.
        JournalFailed: the journal could not be read.
        ValueError: it cannot list its orders.
    """
    utc = await operators.times()
    span = Span(slack=slack, settle_after=settle_after, since_1970=lambda time: utc(time).timestamp())
    doubts = dict(await journal.in_doubt())
    await asyncio.to_thread(books.add_senders, [span.sender(key, entry) for key, entry in doubts.items()])
    last = ""
    while page := await journal.work(limit=PAGE, after=last):
        others = [other for key, entry in page if key not in doubts for other in _others(key, entry)]
        await asyncio.to_thread(books.add_senders, others)
        last = page[-1][0]
    await _add_refuted(books, journal, span)
    await _add_resolved(books, journal, span)
    last = ""
    while orders := await journal.orders(limit=PAGE, after=last):
        created = [(id_, key, None if at is None else span.since_1970(at)) for id_, key, at in orders]
        await asyncio.to_thread(books.add_created, created)
        last = orders[-1][0]
    return await _compare_clocks(books, journal, slack=slack + ROUNDED)


async def _compare_clocks(books: Books, journal: ScopedJournal, *, slack: float) -> bool:
    """Whether the times of orders were compared that the service itself answered with.

    Raises:
        ClocksDiffer: one was posted neither while it was sent nor within ``slack`` of that.
    """
    is_compared = await asyncio.to_thread(books.times_agree, slack)
    last = ""
    # Since when an order is known may be later by days: when somebody was told of it, for one.
    while others := await asyncio.to_thread(books.other_times, slack, after=last, limit=PAGE):
        for order_id, key, posted_at in others:
            apart = _apart(order_id, posted_at, await journal.history(key))
            if apart is not None and apart > slack:
                raise ClocksDiffer(
                    f"EXPORT: nothing was compared: its posted_at of {order_id} is {apart:,.0f} s from the "
                    f"time at which the journal has it created, for {key}. A time without a zone is read as "
                    "UTC: export the times in UTC, or with their zone, as 2026-01-31T13:00:00+01:00. If the "
                    "service's clock does differ by as much, give --slack"
                )
            is_compared |= apart is not None
            last = order_id
    return is_compared


def _apart(order_id: str, posted_at: float, steps: Sequence[HistoryEvent]) -> float | None:
    """Seconds between posting an order and sending it; None where the service did not answer with it."""
    end = next((step for step in steps if step.move == Create.name and step.order_id == order_id), None)
    if end is None:  # somebody gave its id, and that may be the wrong one
        return None
    marks = [step.at for step in steps if step.move == MarkSending.name and step.attempt == end.attempt]
    return max(min([end.at, *marks]) - posted_at, posted_at - end.at)


async def _add_refuted(books: Books, journal: ScopedJournal, span: Span) -> None:
    """Take in every key of which a doubt was refuted: whoever did so may be wrong."""
    keys, after = await journal.refuted()
    while True:
        for key in keys:
            entry = await journal.read(key)
            if entry is not None:  # or it was forgotten just now
                attempts = list(span.refuted(key, entry, await journal.history(key)))
                await asyncio.to_thread(books.add_senders, attempts)
        if not after:
            return
        keys, after = await journal.refuted(after=after)


async def _add_resolved(books: Books, journal: ScopedJournal, span: Span) -> None:
    """Take in every key whose order somebody named by its id alone: that may be the wrong id."""
    after = ""
    while True:
        keys, after = await journal.resolved(after=after)
        for key in dict.fromkeys(keys):
            entry = await journal.read(key)
            if entry is not None and entry.is_amendable and entry.order_id is not None:
                sender = evolve(span.sender(key, entry), is_in_doubt=False)
                claimed_at = span.since_1970(entry.claimed_at)
                await asyncio.to_thread(books.add_resolved, sender, entry.order_id, claimed_at=claimed_at)
        if not after:
            return


def _others(key: str, entry: Entry) -> Iterator[Sender]:
    """A key that was not in doubt, but whose wish, or an earlier one, may exist as an order all the same."""
    intents = [undo.intent for undo in entry.owed]
    if entry.state in (KeyState.SENDING, KeyState.IN_DOUBT) and entry.intent is not None:
        intents.append(entry.intent)
    wishes: set[str | None] = {wish_of(intent.order) for intent in intents}
    for wish in wishes if entry.is_readable else {None}:
        yield Sender(key, wish, -EVER, EVER, is_in_doubt=False)


async def propose_match(operators: Operators, match: Match, *, by: str, reason: str) -> None:
    """Propose that a doubt is resolved with the order that fits, for another person to approve.

    Raises:
        ValueError: somebody has proposed something already, or the key has moved.
        JournalFailed: the journal could not be read or written.
    """
    view = await operators.view(match.key)
    if view.proposal is not None:
        raise ValueError(f"{view.proposal.by} has proposed something already")
    await operators.propose(
        match.key, Decision.RESOLVE, order_id=match.order_id, by=by, reason=reason, seen=view.moves
    )
