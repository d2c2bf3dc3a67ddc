"""Sending one order again: attempt after attempt, as long as each certainly was not processed, and in time.

Whatever an attempt raises says what is certain of the order: a doubt ends the sending at once.
"""

from __future__ import annotations

import asyncio
from functools import partial

from transfer_async._http import classify, retry
from transfer_async._http.classify import Judgement
from transfer_async._http.rate import Pace
from transfer_async._models.errors import (
    Expired,
    TokenUnavailable,
    TransferError,
)
from transfer_async._models.events import RetryScheduled
from transfer_async._pipeline.attempt import Answered, Sending, attempt, check_quiet
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.pacing import wait_for_turn
from transfer_async._pipeline.time_limits import is_time
from transfer_async._support.deadlines import seconds_left


async def send_again(context: Context, call: Call, sending: Sending, first: TransferError) -> Answered:
    """Send the order again, after a first attempt that certainly was not processed.

    Raises:
        OutcomeUnknown: it may have been processed.
        TransferError: any other: a certain no; ``first``, if nothing may be sent again after it.
    """
    if not _may_go_again(context, call.cancellation, sending, first):
        raise first
    try:
        return await retry.go_again(
            partial(_another, context, call, sending),
            first,
            policy=context.policy,
            bucket=context.bucket,
            clock=context.clock,
            until=partial(_is_time, context, call, sending),
            may=partial(_may_go_again, context, call.cancellation, sending),
            pause=partial(_pause, context, call),
        )
    except TransferError as error:
        if error is sending.last_no:  # pauses have passed since it was said
            check_quiet(context, sending)
        raise


def _may_go_again(
    context: Context, cancellation: Cancellation, sending: Sending, error: TransferError
) -> bool:
    if cancellation.abandoned or error is not sending.last_no:
        return False
    if sending.judgement is Judgement.WRONG_TOKEN:
        return context.tokens.renewable and not sending.token_renewed
    return sending.judgement in classify.MAY_GO_AGAIN


def _is_time(context: Context, call: Call, sending: Sending, ahead: float) -> bool:
    if context.pace is not None:
        ahead = max(ahead, context.pace.exit.ahead)
    return is_time(context.clock, call.work.intent, sending.deadline, ahead)


async def _another(context: Context, call: Call, sending: Sending) -> Answered:
    if sending.judgement is Judgement.WRONG_TOKEN:
        await _renew_token(context, call.cancellation, sending)
    if context.pace is not None:
        await _wait_again(context, call, sending, context.pace)
    return await attempt(context, call, sending)


async def _wait_again(context: Context, call: Call, sending: Sending, pace: Pace) -> None:
    """A further attempt takes its turn as every request does: who is not held yet waits the longer."""
    pace.entrance.count()
    try:
        await wait_for_turn(context, call, pace.exit, until=sending.deadline)
    except (Expired, asyncio.CancelledError) as error:
        pace.entrance.uncount()
        call.cancellation.swallow()
        sending.judgement = None  # it is over
        no = sending.last_no or error
        raise no from no.__cause__


async def _renew_token(context: Context, cancellation: Cancellation, sending: Sending) -> None:
    sending.token_renewed = True
    try:
        with cancellation.stoppable():
            async with asyncio.timeout(seconds_left(context.clock, sending.deadline)):
                sending.headers = await context.tokens.headers(instead_of=sending.headers)
    except (TokenUnavailable, TimeoutError, asyncio.CancelledError) as error:
        cancellation.swallow()
        raise sending.last_no or error from error  # the service's no is what is certain of the order


async def _pause(context: Context, call: Call, pause: retry.Pause) -> None:
    context.tell(RetryScheduled, call.work, pause=pause.seconds)
    try:
        with call.cancellation.stoppable():
            await context.clock.sleep(pause.seconds)
    except asyncio.CancelledError:
        call.cancellation.swallow()
        raise pause.error from pause.error.__cause__
