"""One call of ``create_order``, and the task that runs it.

Each call runs in a separate task. The caller may be cancelled while the request is in flight, and aiohttp
binds a request to the task that began it. The caller then gets its `CancelledError` at once, and the separate
task finishes the remaining work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, Protocol

import msgspec
from attrs import evolve
from msgspec.structs import force_setattr

from transfer_async._http.request import TokenSource
from transfer_async._http.retry import RateLimiter, RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import (
    Attempt,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    TransferError,
    is_a,
    name_of,
    sanitize_exception,
)
from transfer_async._models.events import Event, Observers
from transfer_async._models.requests import OrderIntent, OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.hooks import PreflightHook, is_hold
from transfer_async._support.clock import NEVER, Clock, on_clock
from transfer_async._support.util import FrozenStruct, MutableStruct, is_end
from transfer_async.journal.model import PendingUndo
from transfer_async.journal.protocol import ScopedJournal

TASK_NAME = "transfer_async order"
"""The name of every task that runs a call. All tasks share one string, to save memory."""

RECOVER_CONCURRENCY = 8
"""The number of doubts about which one run of ``recover`` asks ``resolve`` at the same time."""


class OrderCall(MutableStruct, kw_only=True):
    """One call of ``create_order``: its arguments, its progress, and its cancellation.

    Args:
        client_made: whether the client generated the key.
        once: whether to raise a recorded refusal again instead of sending the order again.
        work: the progress of the call. At first it has the intent as the caller made it.
        cancellation: tracks whether the caller or the closing client has cancelled the call.
        outcome: the future that the caller awaits.
        is_published: whether a worker publishes the outcome.
    """

    client_made: bool
    once: bool
    work: OrderProgress
    cancellation: Cancellation
    outcome: asyncio.Future[Order]
    is_published: bool = False


def fresh_id() -> str:
    """Return 128 random bits in hexadecimal; this takes a third of the time of `uuid4`."""
    return os.urandom(16).hex()


def new_call(context: ClientCore, request: OrderRequest, *, once: bool) -> OrderCall:
    """Create the call for ``request``, which was checked. Generate a key if it has none."""
    intent_id = fresh_id()
    intent = OrderIntent(
        id=intent_id,
        key=intent_id if request.key is None else request.key,
        order=request.order,
        beneficiary=request.beneficiary,
        held=request.held,
        send_before=request.send_before,
    )
    deadline = NEVER if request.deadline is None else on_clock(context.clock, request.deadline)
    return OrderCall(
        client_made=request.key is None,
        once=once,
        work=OrderProgress(intent=intent, began=context.clock.now(), deadline=deadline),
        cancellation=Cancellation(),
        # The caller awaits a future. This has the effect of `asyncio.shield` at half the cost.
        outcome=asyncio.get_running_loop().create_future(),
    )


_Run = Callable[[OrderCall], Coroutine[Any, Any, Order]]


class Check(Protocol):
    """An async function that sets ``order_may_exist`` on an error just before the error is delivered."""

    def __call__(self, error: TransferError, /, *, client_made: bool) -> Awaitable[None]: ...


class InFlight:
    """The calls that a client is running. ``run`` runs one of them from the claim to its outcome."""

    def __init__(self, run: _Run, check: Check) -> None:
        self._run, self._check = run, check
        self._calls: dict[asyncio.Task[None], OrderCall] = {}

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` runs one of the calls."""
        return task in self._calls

    async def run(self, call: OrderCall) -> Order:
        """Run ``call`` in a separate task and wait for its order.

        Raises:
            asyncio.CancelledError: the caller was cancelled. If nothing was sent, this is raised after the
                hooks are undone and the key is free. Otherwise it is raised at once.
            TransferError: as `TransferClient.create_order` does.
        """
        task = _started(_deliver(call, self._run, self._check), asyncio.get_running_loop())
        if not task.done():
            self._calls[task] = call
            task.add_done_callback(self._done)
        try:
            return await call.outcome
        except asyncio.CancelledError:
            if not task.done():
                call.cancellation.abandon()
                if not call.cancellation.may_have_been_sent:
                    await asyncio.wait([task])
            raise

    def _done(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        call.cancellation.task = None  # This breaks a reference cycle.
        if not call.outcome.done():  # The task was cancelled before it began.
            call.outcome.cancel()

    def cut_off(self) -> None:
        """Stop waiting for the calls. The orders of requests in flight become doubts."""
        for call in list(self._calls.values()):
            call.cancellation.cut_off()

    async def finish(self, *, wait: float, grace: float) -> None:
        """Wait ``wait`` seconds for all calls. Then cut off the rest; they get ``grace`` seconds to end."""
        await finish_tasks(lambda: self._calls, self.cut_off, wait=wait, grace=grace)


async def finish_tasks(
    in_progress: Callable[[], Collection[asyncio.Task[Any]]],
    cut_off: Callable[[], None],
    *,
    wait: float,
    grace: float,
) -> None:
    """Wait ``wait`` seconds for all tasks. Then cut off the rest; they get ``grace`` seconds to end."""
    if tasks := in_progress():
        await asyncio.wait(tasks, timeout=wait)
    cut_off()
    if tasks := in_progress():
        await asyncio.wait(tasks, timeout=grace)


async def _deliver(call: OrderCall, run: _Run, check: Check) -> None:
    """Run ``call`` and deliver its result to the caller, if the caller still waits."""
    call.cancellation.task = asyncio.current_task()
    try:
        order = await run(call)
    except asyncio.CancelledError:
        if call.cancellation.sent and not call.outcome.done():  # The caller was not cancelled.
            # For example, a hook's own timer cancelled the call. A `CancelledError` would mean that nothing
            # was sent, and a task group would ignore it.
            why = "the call was cancelled, but not by its caller: look up the key in the journal"
            failed = JournalFailed(why, outcome=Outcome.UNKNOWN)
            call.outcome.set_exception(annotate_error(failed, call.work, order_may_exist=True))
        call.outcome.cancel()
    except BaseException as error:
        if isinstance(error, TransferError) and not call.outcome.done():
            try:
                await check(error, client_made=call.client_made)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the error must be delivered anyway
                error.order_may_exist = True
                call.cancellation.swallow()
        if not call.outcome.done():
            call.outcome.set_exception(_deliverable(error, call.work))
        if is_end(error):
            raise
    else:
        if not call.outcome.done():
            call.outcome.set_result(order)


def _deliverable(error: BaseException, work: OrderProgress) -> BaseException:
    """Return ``error`` if a call may raise it, or else a `JournalFailed` that refers to the journal."""
    if is_a(error, TransferError) or is_end(error):
        return error
    why = f"the call failed unexpectedly ({name_of(error)}): look up the key in the journal"
    failed = JournalFailed(why, outcome=Outcome.UNKNOWN)
    failed.__cause__ = sanitize_exception(error)
    return annotate_error(failed, work, order_may_exist=True)


if sys.version_info >= (3, 12):

    def _started(run: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(
            run, loop=loop, name=TASK_NAME, eager_start=True
        )  # This saves one iteration of the event loop.

else:

    def _started(run: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return loop.create_task(run, name=TASK_NAME)


# --- cancellation ------------------------------------------------------------------------------------
# A call stops only at safe points, or when the closing client stops waiting for it.


class Cancellation(MutableStruct, kw_only=True):
    """The state of cancellation of the work in one task.

    This is also a context manager around code that may be cancelled safely, such as a hook or a pause. On
    entry it raises `asyncio.CancelledError` if the call was abandoned before.

    Args:
        task: the task that runs the call; None in `recover`, which runs in the caller's own task.
        is_stoppable: whether the task is inside a block of this context manager.
        on_the_way: the request body of the exchange in progress, if any.
        sent: whether an exchange that handed over its body to the connection has ended.
        abandoned: whether the caller stopped waiting, or the client is closing.
        cut: whether the closing client has stopped waiting.
    """

    task: asyncio.Task[Any] | None = None
    is_stoppable: bool = False
    on_the_way: GuardedBody | None = None
    sent: bool = False
    abandoned: bool = False
    cut: bool = False

    def __enter__(self) -> None:
        if self.abandoned:
            raise asyncio.CancelledError
        self.is_stoppable = True

    def __exit__(self, *exc: object) -> None:
        self.is_stoppable = False

    @property
    def may_have_been_sent(self) -> bool:
        """Whether a request body was handed over to a connection.

        If false, a cancelled caller waits until the hooks are undone.
        """
        return self.sent or (self.on_the_way is not None and self.on_the_way.handed_over)

    def abandon(self) -> None:
        """Record that the caller no longer waits. Begin no new step, and stop the call if that is safe."""
        self.abandoned = True
        waiting = self.on_the_way is not None and not self.on_the_way.handed_over
        if self.on_the_way is not None and waiting:
            self.on_the_way.spent = True  # The body waits for a connection and must not be sent.
        if self.task is not None and (self.is_stoppable or waiting):
            self.is_stoppable = False
            self.task.cancel()

    def cut_off(self) -> None:
        """Stop the call when the client closes. The order of a request in flight becomes a doubt."""
        self.cut = True
        handed_over = self.on_the_way is not None and self.on_the_way.handed_over
        self.abandon()
        if handed_over and self.task is not None:
            self.task.cancel()

    def swallow(self) -> None:
        """Clear the task's cancellation request, so that the remaining work is not interrupted.

        Raises:
            asyncio.CancelledError: the call runs in the caller's task, and that task was cancelled.
        """
        if self.task is not None:
            if self.task.cancelling():
                self.task.uncancel()
        elif (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError


# --- progress ----------------------------------------------------------------------------------------
# Errors, events and messages report the progress of the work on one intent.


class OrderProgress(MutableStruct, kw_only=True):
    """The progress of one call, or of one run of `recover`, for an intent.

    Args:
        intent: the intent as the caller made it. After the key's record is read, it has the recorded id.
        began: the start time on the client's clock, in seconds.
        deadline: the time until which the caller waits, in seconds on the client's clock.
        receipts: the receipts that hooks returned, in this call and before a take-over.
        attempt_id: the journal's id for the attempt to send the order; None before `MarkSending`.
        attempts_begun: the number of HTTP attempts begun.
        undone: the number of hooks undone.
        undos_pending: the number of undos that failed and stay pending.
        resolve_failed: whether ``resolve`` was called and returned no usable answer.
    """

    intent: OrderIntent
    began: float
    deadline: float = NEVER
    receipts: dict[str, str | None] = msgspec.field(default_factory=dict)
    attempt_id: str | None = None
    attempts_begun: int = 0
    undone: int = 0
    undos_pending: int = 0
    resolve_failed: bool = False
    _attempts: tuple[Attempt, ...] = ()
    _reports: tuple[Callable[[], Attempt], ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The HTTP attempts that have ended."""
        self._attempts += tuple(report() for report in self._reports)
        self._reports = ()
        return self._attempts

    def note(self, report: Callable[[], Attempt]) -> None:
        """Record that an attempt has ended. ``report`` is called only if `attempts` is read."""
        self._reports += (report,)

    def correct_last(self, outcome: Outcome) -> None:
        """Replace the outcome of the last attempt."""
        *before, last = self.attempts
        self._attempts = (*before, evolve(last, outcome=outcome))


def annotate_error(error: TransferError, work: OrderProgress, *, order_may_exist: bool) -> TransferError:
    """Set key, attempts, receipts and ``order_may_exist`` on ``error``, sanitize its chain, and return it."""
    sanitize_exception(error)
    error.key = work.intent.key
    error.attempts = work.attempts
    error.attempt_id = work.attempt_id
    error.receipts = dict(work.receipts)
    if work.intent.held is not None:
        error.receipts.setdefault("held", work.intent.held)  # A recorded reference takes precedence.
    error.order_may_exist = order_may_exist
    return error


# --- claimed key -------------------------------------------------------------------------------------
# While a call holds a claim, it tracks which hooks may have acted.


class ClaimedKey(MutableStruct, kw_only=True):
    """The state of a claimed key in the worker that claimed it.

    Args:
        epoch: the number of the claim: 1, and 1 more after each take-over of the intent.
        attempt: the attempt token of `MarkSending`; None before it. In the journal, all HTTP attempts of a
            call are one attempt.
        inherited: the hooks that an earlier worker may have entered for this intent.
        entered: the hooks whose ``before`` was entered and did not guarantee that it did nothing.
        earlier: the pending undos of earlier intents of the key that this call has not tried yet.
    """

    epoch: int
    attempt: str | None = None
    inherited: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()
    earlier: tuple[PendingUndo, ...] = ()


class DoubtRounds(MutableStruct, kw_only=True):
    """The state of a client's calls of ``resolve``, kept from one run of ``recover`` to the next.

    Args:
        asked_at: the start of the last run that called ``resolve`` about every due doubt, on the journal's
            clock; None before the first such run, which calls it about all doubts.
        after: the key after which the next run continues, because ``resolve`` failed repeatedly there.
        tasks: the tasks that are calling ``resolve`` now.
    """

    asked_at: float | None = None
    after: str = ""
    tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)


# --- client core -------------------------------------------------------------------------------------
# The parts of a client that all its calls share.


class ClientCore(FrozenStruct, frozen=True, kw_only=True):
    """The parts and settings of one client. Times are in seconds."""

    transport: Transport
    tokens: TokenSource
    policy: RetryPolicy
    bucket: TokenBucket
    timeouts: Timeouts
    clock: Clock
    journal: ScopedJournal
    hooks: tuple[PreflightHook, ...]
    observers: Observers
    resolve: Resolver | None
    settle_after: float
    abandoned_settle_after: float
    lease: float
    max_claim_age: float
    rate_limiter: RateLimiter | None
    recover_concurrency: int
    doubt_rounds: DoubtRounds = msgspec.field(default_factory=DoubtRounds)
    request_id_header: str | None = None
    """The name of the header with the attempt id in each create-order request, or None."""

    undoable: tuple[str, ...] = ()
    """The names of the hooks that can be undone, last first. This and the next two come from ``hooks``."""

    undoable_but_hold: tuple[str, ...] = ()
    """The names in ``undoable`` without the hold, for orders whose hold the bank has placed itself."""

    places_hold: bool = False
    """Whether one of the hooks is the hold."""

    unrecorded: dict[str, Callable[[], Awaitable[object]]] = msgspec.field(default_factory=dict)
    """For each key whose response the journal could not record: a function that retries the write.

    Only this process knows these responses.
    """

    def __post_init__(self) -> None:
        holds = {hook.name for hook in self.hooks if is_hold(hook)}
        undoable = tuple(
            hook.name for hook in reversed(self.hooks) if not getattr(hook, "nothing_to_undo", False)
        )
        force_setattr(self, "places_hold", bool(holds))
        force_setattr(self, "undoable", undoable)
        force_setattr(self, "undoable_but_hold", tuple(name for name in undoable if name not in holds))

    def publish(self, kind: type[Event], work: OrderProgress, **fields: Any) -> None:
        """Publish an event about ``work`` to the observers, if there are any."""
        if self.observers.all:
            self.observers.publish(
                kind(
                    key=work.intent.key,
                    intent_id=work.intent.id,
                    attempt=work.attempts_begun,
                    seconds=self.clock.now() - work.began,
                    attempt_id=work.attempt_id,
                    **fields,
                )
            )


# --- resolution --------------------------------------------------------------------------------------
# The possible results of a bank's ``resolve`` for a doubt.


class _NoOrder:
    """The type of `NO_ORDER`."""

    def __repr__(self) -> str:
        return "NO_ORDER"

    def __reduce__(self) -> str:
        return "NO_ORDER"  # Unpickling returns the only instance.


NO_ORDER: Final = _NoOrder()
"""The result of ``resolve`` if it is certain that no order exists *and none can appear any more*."""

Resolution = Order | str | _NoOrder | None
"""The results of ``resolve``: the order, its id, `NO_ORDER`, or None if unknown."""

Resolver = Callable[[OrderIntent, OutcomeUnknown], Awaitable[Resolution]]
"""An async function of the bank that finds out whether an intent in doubt has an order."""
