"""The way of one order, from its key to the order itself::

    NewOrder + key ──> claim ──> hooks, in order ──> mark sending ──> send (retry) ──> settle ──> Order
                         │            │                                   │
                    already made?   refused: undo what ran,      never sent, refused: undo hooks, in reverse
                    give it back    nothing was sent             unknown: undo nothing, keep everything

Each write to the journal comes before the step that it guards. Whatever is raised in between is one
of three things: a *certain no* (the hooks are undone and the key is free), a *doubt* (nothing is
undone and the key is bound), or the journal's own failure, after which only the journal knows.

What is handed on: `Call` is what was asked for, and who may stop it; its `Work` is what errors, events
and messages tell of; `ClaimedKey` is what the journal compares this call's moves with, and what its hooks
may have done; `Sending` is the request, and until when it may leave; `Answered` is the order, and the
connection it came on.
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
from transfer_async._pipeline.attempt import Sending, attempt
from transfer_async._pipeline.call import Call, fresh_id
from transfer_async._pipeline.certain_no import certain_no
from transfer_async._pipeline.claimed_key import ClaimedKey, claimed_key
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.doubt import (
    ABANDONED,
    doubt_on_record,
    given_back,
    refused_before,
    settle_doubt,
)
from transfer_async._pipeline.preflight import preflight
from transfer_async._pipeline.send import send_again
from transfer_async._pipeline.settle import settle, went_in_doubt
from transfer_async._pipeline.unrecorded import made_up
from transfer_async._pipeline.work import Work, stamped
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
    claimed = await _claim(context, call)
    if isinstance(claimed, Order):
        return claimed
    try:
        sending = await preflight(context, call, claimed)
        await _mark_sending(context, call.work, claimed, sending)
        try:
            answered = await attempt(context, call, sending)
        except TransferError as failed:
            answered = await send_again(context, call, sending, failed)
    except JournalFailed as lost:
        stamped(lost, call.work, order_may_exist=True)
        raise
    except OutcomeUnknown as doubt:
        return await went_in_doubt(context, call, claimed, doubt)
    except (TransferError, asyncio.CancelledError) as no:
        await certain_no(context, call, claimed, no)
        raise
    return await settle(context, call, claimed, answered)


async def _claim(context: Context, call: Call) -> ClaimedKey | Order:
    """Take the key; or give back what it has come to already."""
    work, intent = call.work, call.work.intent
    if intent.key in context.unrecorded:
        await _make_up(context, work)
    move = Claim(
        intent=intent,
        fingerprint=fingerprint(intent.order),
        client_made=call.client_made,
        lease=context.lease,
        max_claim_age=context.max_claim_age,
        hooks=context.undoable if intent.held is None else context.undoable_but_hold,
        once=call.once,
    )
    try:
        verdict = await context.write(intent.key, move, certain=Outcome.NOT_SENT)
    except JournalFailed as error:
        raise stamped(error, work, order_may_exist=not call.client_made) from error.__cause__
    if verdict.denial is not None:
        return await _already(context, call, verdict)
    return _taken(context, work, verdict.entry)


async def _make_up(context: Context, work: Work) -> None:
    """Write down first what an earlier call with the key was answered: nobody else can."""
    try:
        await made_up(context, work.intent.key)
    except JournalFailed as error:
        again = JournalFailed(str(error))
        raise stamped(again, work, order_may_exist=True) from error.__cause__


def _taken(context: Context, work: Work, entry: Entry) -> ClaimedKey:
    assert entry.intent is not None  # noqa: S101 - a claim has its intent
    work.intent, work.receipts = entry.intent, dict(entry.receipts)
    context.tell(Claimed, work, taken_over=entry.epoch > 1)
    return claimed_key(entry)


async def _already(context: Context, call: Call, verdict: Verdict) -> Order:
    work, entry, denial = call.work, verdict.entry, verdict.denial
    if denial is Denial.CREATED:
        return given_back(entry, work)
    if denial is Denial.REFUSED:
        raise refused_before(entry, work)
    if denial is Denial.IN_DOUBT:
        if verdict.found_doubt:
            context.tell(WentInDoubt, work, error=ABANDONED)
        doubt = doubt_on_record(entry, "an earlier call with this key is in doubt; nothing was sent now")
        return await settle_doubt(context, work, call.cancellation, verdict, doubt)
    if denial is Denial.CONFLICT:
        raise stamped(KeyConflict("this key is bound to a different order"), work, order_may_exist=True)
    raise stamped(KeyBusy(retry_after=verdict.lease_left), work, order_may_exist=True)


async def _mark_sending(context: Context, work: Work, claimed: ClaimedKey, sending: Sending) -> None:
    """Write down that a request may be sent from now on."""
    claimed.attempt = fresh_id()
    sending.deadline = min(context.clock.now() + context.policy.deadline, work.deadline)
    mark = Mark(
        intent_id=work.intent.id,
        epoch=claimed.epoch,
        attempt=claimed.attempt,
        receipts=dict(work.receipts),
        lease=context.lease,
        window=context.policy.deadline,
    )
    verdict = await context.write(work.intent.key, mark, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        claimed.attempt = None  # it marks nothing
        raise KeyBusy("the claim's lease ran out before the order was sent", retry_after=verdict.lease_left)
