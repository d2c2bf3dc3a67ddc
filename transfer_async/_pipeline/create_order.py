"""The way of one order, from its key to the order itself::

    NewOrder + key ──> claim ──> hooks, in order ──> mark sending ──> send (retry) ──> settle ──> Order
                         │            │                                   │
                    already made?   refused: undo what ran,      never sent, refused: undo hooks, in reverse
                    give it back    nothing was sent             unknown: undo nothing, keep everything

Each write to the journal comes before the step that it guards. Whatever is raised in between is one
of three things: a *certain no* (the hooks are undone and the key is free), a *doubt* (nothing is
undone and the key is bound), or the journal's own failure, after which only the journal knows.
"""

from __future__ import annotations

import asyncio

from transfer_async._models.errors import (
    JournalFailed,
    KeyBusy,
    KeyConflict,
    Outcome,
    OutcomeUnknown,
    TransferError,
)
from transfer_async._models.events import Claimed, WentInDoubt
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Call, fresh_id, stamped
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.doubt import (
    ABANDONED,
    doubt_on_record,
    given_back,
    refused_before,
    settle_doubt,
)
from transfer_async._pipeline.preflight import preflight
from transfer_async._pipeline.send import send
from transfer_async._pipeline.settle import certain_no, settle, went_in_doubt
from transfer_async._pipeline.unrecorded import made_up
from transfer_async.journal.claim import Claim
from transfer_async.journal.entries import Denial, Entry, Verdict
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.journal.moves import Mark


async def create_order(context: Context, call: Call) -> Order:
    """Take one call the whole way.

    Raises:
        TransferError: what is certain, with the call's key, attempts and receipts on it.
        asyncio.CancelledError: the caller was cancelled before anything was sent.
    """
    made = await _claim(context, call)
    if made is not None:
        return made
    try:
        await preflight(context, call)
        await _mark_sending(context, call)
        order, reply = await send(context, call)
    except JournalFailed as lost:
        stamped(lost, call, order_may_exist=True)
        raise
    except OutcomeUnknown as doubt:
        return await went_in_doubt(context, call, doubt)
    except (TransferError, asyncio.CancelledError) as no:
        await certain_no(context, call, no)
        raise
    return await settle(context, call, order, reply)


async def _claim(context: Context, call: Call) -> Order | None:
    """Take the key; or give back what it has come to already."""
    if call.intent.key in context.unrecorded:
        await _make_up(context, call)
    move = Claim(
        intent=call.intent,
        fingerprint=fingerprint(call.intent.order),
        client_made=call.client_made,
        lease=context.lease,
        max_claim_age=context.max_claim_age,
        hooks=context.undoable if call.intent.held is None else context.undoable_but_hold,
        once=call.once,
    )
    try:
        verdict = await context.write(call.intent.key, move, certain=Outcome.NOT_SENT)
    except JournalFailed as error:
        raise stamped(error, call, order_may_exist=not call.client_made) from error.__cause__
    if verdict.denial is not None:
        return await _already(context, call, verdict)
    _take(context, call, verdict.entry)
    return None


async def _make_up(context: Context, call: Call) -> None:
    """Write down first what an earlier call with the key was answered: nobody else can."""
    try:
        await made_up(context, call.intent.key)
    except JournalFailed as error:
        again = JournalFailed(str(error))
        raise stamped(again, call, order_may_exist=True) from error.__cause__


def _take(context: Context, call: Call, entry: Entry) -> None:
    assert entry.intent is not None  # noqa: S101 - a claim has its intent
    call.intent, call.epoch, call.receipts = entry.intent, entry.epoch, dict(entry.receipts)
    if entry.epoch > 1:  # a worker that is gone may have entered any hook, and left no word of it
        call.inherited = entry.hooks
    if entry.owed:
        call.stale = tuple(
            one for one in entry.owed if one.lease_until <= 0.0 and one.intent.id != entry.intent_id
        )
    context.tell(Claimed, call, taken_over=entry.epoch > 1)


async def _already(context: Context, call: Call, verdict: Verdict) -> Order:
    entry, denial = verdict.entry, verdict.denial
    if denial is Denial.CREATED:
        return given_back(entry, call)
    if denial is Denial.REFUSED:
        raise refused_before(entry, call)
    if denial is Denial.IN_DOUBT:
        if verdict.found_doubt:
            context.tell(WentInDoubt, call, error=ABANDONED)
        doubt = doubt_on_record(entry, "an earlier call with this key is in doubt; nothing was sent now")
        return await settle_doubt(context, call, verdict, doubt)
    if denial is Denial.CONFLICT:
        raise stamped(KeyConflict("this key is bound to a different order"), call, order_may_exist=True)
    raise stamped(KeyBusy(retry_after=verdict.lease_left), call, order_may_exist=True)


async def _mark_sending(context: Context, call: Call) -> None:
    """Write down that a request may be sent from now on."""
    call.attempt_token = fresh_id()
    call.deadline = context.clock.now() + context.policy.deadline
    mark = Mark(
        intent_id=call.intent.id,
        epoch=call.epoch,
        attempt=call.attempt_token,
        receipts=dict(call.receipts),
        lease=context.lease,
        window=context.policy.deadline,
    )
    verdict = await context.write(call.intent.key, mark, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        call.attempt_token = None  # it marks nothing
        raise KeyBusy("the claim's lease ran out before the order was sent", retry_after=verdict.lease_left)
