"""Before an order is sent: every hook sees it, in their order, and what each hands back is kept."""

from __future__ import annotations

import asyncio
import copy
from functools import partial

from multidict import CIMultiDict

from transfer_async._http.rate import Pace
from transfer_async._models.causes import bare
from transfer_async._models.errors import Expired, HoldFailed, HoldRequired, KeyBusy, Outcome, PreflightFailed
from transfer_async._models.events import HookPassed
from transfer_async._pipeline.attempt import Sending
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.claimed_key import ClaimedKey
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.hooks import PreflightHook, checked_receipt, is_hold
from transfer_async._pipeline.lease import LeaseKeeper
from transfer_async._pipeline.pacing import wait_for_turn
from transfer_async._pipeline.time_limits import too_late
from transfer_async._pipeline.undo import undo_earlier
from transfer_async._pipeline.work import Work
from transfer_async._support.deadlines import seconds_left, within
from transfer_async._support.tasks import Begun, begun
from transfer_async.journal.moves import Keep


async def preflight(context: Context, call: Call, claimed: ClaimedKey) -> Sending:
    """Let every hook see the order, in their order; the hold is the last of them.

    Returns:
        What may be sent now, once that is marked.
    """
    intent = call.work.intent
    held = intent.held is not None
    if not held and not context.places_hold:
        raise HoldRequired(
            "the customer's funds must be held before an order is sent: give the client a hold hook "
            "(hooks=[..., FundsHold(place, release)]), or the call the reference of your own hold (held=...)"
        )
    if expired := too_late(context.clock, call.work):
        raise expired
    sending = Sending(intent=intent, body=intent.order.to_json(), clock=context.clock)
    hooks = Begun(
        _run_hooks(context, call, claimed, sending, held=held)
        if context.pace is None
        else _run_hooks_in_turn(context, call, claimed, sending, context.pace, held=held)
    )
    if not hooks.done:
        with LeaseKeeper(partial(_keep, context, call.work, claimed), every=context.lease / 3):
            await hooks
    return sending


async def _run_hooks_in_turn(
    context: Context, call: Call, claimed: ClaimedKey, sending: Sending, pace: Pace, *, held: bool
) -> None:
    """The same at the client's rate: the turn is waited for while nothing is held."""
    if claimed.earlier:
        await undo_earlier(context, call.work, call.cancellation, claimed)
    await wait_for_turn(context, call, pace.entrance)
    try:
        await _run_hooks(context, call, claimed, sending, held=held)
        await wait_for_turn(context, call, pace.exit)
    except BaseException:
        pace.entrance.uncount()  # nothing is sent
        raise


async def _run_hooks(
    context: Context, call: Call, claimed: ClaimedKey, sending: Sending, *, held: bool
) -> None:
    work = call.work
    if claimed.earlier:
        await undo_earlier(context, work, call.cancellation, claimed)
    # Before the hooks: no funds are held for a client that cannot send. And in no variable of this frame:
    # tracebacks are drawn with what those hold.
    sending.headers = context.tokens.current or await _first_headers(context, call)
    to_be_kept = False
    for hook in context.hooks:
        if hook.name in work.receipts or (held and is_hold(hook)):
            continue
        if to_be_kept:
            await _keep(context, work, claimed)
        if expired := too_late(context.clock, work):  # a hook would be in vain
            raise expired
        await _run_hook(context, call, claimed, hook)
        to_be_kept = hook.name in context.undoable or work.receipts[hook.name] is not None


async def _first_headers(context: Context, call: Call) -> CIMultiDict[str]:
    try:
        with call.cancellation.stoppable():
            async with asyncio.timeout(seconds_left(context.clock, call.work.deadline)):
                return await context.tokens.headers()
    except TimeoutError as error:
        why = "the call's deadline passed before there was a token"
        raise Expired(why, limit="deadline") from bare(error)


async def _run_hook(context: Context, call: Call, claimed: ClaimedKey, hook: PreflightHook) -> None:
    began = context.clock.now()
    broke = HoldFailed if is_hold(hook) else PreflightFailed
    limit: asyncio.Timeout | None = None
    try:
        with call.cancellation.stoppable():
            claimed.entered += (hook.name,)
            before = begun(hook.before(call.work.intent))
            if before.done:
                receipt = before.result
            else:
                left = within(context.timeouts.hook, context.clock, call.work.deadline)
                async with asyncio.timeout(left) as limit:
                    receipt = await before
    except PreflightFailed as error:
        claimed.entered = claimed.entered[:-1]  # it vouches that it did nothing
        own = _own(error, hook)
        raise own from error.__cause__
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and call.cancellation.abandoned:
            raise
        if limit is not None and limit.expired() and left < context.timeouts.hook:
            why = f"the call's deadline passed in the hook {hook.name!r}"
            raise Expired(why, limit="deadline") from bare(error)
        why = f"the hook {hook.name!r} broke ({type(error).__name__})"
        raise broke(why, refused=False, hook=hook.name) from bare(error)
    try:
        call.work.receipts[hook.name] = checked_receipt(hook, receipt)
    except (TypeError, ValueError) as error:
        raise broke(str(error), refused=False, hook=hook.name) from error
    context.tell(HookPassed, call.work, hook=hook.name, took=context.clock.now() - began)


def _own(error: PreflightFailed, hook: PreflightHook) -> PreflightFailed:
    """The call's own: the bank may raise one and the same for many; and a hold's no is a `HoldFailed`."""
    if is_hold(hook) and type(error) is PreflightFailed:
        return HoldFailed(*error.args, refused=error.refused, hook=hook.name)
    own = copy.copy(error)
    own.hook = hook.name
    return own


async def _keep(context: Context, work: Work, claimed: ClaimedKey) -> None:
    keep = Keep(
        intent_id=work.intent.id, epoch=claimed.epoch, lease=context.lease, receipts=dict(work.receipts)
    )
    verdict = await context.write(work.intent.key, keep, certain=Outcome.NOT_SENT)
    if verdict.denial is not None:
        raise KeyBusy("the claim's lease ran out before the order was sent", retry_after=verdict.lease_left)
