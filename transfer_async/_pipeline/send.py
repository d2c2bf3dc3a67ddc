"""Sending one order: attempt after attempt, as long as each certainly was not processed, and in time.

Whatever an attempt raises says what is certain of the order: a doubt ends the sending at once.
"""

from __future__ import annotations

import asyncio
from functools import partial

from transfer_async._converters.order import find_order_id, read_answer
from transfer_async._converters.wire_format import Unreadable
from transfer_async._http import classify, retry
from transfer_async._http.classify import Judgement
from transfer_async._http.transport import Evidence
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import (
    Attempt,
    ConnectionFailed,
    Expired,
    Outcome,
    OutcomeUnknown,
    TokenUnavailable,
    TransferError,
    UnreadableOrder,
)
from transfer_async._models.events import AttemptFailed, AttemptStarted, RetryScheduled
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.context import Context


async def send(context: Context, call: Call) -> tuple[Order, bytes]:
    """Send the order, again only after what certainly was not processed.

    Returns:
        The order, and the bytes it was read from.

    Raises:
        OutcomeUnknown: it may have been processed.
        TransferError: any other: a certain no.
        asyncio.CancelledError: the call was abandoned before anything was sent.
    """
    if call.abandoned:
        raise asyncio.CancelledError
    try:
        answer = await _attempt(context, call)
    except TransferError as error:
        if not _may_go_again(context, call, error):
            raise
        answer = await _go_again(context, call, error)
    context.bucket.refund()
    return answer


async def _go_again(context: Context, call: Call, first: TransferError) -> tuple[Order, bytes]:
    try:
        return await retry.go_again(
            partial(_attempt, context, call),
            first,
            policy=context.policy,
            bucket=context.bucket,
            clock=context.clock,
            until=partial(_is_time, context, call),
            may=partial(_may_go_again, context, call),
            pause=partial(_pause, context, call),
        )
    except TransferError as error:
        if error is call.last_no:  # pauses have passed since it was said
            _check_quiet(context, call)
        raise


def _check_quiet(context: Context, call: Call) -> None:
    """Look once more whether the last no is all that came on its connection.

    Raises:
        OutcomeUnknown: it is not: what came later is the answer to the order.
    """
    if call.last_body is not None and call.last_no is not None:
        if context.transport.stays_quiet(call.last_body):
            return
        call.last_body.carrier.distrust()
        raise OutcomeUnknown("another answer came after the service's no") from call.last_no


async def _attempt(context: Context, call: Call) -> tuple[Order, bytes]:
    """One HTTP attempt, and what is certain after it."""
    if call.renew_token:
        await _renew_token(context, call)
    if not _is_time(context, call):
        raise _too_late(context, call)
    _check_quiet(context, call)
    began = context.clock.now()
    call.attempts_begun += 1
    context.tell(AttemptStarted, call)
    body = GuardedBody(call.body, in_time=partial(_is_time, context, call))
    evidence = await _exchange(context, call, body)
    try:
        order = _answer(context, call, body, evidence)
    except TransferError as error:
        if not body.carrier.trusted:
            body.carrier.distrust()
        _note(context, call, evidence, error, context.clock.now() - began)
        raise
    _note(context, call, evidence, None, context.clock.now() - began)
    return order, evidence.body


async def _exchange(context: Context, call: Call, body: GuardedBody) -> Evidence:
    assert call.headers is not None  # noqa: S101 - fetched before the mark
    call.judgement, call.on_the_way = None, body
    try:
        left = call.deadline - context.clock.now()
        return await context.transport.post_order(body, headers=call.headers, left=left)
    finally:
        call.on_the_way = None
        if body.handed_over:
            call.sent, call.last_body = True, body
        call.swallow_cancellation()


def _answer(context: Context, call: Call, body: GuardedBody, evidence: Evidence) -> Order:
    if call.abandoned and not evidence.sent:  # on the way to a connection: nothing is lost by stopping
        raise call.last_no or asyncio.CancelledError
    if body.late:
        raise _too_late(context, call)
    call.judgement = classify.judge(evidence, context.policy, classify.ORDER_ANSWERS)
    if call.judgement is not Judgement.ANSWERED:
        if evidence.intact and call.judgement in classify.SAID_NO:
            body.carrier.trust()
        if call.judgement is Judgement.WRONG_TOKEN:
            context.tokens.distrust(call.headers)
        raise classify.error_of(call.judgement, evidence, now=context.clock.utc(), reading=False)
    order = _order_in(evidence, call)
    body.carrier.trust()
    return order


def _order_in(evidence: Evidence, call: Call) -> Order:
    try:
        answer = read_answer(evidence.body)
    except Unreadable as error:
        answer, why = None, f"the answer is not readably an order: {error}"
    if answer is None:  # and what was not readable is no context of this
        raise _unreadable(evidence, why, order_id=find_order_id(evidence.body)) from evidence.error
    if other := classify.other_order(call.intent.order, answer):
        raise _unreadable(evidence, f"the answer is to another order: {other} differs")
    return answer.order


def _unreadable(evidence: Evidence, why: str, *, order_id: str | None = None) -> UnreadableOrder:
    return UnreadableOrder(
        why, order_id=order_id, status=evidence.status, raw=evidence.body, request_id=evidence.request_id
    )


def _note(
    context: Context, call: Call, evidence: Evidence, error: TransferError | None, seconds: float
) -> None:
    """Remember the attempt, and tell of it."""
    outcome = Outcome.CREATED if error is None else error.outcome if evidence.sent else Outcome.NOT_SENT
    beneath = type(evidence.error).__name__ if evidence.error is not None else None
    call.attempts.append(
        Attempt(
            number=call.attempts_begun,
            seconds=seconds,
            outcome=outcome,
            status=evidence.status,
            error=beneath or (type(error).__name__ if error is not None else None),
            request_id=evidence.request_id,
        )
    )
    if error is None:
        return
    if outcome is not Outcome.UNKNOWN:
        call.last_no = error
    context.tell(
        AttemptFailed,
        call,
        outcome=outcome,
        error=type(error).__name__,
        status=evidence.status,
        request_id=evidence.request_id,
    )


def _may_go_again(context: Context, call: Call, error: TransferError) -> bool:
    if call.abandoned or error is not call.last_no:
        return False
    if call.judgement is Judgement.WRONG_TOKEN and context.tokens.renewable and not call.token_renewed:
        call.renew_token = True
        return True
    return call.judgement in classify.MAY_GO_AGAIN


async def _renew_token(context: Context, call: Call) -> None:
    call.renew_token, call.token_renewed = False, True
    try:
        with call.stoppable():
            call.headers = await context.tokens.headers(instead_of=call.headers)
    except (TokenUnavailable, asyncio.CancelledError) as error:
        call.swallow_cancellation()
        raise call.last_no or error from error  # the service's no is what is certain of the order


async def _pause(context: Context, call: Call, pause: retry.Pause) -> None:
    context.tell(RetryScheduled, call, pause=pause.seconds)
    try:
        with call.stoppable():
            await context.clock.sleep(pause.seconds)
    except asyncio.CancelledError:
        call.swallow_cancellation()
        raise pause.error from pause.error.__cause__


def _is_time(context: Context, call: Call, ahead: float = 0.0) -> bool:
    return context.clock.now() + ahead < call.deadline and not is_expired(context, call, ahead)


def is_expired(context: Context, call: Call, ahead: float = 0.0) -> bool:
    """Whether ``send_before`` has passed, or will have in ``ahead`` seconds."""
    limit = call.intent.send_before
    return limit is not None and (limit - context.clock.utc()).total_seconds() <= ahead


def _too_late(context: Context, call: Call) -> TransferError:
    if call.last_no is not None:
        return call.last_no
    if is_expired(context, call):
        return Expired("send_before passed before the order could be sent")
    return ConnectionFailed("the deadline passed before a connection could be had")
