"""`recover`: processes abandoned claims, doubts and pending undos, one key at a time.

Many workers may run it at once: every key is taken under a lease, and every step is a compare-and-set. No
transaction of the journal is open while the bank's own code runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context as Variables
from typing import Any

from attrs import frozen

from transfer_async._models.errors import (
    AlreadyCreated,
    ClientClosed,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    Refuted,
)
from transfer_async._models.events import OrderInDoubt
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.call import Cancellation, ClientCore, OrderProgress, finish_tasks
from transfer_async._pipeline.outcomes import (
    doubt_on_record,
    flush_unjournaled,
    recorded,
    settle_doubt,
    undo,
)
from transfer_async._support.clock import Periodic
from transfer_async._support.util import log, retrieve_exception
from transfer_async.journal.model import ABANDONED, Ending, Entry, KeyState, PendingUndo, undos_on_failure
from transfer_async.journal.transitions import AcquireLease, Expire, Release, TakeOver

BATCH = 100  # keys read from the journal at once
IN_A_ROW = 3  # consecutive keys that may fail before the run stops, because the journal seems to be down


@frozen(kw_only=True)
class RecoveryReport:
    """The results of one run of ``recover``, as counts.

    Args:
        taken_over: abandoned claims that were undone.
        in_doubt: keys that are still in doubt.
        resolved: doubts that ended with an order.
        refuted: doubts that ended because no order exists and none can appear.
        released: pending undos that were done.
        undos_pending: undos that are still pending.
        unreadable: keys with a corrupt record; an operator must resolve them.
    """

    taken_over: int = 0
    in_doubt: int = 0
    resolved: int = 0
    refuted: int = 0
    released: int = 0
    undos_pending: int = 0
    unreadable: int = 0


class Recovery:
    """One run of ``recover``.

    Args:
        context: the client's shared parts.
        stop: a function called before each key; once it returns true, the run ends.
    """

    def __init__(self, context: ClientCore, *, stop: Callable[[], bool] = lambda: False) -> None:
        self._context = context
        self._stop = stop
        self._last = ""
        self._failure: JournalFailed | None = None
        self._failed_in_a_row = 0
        self._taken_over = self._resolved = self._refuted = self._released = self._undos_pending = 0
        self._unreadable = 0

    async def run(self) -> RecoveryReport:
        """Process every waiting key once, and return the report.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        context = self._context
        await self._record_unjournaled()
        while keys := await self._waiting():
            for key, entry in keys:
                if self._stop():
                    break
                await self._try_to_process(key, entry)
        if self._failure is not None:
            raise self._failure
        return RecoveryReport(
            taken_over=self._taken_over,
            in_doubt=await context.journal.count_in_doubt(),
            resolved=self._resolved,
            refuted=self._refuted,
            released=self._released,
            undos_pending=self._undos_pending,
            unreadable=self._unreadable,
        )

    async def _record_unjournaled(self) -> None:
        """Record the answers that only this process knows, before anything else."""
        try:
            for key in list(self._context.unrecorded):
                self._resolved += await flush_unjournaled(self._context, key)
        except JournalFailed as error:
            self._failure = error

    async def _try_to_process(self, key: str, entry: Entry) -> None:
        """Process one key; if its journal writes fail, the run continues with the next key."""
        try:
            await self._process(key, entry)
            self._failed_in_a_row = 0
        except JournalFailed as error:
            log.warning("the key %r could not be recovered (%s)", key, error)
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

    async def _process(self, key: str, entry: Entry) -> None:
        if entry.unread is not None:
            self._unreadable += 1
            return
        asked: Entry | None = None
        if entry.state is KeyState.CLAIMED:
            await self._undo_abandoned(key, entry)
        elif entry.state is KeyState.SENDING and entry.attempt is not None:
            expire = Expire(attempt=entry.attempt)
            expired = await self._context.journal.write(key, expire, certain=Outcome.UNKNOWN)
            if expired.denial is None:
                self._publish_doubt(expired.entry)
                asked = await self._ask(key, expired.entry)
        elif entry.state is KeyState.IN_DOUBT:
            asked = await self._ask(key, entry)
        await self._run_pending_undos(key, entry.pending_undos, asked)

    async def _undo_abandoned(self, key: str, entry: Entry) -> None:
        context = self._context
        taken = await context.journal.write(
            key,
            TakeOver(intent_id=entry.intent_id, epoch=entry.epoch, lease=context.lease),
            certain=Outcome.NOT_SENT,
        )
        if taken.denial is not None:
            return
        transition = Release(
            intent_id=taken.entry.intent_id,
            epoch=taken.entry.epoch,
            attempt=None,
            ending=Ending(outcome=Outcome.NOT_SENT, error=ABANDONED),
            pending_undos=undos_on_failure(taken.entry),
            lease=context.lease,
        )
        freed = await context.journal.write(key, transition, certain=Outcome.NOT_SENT)
        if freed.denial is None:
            self._taken_over += 1
            await self._undo(recorded(freed.entry, transition.pending_undos))

    def _publish_doubt(self, entry: Entry) -> None:
        if entry.intent is not None:
            work = self._work(entry.intent)
            work.attempt_id = entry.attempt
            self._context.publish(OrderInDoubt, work, error=ABANDONED)

    async def _ask(self, key: str, entry: Entry) -> Entry | None:
        """Ask ``resolve`` about a doubt.

        Returns:
            If the doubt ended: the entry, whose lease still covers its other pending undos. Else None.
        """
        context = self._context
        if context.resolve is None or entry.intent is None:
            return None
        attend = AcquireLease(lease=context.lease)
        attended = await context.journal.write(key, attend, certain=Outcome.UNKNOWN)
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
            await context.journal.write(key, AcquireLease(lease=0.0), certain=Outcome.UNKNOWN)
            return None
        finally:
            self._count(work)
        return attended.entry

    async def _run_pending_undos(self, key: str, undos: tuple[PendingUndo, ...], asked: Entry | None) -> None:
        """Run the pending undos; ``asked`` is the entry if this run already holds a lease on them."""
        if not undos:
            return
        context, entry = self._context, asked
        if entry is None:
            attended = await context.journal.write(
                key, AcquireLease(lease=context.lease), certain=Outcome.NOT_SENT
            )
            if attended.denial is not None:
                return
            entry = attended.entry
        due = {(pending.intent.id, pending.hook) for pending in undos}
        await self._undo(tuple(item for item in entry.pending_undos if (item.intent.id, item.hook) in due))
        if asked is None and entry.state is KeyState.IN_DOUBT:  # the lease covers the doubt too; free it
            await context.journal.write(key, AcquireLease(lease=0.0), certain=Outcome.UNKNOWN)

    async def _undo(self, undos: Iterable[PendingUndo]) -> None:
        """Run pending undos, grouped by intent."""
        by_intent: dict[str, list[PendingUndo]] = {}
        for pending in undos:
            by_intent.setdefault(pending.intent.id, []).append(pending)
        for owed in by_intent.values():
            work = self._work(owed[0].intent)
            await undo(self._context, work, Cancellation(), owed)
            self._count(work)

    def _work(self, intent: OrderIntent) -> OrderProgress:
        return OrderProgress(intent=intent, began=self._context.clock.now())

    def _count(self, work: OrderProgress) -> None:
        self._released += work.undone
        self._undos_pending += work.undos_pending


# --- recovery runs -----------------------------------------------------------------------------------
# A client tracks its runs of ``recover``: those that callers requested, and its own periodic runs.


class Recoveries:
    """Runs of ``recover``, each in a task of its own, so that closing can wait for it.

    Args:
        context: the client's shared parts.
        every: the seconds between two periodic runs; None for no periodic runs.
    """

    def __init__(self, context: ClientCore, *, every: float | None) -> None:
        self._context = context
        self._periodic: Periodic | None = None
        if every is not None:
            self._periodic = Periodic(
                lambda: Recovery(context, stop=lambda: self._ending).run(),
                every=every,
                until=lambda: self._ending,
                failed=_log_failure,
                clock=context.clock,
            )
        self.is_due = every is not None
        """Whether the periodic runs are still to be started."""
        self._requested: set[asyncio.Task[RecoveryReport]] = set()
        self._background: asyncio.Task[None] | None = None
        self._ending = False
        self._cut = False

    def begin(self) -> None:
        """Start the periodic runs, if they are configured and not started yet."""
        if self._periodic is not None and self._background is None and not self._ending:
            loop = asyncio.get_running_loop()
            # It gets empty context variables: those of the first caller have nothing to do with it.
            self._background = loop.create_task(self._periodic.run(), context=Variables())
            self._background.add_done_callback(retrieve_exception)
            self.is_due = False

    @property
    def begun(self) -> bool:
        """Whether the periodic runs were started and have not ended."""
        return self._background is not None and not self._background.done()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is one of the runs."""
        return task is not None and (task in self._requested or task is self._background)

    async def run(self) -> RecoveryReport:
        """Run once for a caller, and return the report.

        Raises:
            JournalFailed: the journal could not be read or written.
            ClientClosed: the client was closed before the run ended.
        """
        task = self._started(Recovery(self._context).run())
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._cut and caller is not None and not caller.cancelling():
                raise ClientClosed("the client was closed before the recovery ended") from None
            raise

    def _started(self, run: Coroutine[Any, Any, RecoveryReport]) -> asyncio.Task[RecoveryReport]:
        task = asyncio.get_running_loop().create_task(run)
        self._requested.add(task)
        task.add_done_callback(self._requested.discard)
        return task

    async def finish(self, *, wait: float, grace: float) -> None:
        """Wait for the runs in progress; a periodic run stops after its current key.

        Args:
            wait: the seconds to wait; runs that take longer are cancelled.
            grace: the seconds that cancelled runs get to end.
        """
        self._ending = True
        if self._background is not None and self._periodic is not None and self._periodic.resting:
            self._background.cancel()
        await finish_tasks(self._in_progress, self.cut_off, wait=wait, grace=grace)

    def cut_off(self) -> None:
        """Cancel all runs; an undo in progress stays pending."""
        self._ending = self._cut = True
        for task in self._in_progress():
            task.cancel()

    def abandon(self) -> None:
        """Stop the periodic runs, if their event loop is not closed."""
        self._ending = True
        if self._background is not None and not self._background.get_loop().is_closed():
            self._background.cancel()

    def _in_progress(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = [*self._requested]
        if self._background is not None and not self._background.done():
            tasks.append(self._background)
        return tasks


def _log_failure(error: Exception) -> None:
    log.warning("a periodic recovery failed (%s)", type(error).__name__)
