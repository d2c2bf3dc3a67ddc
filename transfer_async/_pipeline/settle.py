"""What a call has come to: written down first, then told, then, after a certain no, undone."""

from __future__ import annotations

import asyncio
from functools import partial

import attrs

from transfer_async._models.errors import (
    ClientClosed,
    HoldRequired,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    TransferError,
    UnreadableOrder,
    is_in_vain,
)
from transfer_async._models.events import DuplicateSuspected, NotSent, OrderCreated, OrderRefused, WentInDoubt
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Call, stamped
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.doubt import given_back, settle_doubt
from transfer_async._pipeline.undo import recorded, undo, undo_stale, what_is_owed
from transfer_async._pipeline.unrecorded import could_not_record
from transfer_async._support.log import log
from transfer_async.journal.entries import Denial, Ending, Entry, KeyState, Owed
from transfer_async.journal.moves import Create, Free, GoInDoubt, Owe, Suspect


async def settle(context: Context, call: Call, order: Order, reply: bytes) -> Order:
    """Write down that the order exists, then give it back."""
    create = Create(attempt=call.attempt_token or "", order_id=order.id, reply=reply)
    try:
        verdict = await context.write(call.intent.key, create, certain=Outcome.CREATED, order=order)
    except JournalFailed as error:
        again = partial(settle, context, call, order, reply)
        could_not_record(context, call, again, outcome=Outcome.CREATED, order_id=order.id)
        raise stamped(error, call, order_may_exist=True) from error.__cause__
    if verdict.denial is Denial.FOREIGN:
        if call.last_body is not None:
            call.last_body.carrier.distrust()
        call.attempts[-1] = attrs.evolve(call.attempts[-1], outcome=Outcome.UNKNOWN)
        doubt = UnreadableOrder("the answer is the order of another key", raw=reply)
        return await went_in_doubt(context, call, doubt)
    entry = verdict.entry
    if entry.state is KeyState.CREATED and entry.order_id == order.id and entry.ending is None:
        answered = call.attempts[-1]
        context.tell(OrderCreated, call, order_id=order.id, status=answered.status, took=answered.seconds)
        return order
    if entry.attempt == call.attempt_token and entry.order_id not in (None, order.id):
        why = f"the key is on record as {entry.order_id}: whoever resolved its doubt gave another id"
        raise await _duplicate(context, call, order, why)
    why = "the order was created after its doubt had been refuted: a duplicate is suspected"
    raise await _duplicate(context, call, order, why, recorded=verdict.denial is None)


async def _duplicate(
    context: Context, call: Call, order: Order, why: str, *, recorded: bool = False
) -> TransferError:
    """The error for an order of which the record says something else.

    After a refutation its hold is gone. The key, which was free, is bound to it now, unless another
    intent has it already: then only its history tells.
    """
    log.error("order %s is not what its key's record says: %s", order.id, why)
    context.tell(DuplicateSuspected, call, order_id=order.id)
    if not recorded:
        suspect = Suspect(order_id=order.id, reason=why)
        try:
            await context.write(call.intent.key, suspect, certain=Outcome.CREATED, order=order)
        except JournalFailed as error:
            return stamped(error, call, order_may_exist=True)
    return stamped(JournalFailed(why, outcome=Outcome.CREATED, order=order), call, order_may_exist=True)


async def went_in_doubt(context: Context, call: Call, doubt: OutcomeUnknown) -> Order:
    """Write down the doubt, keep everything, and ask whoever may know."""
    try:
        found = getattr(doubt, "order_id", None)
        move = GoInDoubt(attempt=call.attempt_token or "", candidate=found)
        verdict = await context.write(call.intent.key, move, certain=Outcome.UNKNOWN)
    except JournalFailed as error:
        if found is not None:
            again = partial(went_in_doubt, context, call, doubt)
            could_not_record(context, call, again, outcome=Outcome.UNKNOWN, order_id=found)
        raise stamped(error, call, order_may_exist=True) from doubt
    if verdict.entry.state is KeyState.CREATED and verdict.entry.attempt == move.attempt:
        # An operator was faster.
        return given_back(verdict.entry, call)
    context.tell(WentInDoubt, call, error=type(doubt).__name__, status=doubt.status)
    if verdict.denial is not None:
        raise stamped(doubt, call, order_may_exist=True) from doubt.__cause__
    return await settle_doubt(context, call, verdict, doubt)


async def certain_no(context: Context, call: Call, no: TransferError | asyncio.CancelledError) -> None:
    """Free the key, with what is owed on record; then undo the hooks.

    Raises:
        JournalFailed: the no could not be recorded, so nothing was undone and the key stays bound.
        ClientClosed: the no was the client's closing.
    """
    call.swallow_cancellation()
    debts = what_is_owed(context, call)
    ending = _ending(no)
    move = Free(
        intent_id=call.intent.id,
        epoch=call.epoch,
        attempt=call.attempt_token,
        ending=ending,
        owed=debts,
        lease=context.lease,
    )
    try:
        verdict = await context.write(call.intent.key, move, certain=ending.outcome)
    except JournalFailed as error:
        stamped(error, call, order_may_exist=True)
        raise
    if verdict.denial is None:
        _tell_no(context, call, ending)
        await undo(context, call, recorded(verdict.entry, debts))
        await undo_stale(context, call)
    elif debts and _is_over(call, verdict.entry):
        await _undo_late(context, call, debts)
    may_exist = verdict.denial is not None
    if isinstance(no, TransferError):
        stamped(no, call, order_may_exist=may_exist)
    elif call.cut:
        closed = ClientClosed("the client was closed before the order was sent")
        raise stamped(closed, call, order_may_exist=may_exist) from None


async def _undo_late(context: Context, call: Call, debts: tuple[Owed, ...]) -> None:
    """Undo what a hook did after others had ended its intent; on record as owed first, if that can be."""
    try:
        owe = Owe(owed=debts, lease=context.lease)
        verdict = await context.write(call.intent.key, owe, certain=Outcome.NOT_SENT)
        debts = tuple(recorded(verdict.entry, debts))
    except JournalFailed:  # its traceback would show the store's own words
        log.warning("an undo that came due late could not be recorded: it is tried once")
    await undo(context, call, debts)


def _is_over(call: Call, entry: Entry) -> bool:
    """Whether others ended the intent of ``call`` while its worker slept: it is nobody's to go on with.

    They have undone its hooks. But a hook may have acted since.
    """
    return entry.intent_id != call.intent.id or entry.state is KeyState.FREE


def _ending(no: TransferError | asyncio.CancelledError) -> Ending:
    if isinstance(no, TransferError):
        return Ending(
            outcome=no.outcome,
            error=type(no).__name__,
            status=getattr(no, "status", None),
            refused=isinstance(no, PreflightFailed) and no.refused and not isinstance(no, HoldRequired),
            in_vain=is_in_vain(no),
            fields=getattr(no, "fields", ()),
        )
    return Ending(outcome=Outcome.NOT_SENT, error="Cancelled")


def _tell_no(context: Context, call: Call, ending: Ending) -> None:
    if ending.outcome is Outcome.REFUSED:
        context.tell(OrderRefused, call, error=ending.error, status=ending.status)
    else:
        context.tell(NotSent, call, error=ending.error)
