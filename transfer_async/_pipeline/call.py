"""The state of one ``create_order`` call, and the objects and settings that all calls of a client share."""

from __future__ import annotations

import asyncio
import os
import ssl as tls
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypedDict

import aiohttp
import msgspec
from attrs import evolve, field, frozen, validators
from attrs.converters import optional
from msgspec.structs import force_setattr

from transfer_async._http.request import TokenSource
from transfer_async._http.retry import Rate, RateLimiter, RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import Attempt, Outcome, OutcomeUnknown, TransferError, sanitize_exception
from transfer_async._models.events import Event, Observer, Observers
from transfer_async._models.requests import OrderIntent, OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.hooks import Hook, PreflightHook, is_hold
from transfer_async._support.clock import NEVER, Clock, Duration, duration, in_seconds, on_clock
from transfer_async._support.util import (
    VERSION,
    FrozenStruct,
    MutableStruct,
    a_duration,
    count,
    instance_of,
    positive,
)
from transfer_async.journal.model import ABANDONED_SETTLE_AFTER, LONGEST_LEASE, PendingUndo
from transfer_async.journal.protocol import Journal, ScopedJournal

RECOVER_CONCURRENCY = 8
"""The default number of concurrent calls to ``resolve`` in one run of ``recover``."""


class OrderCall(MutableStruct, kw_only=True):
    """One call to ``create_order``: its arguments, progress and cancellation.

    Args:
        client_made: whether the client generated the key.
        once: whether to raise a recorded refusal again instead of resending the order.
        work: the progress of the call.
        cancellation: records whether the caller or the closing client has cancelled the call.
        outcome: the future that the caller awaits.
        is_published: whether a worker publishes the outcome as a message.
    """

    client_made: bool
    once: bool
    work: OrderProgress
    cancellation: Cancellation
    outcome: asyncio.Future[Order]
    is_published: bool = False


def fresh_id() -> str:
    """Return 128 random bits in hexadecimal. This function is three times as fast as `uuid4`."""
    return os.urandom(16).hex()


def new_call(context: ClientCore, request: OrderRequest, *, once: bool) -> OrderCall:
    """Create the call for a valid ``request``. If the request has no key, generate one."""
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
        # The caller awaits a future, which has the same effect as `asyncio.shield` at half the cost.
        outcome=asyncio.get_running_loop().create_future(),
    )


async def finish_tasks(
    in_progress: Callable[[], Collection[asyncio.Task[Any]]],
    cut_off: Callable[[], None],
    *,
    wait: float,
    grace: float,
) -> None:
    """Wait up to ``wait`` seconds for all tasks, then cut off those that are still running.

    Then wait up to ``grace`` seconds for the cut-off tasks to end.
    """
    if tasks := in_progress():
        await asyncio.wait(tasks, timeout=wait)
    cut_off()
    if tasks := in_progress():
        await asyncio.wait(tasks, timeout=grace)


# --- cancellation ------------------------------------------------------------------------------------
# A call stops only where that is safe, or when the closing client no longer waits for the call.


class Cancellation(MutableStruct, kw_only=True):
    """The cancellation state of one call, or of one key in `recover`.

    A `Cancellation` is also a context manager for code that can safely be cancelled, such as a hook or a
    pause. Entering the context manager raises `asyncio.CancelledError` if the call is already abandoned.

    Args:
        task: the task that runs the call, or None in `recover`, which runs in the caller's own task.
        is_stoppable: whether the task is now inside the context manager, and so may be cancelled.
        on_the_way: the request body of the HTTP exchange in progress, or None.
        sent: whether a completed HTTP exchange handed its request body to a connection.
        abandoned: whether the caller or the closing client no longer waits for the call.
        cut: whether the closing client no longer waits for the call.
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
        """Whether a request body was handed to a connection.

        If nothing was handed over, a cancelled caller waits until the hooks are undone.
        """
        return self.sent or (self.on_the_way is not None and self.on_the_way.handed_over)

    def abandon(self) -> None:
        """Record that the caller is no longer waiting, and cancel the task if that is safe now."""
        self.abandoned = True
        waiting = self.on_the_way is not None and not self.on_the_way.handed_over
        if self.on_the_way is not None and waiting:
            self.on_the_way.spent = True  # The body is waiting for a connection and must not be sent.
        if self.task is not None and (self.is_stoppable or waiting):
            self.is_stoppable = False
            self.task.cancel()

    def cut_off(self) -> None:
        """Stop the call because the client is closing.

        If the call's request is in flight, its order is recorded as in doubt.
        """
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
# Errors, events and messages contain data about the progress of a call.


class OrderProgress(MutableStruct, kw_only=True):
    """The progress of one intent in one call or in one run of `recover`.

    Args:
        intent: the caller's intent; once the key's record is read, the intent gets the recorded id.
        began: the start time on the client's clock, in seconds.
        deadline: the time when the caller stops waiting, in seconds on the client's clock.
        receipts: the receipts that hooks returned, by hook name, including those of an earlier worker whose
            claim was taken over.
        attempt_id: the journal's id for the attempt to send the order; None before `MarkSending`.
        attempts_begun: the number of HTTP attempts that have begun.
        undone: the number of hooks that have been undone.
        undos_pending: the number of undos that failed and are still pending.
        resolve_failed: whether ``resolve`` was called but did not return a usable result.
        reports: functions that return the attempts that ended after `attempts` was last read.
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
    reports: tuple[Callable[[], Attempt], ...] = ()
    _attempts: tuple[Attempt, ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The completed HTTP attempts."""
        self._attempts += tuple(report() for report in self.reports)
        self.reports = ()
        return self._attempts

    def correct_last(self, outcome: Outcome) -> None:
        """Correct the recorded outcome of the last attempt."""
        *before, last = self.attempts
        self._attempts = (*before, evolve(last, outcome=outcome))


def annotate_error(error: TransferError, work: OrderProgress, *, order_may_exist: bool) -> TransferError:
    """Sanitize ``error``, set its key, attempts, receipts and ``order_may_exist``, and return it."""
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
# While a call holds a claim, it keeps a list of the hooks that may have acted.


class ClaimedKey(MutableStruct, kw_only=True):
    """The state of a key that this process has claimed.

    Args:
        epoch: the claim's number, which starts at 1 and increases by one with each take-over of the intent.
        attempt: the id that `MarkSending` records; None until then. The journal treats all HTTP attempts of a
            call as one attempt.
        inherited: the names of the hooks that an earlier worker may have run for this intent.
        entered: the names of the hooks that this call started, except those that raised `PreflightFailed`.
        earlier: the pending undos of the key's earlier intents; empty once this call has tried them.
    """

    epoch: int
    attempt: str | None = None
    inherited: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()
    earlier: tuple[PendingUndo, ...] = ()


class DoubtRounds(MutableStruct, kw_only=True):
    """The state of a client's ``resolve`` calls, kept between runs of ``recover``.

    Args:
        asked_at: the start time of the last run that called ``resolve`` for every due doubt, in seconds on
            the journal's clock. ``asked_at`` is None before the first run, in which all doubts are due.
        after: the last key for which a run called ``resolve`` before it gave up; the next run continues after
            this key.
        tasks: the tasks that are calling ``resolve``.
    """

    asked_at: float | None = None
    after: str = ""
    tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)


# --- settings ---------------------------------------------------------------------------------------
# The settings of a client are checked when they are created.


USER_AGENT = f"transfer_async/{VERSION}"


class ClientSettings(TypedDict, total=False):
    """The arguments of `TransferClient` except the base URL and the token."""

    hooks: Sequence[Hook]
    journal: Journal | None
    scope: str | None
    retry: RetryPolicy | None
    timeouts: Timeouts | None
    resolve: Resolver | None
    settle_after: Duration
    abandoned_settle_after: Duration | None
    four_eyes: bool
    lease: Duration
    recover_every: Duration | None
    recover_concurrency: int
    observers: Sequence[Observer]
    session: aiohttp.ClientSession | None
    ssl: tls.SSLContext | None
    proxy: str | None
    max_response_bytes: int
    max_connections: int
    rate: Rate | None
    headers: Mapping[str, str] | None
    request_id_header: str | None
    response_id_header: str
    clock: Clock | None


def checked_settle_after(settle_after: Duration) -> float:
    """Return ``settle_after`` in seconds.

    Raises:
        ValueError: ``settle_after`` is not a duration, or is negative.
    """
    seconds = duration("settle_after", settle_after)
    if not seconds >= 0:
        raise ValueError("settle_after: must be 0 seconds or more")
    return seconds


def checked_abandoned_settle_after(given: Duration | None, *, settle_after: float) -> float:
    """Return ``abandoned_settle_after`` in seconds.

    The default is one day, or ``settle_after`` if that is longer.

    Raises:
        ValueError: ``given`` is not a duration, or is less than ``settle_after``.
    """
    if given is None:
        return max(ABANDONED_SETTLE_AFTER, settle_after)
    seconds = duration("abandoned_settle_after", given)
    if not seconds >= settle_after:
        raise ValueError(f"abandoned_settle_after: must be at least settle_after ({settle_after:g} seconds)")
    return seconds


_OFTEN_OR_NEVER = positive("must be finite and more than 0 seconds, or None")


@frozen(kw_only=True)
class Times:
    """A client's clock, retry policy and time settings.

    Raises:
        ValueError: a setting is invalid, or the lease is too short for the retry deadline; the message names
            the argument and the rule.
    """

    retry: RetryPolicy = field(validator=instance_of(RetryPolicy))
    timeouts: Timeouts = field(validator=instance_of(Timeouts))
    clock: Clock = field(validator=instance_of(Clock))
    lease: float = field(converter=in_seconds, validator=a_duration)
    settle_after: float = field(converter=checked_settle_after)
    recover_every: float | None = field(
        converter=optional(in_seconds),
        validator=validators.optional([a_duration, _OFTEN_OR_NEVER]),
    )

    @lease.validator
    def _long_enough_and_no_longer(self, _: object, lease: float) -> None:
        least = round(1.5 * self.retry.deadline, 9)  # 1.5 * 0.8 is slightly more than 1.2 as a float.
        if not least <= lease < float("inf"):
            raise ValueError(
                f"lease: must be finite and at least 1.5 times the retry deadline, {least:g} s; otherwise a "
                "claim may expire while its request is in flight"
            )
        if lease > LONGEST_LEASE:
            raise ValueError(
                f"lease: must not be more than {LONGEST_LEASE:g} s, because a dead worker's key stays "
                "claimed for that long. The retry deadline can therefore be at most "
                f"{LONGEST_LEASE / 1.5:g} s"
            )


@frozen(kw_only=True)
class Limits:
    """A client's limits on response sizes, connections, concurrent ``resolve`` calls and the order rate.

    Raises:
        ValueError: a limit is not an integer of at least 1, or ``rate`` is not a `Rate`.
    """

    max_response_bytes: int = field(validator=count())
    max_connections: int = field(validator=count())
    recover_concurrency: int = field(validator=count())
    rate: Rate | None = field(validator=validators.optional(instance_of(Rate)))


# --- client core -------------------------------------------------------------------------------------
# All calls of a client share the client's parts and settings.


class ClientCore(FrozenStruct, frozen=True, kw_only=True):
    """The objects and settings that all calls of one client share. Times are in seconds."""

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
    rate_limiter: RateLimiter | None
    recover_concurrency: int
    doubt_rounds: DoubtRounds = msgspec.field(default_factory=DoubtRounds)
    request_id_header: str | None = None
    """The name of the header that carries the attempt id in each create-order request, or None."""

    undoable: tuple[str, ...] = ()
    """The names of the hooks that can be undone, last first. Computed from ``hooks``."""

    undoable_but_hold: tuple[str, ...] = ()
    """The names in ``undoable`` except the hold hook's, for orders whose hold the bank itself placed."""

    hold: str | None = None
    """The name of the hook that places the hold, or None. Computed from ``hooks``."""

    unrecorded: dict[str, Callable[[], Awaitable[object]]] = msgspec.field(default_factory=dict)
    """Functions that retry a failed write of a response to the journal, by key.

    Only this process has these responses.
    """

    def __post_init__(self) -> None:
        hold = next((hook.name for hook in self.hooks if is_hold(hook)), None)
        undoable = tuple(
            hook.name for hook in reversed(self.hooks) if not getattr(hook, "nothing_to_undo", False)
        )
        force_setattr(self, "hold", hold)
        force_setattr(self, "undoable", undoable)
        force_setattr(self, "undoable_but_hold", tuple(name for name in undoable if name != hold))

    def publish(self, kind: type[Event], work: OrderProgress, **fields: Any) -> None:
        """Publish an event about the call in ``work`` to any observers."""
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
# The results that the bank's ``resolve`` may return for an order in doubt.


class _NoOrder:
    """The type of `NO_ORDER`."""

    def __repr__(self) -> str:
        return "NO_ORDER"

    def __reduce__(self) -> str:
        return "NO_ORDER"  # Unpickling returns the only instance.


NO_ORDER: Final = _NoOrder()
"""The result of ``resolve`` if it is certain that no order exists *and none can appear any more*."""

Resolution = Order | str | _NoOrder | None
"""A result of ``resolve``: the order, the order's id, `NO_ORDER`, or None if the outcome is unknown."""

Resolver = Callable[[OrderIntent, OutcomeUnknown], Awaitable[Resolution]]
"""An async function of the bank that finds out whether the order of an intent in doubt exists."""
