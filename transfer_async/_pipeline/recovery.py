"""Implements ``recover``, which processes abandoned claims, doubts and pending undos.

Many workers may run ``recover`` concurrently, because each key is leased and every step is a compare-and-set.
No journal transaction is open while the bank's own code runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
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
from transfer_async.journal.model import (
    ABANDONED,
    Ending,
    Entry,
    KeyState,
    PendingUndo,
    TransitionResult,
    undos_on_failure,
)
from transfer_async.journal.transitions import AcquireLease, Expire, Release, TakeOver

ListKeys = Callable[..., Awaitable[list[tuple[str, Entry]]]]

BATCH = 100
"""The number of keys that each read of the journal returns."""

IN_A_ROW = 3
"""The number of consecutive failures after which a run gives up. If the journal fails, the whole run stops.
If ``resolve`` fails, the run stops calling it.
"""

ALWAYS_ASKED = 300.0
"""The age of a doubt, in seconds, up to which every run calls ``resolve`` for it."""

LONGEST_PAUSE = 3600.0
"""The longest time in seconds between two calls to ``resolve`` for the same doubt."""

_DOUBLED = 4800.0
"""The age of a doubt, in seconds, up to which the pauses double: 300, 600, 1,200 and 2,400 s."""


def questions_due(age: float) -> float:
    """Return how many ``resolve`` calls have become due since the doubt was `ALWAYS_ASKED` seconds old.

    The pause after each call equals the age of the doubt, but is at most an hour. A run calls ``resolve`` if
    another call has become due since the previous run, so the journal need not record the calls.

    Args:
        age: the seconds since the last moment at which the order could have been sent, at least
            `ALWAYS_ASKED`.
    """
    doublings = math.floor(math.log2(min(age, _DOUBLED) / ALWAYS_ASKED))
    return doublings + max(0.0, age - _DOUBLED) // LONGEST_PAUSE


@frozen(kw_only=True)
class RecoveryReport:
    """The results of one run of ``recover``. Each field is a count.

    Args:
        taken_over: abandoned claims that this run ended.
        in_doubt: keys that are still in doubt.
        resolved: keys in doubt whose orders were found to exist.
        refuted: keys in doubt whose orders do not exist and can no longer appear.
        released: pending undos that succeeded.
        undos_pending: undos that failed and are still pending.
        unreadable: keys with a corrupt record, which an operator must resolve or refute.
    """

    taken_over: int = 0
    in_doubt: int = 0
    resolved: int = 0
    refuted: int = 0
    released: int = 0
    undos_pending: int = 0
    unreadable: int = 0


class Recovery:
    """One run of ``recover``, in two concurrent passes.

    One pass runs the pending undos, one key at a time. The other pass calls ``resolve`` for several keys in
    doubt at a time. Both passes read the journal page by page. Only keys with pending undos or corrupt
    records are kept in memory, so that each is processed once. If a key in doubt has pending undos, the undos
    run before the call to ``resolve``.

    Args:
        context: the client's objects and settings.
        stop: a function that is called before each key is processed. The run ends when ``stop`` returns true.
    """

    def __init__(self, context: ClientCore, *, stop: Callable[[], bool] = lambda: False) -> None:
        self._context = context
        self._stop = stop
        self._group = asyncio.TaskGroup()
        self._failure: JournalFailed | None = None
        self._failed_in_a_row = 0
        self._is_down = False
        self._to_ask: list[str] = []  # doubts with pending undos: ``resolve`` is called after them
        self._handled: set[str] = set()  # keys that no later list may process again in this run
        self._asking = self._unanswered = 0
        self._gave_up = False
        self._may_have_changed = asyncio.Event()
        self._taken_over = self._resolved = self._refuted = self._released = self._undos_pending = 0
        self._unreadable = 0
        self._now, self._asked_at = 0.0, context.doubt_rounds.asked_at

    async def run(self) -> RecoveryReport:
        """Process every waiting key once, and return the report.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        context = self._context
        try:  # First record the responses that only this process has.
            for key in list(context.unrecorded):
                self._resolved += await flush_unjournaled(context, key)
        except JournalFailed as error:
            self._failure = error
        try:
            async with self._group:
                if context.resolve is not None:
                    self._now = await context.journal.now()
                    self._group.create_task(self._ask_about_doubts())
                await self._process_all()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
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

    async def _try_to_process(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Process one key.

        If the journal fails, store the error, so that the run can continue.
        """
        try:
            await work
            self._failed_in_a_row = 0
        except JournalFailed as error:
            log.warning("the key %r could not be recovered (%s)", key, error)
            self._failure = self._failure or error
            self._failed_in_a_row += 1
            self._is_down = self._is_down or self._failed_in_a_row == IN_A_ROW

    def _is_over(self) -> bool:
        return self._is_down or self._stop()

    async def _page(self, list_keys: ListKeys, after: str) -> list[tuple[str, Entry]]:
        return [] if self._is_over() else await list_keys(limit=BATCH, after=after)

    # --- undos ------------------------------------------------------------------------------------

    async def _process_all(self) -> None:
        """Process every waiting key, except the doubts that `_ask_about_doubts` processes.

        Keys with pending undos come first, so that no undo waits for thousands of doubts to be read.
        """
        for list_keys in (self._context.journal.pending_undos, self._context.journal.work):
            after = ""
            while keys := await self._page(list_keys, after):
                for key, entry in keys:
                    if not self._is_over():
                        await self._try_to_process(key, self._process(key, entry))
                after = keys[-1][0]
        for key in self._to_ask:
            await self._start_asking(key)

    async def _process(self, key: str, entry: Entry) -> None:
        if key in self._handled:
            return
        if entry.unread is not None:
            self._handled.add(key)
            self._unreadable += 1
            return
        if entry.pending_undos:
            self._handled.add(key)
        if entry.state is KeyState.CLAIMED:
            await self._undo_abandoned(key, entry)
        elif entry.state is KeyState.SENDING and entry.attempt is not None:
            expire = Expire(attempt=entry.attempt)
            expired = await self._context.journal.write(key, expire, certain=Outcome.UNKNOWN)
            if expired.denial is None:
                if expired.entry.intent is not None:
                    work = self._work(expired.entry.intent)
                    work.attempt_id = expired.entry.attempt
                    self._context.publish(OrderInDoubt, work, error=ABANDONED)
                self._ask_after_undos(key, expired.entry)
        elif entry.pending_undos and self._is_to_ask(entry):
            self._ask_after_undos(key, entry)
        await self._run_pending_undos(key, entry.pending_undos)

    def _ask_after_undos(self, key: str, entry: Entry) -> None:
        if self._context.resolve is not None and entry.intent is not None:
            self._handled.add(key)
            self._to_ask.append(key)

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

    async def _run_pending_undos(self, key: str, undos: tuple[PendingUndo, ...]) -> None:
        if not undos:
            return
        attended = await self._attend(key, Outcome.NOT_SENT)
        if attended is None:
            return
        due = {(pending.intent.id, pending.hook) for pending in undos}
        entry = attended.entry
        await self._undo(tuple(item for item in entry.pending_undos if (item.intent.id, item.hook) in due))
        if entry.state is KeyState.IN_DOUBT:  # The lease also covers the doubt.
            await self._leave(key, attended)

    async def _attend(self, key: str, certain: Outcome) -> TransitionResult | None:
        """Acquire the lease on a key in doubt or with pending undos.

        Return None if another worker holds the lease.
        """
        lease = AcquireLease(lease=self._context.lease)
        attended = await self._context.journal.write(key, lease, certain=certain)
        return attended if attended.denial is None else None

    async def _leave(self, key: str, attended: TransitionResult) -> None:
        """Release this worker's lease, even if it has expired, but not another worker's newer lease."""
        release = AcquireLease(lease=0.0, ends=attended.now + self._context.lease)
        await self._context.journal.write(key, release, certain=Outcome.UNKNOWN)

    async def _undo(self, undos: Iterable[PendingUndo]) -> None:
        """Run pending undos, grouped by intent."""
        by_intent: dict[str, list[PendingUndo]] = {}
        for pending in undos:
            by_intent.setdefault(pending.intent.id, []).append(pending)
        for group in by_intent.values():
            work = self._work(group[0].intent)
            await undo(self._context, work, Cancellation(), group)
            self._count(work)

    # --- doubts -----------------------------------------------------------------------------------

    async def _ask_about_doubts(self) -> None:
        """Call ``resolve`` for every due doubt, starting after the key at which an earlier run stopped."""
        rounds = self._context.doubt_rounds
        first = last = after = rounds.after
        try:
            while keys := await self._page(self._context.journal.work, after):
                for key, entry in keys:
                    if entry.pending_undos or key in self._handled or not self._is_to_ask(entry):
                        continue
                    if not await self._start_asking(key):
                        rounds.after = last if self._gave_up else rounds.after
                        return
                    last = key
                after = keys[-1][0]
        except JournalFailed as error:
            self._failure = self._failure or error
            return
        if not self._is_over():
            rounds.after = ""
            rounds.asked_at = rounds.asked_at if first else self._now

    def _is_to_ask(self, entry: Entry) -> bool:
        """Return whether ``entry`` is in doubt and its next ``resolve`` call is due in this run."""
        context, asked_at = self._context, self._asked_at
        if entry.state is not KeyState.IN_DOUBT or entry.intent is None or not entry.is_readable:
            return False
        if asked_at is None or not (age := self._now - entry.sent_until) >= ALWAYS_ASKED:
            return True
        settled_at = entry.settled_at(context.settle_after, context.abandoned_settle_after)
        before = max(ALWAYS_ASKED, asked_at - entry.sent_until)
        return asked_at < settled_at <= self._now or questions_due(age) > questions_due(before)

    async def _start_asking(self, key: str) -> bool:
        """Wait for a free slot, then start a task that calls ``resolve`` for ``key``.

        After an unusable result, no further ``resolve`` call starts until the running calls have ended. A
        hanging ``resolve`` therefore delays the run by only one timeout, for any number of doubts.

        Returns:
            False if the run has ended, or makes no more ``resolve`` calls.
        """
        limit, tasks = self._context.recover_concurrency, self._context.doubt_rounds.tasks
        while self._asking >= limit or (self._unanswered and self._asking):
            self._may_have_changed.clear()
            await self._may_have_changed.wait()
        if self._unanswered >= min(IN_A_ROW, limit) and not self._gave_up:
            self._gave_up = True
            log.warning(
                "resolve failed %d times in a row: this recovery does not call resolve again",
                self._unanswered,
            )
        if self._gave_up or self._is_over():
            return False
        self._asking += 1
        task = self._group.create_task(self._ask(key))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return True

    async def _ask(self, key: str) -> None:
        try:
            await self._try_to_process(key, self._settle(key))
        finally:
            self._asking -= 1
            self._may_have_changed.set()

    async def _settle(self, key: str) -> None:
        """Call ``resolve`` for a key in doubt, and record the result."""
        attended = await self._attend(key, Outcome.UNKNOWN)
        if attended is None:
            return
        entry = attended.entry
        if entry.state is KeyState.IN_DOUBT and entry.intent is not None:
            work = self._work(entry.intent)
            doubt = doubt_on_record(entry, "in doubt")
            try:
                await settle_doubt(self._context, work, Cancellation(), attended, doubt)
                self._resolved += 1
            except AlreadyCreated:
                self._resolved += 1
            except Refuted:
                self._refuted += 1
            except OutcomeUnknown:
                pass
            finally:
                self._unanswered = self._unanswered + 1 if work.resolve_failed else 0
                if work.undos_pending:  # This run has already tried these undos.
                    self._handled.add(key)
                self._count(work)
        await self._leave(key, attended)

    def _work(self, intent: OrderIntent) -> OrderProgress:
        return OrderProgress(intent=intent, began=self._context.clock.now())

    def _count(self, work: OrderProgress) -> None:
        self._released += work.undone
        self._undos_pending += work.undos_pending


# --- recovery runs -----------------------------------------------------------------------------------
# A client keeps track of the runs that callers have requested, and of its own periodic runs.


class Recoveries:
    """A client's runs of ``recover``. Each run has its own task, so that ``close`` can wait for it.

    Args:
        context: the client's objects and settings.
        every: the seconds between periodic runs, or None for no periodic runs.
    """

    def __init__(self, context: ClientCore, *, every: float | None) -> None:
        self._context = context
        self._periodic: Periodic | None = None
        if every is not None:
            self._periodic = Periodic(
                lambda: Recovery(context, stop=lambda: self._ending).run(),
                every=every,
                until=lambda: self._ending,
                failed=lambda error: log.warning("a periodic recovery failed (%s)", type(error).__name__),
                clock=context.clock,
            )
        self.is_due = every is not None
        """Whether periodic runs are configured and have not started yet."""
        self._requested: set[asyncio.Task[RecoveryReport]] = set()
        self._background: asyncio.Task[None] | None = None
        self._ending = False
        self._cut = False

    def begin(self) -> None:
        """Start the periodic runs, if they are configured and have not started yet."""
        if self._periodic is not None and self._background is None and not self._ending:
            loop = asyncio.get_running_loop()
            # The task starts with empty context variables, instead of inheriting those of the first caller.
            self._background = loop.create_task(self._periodic.run(), context=Variables())
            self._background.add_done_callback(retrieve_exception)
            self.is_due = False

    @property
    def begun(self) -> bool:
        """Whether the periodic runs have started and have not ended."""
        return self._background is not None and not self._background.done()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` belongs to one of the runs."""
        asking = self._context.doubt_rounds.tasks
        return task is not None and (task in self._requested or task is self._background or task in asking)

    async def run(self) -> RecoveryReport:
        """Run ``recover`` once for a caller, and return the report.

        Raises:
            JournalFailed: the journal could not be read or written.
            ClientClosed: the client was closed before the run ended.
        """
        task = asyncio.get_running_loop().create_task(Recovery(self._context).run())
        self._requested.add(task)
        task.add_done_callback(self._requested.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._cut and caller is not None and not caller.cancelling():
                raise ClientClosed("the client was closed before the recovery ended") from None
            raise

    async def finish(self, *, wait: float, grace: float) -> None:
        """Wait up to ``wait`` seconds for the runs to end, then cancel those still running.

        Then wait up to ``grace`` seconds for the cancelled runs to end. A periodic run finishes the keys
        that it is processing, and then stops.
        """
        self._ending = True
        if self._background is not None and self._periodic is not None and self._periodic.resting:
            self._background.cancel()
        await finish_tasks(self._in_progress, self.cut_off, wait=wait, grace=grace)

    def cut_off(self) -> None:
        """Cancel all runs. An undo in progress stays pending."""
        self._ending = self._cut = True
        for task in self._in_progress():
            task.cancel()

    def abandon(self) -> None:
        """Stop the periodic runs, unless their event loop is closed."""
        self._ending = True
        if self._background is not None and not self._background.get_loop().is_closed():
            self._background.cancel()

    def _in_progress(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = [*self._requested]
        if self._background is not None and not self._background.done():
            tasks.append(self._background)
        return tasks
