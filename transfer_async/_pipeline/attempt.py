"""One HTTP attempt at an order, and what is certain after it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from multidict import CIMultiDict

from transfer_async._converters.order import find_order_id, read_answer
from transfer_async._converters.wire_format import Unreadable
from transfer_async._http import classify
from transfer_async._http.classify import Judgement
from transfer_async._http.transport import Evidence
from transfer_async._http.unsolicited import Carrier
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import (
    Attempt,
    CauseKind,
    ConnectionFailed,
    Outcome,
    OutcomeUnknown,
    TransferError,
    UnreadableOrder,
)
from transfer_async._models.events import AttemptFailed, AttemptStarted
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.time_limits import is_time, too_late
from transfer_async._pipeline.work import Work
from transfer_async._support.clock import Clock
from transfer_async._support.deadlines import is_over
from transfer_async._support.state import State

_NONE_YET: CIMultiDict[str] = CIMultiDict()


class Sending(State, kw_only=True):
    """What is sent, and what is certain of it so far.

    Args:
        intent: the wish.
        body: its order, as JSON.
        headers: with the token, once it is known.
        clock: the client's.
        deadline: on the client's clock: that of all attempts, from just before the mark, or the caller's.
        judgement: what was certain of the last exchange.
        last_no: the certain no that the last HTTP attempt ended in.
        last_carrier: of the last body that was handed over; the body itself would hold this in a circle.
        token_renewed: another token was asked for, and none will be again.
    """

    intent: OrderIntent
    body: bytes
    clock: Clock
    headers: CIMultiDict[str] = _NONE_YET
    deadline: float = float("inf")
    judgement: Judgement | None = None
    last_no: TransferError | None = None
    last_carrier: Carrier | None = None
    token_renewed: bool = False

    def is_time(self) -> bool:
        """Whether a request may leave now."""
        return is_time(self.clock, self.intent, self.deadline)


class Answered(State, kw_only=True):
    """The service answered with our order.

    Args:
        order: as it was read.
        reply: the bytes it was read from.
        status: the answer's.
        took: seconds that the attempt took.
        carrier: the connection that it came on.
    """

    order: Order
    reply: bytes
    status: int | None
    took: float
    carrier: Carrier


async def attempt(context: Context, call: Call, sending: Sending) -> Answered:
    """One HTTP attempt, and what is certain after it.

    Raises:
        OutcomeUnknown: it may have been processed.
        TransferError: any other: a certain no.
        asyncio.CancelledError: the call was abandoned before anything was sent.
    """
    body = _body(context, call, sending)
    work, began = call.work, context.clock.now()
    work.attempts_begun += 1
    context.tell(AttemptStarted, work)
    sending.judgement, call.cancellation.on_the_way = None, body
    try:
        evidence = await context.transport.post_order(
            body, headers=sending.headers, left=sending.deadline - context.clock.now()
        )
    finally:
        _came_back(call.cancellation, sending, body)
    try:
        order = _answer(context, call, sending, body, evidence)
    except TransferError as error:
        if not body.carrier.trusted:
            body.carrier.distrust()
        if _note(context, work, evidence, error, began) is not Outcome.UNKNOWN:
            sending.last_no = error
        raise
    _note(context, work, evidence, None, began)
    context.bucket.refund()
    return Answered(
        order=order,
        reply=evidence.body,
        status=evidence.status,
        took=context.clock.now() - began,
        carrier=body.carrier,
    )


def _body(context: Context, call: Call, sending: Sending) -> GuardedBody:
    """What is handed over, if it may still be sent."""
    if call.cancellation.abandoned:
        raise sending.last_no or asyncio.CancelledError
    if not sending.is_time():
        raise _too_late(context, call.work, sending.last_no)
    check_quiet(context, sending)
    return GuardedBody(sending.body, in_time=sending.is_time)


def _came_back(cancellation: Cancellation, sending: Sending, body: GuardedBody) -> None:
    """The exchange is over, however it ended: what was handed over stays so."""
    cancellation.on_the_way = None
    if body.handed_over:
        cancellation.sent, sending.last_carrier = True, body.carrier
    cancellation.swallow()


def _answer(context: Context, call: Call, sending: Sending, body: GuardedBody, evidence: Evidence) -> Order:
    if call.cancellation.abandoned and not evidence.sent:  # it waited: nothing is lost by stopping
        raise sending.last_no or asyncio.CancelledError
    if body.late or (not evidence.sent and is_over(context.clock, call.work.deadline)):
        raise _too_late(context, call.work, sending.last_no)
    sending.judgement = classify.judge(evidence, context.policy, classify.ORDER_ANSWERS)
    if sending.judgement is not Judgement.ANSWERED:
        if evidence.intact and sending.judgement in classify.SAID_NO:
            body.carrier.trust()
        if sending.judgement is Judgement.WRONG_TOKEN:
            context.tokens.distrust(sending.headers)
        raise classify.error_of(sending.judgement, evidence, now=context.clock.utc(), reading=False)
    order = _order_in(evidence, call.work.intent.order)
    body.carrier.trust()
    return order


def _order_in(evidence: Evidence, sent: NewOrder) -> Order:
    try:
        answer = read_answer(evidence.body)
    except Unreadable as error:
        answer, why = None, f"the answer is not readably an order: {error}"
    if answer is None:  # and what was not readable is no context of this
        raise _unreadable(evidence, why, order_id=find_order_id(evidence.body)) from evidence.error
    if other := classify.other_order(sent, answer):
        raise _unreadable(evidence, f"the answer is to another order: {other} differs")
    return answer.order


def _unreadable(evidence: Evidence, why: str, *, order_id: str | None = None) -> UnreadableOrder:
    return UnreadableOrder(
        why,
        order_id=order_id,
        status=evidence.status,
        raw=evidence.body,
        request_id=evidence.request_id,
        kind=CauseKind.UNREADABLE_ANSWER if evidence.intact else CauseKind.CUT_ANSWER,
    )


def _note(
    context: Context, work: Work, evidence: Evidence, error: TransferError | None, began: float
) -> Outcome:
    """Remember the attempt, tell of it, and say what it came to."""
    outcome = Outcome.CREATED if error is None else error.outcome if evidence.sent else Outcome.NOT_SENT
    seconds, name = context.clock.now() - began, None if error is None else type(error).__name__
    work.note(
        partial(
            _ended,
            context.clock,
            evidence,
            number=work.attempts_begun,
            began=began,
            seconds=seconds,
            outcome=outcome,
            error=name,
        )
    )
    if name is not None:
        context.tell(
            AttemptFailed,
            work,
            outcome=outcome,
            error=name,
            status=evidence.status,
            request_id=evidence.request_id,
        )
    return outcome


def _ended(
    clock: Clock,
    evidence: Evidence,
    *,
    number: int,
    began: float,
    seconds: float,
    outcome: Outcome,
    error: str | None,
) -> Attempt:
    return Attempt(
        number=number,
        seconds=seconds,
        outcome=outcome,
        status=evidence.status,
        error=type(evidence.error).__name__ if evidence.error is not None else error,
        request_id=evidence.request_id,
        began=clock.utc() - timedelta(seconds=clock.now() - began),
    )


def check_quiet(context: Context, sending: Sending) -> None:
    """Look once more whether the last no is all that came on its connection.

    Raises:
        OutcomeUnknown: it is not: what came later is the answer to the order.
    """
    if sending.last_carrier is not None and sending.last_no is not None:
        if context.transport.stays_quiet(sending.last_carrier):
            return
        sending.last_carrier.distrust()
        why = "another answer came after the service's no"
        raise OutcomeUnknown(why, kind=CauseKind.SECOND_ANSWER) from sending.last_no


def _too_late(context: Context, work: Work, last_no: TransferError | None) -> TransferError:
    if last_no is not None:
        return last_no
    if expired := too_late(context.clock, work):
        return expired
    return ConnectionFailed("the deadline of all attempts passed before a connection could be had")
