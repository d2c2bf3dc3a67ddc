"""What every journal does, and what a bank may ask of one."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, Self, cast

from attrs import field, frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import UnreadableOrder
from transfer_async._models.responses import Order
from transfer_async._support.callables import is_async, refuse_class
from transfer_async.journal.entries import Entry, KeyState, Step, Verdict
from transfer_async.journal.moves import Move


class Journal(Protocol):
    """The durable record of intents and their outcomes: it stores, `decide` decides.

    Every method raises whatever its store raises. A move is atomic and, once it returns, as durable
    as ``durable`` says; its line of history is written with it. Once begun it is finished even if
    its caller is cancelled.

    A bank's own journal is any class with these methods. It knows no move from another: it loads the
    entry under a lock, asks `decide`, and writes what changed, all in one transaction::

        async def move(self, scope: str, key: str, move: Move) -> Verdict | None:
            async with self.transaction(scope, key) as stored:  # nobody else writes the key meanwhile
                taken = move.order_bound is not None and await stored.is_of_another_key(move.order_bound)
                verdict = decide(stored.entry, move, now=stored.now, id_taken=taken)
                if verdict is not None and verdict.entry is not stored.entry:
                    await stored.write(row_of(verdict.entry, token=new_token(), now=stored.now))
                    if is_told(move, verdict):
                        await stored.add(step_values(history_step(verdict.entry, move, now=stored.now)))
            return verdict

    `row_of` makes a few columns and JSON of an entry, and `entry_of` the entry again; `step_values` and
    `step_of` do so for the history. `is_waiting` says what `work` gives, `forgettable` what `prune` may.
    The time is the store's own, one for all workers. A commit whose reply was lost may be read back by
    the row's token; else the move raises, and is taken for unknown. `JournalContract` (in
    `transfer_async.testing.journal_contract`) tries any journal.

    Two more methods are asked for by those who compare the journal with the service's books, and by nobody
    else. ``async orders(scope, *, limit, after="")`` gives the orders that keys are bound to, as tuples of
    the order's id, its key, and since when nothing is left to do (or None), by id and only beyond ``after``.
    ``async refuted(scope, *, after="")`` gives some of the keys of which a doubt was ever refuted, whatever
    became of them since, and what to say as ``after`` for the next of them: nothing at the end.
    """

    durable: bool
    """Whether what has returned survives the death of the process."""

    async def __aenter__(self) -> Self:
        """Open the journal; a journal also opens itself when it is first used."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close the journal."""
        ...

    async def close(self) -> None:
        """Close the journal; what it holds stays."""
        ...

    async def now(self) -> float:
        """The time by which it judges leases, in seconds since whenever."""
        ...

    async def move(self, scope: str, key: str, move: Move) -> Verdict | None:
        """Make ``move``, as `decide` says; None if there is no entry it could be about."""
        ...

    async def read(self, scope: str, key: str) -> Entry | None:
        """The key's entry; what can be read of one that cannot be read whole has ``unread``."""
        ...

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Keys that wait for somebody: dead workers' claims and requests, doubts, and what is owed.

        Args:
            scope: of the keys.
            limit: how many at most.
            after: only keys beyond this one, in the journal's own order, which never changes.
        """
        ...

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        """All keys in doubt, oldest first."""
        ...

    async def count_in_doubt(self, scope: str) -> int:
        """How many keys are in doubt."""
        ...

    async def history(self, scope: str, key: str) -> tuple[Step, ...]:
        """Every move of the key, oldest first; ``at`` in seconds since 1970."""
        ...

    async def prune(self, scope: str, *, before: datetime) -> int:
        """Forget keys that ended before then, as far as `forgettable` lets them go, and say how many.

        Never one in doubt, at work, or with anything owed or untold.
        """
        ...


KEPT = 86_400.0
"""Seconds for which a key that ended is kept, whatever is asked: its message, or its file, may come again."""


class NotToBeForgotten(ValueError):
    """Keys cannot be forgotten up to the time that was named."""


def forgettable(before: datetime, *, now: float) -> float:
    """The time up to which keys may be forgotten: ``before``, but none that ended within a day.

    Args:
        before: as somebody asked for.
        now: on the journal's own clock, in seconds since 1970; so is what is given back.

    Raises:
        NotToBeForgotten: ``before`` is not an aware time, or lies ahead.
    """
    if not isinstance(before, datetime) or before.utcoffset() is None:
        raise NotToBeForgotten("before: must be an aware datetime")
    if before.timestamp() > now:
        raise NotToBeForgotten(
            "before: must not lie ahead: a key that is forgotten is free, and what ended just now may "
            "come again, and would be paid again"
        )
    return min(before.timestamp(), now - KEPT)


def checked_journal(given: object) -> Journal:
    """``given``, if it is a journal.

    Raises:
        ValueError: it is not; says what to write instead, and shows no address.
    """
    refuse_class(given, name="journal")
    if not is_async(getattr(given, "move", None)):
        raise ValueError(
            f"journal: is a {type(given).__name__}, and must be a journal: SQLiteJournal(path), "
            "PostgresJournal(dsn) or MemoryJournal()"
        )
    return cast("Journal", given)


@frozen(kw_only=True, eq=False, repr=False)
class KeyRecord(ByValue):
    """What is known of a key: for a bank that places its own holds, before it places one.

    Args:
        state: where the key stands.
        order: the order, once it exists, if its reply was recorded and still reads as one.
        order_id: the order's id, once it exists.
        receipts: what the hooks handed back, by hook name; ``"held"`` for ``held=``.
        held: the reference that was given as ``held=``.
        intent_id: of the current, or last, intent.
        readable: false where this is only what can be read of what is on record: the key is bound.
    """

    state: KeyState
    order: Order | None = None
    order_id: str | None = None
    receipts: dict[str, str | None] = field(factory=dict, repr=False)
    held: str | None = field(default=None, repr=False)
    intent_id: str
    readable: bool = True


def record_of(entry: Entry) -> KeyRecord:
    """The part of an entry that a bank may ask for."""
    return KeyRecord(
        state=entry.state,
        order=order_on_record(entry),
        order_id=entry.order_id,
        receipts=entry.all_receipts,
        held=entry.held,
        intent_id=entry.intent_id,
        readable=entry.is_readable,
    )


def order_on_record(entry: Entry) -> Order | None:
    """The order as the service answered it; None if that is not on record, or was read otherwise then."""
    if entry.reply is None:
        return None
    try:
        return Order.from_json(entry.reply)
    except UnreadableOrder:  # it exists all the same: it is not in doubt
        return None
