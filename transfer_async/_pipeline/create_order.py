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
import copy
from functools import partial

import attrs

from transfer_async._models.causes import bare
from transfer_async._models.errors import (
    ClientClosed,
    Expired,
    HoldFailed,
    HoldRequired,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    TransferError,
    UnreadableOrder,
    is_in_vain,
)
from transfer_async._models.events import (
    Claimed,
    DuplicateSuspected,
    HookPassed,
    NotSent,
    OrderCreated,
    OrderRefused,
    WentInDoubt,
)
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
from transfer_async._pipeline.hooks import PreflightHook, checked_receipt, is_hold
from transfer_async._pipeline.lease import LeaseKeeper
from transfer_async._pipeline.send import is_expired, send
from transfer_async._pipeline.undo import recorded, undo, what_is_owed
from transfer_async._pipeline.unrecorded import could_not_record, made_up
from transfer_async._support.log import log
from transfer_async._support.tasks import Begun, begun
from transfer_async.journal.entries import (
    Claim,
    Create,
    Denial,
    Doubt,
    Ending,
    Entry,
    Free,
    Keep,
    KeyState,
    Mark,
    Owe,
    Owed,
    Suspect,
    Verdict,
)
from transfer_async.journal.fingerprint import fingerprint


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
        await _preflight(context, call)
        await _mark_sending(context, call)
        order, reply = await send(context, call)
    except JournalFailed as lost:
        stamped(lost, call, order_may_exist=True)
        raise
    except OutcomeUnknown as doubt:
        return await _went_in_doubt(context, call, doubt)
    except (TransferError, asyncio.CancelledError) as no:
        await _certain_no(context, call, no)
        raise
    return await _settle(context, call, order, reply)


# --- claim --------------------------------------------------------------------------------------


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


# --- hooks --------------------------------------------------------------------------------------


async def _preflight(context: Context, call: Call) -> None:
    """Let every hook see the order, in their order; the hold is the last of them."""
    held = call.intent.held is not None
    if not held and not context.places_hold:
        raise HoldRequired(
            "the customer's funds must be held before an order is sent: give the client a hold hook "
            "(hooks=[..., FundsHold(place, release)]), or the call the reference of your own hold (held=...)"
        )
    if is_expired(context, call):
        raise Expired("send_before has passed")
    call.body = call.intent.order.to_json()
    hooks = Begun(_run_hooks(context, call, held=held))
    if not hooks.done:
        with LeaseKeeper(partial(_keep, context, call), every=context.lease / 3):
            await hooks


async def _run_hooks(context: Context, call: Call, *, held: bool) -> None:
    if call.stale:
        await _undo_stale(context, call)
    call.headers = context.tokens.current
    if call.headers is None:  # before the hooks: no funds are held for a client that cannot send
        with call.stoppable():
            call.headers = await context.tokens.headers()
    to_be_kept = False
    for hook in context.hooks:
        if hook.name in call.receipts or (held and is_hold(hook)):
            continue
        if to_be_kept:
            await _keep(context, call)
        await _run_hook(context, call, hook)
        to_be_kept = hook.name in context.undoable or call.receipts[hook.name] is not None


async def _undo_stale(context: Context, call: Call) -> None:
    """What hooks did for an earlier intent goes before they act for this one, or with its end."""
    stale, call.stale = call.stale, ()
    for intent_id in dict.fromkeys(one.intent.id for one in stale):
        await undo(context, call, [one for one in stale if one.intent.id == intent_id])


async def _keep(context: Context, call: Call) -> None:
    keep = Keep(intent_id=call.intent.id, epoch=call.epoch, lease=context.lease, receipts=dict(call.receipts))
    verdict = await context.write(call.intent.key, keep, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        raise KeyBusy("the claim's lease ran out before the order was sent", retry_after=verdict.lease_left)


async def _run_hook(context: Context, call: Call, hook: PreflightHook) -> None:
    began = context.clock.now()
    broke = HoldFailed if is_hold(hook) else PreflightFailed
    try:
        with call.stoppable():
            call.entered.append(hook.name)
            before = begun(hook.before(call.intent))
            if before.done:
                receipt = before.result
            else:
                async with asyncio.timeout(context.timeouts.hook):
                    receipt = await before
    except PreflightFailed as error:
        call.entered.remove(hook.name)  # it vouches that it did nothing
        own = copy.copy(error)  # the bank may raise one and the same for many calls
        own.hook = hook.name
        raise own from error.__cause__
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and call.abandoned:
            raise
        why = f"the hook {hook.name!r} broke ({type(error).__name__})"
        raise broke(why, refused=False, hook=hook.name) from bare(error)
    try:
        call.receipts[hook.name] = checked_receipt(hook, receipt)
    except (TypeError, ValueError) as error:
        raise broke(str(error), refused=False, hook=hook.name) from error
    context.tell(HookPassed, call, hook=hook.name, took=context.clock.now() - began)


# --- mark sending -------------------------------------------------------------------------------


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


# --- settle -------------------------------------------------------------------------------------


async def _settle(context: Context, call: Call, order: Order, reply: bytes) -> Order:
    """Write down that the order exists, then give it back."""
    create = Create(attempt=call.attempt_token or "", order_id=order.id, reply=reply)
    try:
        verdict = await context.write(call.intent.key, create, certain=Outcome.CREATED, order=order)
    except JournalFailed as error:
        again = partial(_settle, context, call, order, reply)
        could_not_record(context, call, again, outcome=Outcome.CREATED, order_id=order.id)
        raise stamped(error, call, order_may_exist=True) from error.__cause__
    if verdict.denial is Denial.FOREIGN:
        if call.last_body is not None:
            call.last_body.carrier.distrust()
        call.attempts[-1] = attrs.evolve(call.attempts[-1], outcome=Outcome.UNKNOWN)
        doubt = UnreadableOrder("the answer is the order of another key", raw=reply)
        return await _went_in_doubt(context, call, doubt)
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


async def _went_in_doubt(context: Context, call: Call, doubt: OutcomeUnknown) -> Order:
    """Write down the doubt, keep everything, and ask whoever may know."""
    try:
        found = getattr(doubt, "order_id", None)
        move = Doubt(attempt=call.attempt_token or "", candidate=found)
        verdict = await context.write(call.intent.key, move, certain=Outcome.UNKNOWN)
    except JournalFailed as error:
        if found is not None:
            again = partial(_went_in_doubt, context, call, doubt)
            could_not_record(context, call, again, outcome=Outcome.UNKNOWN, order_id=found)
        raise stamped(error, call, order_may_exist=True) from doubt
    if verdict.entry.state is KeyState.CREATED and verdict.entry.attempt == move.attempt:
        # An operator was faster.
        return given_back(verdict.entry, call)
    context.tell(WentInDoubt, call, error=type(doubt).__name__, status=doubt.status)
    if verdict.denial is not None:
        raise stamped(doubt, call, order_may_exist=True) from doubt.__cause__
    return await settle_doubt(context, call, verdict, doubt)


async def _certain_no(context: Context, call: Call, no: TransferError | asyncio.CancelledError) -> None:
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
        await _undo_stale(context, call)
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
