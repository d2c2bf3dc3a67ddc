"""Run one call from the claim of its key to its outcome::

    NewOrder + key ──> claim ──> hooks, in order ──> mark sending ──> send (retry) ──> settle ──> Order
                         │            │                                   │
                      created?     refused: undo hooks that ran,   never sent, refused: undo hooks, in reverse
                      return it    nothing was sent                unknown: undo nothing, keep everything

The journal records each step before the step begins. A call can fail in three ways:

- a *definite failure*: the hooks are undone and the key is free;
- a *doubt*: nothing is undone, and the key does not become free;
- a journal failure: only the key's record in the journal shows what happened.

The steps share these objects:

- `OrderCall` contains the arguments and the cancellation state.
- `OrderProgress` contains the data for errors and events.
- `ClaimedKey` contains the numbers and ids that the journal checks, and the hooks that may have acted.
- `SendState` contains the request and its time limits.
- `OrderResponse` contains the order and the connection on which it arrived.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from multidict import CIMultiDict

from transfer_async._converters import converter
from transfer_async._http.retry import RateLimiter
from transfer_async._models.errors import (
    MISMATCH_ACCEPTED,
    MISMATCH_IN_HISTORY,
    CauseKind,
    Expired,
    HoldRequired,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    TransferError,
    cause_of,
    is_a,
    name_of,
    sanitize_exception,
)
from transfer_async._models.events import Claimed, HookPassed, OrderInDoubt
from transfer_async._models.requests import fingerprint
from transfer_async._models.responses import Order
from transfer_async._pipeline.attempt import SendState, attempt, send_again, too_late, wait_in_queue
from transfer_async._pipeline.call import (
    ClaimedKey,
    ClientCore,
    OrderCall,
    OrderProgress,
    annotate_error,
    finish_tasks,
    fresh_id,
)
from transfer_async._pipeline.hooks import PreflightHook, broken_hook, checked_receipt, own_copy
from transfer_async._pipeline.outcomes import (
    annotate_journal_failure,
    check_key,
    definite_failure,
    doubt_on_record,
    flush_unjournaled,
    replay_created,
    replay_refused,
    settle,
    settle_doubt,
    undo_earlier,
    went_in_doubt,
)
from transfer_async._support.clock import seconds_left, within
from transfer_async._support.util import Raised, is_end, log, try_call
from transfer_async.journal.model import ABANDONED, Entry, Rejection, TransitionResult
from transfer_async.journal.transitions import Claim, MarkSending, RenewLease

MAX_CLAIM_AGE = 900.0
"""The age in seconds from which an abandoned claim is not continued, because its hold and checks may be
outdated."""


async def create_order(context: ClientCore, call: OrderCall) -> Order:
    """Run a call from the claim to its outcome, and return the order.

    Raises:
        TransferError: the call ended without an order. The error contains the key, attempts and receipts.
        asyncio.CancelledError: the caller was cancelled before anything was sent.
    """
    claimed = await _claim(context, call)
    if isinstance(claimed, Order):
        return claimed
    try:
        sending = await preflight(context, call, claimed)
        await _mark_sending(context, call.work, claimed, sending)
        try:
            response = await attempt(context, call, sending)
        except TransferError as failed:
            response = await send_again(context, call, sending, failed)
    except JournalFailed as lost:
        annotate_journal_failure(context, call.work, claimed, lost)
        raise
    except OutcomeUnknown as doubt:
        return await went_in_doubt(context, call, claimed, doubt)
    except (TransferError, asyncio.CancelledError) as failure:
        await definite_failure(context, call, claimed, failure)
        raise
    except BaseException as error:
        if is_end(error):
            raise
        return await _broken(context, call, claimed, sanitize_exception(error))
    return await settle(context, call, claimed, response)


async def _broken(context: ClientCore, call: OrderCall, claimed: ClaimedKey, error: BaseException) -> Order:
    """After an unexpected error, record a doubt if a request may have been sent, else a definite failure."""
    why = f"the call failed unexpectedly ({name_of(error)})"
    if call.cancellation.may_have_been_sent:
        doubt = OutcomeUnknown(why, kind=CauseKind.NO_ANSWER)
        doubt.__cause__ = error
        return await went_in_doubt(context, call, claimed, doubt)
    failure = PreflightFailed(why, refused=False)
    await definite_failure(context, call, claimed, failure)
    raise failure from error


async def _claim(context: ClientCore, call: OrderCall) -> ClaimedKey | Order:
    """Claim the key, or return the order that the key already has.

    Raises:
        TransferError: the key cannot be claimed.
    """
    work, intent = call.work, call.work.intent
    if intent.key in context.unrecorded:  # Only this process knows the response to an earlier call.
        try:
            await flush_unjournaled(context, intent.key)
        except JournalFailed as error:
            again = JournalFailed(str(error))
            raise annotate_error(again, work, order_may_exist=True) from error.__cause__
    transition = Claim(
        intent=intent,
        fingerprint=fingerprint(intent.order),
        client_made=call.client_made,
        lease=context.lease,
        max_claim_age=MAX_CLAIM_AGE,
        hooks=context.undoable if intent.held is None else context.undoable_but_hold,
        once=call.once,
    )
    try:
        verdict = await context.journal.write(intent.key, transition, certain=Outcome.NOT_SENT)
    except JournalFailed as error:
        raise annotate_error(error, work, order_may_exist=not call.client_made) from error.__cause__
    if verdict.denial is not None:
        return await _claim_denied(context, call, verdict)
    entry = verdict.entry
    assert entry.intent is not None  # noqa: S101 - a claim has its intent
    work.intent, work.receipts = entry.intent, dict(entry.receipts)
    context.publish(Claimed, work, taken_over=entry.epoch > 1)
    return claimed_key(entry)


def claimed_key(entry: Entry) -> ClaimedKey:
    """Return a `ClaimedKey` for the claim that was just recorded in ``entry``."""
    claimed = ClaimedKey(epoch=entry.epoch)
    if entry.epoch > 1:  # An earlier worker may have run any hook without recording it.
        claimed.inherited = entry.hooks
    if entry.pending_undos:
        claimed.earlier = tuple(
            undo
            for undo in entry.pending_undos
            if undo.lease_until <= 0.0 and undo.intent.id != entry.intent_id
        )
    return claimed


async def _claim_denied(context: ClientCore, call: OrderCall, verdict: TransitionResult) -> Order:
    work, entry, denial = call.work, verdict.entry, verdict.denial
    if denial is Rejection.CREATED:
        return replay_created(entry, work)
    if denial is Rejection.REFUSED:
        raise replay_refused(entry, work)
    if denial is Rejection.IN_DOUBT:
        if verdict.found_doubt:
            work.attempt_id = entry.attempt
            context.publish(OrderInDoubt, work, error=ABANDONED)
        doubt = doubt_on_record(entry, "an earlier call with this key is in doubt; this call sent nothing")
        return await settle_doubt(context, work, call.cancellation, verdict, doubt)
    if denial is Rejection.CONFLICT:
        raise annotate_error(
            KeyConflict("this key is bound to a different order"), work, order_may_exist=True
        )
    raise annotate_error(KeyBusy(retry_after=verdict.lease_left), work, order_may_exist=True)


async def _mark_sending(
    context: ClientCore, work: OrderProgress, claimed: ClaimedKey, sending: SendState
) -> None:
    """Record in the journal that a request may now be sent."""
    claimed.attempt = fresh_id()
    sending.deadline = min(context.clock.now() + context.policy.deadline, work.deadline)
    mark = MarkSending(
        intent_id=work.intent.id,
        epoch=claimed.epoch,
        attempt=claimed.attempt,
        receipts=dict(work.receipts),
        lease=context.lease,
        window=context.policy.deadline,
        reason=MISMATCH_IN_HISTORY if MISMATCH_ACCEPTED in work.receipts.values() else None,
    )
    verdict = await context.journal.write(work.intent.key, mark, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        claimed.attempt = None  # `MarkSending` was not recorded.
        why = "the claim's lease expired before the order was sent"
        if verdict.entry.is_suspected:
            why = "an earlier call with this key may have created an order; this call sent nothing"
        raise KeyBusy(why, retry_after=verdict.lease_left)
    work.attempt_id = claimed.attempt


# --- preflight ---------------------------------------------------------------------------------------
# Before an order is sent, its hooks run in order, and the journal records the receipts that they return.


async def preflight(context: ClientCore, call: OrderCall, claimed: ClaimedKey) -> SendState:
    """Run the hooks in order. The hook that holds the funds runs last.

    Returns:
        The request. The caller must send the order only after the journal has recorded `MarkSending`.

    Raises:
        TransferError: a hook refused the order or failed, there is no hold, or a time limit passed.
    """
    intent = call.work.intent
    if intent.held is None and context.hold is None:
        raise HoldRequired(
            "the customer's funds must be held before an order is sent: pass a hold hook "
            "to the client (hooks=[..., FundsHold(place, release)]), or pass the reference of your own "
            "hold to the call (held=...)"
        )
    if expired := too_late(context.clock, call.work):
        raise expired
    sending = SendState(intent=intent, body=converter.encode(intent.order), clock=context.clock)
    hooks = EagerStart(
        _run_hooks(context, call, claimed, sending)
        if context.rate_limiter is None
        else _run_hooks_at_rate(context, call, claimed, sending, context.rate_limiter)
    )
    if not hooks.done:
        with LeaseKeeper(partial(_keep, context, call.work, claimed), every=context.lease / 3):
            await hooks
    return sending


async def _run_hooks_at_rate(
    context: ClientCore,
    call: OrderCall,
    claimed: ClaimedKey,
    sending: SendState,
    rate_limiter: RateLimiter,
) -> None:
    """Run the hooks within the client's rate limit. The order waits for a slot before any funds are held."""
    if claimed.earlier:
        await undo_earlier(context, call.work, call.cancellation, claimed)
    await wait_in_queue(context, call, rate_limiter.before_hooks)
    try:
        await _run_hooks(context, call, claimed, sending)
        await wait_in_queue(context, call, rate_limiter.before_request)
    except BaseException:
        rate_limiter.before_hooks.return_slot()  # Nothing was sent.
        raise


async def _run_hooks(context: ClientCore, call: OrderCall, claimed: ClaimedKey, sending: SendState) -> None:
    work = call.work
    held = work.intent.held is not None
    if claimed.earlier:
        await undo_earlier(context, work, call.cancellation, claimed)
    # The token is requested before the hooks run, because no funds may be held if there is no token. The
    # token is not stored in a local variable, because error trackers record the variables of each frame.
    sending.headers = context.tokens.current or await _first_headers(context, call)
    to_be_kept = False
    for hook in context.hooks:
        if hook.name in work.receipts or (held and hook.name == context.hold):
            continue
        if to_be_kept:
            await _keep(context, work, claimed)
        await _run_hook(context, call, claimed, hook)
        to_be_kept = hook.name in context.undoable or work.receipts[hook.name] is not None


async def _first_headers(context: ClientCore, call: OrderCall) -> CIMultiDict[str]:
    try:
        with call.cancellation:
            async with asyncio.timeout(seconds_left(context.clock, call.work.deadline)):
                return await context.tokens.headers()
    except TimeoutError as error:
        why = "the call's deadline passed before the token callable returned a token"
        raise Expired(why, limit="deadline") from sanitize_exception(error)


async def _run_hook(context: ClientCore, call: OrderCall, claimed: ClaimedKey, hook: PreflightHook) -> None:
    if expired := too_late(context.clock, call.work):
        raise expired
    began = context.clock.now()
    limit: asyncio.Timeout | None = None
    try:
        with call.cancellation:
            claimed.entered += (hook.name,)
            before = EagerStart(try_call(hook.before, call.work.intent))
            if before.done:
                receipt = before.result
            else:
                left = within(context.timeouts.hook, context.clock, call.work.deadline)
                async with asyncio.timeout(left) as limit:
                    receipt = await before
    except (TimeoutError, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and call.cancellation.abandoned:
            raise
        receipt = Raised(error)
    if type(receipt) is Raised:
        cause = sanitize_exception(receipt.error)
        if is_a(cause, PreflightFailed):
            claimed.entered = claimed.entered[:-1]  # The hook guarantees that it did nothing.
            raise own_copy(cast("PreflightFailed", cause), hook) from cause_of(cause)
        if limit is not None and limit.expired() and left < context.timeouts.hook:
            why = f"the call's deadline passed while the hook {hook.name!r} ran"
            raise Expired(why, limit="deadline") from cause
        why = f"the hook {hook.name!r} failed ({name_of(cause)})"
        raise broken_hook(hook, why) from cause
    try:
        call.work.receipts[hook.name] = checked_receipt(hook, receipt)
    except (TypeError, ValueError) as error:
        raise broken_hook(hook, str(error)) from error
    context.publish(HookPassed, call.work, hook=hook.name, took=context.clock.now() - began)


async def _keep(context: ClientCore, work: OrderProgress, claimed: ClaimedKey) -> None:
    keep = RenewLease(
        intent_id=work.intent.id, epoch=claimed.epoch, lease=context.lease, receipts=dict(work.receipts)
    )
    verdict = await context.journal.write(work.intent.key, keep, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        raise KeyBusy("the claim's lease expired before the order was sent", retry_after=verdict.lease_left)


# --- lease -------------------------------------------------------------------------------------------
# While hooks run, the claim's lease is renewed.


class LeaseKeeper:
    """A context manager that calls ``renew`` every ``every`` seconds while its block runs.

    If ``renew`` raises a `JournalFailed`, it is called again after the next interval. After any other
    `TransferError`, the block continues without renewals; if the lease was lost, `MarkSending` fails.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]], *, every: float) -> None:
        self._renew = renew
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._start)
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew_again_and_again())

    async def _renew_again_and_again(self) -> None:
        while True:
            try:
                await self._renew()
            except TransferError as error:
                log.warning("a claim's lease could not be renewed (%s)", type(error).__name__)
                if not isinstance(error, JournalFailed):
                    return
            await asyncio.sleep(self._every)


# --- eager start -------------------------------------------------------------------------------------
# A hook that waits needs two timers: one for its timeout and one for the lease. They take a tenth of a call's
# time. A hook that only reads memory never waits, and does not need a timer. Therefore the timers start only
# when a hook waits for the first time.


T = TypeVar("T")


class EagerStart(Generic[T]):
    """Run a coroutine immediately, up to its first wait.

    Await this object to get the coroutine's result. If the coroutine raises an error before its first wait,
    the constructor raises that error.
    """

    __slots__ = ("_waits_for", "_work", "done", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.done: bool = False
        self.result: T | None = None
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.done, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine from its first wait to its end, and return its result."""
        waits_for, work = self._waits_for, self._work
        while True:
            error: BaseException | None = None
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - `thrown` is passed on to the coroutine
                error = thrown
            try:
                waits_for = work.send(sent) if error is None else work.throw(error)
            except StopIteration as end:
                return cast("T", end.value)


# --- a task for each call ----------------------------------------------------------------------------
# Each call runs in a separate task, because the caller may be cancelled while the request is in flight. The
# caller then receives its `CancelledError` immediately, and the separate task finishes the remaining work.
# aiohttp requires that the same task begins and ends a request.


TASK_NAME = "transfer_async order"
"""The name of every task that runs a call. All tasks share one string, to save memory."""


class InFlight:
    """The calls that a client is running."""

    def __init__(self, context: ClientCore) -> None:
        self._context = context
        self._calls: dict[asyncio.Task[None], OrderCall] = {}

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is running one of the calls."""
        return task in self._calls

    async def run(self, call: OrderCall) -> Order:
        """Run ``call`` in a separate task and wait for its order.

        Raises:
            asyncio.CancelledError: the caller was cancelled. If nothing was sent, the error is raised once
            the hooks are undone and the key is free. If something was sent, the error is raised immediately.
            TransferError: the call ended without an order; see `TransferClient.create_order`.
        """
        task = _started(self._deliver(call), asyncio.get_running_loop())
        # A task that started eagerly has added itself.
        if call.cancellation.task is None and not task.done():
            self._calls[task] = call
            task.add_done_callback(self._ended)  # The task may be cancelled before it begins.
        try:
            return await call.outcome
        except asyncio.CancelledError:
            if not task.done():
                call.cancellation.abandon()
                if not call.cancellation.may_have_been_sent:
                    await asyncio.wait([task])
            raise

    async def _deliver(self, call: OrderCall) -> None:
        """Run ``call``, and deliver its result if the caller is still waiting."""
        task = call.cancellation.task = cast("asyncio.Task[None]", asyncio.current_task())
        self._calls[task] = call
        try:
            order = await create_order(self._context, call)
        except asyncio.CancelledError:
            if call.cancellation.sent and not call.outcome.done():  # The caller was not cancelled.
                # For example, a hook's own timer cancelled the call. A `CancelledError` would mean that
                # nothing was sent, and a task group of the caller would ignore it.
                why = "the call was cancelled, but not by its caller: look up the key in the journal"
                failed = JournalFailed(why, outcome=Outcome.UNKNOWN)
                call.outcome.set_exception(annotate_error(failed, call.work, order_may_exist=True))
            call.outcome.cancel()
        except BaseException as error:
            if isinstance(error, TransferError) and not call.outcome.done():
                try:
                    await check_key(self._context, error, client_made=call.client_made)
                except (Exception, asyncio.CancelledError):  # noqa: BLE001 - `error` must still be delivered
                    error.order_may_exist = True
                    call.cancellation.swallow()
            if not call.outcome.done():
                call.outcome.set_exception(_deliverable(error, call.work))
            if is_end(error):
                raise
        else:
            if not call.outcome.done():
                call.outcome.set_result(order)
        finally:
            self._ended(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task, None)
        if call is not None:
            call.cancellation.task = None  # This breaks a reference cycle.
            if not call.outcome.done():  # The task was cancelled before it began.
                call.outcome.cancel()

    def cut_off(self) -> None:
        """Stop all calls. An order whose request is in flight is recorded as in doubt."""
        for call in list(self._calls.values()):
            call.cancellation.cut_off()

    async def finish(self, *, wait: float, grace: float) -> None:
        """Wait up to ``wait`` seconds for all calls, then cut off those that are still running.

        Then wait up to ``grace`` seconds for the cut-off calls to end.
        """
        await finish_tasks(lambda: self._calls, self.cut_off, wait=wait, grace=grace)


def _deliverable(error: BaseException, work: OrderProgress) -> BaseException:
    """Return ``error`` if a call may raise it, else a `JournalFailed` that says to look up the key."""
    if is_a(error, TransferError) or is_end(error):
        return error
    why = f"the call failed unexpectedly ({name_of(error)}): look up the key in the journal"
    failed = JournalFailed(why, outcome=Outcome.UNKNOWN)
    failed.__cause__ = sanitize_exception(error)
    return annotate_error(failed, work, order_may_exist=True)


if sys.version_info >= (3, 12):

    def _started(run: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        # An eager start saves one iteration of the event loop.
        return asyncio.Task(run, loop=loop, name=TASK_NAME, eager_start=True)

else:

    def _started(run: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return loop.create_task(run, name=TASK_NAME)
