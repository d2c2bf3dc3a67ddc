"""Makes the HTTP attempts of one order, and determines the outcome of each."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from multidict import CIMultiDict

from transfer_async._converters.converter import contains_order, find_order_id, read_answer
from transfer_async._converters.wire_format import Unreadable, is_json
from transfer_async._http import classify, retry
from transfer_async._http.classify import Classification
from transfer_async._http.request import with_added
from transfer_async._http.retry import RateLimiter, RateLimitQueue
from transfer_async._http.transport import ExchangeResult
from transfer_async._http.write_guard import ConnectionState, GuardedBody
from transfer_async._models.errors import (
    Attempt,
    CauseKind,
    ConnectionFailed,
    Expired,
    Limit,
    Outcome,
    OutcomeUnknown,
    TokenUnavailable,
    TransferError,
    UnreadableOrder,
    name_of,
)
from transfer_async._models.events import AttemptFailed, AttemptStarted, RateLimitWaited, RetryScheduled
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Cancellation, ClientCore, OrderCall, OrderProgress
from transfer_async._support.clock import NEVER, Clock, is_over, seconds_left
from transfer_async._support.util import MutableStruct

_NONE_YET: CIMultiDict[str] = CIMultiDict()


class SendState(MutableStruct, kw_only=True):
    """The request of one call, and the results of its attempts so far.

    Args:
        intent: the intent whose order is sent.
        body: the intent's order as JSON.
        headers: the headers of the request, including the token once it has been obtained.
        clock: the client's clock.
        deadline: the time after which no attempt may begin, in seconds on the client's clock. The deadline is
            the caller's deadline or the end of the policy's retry time, whichever is earlier. The retry time
            starts just before `MarkSending` is written to the journal.
        classification: the classification of the last HTTP exchange.
        last_failure: the error of the most recent HTTP attempt that ended in a definite failure.
        last_connection: the connection to which the last request body was handed. A reference to the body
            itself would create a reference cycle.
        token_renewed: whether this call has already renewed the token. A call renews the token at most once.
    """

    intent: OrderIntent
    body: bytes
    clock: Clock
    headers: CIMultiDict[str] = _NONE_YET
    deadline: float = float("inf")
    classification: Classification | None = None
    last_failure: TransferError | None = None
    last_connection: ConnectionState | None = None
    token_renewed: bool = False

    def is_time(self, ahead: float = 0.0) -> bool:
        """Return whether a request may still be sent in ``ahead`` seconds."""
        return self.clock.now() + ahead < self.deadline and not is_expired(self.clock, self.intent, ahead)


class OrderResponse(MutableStruct, kw_only=True):
    """A response that contains the order.

    Args:
        order: the order in the response.
        result: the response itself.
        took: how long the attempt took, in seconds.
        connection: the connection on which the response arrived.
    """

    order: Order
    result: ExchangeResult
    took: float
    connection: ConnectionState


async def attempt(context: ClientCore, call: OrderCall, sending: SendState) -> OrderResponse:
    """Make one HTTP attempt, and return the response with the order.

    Raises:
        OutcomeUnknown: the service may have processed the request.
        TransferError: the attempt ended in a definite failure.
        asyncio.CancelledError: the call was cancelled before anything was sent.
    """
    body = _next_body(context, call, sending)
    work, began = call.work, context.clock.now()
    work.attempts_begun += 1
    context.publish(AttemptStarted, work)
    sending.classification, call.cancellation.on_the_way = None, body
    try:
        result = await context.transport.post_order(
            body,
            headers=_order_headers(context, work, sending),
            left=sending.deadline - context.clock.now(),
        )
    finally:
        call.cancellation.on_the_way = None
        if body.handed_over:
            call.cancellation.sent, sending.last_connection = True, body.connection
        call.cancellation.swallow()
    try:
        order = _order_from(context, call, sending, body, result)
    except TransferError as error:
        if not body.connection.trusted:
            body.connection.distrust()
        if _note(context, work, result, error, began) is not Outcome.UNKNOWN:
            sending.last_failure = error
        raise
    _note(context, work, result, None, began)
    context.bucket.refund()
    took = context.clock.now() - began
    return OrderResponse(order=order, result=result, took=took, connection=body.connection)


def _order_headers(context: ClientCore, work: OrderProgress, sending: SendState) -> CIMultiDict[str]:
    """Return the headers of one attempt, including an attempt id if the client sends attempt ids."""
    name, observers = context.request_id_header, context.observers
    if name is None and not observers.header_sources:
        return sending.headers
    headers = sending.headers.copy()
    if name is not None:
        headers[name] = work.attempt_id or ""
    return with_added(headers, observers.request_headers(work.intent.id))


def _next_body(context: ClientCore, call: OrderCall, sending: SendState) -> GuardedBody:
    """Return the request body for the next attempt.

    Raises:
        TransferError: a time limit has passed, or unexpected bytes arrived after the last refusal.
        asyncio.CancelledError: the call was cancelled.
    """
    if call.cancellation.abandoned:
        raise sending.last_failure or asyncio.CancelledError
    if not sending.is_time():
        raise _too_late(context, call.work, sending.last_failure)
    check_quiet(context, sending)
    return GuardedBody(sending.body, in_time=sending.is_time)


def _order_from(
    context: ClientCore, call: OrderCall, sending: SendState, body: GuardedBody, result: ExchangeResult
) -> Order:
    if call.cancellation.abandoned and not result.sent:  # The request only waited for a connection.
        raise sending.last_failure or asyncio.CancelledError
    if body.late or (not result.sent and is_over(context.clock, call.work.deadline)):
        raise _too_late(context, call.work, sending.last_failure)
    sending.classification = classify.classify_response(result, context.policy, classify.ORDER_ANSWERS)
    if sending.classification is not Classification.ANSWERED:
        if doubt := _contradiction(sending.classification, result, call.work.intent.order):
            raise doubt
        if result.intact and sending.classification in classify.SERVICE_REFUSALS:
            body.connection.trust()
        if sending.classification is Classification.WRONG_TOKEN:
            context.tokens.distrust(sending.headers)
        raise classify.error_of(sending.classification, result, now=context.clock.utc(), reading=False)
    order = _order_in(result, call.work.intent.order)
    body.connection.trust()
    return order


def _order_in(result: ExchangeResult, sent: NewOrder) -> Order:
    found = _read(result, sent)
    if isinstance(found, Order):
        return found
    # Error trackers record the variables of the frame that raises. The response may name another customer, so
    # the frame of `_read`, which has the decoded response, must not raise.
    raise found


def _read(result: ExchangeResult, sent: NewOrder) -> Order | UnreadableOrder:
    try:
        answer = read_answer(result.body)
    except Unreadable as error:
        why = f"the response cannot be read as an order: {error}"
        unreadable = _unreadable(result, why, order_id=find_order_id(result.body))
        unreadable.__cause__ = result.error
        return unreadable
    if other := classify.other_order(sent, answer):
        return _unreadable(result, f"the response describes a different order: {other} differs")
    return answer.order


def _contradiction(
    classification: Classification, result: ExchangeResult, sent: NewOrder
) -> UnreadableOrder | None:
    """Return the error for a refusal that contains an order, which may be the one sent, or None.

    The service or a proxy may have replaced the status after the order was processed, for example because a
    limit was reached in the meantime. The order may be cut off, unreadable, or inside another object or a
    string. If the response contains several orders, none of their ids is a candidate.

    Before an order is sent again, the id of any order is enough, because a doubt is better than a second
    payment. A final refusal may name the order of another poster.
    """
    if classification not in classify.SERVICE_REFUSALS or not contains_order(result.body):
        return None
    parties = sent.poster_username, sent.poster_recipient_username
    is_whole = result.intact and is_json(result.body)  # A truncated order may lack the usernames.
    if (
        classification is Classification.REFUSED
        and is_whole
        and not (contains_order(result.body, *parties) or isinstance(_read(result, sent), Order))
    ):
        return None
    why = f"the status {result.status} means a refusal, but the response contains an order"
    return _unreadable(result, why, order_id=find_order_id(result.body), kind=CauseKind.STATUS)


def _unreadable(
    result: ExchangeResult, why: str, *, order_id: str | None = None, kind: CauseKind | None = None
) -> UnreadableOrder:
    by_body = CauseKind.UNREADABLE_ANSWER if result.intact else CauseKind.CUT_ANSWER
    return UnreadableOrder(
        why,
        order_id=order_id,
        status=result.status,
        raw=result.body,
        request_id=result.request_id,
        kind=kind or by_body,
    )


def _note(
    context: ClientCore,
    work: OrderProgress,
    result: ExchangeResult,
    error: TransferError | None,
    began: float,
) -> Outcome:
    """Record the HTTP attempt, publish `AttemptFailed` if it failed, and return its outcome."""
    outcome = Outcome.CREATED if error is None else error.outcome if result.sent else Outcome.NOT_SENT
    name = None if error is None else type(error).__name__
    clock, number = context.clock, work.attempts_begun
    seconds = clock.now() - began

    def report() -> Attempt:
        return Attempt(
            number=number,
            seconds=seconds,
            outcome=outcome,
            status=result.status,
            error=name_of(result.error) if result.error is not None else name,
            request_id=result.request_id,
            began=clock.utc() - timedelta(seconds=clock.now() - began),
        )

    work.reports += (report,)
    if name is not None:
        context.publish(
            AttemptFailed,
            work,
            outcome=outcome,
            error=name,
            status=result.status,
            request_id=result.request_id,
        )
    return outcome


def check_quiet(context: ClientCore, sending: SendState) -> None:
    """Check that no unexpected bytes arrived on the connection after the last definite failure.

    Raises:
        OutcomeUnknown: more bytes arrived, and they may be the real response to the order.
    """
    if sending.last_connection is not None and sending.last_failure is not None:
        if context.transport.stays_quiet(sending.last_connection):
            return
        sending.last_connection.distrust()
        why = "another response arrived after the service's refusal"
        raise OutcomeUnknown(why, kind=CauseKind.SECOND_ANSWER) from sending.last_failure


def _too_late(context: ClientCore, work: OrderProgress, last_failure: TransferError | None) -> TransferError:
    if last_failure is not None:
        return last_failure
    if expired := too_late(context.clock, work):
        return expired
    return ConnectionFailed("the retry deadline passed before a connection was available")


# --- retries -----------------------------------------------------------------------------------------
# An order is sent again only if it is certain that the service did not process the last attempt, and only
# within the limits of the retry policy. After an unknown outcome, nothing is sent again.


async def send_again(
    context: ClientCore, call: OrderCall, sending: SendState, first: TransferError
) -> OrderResponse:
    """Retry an order whose first attempt failed with ``first``, if a retry is allowed.

    Raises:
        OutcomeUnknown: the service may have processed a request.
        TransferError: the last attempt ended in a definite failure. If no retry is allowed, ``first`` is
            raised.
    """
    if not _may_retry(context, call.cancellation, sending, first):
        raise first
    try:
        return await retry.run_retries(
            partial(_another, context, call, sending),
            first,
            policy=context.policy,
            bucket=context.bucket,
            clock=context.clock,
            until=partial(_is_time, context, sending),
            may=partial(_may_retry, context, call.cancellation, sending),
            pause=partial(_pause, context, call),
        )
    except TransferError as error:
        # More bytes may have arrived since the refusal.
        if error is sending.last_failure:
            check_quiet(context, sending)
        raise


def _may_retry(
    context: ClientCore, cancellation: Cancellation, sending: SendState, error: TransferError
) -> bool:
    if cancellation.abandoned or error is not sending.last_failure:
        return False
    if sending.classification is Classification.WRONG_TOKEN:
        return context.tokens.renewable and not sending.token_renewed
    return sending.classification in classify.RETRYABLE


def _is_time(context: ClientCore, sending: SendState, ahead: float) -> bool:
    if context.rate_limiter is not None:
        ahead = max(ahead, context.rate_limiter.before_request.ahead)
    return sending.is_time(ahead)


async def _another(context: ClientCore, call: OrderCall, sending: SendState) -> OrderResponse:
    if sending.classification is Classification.WRONG_TOKEN:
        await _renew_token(context, call.cancellation, sending)
    if context.rate_limiter is not None:
        await _wait_again(context, call, sending, context.rate_limiter)
    return await attempt(context, call, sending)


async def _wait_again(
    context: ClientCore, call: OrderCall, sending: SendState, rate_limiter: RateLimiter
) -> None:
    """Wait for the rate limiter before a retry.

    A retry takes precedence over new orders, because new orders have no hold yet.
    """
    rate_limiter.before_hooks.take_slot()
    try:
        await wait_in_queue(context, call, rate_limiter.before_request, until=sending.deadline)
    except (Expired, asyncio.CancelledError) as error:
        rate_limiter.before_hooks.return_slot()
        call.cancellation.swallow()
        sending.classification = None  # This prevents further retries.
        failure = sending.last_failure or error
        raise failure from failure.__cause__


async def _renew_token(context: ClientCore, cancellation: Cancellation, sending: SendState) -> None:
    sending.token_renewed = True
    try:
        with cancellation:
            async with asyncio.timeout(seconds_left(context.clock, sending.deadline)):
                sending.headers = await context.tokens.headers(instead_of=sending.headers)
    except (TokenUnavailable, TimeoutError, asyncio.CancelledError) as error:
        cancellation.swallow()
        # The call ends with the service's refusal. The failed renewal is only chained to it.
        raise sending.last_failure or error from error


async def _pause(context: ClientCore, call: OrderCall, pause: retry.Pause) -> None:
    context.publish(RetryScheduled, call.work, pause=pause.seconds)
    try:
        with call.cancellation:
            await context.clock.sleep(pause.seconds)
    except asyncio.CancelledError:
        call.cancellation.swallow()
        raise pause.error from pause.error.__cause__


# --- time limits -------------------------------------------------------------------------------------
# Sending is subject to three limits: the retry deadline, and the caller's ``send_before`` and ``deadline``.
#
# The caller's limits can only shorten the time for sending. After ``send_before``, no byte of the order is
# sent. At ``deadline``, hooks and HTTP exchanges in progress are stopped, because the caller stops waiting.


LIMIT_NAMES: dict[Limit, str] = {"send_before": "send_before", "deadline": "the call's deadline"}


def is_expired(clock: Clock, intent: OrderIntent, ahead: float = 0.0) -> bool:
    """Return whether ``send_before`` has passed, or will pass within ``ahead`` seconds."""
    limit = intent.send_before
    return limit is not None and (limit - clock.utc()).total_seconds() <= ahead


def too_late(clock: Clock, work: OrderProgress) -> Expired | None:
    """Return an `Expired` if one of the caller's limits has passed, else None."""
    # This early return saves time: most calls have no limits, and this function runs before each hook.
    if work.deadline == NEVER and work.intent.send_before is None:
        return None
    if (limit := limit_passed(clock, work)) is None:
        return None
    return Expired(f"{LIMIT_NAMES[limit]} passed before the order could be sent", limit=limit)


def limit_passed(clock: Clock, work: OrderProgress, ahead: float = 0.0) -> Limit | None:
    """Return the caller's limit that has passed or will pass within ``ahead`` seconds, or None."""
    if is_expired(clock, work.intent, ahead):
        return "send_before"
    return "deadline" if is_over(clock, work.deadline, ahead) else None


def seconds_to_wait(clock: Clock, work: OrderProgress, deadline: float) -> float | None:
    """Return the seconds until the earliest of ``deadline``, the call's deadline and ``send_before``.

    Return None if there is no limit.
    """
    left = seconds_left(clock, min(work.deadline, deadline))
    if work.intent.send_before is not None:
        seconds = max(0.0, (work.intent.send_before - clock.utc()).total_seconds())
        left = seconds if left is None else min(left, seconds)
    return left


# --- rate limiter ------------------------------------------------------------------------------------
# If the client has a rate limit, an order waits before its hooks run, and again before each request.
#
# An order that would have to wait beyond one of its time limits fails immediately.


async def wait_in_queue(
    context: ClientCore, call: OrderCall, queue: RateLimitQueue, *, until: float = NEVER
) -> None:
    """Wait for a slot in one of the rate limiter's queues, at most until ``until`` on the client's clock.

    Raises:
        Expired: the wait would exceed ``until`` or one of the caller's limits. If the queue is already too
            long, the error is raised immediately.
        asyncio.CancelledError: the call was cancelled.
    """
    work = call.work
    ahead = queue.ahead
    try:
        with call.cancellation:
            waited = await queue.wait(within=seconds_to_wait(context.clock, work, until))
    except TimeoutError:
        limit = limit_passed(context.clock, work, ahead) or "deadline"
        why = f"the rate limit would delay the order by {ahead:.3g} s, beyond {LIMIT_NAMES[limit]}"
        raise Expired(why, limit=limit) from None
    if waited:
        context.publish(RateLimitWaited, work, waited=waited)
