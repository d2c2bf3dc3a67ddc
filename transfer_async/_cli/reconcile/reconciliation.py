"""The way from a file and a journal to what somebody should look at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from transfer_async._cli.reconcile.comparison import Books, Match, Sender
from transfer_async._cli.reconcile.export_file import RowFault, rows, wish_of
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.entries import Entry, KeyState, Step
from transfer_async.journal.moves import Mark, Refute
from transfer_async.journal.proposal import Decision
from transfer_async.journal.scoped import ScopedJournal

PAGE = 500
"""Keys asked for at once."""

SHOWN = 20
"""How many rows that cannot be read are told."""

EVER = float("inf")


def add_export(books: Books, path: Path, places: Mapping[str, Sequence[str]]) -> list[RowFault]:
    """Take in every order of a file; what is wrong with its first bad rows.

    Raises:
        ValueError: it is no such file.
        OSError: it cannot be read.
    """
    faults: list[RowFault] = []
    for row in rows(path, places):
        if isinstance(row, RowFault):
            faults.append(row)
        elif not books.add_order(row):
            faults.append(RowFault(0, f"the order {row.order_id} stands there twice, and not the same"))
        if len(faults) == SHOWN:
            break
    books.all_orders_added()
    return faults


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

    def refuted(self, key: str, entry: Entry, steps: Sequence[Step]) -> Iterator[Sender]:
        """The attempts of a key that were refuted, which may be a mistake, and when their orders were posted.

        What they wished for is not kept once their undos are done: any order of that time may be theirs.
        """
        marked = {step.attempt: step.at for step in steps if step.move == Mark.name}
        wishes = {one.intent.id: wish_of(one.intent.order) for one in entry.owed}
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
) -> None:
    """Take in every key that may have sent an order, and then every key whose order is known.

    Raises:
        JournalFailed: the journal could not be read.
        ValueError: it cannot list its orders.
    """
    utc = await operators.times()
    span = Span(slack=slack, settle_after=settle_after, since_1970=lambda time: utc(time).timestamp())
    doubts = dict(await journal.in_doubt())
    await asyncio.to_thread(books.add_senders, [span.sender(key, entry) for key, entry in doubts.items()])
    last = ""
    while page := await journal.work(limit=PAGE, after=last):
        others = [one for key, entry in page if key not in doubts for one in _others(key, entry)]
        await asyncio.to_thread(books.add_senders, others)
        last = page[-1][0]
    await _add_refuted(books, journal, span)
    last = ""
    while orders := await journal.orders(limit=PAGE, after=last):
        created = [(id_, key, None if at is None else span.since_1970(at)) for id_, key, at in orders]
        await asyncio.to_thread(books.add_created, created)
        last = orders[-1][0]


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


def _others(key: str, entry: Entry) -> Iterator[Sender]:
    """A key that was not in doubt, but whose wish, or an earlier one, may exist as an order all the same."""
    intents = [one.intent for one in entry.owed]
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
