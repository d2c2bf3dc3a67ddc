"""The way from a file and a journal to what somebody should look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from transfer_async._cli.reconcile.comparison import Books, Match, Sender
from transfer_async._cli.reconcile.export_file import RowFault, rows, wish_of
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.entries import Entry, KeyState
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
        return Sender(
            key,
            None if entry.intent is None else wish_of(entry.intent.order),
            self.since_1970(entry.claimed_at) - self.slack,
            self.since_1970(entry.sent_until) + self.settle_after + self.slack,
            is_in_doubt=True,
        )


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
    last = ""
    while orders := await journal.orders(limit=PAGE, after=last):
        created = [(id_, key, None if at is None else span.since_1970(at)) for id_, key, at in orders]
        await asyncio.to_thread(books.add_created, created)
        last = orders[-1][0]


def _others(key: str, entry: Entry) -> Iterator[Sender]:
    """A key that is not in doubt, but whose wish, or an earlier one, may exist as an order all the same."""
    intents = [one.intent for one in entry.owed]
    if entry.state is KeyState.SENDING and entry.intent is not None:
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
