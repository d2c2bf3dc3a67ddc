"""The service answered with an order, or with a doubt: written down first, then told."""

from __future__ import annotations

from functools import partial

from transfer_async._models.doubt_cause import KEPT_ATTEMPTS, Cause
from transfer_async._models.errors import (
    CauseKind,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    TransferError,
    UnreadableOrder,
)
from transfer_async._models.events import DuplicateSuspected, OrderCreated, WentInDoubt
from transfer_async._models.responses import Order
from transfer_async._pipeline.attempt import Answered
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.claimed_key import ClaimedKey
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.doubt import given_back, settle_doubt
from transfer_async._pipeline.unrecorded import could_not_record
from transfer_async._pipeline.work import Work, stamped
from transfer_async._support.log import log
from transfer_async.journal.entries import Denial, KeyState
from transfer_async.journal.moves import Create, GoInDoubt, Suspect


async def settle(
    context: Context, call: Call, claimed: ClaimedKey, answered: Answered, *, told: bool = False
) -> Order:
    """Write down that the order exists, then give it back.

    Args:
        context: the client's parts.
        call: the call.
        claimed: its key.
        answered: with the order.
        told: the journal failed before, and the order's id was told.
    """
    work, order = call.work, answered.order
    create = Create(attempt=claimed.attempt or "", order_id=order.id, reply=answered.reply)
    try:
        verdict = await context.write(work.intent.key, create, certain=Outcome.CREATED, order=order)
    except JournalFailed as error:
        again = partial(settle, context, call, claimed, answered, told=True)
        could_not_record(context, work, again, outcome=Outcome.CREATED, order_id=order.id, told=told)
        raise stamped(error, work, order_may_exist=True) from error.__cause__
    if verdict.denial is Denial.FOREIGN:
        answered.carrier.distrust()
        work.correct_last(Outcome.UNKNOWN)
        why = "the answer is the order of another key"
        doubt = UnreadableOrder(why, raw=answered.reply, kind=CauseKind.UNREADABLE_ANSWER)
        return await went_in_doubt(context, call, claimed, doubt)
    entry = verdict.entry
    if entry.state is KeyState.CREATED and entry.order_id == order.id and entry.ending is None:
        context.tell(OrderCreated, work, order_id=order.id, status=answered.status, took=answered.took)
        return order
    if entry.attempt == claimed.attempt and entry.order_id not in (None, order.id):
        why = f"the key is on record as {entry.order_id}: whoever resolved its doubt gave another id"
        raise await _duplicate(context, work, order, why)
    why = "the order was created after its doubt had been refuted: a duplicate is suspected"
    raise await _duplicate(context, work, order, why, recorded=verdict.denial is None)


async def _duplicate(
    context: Context, work: Work, order: Order, why: str, *, recorded: bool = False
) -> TransferError:
    """The error for an order of which the record says something else.

    After a refutation its hold may be gone; what has not been undone yet is owed no more. The key, which
    was free, is bound to it now, unless another intent has it already: then only its history tells.
    """
    log.error("order %s is not what its key's record says: %s", order.id, why)
    context.tell(DuplicateSuspected, work, order_id=order.id)
    if not recorded:
        suspect = Suspect(order_id=order.id, reason=why, intent_id=work.intent.id)
        try:
            await context.write(work.intent.key, suspect, certain=Outcome.CREATED, order=order)
        except JournalFailed as error:
            return stamped(error, work, order_may_exist=True)
    return stamped(JournalFailed(why, outcome=Outcome.CREATED, order=order), work, order_may_exist=True)


async def went_in_doubt(
    context: Context, call: Call, claimed: ClaimedKey, doubt: OutcomeUnknown, *, told: bool = False
) -> Order:
    """Write down the doubt, keep everything, and ask whoever may know; ``told`` as for `settle`."""
    work = call.work
    try:
        found = getattr(doubt, "order_id", None)
        cause = _cause(call, doubt, candidate=found)
        move = GoInDoubt(attempt=claimed.attempt or "", candidate=found, cause=cause)
        verdict = await context.write(work.intent.key, move, certain=Outcome.UNKNOWN)
    except JournalFailed as error:
        if found is not None:
            again = partial(went_in_doubt, context, call, claimed, doubt, told=True)
            could_not_record(context, work, again, outcome=Outcome.UNKNOWN, order_id=found, told=told)
        raise stamped(error, work, order_may_exist=True) from doubt
    if verdict.entry.state is KeyState.CREATED and verdict.entry.attempt == move.attempt:
        # An operator was faster.
        return given_back(verdict.entry, work)
    context.tell(WentInDoubt, work, error=type(doubt).__name__, status=doubt.status)
    if verdict.denial is not None:
        raise stamped(doubt, work, order_may_exist=True) from doubt.__cause__
    return await settle_doubt(context, work, call.cancellation, verdict, doubt)


def _cause(call: Call, doubt: OutcomeUnknown, *, candidate: str | None) -> Cause:
    """Why it is unknown, as the journal keeps it for whoever will have to find out."""
    kind = doubt.kind or CauseKind.NO_ANSWER
    attempts = tuple(call.work.attempts[-KEPT_ATTEMPTS:])
    beneath = doubt.__cause__
    return Cause(
        kind=CauseKind.CLOSED if call.cancellation.cut and kind is CauseKind.NO_ANSWER else kind,
        status=attempts[-1].status if doubt.status is None and attempts else doubt.status,
        error=None if beneath is None else type(beneath).__name__,
        candidate=candidate,
        attempts=attempts,
    )
