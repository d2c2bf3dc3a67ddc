"""What is left when workers die, doubts linger and undos fail: worked off, one key at a time.

Safe to run from many workers at once: every key is taken under a lease, and every step is a
compare-and-set. No journal write is pending while the bank's own code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import AlreadyCreated, JournalFailed, Outcome, OutcomeUnknown, Refuted
from transfer_async._models.events import WentInDoubt
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.doubt import ABANDONED, doubt_on_record, settle_doubt
from transfer_async._pipeline.undo import recorded, undo
from transfer_async._pipeline.unrecorded import made_up
from transfer_async._pipeline.work import Work
from transfer_async._support.log import log
from transfer_async.journal.entries import Ending, Entry, KeyState, Owed, owed_by
from transfer_async.journal.moves import Attend, Expire, Free, TakeOver

BATCH = 100  # keys asked for at once
IN_A_ROW = 3  # keys that fail, one after the other, before the journal is taken to be gone


@frozen(kw_only=True, eq=False, repr=False)
class RecoveryReport(ByValue):
    """What one run of ``recover`` did, and what it leaves.

    Args:
        taken_over: claims of dead workers that were undone.
        in_doubt: keys that are in doubt now.
        resolved: doubts that ended with an order.
        refuted: doubts that ended with the certainty that there is none.
        released: undos done that were owed.
        still_owed: undos that are owed still.
        unreadable: keys of which the record cannot be read: an operator must end them.
    """

    taken_over: int = 0
    in_doubt: int = 0
    resolved: int = 0
    refuted: int = 0
    released: int = 0
    still_owed: int = 0
    unreadable: int = 0


class Recovery:
    """One run of ``recover``.

    Args:
        context: the client's parts.
        stop: asked before each key; once true, the rest is left to the next run.
    """

    def __init__(self, context: Context, *, stop: Callable[[], bool] = lambda: False) -> None:
        self._context = context
        self._stop = stop
        self._last = ""
        self._failure: JournalFailed | None = None
        self._failed_in_a_row = 0
        self._taken_over = self._resolved = self._refuted = self._released = self._still_owed = 0
        self._unreadable = 0

    async def run(self) -> RecoveryReport:
        """Work off every key that waits, once.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        context = self._context
        await self._make_up()
        while keys := await self._waiting():
            for key, entry in keys:
                if self._stop():
                    break
                await self._try_to_work_off(key, entry)
        if self._failure is not None:
            raise self._failure
        return RecoveryReport(
            taken_over=self._taken_over,
            in_doubt=await context.journal.count_in_doubt(),
            resolved=self._resolved,
            refuted=self._refuted,
            released=self._released,
            still_owed=self._still_owed,
            unreadable=self._unreadable,
        )

    async def _make_up(self) -> None:
        """What this process alone knows goes on record first."""
        try:
            for key in list(self._context.unrecorded):
                self._resolved += await made_up(self._context, key)
        except JournalFailed as error:
            self._failure = error

    async def _try_to_work_off(self, key: str, entry: Entry) -> None:
        """One key that cannot be written does not keep the others from their turn."""
        try:
            await self._work_off(key, entry)
            self._failed_in_a_row = 0
        except JournalFailed as error:
            log.warning("the key %r could not be worked off (%s)", key, error)
            self._failure = self._failure or error
            self._failed_in_a_row += 1
            if self._failed_in_a_row == IN_A_ROW:
                raise

    async def _waiting(self) -> list[tuple[str, Entry]]:
        if self._stop():
            return []
        found = await self._context.journal.work(limit=BATCH, after=self._last)
        if found:
            self._last = found[-1][0]
        return found

    async def _work_off(self, key: str, entry: Entry) -> None:
        if entry.unread is not None:
            self._unreadable += 1
            return
        asked: Entry | None = None
        if entry.state is KeyState.CLAIMED:
            await self._undo_abandoned(key, entry)
        elif entry.state is KeyState.SENDING and entry.attempt is not None:
            expire = Expire(attempt=entry.attempt)
            expired = await self._context.write(key, expire, certain=Outcome.UNKNOWN)
            if expired.denial is None:
                self._tell_of_doubt(expired.entry)
                asked = await self._ask(key, expired.entry)
        elif entry.state is KeyState.IN_DOUBT:
            asked = await self._ask(key, entry)
        await self._pay(key, entry.owed, asked)

    async def _undo_abandoned(self, key: str, entry: Entry) -> None:
        context = self._context
        taken = await context.write(
            key,
            TakeOver(intent_id=entry.intent_id, epoch=entry.epoch, lease=context.lease),
            certain=Outcome.NOT_SENT,
        )
        if taken.denial is not None:
            return
        move = Free(
            intent_id=taken.entry.intent_id,
            epoch=taken.entry.epoch,
            attempt=None,
            ending=Ending(outcome=Outcome.NOT_SENT, error=ABANDONED),
            owed=owed_by(taken.entry),
            lease=context.lease,
        )
        freed = await context.write(key, move, certain=Outcome.NOT_SENT)
        if freed.denial is None:
            self._taken_over += 1
            await self._undo(recorded(freed.entry, move.owed))

    def _tell_of_doubt(self, entry: Entry) -> None:
        if entry.intent is not None:
            self._context.tell(WentInDoubt, self._work(entry.intent), error=ABANDONED)

    async def _ask(self, key: str, entry: Entry) -> Entry | None:
        """Ask of a doubt; if it has ended, the entry with the lease that what is owed beside it still has."""
        context = self._context
        if context.resolve is None or entry.intent is None:
            return None
        attend = Attend(lease=context.lease)
        attended = await context.write(key, attend, certain=Outcome.UNKNOWN)
        if attended.denial is not None:
            return None
        work = self._work(entry.intent)
        doubt = doubt_on_record(attended.entry, "in doubt")
        try:
            await settle_doubt(context, work, Cancellation(), attended, doubt)
            self._resolved += 1
        except AlreadyCreated:
            self._resolved += 1
        except Refuted:
            self._refuted += 1
        except OutcomeUnknown:
            await context.write(key, Attend(lease=0.0), certain=Outcome.UNKNOWN)
            return None
        finally:
            self._count(work)
        return attended.entry

    async def _pay(self, key: str, debts: tuple[Owed, ...], asked: Entry | None) -> None:
        """Undo what was owed; ``asked`` is the entry, if this run has its debts under a lease already."""
        if not debts:
            return
        context, entry = self._context, asked
        if entry is None:
            attended = await context.write(key, Attend(lease=context.lease), certain=Outcome.NOT_SENT)
            if attended.denial is not None:
                return
            entry = attended.entry
        due = {(debt.intent.id, debt.hook) for debt in debts}
        await self._undo(tuple(one for one in entry.owed if (one.intent.id, one.hook) in due))
        if asked is None and entry.state is KeyState.IN_DOUBT:  # it was taken along, and waits for others
            await context.write(key, Attend(lease=0.0), certain=Outcome.UNKNOWN)

    async def _undo(self, debts: Iterable[Owed]) -> None:
        """Undo what is owed, intent by intent."""
        by_intent: dict[str, list[Owed]] = {}
        for debt in debts:
            by_intent.setdefault(debt.intent.id, []).append(debt)
        for owed in by_intent.values():
            work = self._work(owed[0].intent)
            await undo(self._context, work, Cancellation(), owed)
            self._count(work)

    def _work(self, intent: OrderIntent) -> Work:
        return Work(intent=intent, began=self._context.clock.now())

    def _count(self, work: Work) -> None:
        self._released += work.undone
        self._still_owed += work.owed
