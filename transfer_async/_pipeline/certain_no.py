"""A certain no: written down first, then told, and then what the hooks did is undone."""

from __future__ import annotations

import asyncio

from transfer_async._models.errors import (
    ClientClosed,
    HoldRequired,
    JournalFailed,
    Outcome,
    PreflightFailed,
    TransferError,
    is_in_vain,
)
from transfer_async._models.events import NotSent, OrderRefused
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.claimed_key import ClaimedKey
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.undo import recorded, undo, undo_earlier, what_is_owed
from transfer_async._pipeline.work import Work, stamped
from transfer_async._support.log import log
from transfer_async.journal.entries import Ending, Entry, KeyState, Owed
from transfer_async.journal.moves import Free, Owe


async def certain_no(
    context: Context, call: Call, claimed: ClaimedKey, no: TransferError | asyncio.CancelledError
) -> None:
    """Free the key, with what is owed on record; then undo the hooks.

    Raises:
        JournalFailed: the no could not be recorded, so nothing was undone and the key stays bound.
        ClientClosed: the no was the client's closing.
    """
    work, cancellation = call.work, call.cancellation
    cancellation.swallow()
    debts = what_is_owed(context, work, claimed)
    ending = _ending(no)
    move = Free(
        intent_id=work.intent.id,
        epoch=claimed.epoch,
        attempt=claimed.attempt,
        ending=ending,
        owed=debts,
        lease=context.lease,
    )
    try:
        verdict = await context.write(work.intent.key, move, certain=ending.outcome)
    except JournalFailed as error:
        stamped(error, work, order_may_exist=True)
        raise
    if verdict.denial is None:
        _tell_no(context, work, ending)
        await undo(context, work, cancellation, recorded(verdict.entry, debts))
        await undo_earlier(context, work, cancellation, claimed)
    elif debts and _is_over(work.intent, verdict.entry):
        await _undo_late(context, work, cancellation, debts)
    may_exist = verdict.denial is not None
    if isinstance(no, TransferError):
        stamped(no, work, order_may_exist=may_exist)
    elif cancellation.cut:
        closed = ClientClosed("the client was closed before the order was sent")
        raise stamped(closed, work, order_may_exist=may_exist) from None


async def _undo_late(
    context: Context, work: Work, cancellation: Cancellation, debts: tuple[Owed, ...]
) -> None:
    """Undo what a hook did after others had ended its intent; on record as owed first, if that can be."""
    try:
        owe = Owe(owed=debts, lease=context.lease)
        verdict = await context.write(work.intent.key, owe, certain=Outcome.NOT_SENT)
        debts = tuple(recorded(verdict.entry, debts))
    except JournalFailed:  # its traceback would show the store's own words
        log.warning("an undo that came due late could not be recorded: it is tried once")
    await undo(context, work, cancellation, debts)


def _is_over(intent: OrderIntent, entry: Entry) -> bool:
    """Whether others ended ``intent`` while its worker slept: it is nobody's to go on with.

    They have undone its hooks. But a hook may have acted since.
    """
    return entry.intent_id != intent.id or entry.state is KeyState.FREE


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


def _tell_no(context: Context, work: Work, ending: Ending) -> None:
    if ending.outcome is Outcome.REFUSED:
        context.tell(OrderRefused, work, error=ending.error, status=ending.status)
    else:
        context.tell(NotSent, work, error=ending.error)
