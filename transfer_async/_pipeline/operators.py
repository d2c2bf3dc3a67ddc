"""What people do with a journal: see what is in doubt, end a doubt, look back, and forget.

An operator has found out, by the bank's own means, what became of an order. Its word is a move like
any other: a compare-and-set on the attempt that it was asked about, kept in the key's history with
who said it and why. Nobody's word is believed too early: a request that stalled may still take effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from transfer_async._models import keys, texts
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, Observer, Observers, Resolved, WentInDoubt
from transfer_async._pipeline.doubt import ABANDONED
from transfer_async._pipeline.key_views import Doubt, doubt_of
from transfer_async._pipeline.refusals import (
    checked_order_id,
    checked_settle_after,
    checked_text,
    nothing_on_record,
    told,
    why_not,
)
from transfer_async._support.clock import Clock, Duration
from transfer_async.journal.entries import Denial, Entry, KeyState, Step, Verdict, owed_by
from transfer_async.journal.moves import Expire, LayAside, Refute, Resolve
from transfer_async.journal.protocol import Journal, KeyRecord, checked_journal, record_of
from transfer_async.journal.scoped import ScopedJournal


class Operators:
    """The operators' side of a journal, for one scope of it.

    Args:
        journal: the journal; it is not closed.
        scope: names the service in the journal: a client's ``scope``, or its normalised ``base_url``.
        settle_after: seconds after the last possible send before a refutation is believed.
        observers: called with `Resolved`, and with `WentInDoubt` for a dead worker's request.
        clock: time; for tests.

    Raises:
        ValueError: names the argument and the rule.
    """

    def __init__(
        self,
        journal: Journal,
        scope: str,
        *,
        settle_after: Duration = 300.0,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        self._journal = ScopedJournal(checked_journal(journal), texts.checked_scope(scope))
        self._settle_after = checked_settle_after(settle_after)
        self._observers = Observers(observers)
        self._clock = clock or Clock()

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """Every key in doubt, oldest first.

        Raises:
            JournalFailed: the journal could not be read.
        """
        found = await self._journal.in_doubt()
        if not found:
            return ()
        utc = await self.times()
        return tuple(doubt_of(key, entry, utc) for key, entry in found)

    async def resolve(
        self, key: str, *, order_id: str, by: str, reason: str, undone: bool = False
    ) -> KeyRecord:
        """Write down that the order of a doubt exists; from now on the key gives it back.

        Of a key whose order is known by that very id, nothing is left to be done: what is on record is
        given back, and not written anew.

        Args:
            key: a key in doubt.
            order_id: the order's id, ``tx-…``.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            undone: where an undo that is owed for an earlier wish cannot be read: it is done by hand.

        Returns:
            What is on record of the key now.

        Raises:
            ValueError: the key is neither in doubt nor created by that id, the id is another key's, or an
                argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        order_id, by, reason = (
            checked_order_id(order_id),
            checked_text("by", by),
            checked_text("reason", reason),
        )
        key = texts.to_text(key)
        entry = await self._entry_in_doubt(key, by, reason, undone=undone, or_made=order_id)
        if _is_made(entry, order_id):
            return record_of(entry)
        move = Resolve(attempt=entry.attempt or "", order_id=order_id, reply=None, by=by, reason=reason)
        return await self._end(key, move, Outcome.CREATED, order_id=order_id)

    async def refute(self, key: str, *, by: str, reason: str, undone: bool = False) -> KeyRecord:
        """Write down that the order of a doubt does not exist, and that none can appear any more.

        This frees the key, and the undos of its hooks become owed: `TransferClient.recover` pays them,
        and so releases the hold. An order that appears all the same is a duplicate, or a loss.

        Args:
            key: a key in doubt, ``settle_after`` after the last possible send.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            undone: where the key's record cannot be read, whatever its state: what its hooks did is undone,
                and the hold released, by hand; no `recover` could. What cannot be read is kept.

        Returns:
            What is on record of the key now.

        Raises:
            ValueError: the key is not in doubt, it is too early, ``undone`` must be said, or an argument
                is no good.
            JournalFailed: the journal could not be read or written.
        """
        by, reason = checked_text("by", by), checked_text("reason", reason)
        key = texts.to_text(key)
        entry = await self._entry_in_doubt(key, by, reason, undone=undone)
        if entry.state is KeyState.FREE:
            return record_of(entry)
        move = Refute(
            attempt=entry.attempt or "",
            settle_after=self._settle_after,
            by=by,
            reason=reason,
            owed=owed_by(entry),
            lease=0.0,  # nobody is at it yet: the next `recover` is
        )
        return await self._end(key, move, Outcome.REFUSED)

    async def history(self, key: str) -> tuple[Step, ...]:
        """Every move of the key that is remembered, oldest first; empty for a key never heard of.

        Raises:
            InvalidOrder: there is none, and it cannot be a key.
            JournalFailed: the journal could not be read.
        """
        key = texts.to_text(key)
        steps = await self._journal.history(key)
        if not steps:
            keys.refuse(key)
        return steps

    async def prune(self, *, before: datetime) -> int:
        """Forget keys that ended before then; never one in doubt, at work, or with anything owed.

        A forgotten key is free: whoever uses it again creates another order. So one that ended within
        the last day, on the journal's own clock, stays whatever is asked: its message may come again.

        Args:
            before: an aware time that does not lie ahead.

        Returns:
            How many keys were forgotten.

        Raises:
            ValueError: ``before`` is not an aware time, or lies ahead.
            JournalFailed: the journal could not be written.
        """
        return await self._journal.prune(before=before)

    async def times(self) -> Callable[[float], datetime]:
        """What turns the journal's seconds into times in UTC.

        Raises:
            JournalFailed: the journal could not be read.
        """
        there, here = await self._journal.now(), self._clock.utc()
        return lambda seconds: here + timedelta(seconds=seconds - there)

    async def _entry_in_doubt(
        self, key: str, by: str, reason: str, *, undone: bool, or_made: str | None = None
    ) -> Entry:
        """The entry of a key in doubt; ``or_made`` by that id, or freed here, where it could not be read."""
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        by_hand = _beyond_undoing(entry, refuting=or_made is None)
        if by_hand is not None and not undone:
            raise ValueError(
                "undone: must be said: what is on record of the key cannot be read, so that no recovery can "
                f"undo its hooks ({', '.join(by_hand) or 'none that is known of'}); undo them by hand first"
            )
        if entry.unread is not None:
            entry = await self._laid_aside(key, by, reason, by_hand=by_hand or ())
            if or_made is None and entry.state is KeyState.FREE:
                return entry
        if entry.state is KeyState.SENDING and entry.attempt is not None:
            verdict = await self._write(key, Expire(attempt=entry.attempt))
            entry = verdict.entry
            if verdict.denial is None:
                self._tell(WentInDoubt, key, entry, error=ABANDONED)
            elif verdict.denial is Denial.BUSY:
                left = math.ceil(verdict.lease_left)
                raise ValueError(f"key: a worker is sending its order; ask again in {left} s")
        if entry.state is not KeyState.IN_DOUBT and not _is_made(entry, or_made):
            raise ValueError(f"key: must be in doubt; it is {told(entry)}")
        return entry

    async def _laid_aside(self, key: str, by: str, reason: str, *, by_hand: tuple[str, ...]) -> Entry:
        told = f"{reason}; what could not be read is kept"
        if by_hand:
            told += f"; undone by hand: {', '.join(by_hand)}"
        verdict = await self._write(key, LayAside(by=by, reason=told))
        if verdict.denial is Denial.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker may be at work on it; ask again in {left} s")
        return verdict.entry

    async def _end(self, key: str, move: Resolve | Refute, outcome: Outcome, **told: Any) -> KeyRecord:
        verdict = await self._write(key, move)
        if verdict.denial is not None:
            if isinstance(move, Resolve) and _is_made(verdict.entry, move.order_id):
                return record_of(verdict.entry)  # somebody else was faster, and said the same
            raise ValueError(why_not(verdict, move))
        self._tell(Resolved, key, verdict.entry, outcome=outcome, **told)
        return record_of(verdict.entry)

    async def _write(self, key: str, move: Resolve | Refute | Expire | LayAside) -> Verdict:
        return await self._journal.write(key, move, certain=Outcome.UNKNOWN)

    def _tell(self, kind: type[Event], key: str, entry: Entry, **fields: Any) -> None:
        self._observers.tell(kind(key=key, intent_id=entry.intent_id, attempt=0, seconds=0.0, **fields))


def _is_made(entry: Entry, order_id: str | None) -> bool:
    return entry.state is KeyState.CREATED and entry.order_id == order_id


def _beyond_undoing(entry: Entry, *, refuting: bool) -> tuple[str, ...] | None:
    """Hooks to be undone of which what they acted for cannot be read, so that no recovery can; None: all can.

    The hooks of an order that exists are not to be undone, only those of earlier intents of its key.
    """
    unread = entry.unread
    if not refuting:
        return (unread.owed or None) if unread is not None else None
    if unread is not None:
        return (*unread.hooks, *unread.owed)
    return entry.hooks if entry.state is KeyState.IN_DOUBT and entry.intent is None else None
