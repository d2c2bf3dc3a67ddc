"""Ends a call: records its outcome in the journal, publishes it, and returns or raises the result."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs

from transfer_async._converters.converter import read_answer
from transfer_async._http.classify import other_order
from transfer_async._models import requests
from transfer_async._models.errors import (
    KEPT_ATTEMPTS,
    AlreadyCreated,
    BeneficiaryNotVerified,
    Cause,
    CauseKind,
    ClientClosed,
    HoldRequired,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    Refused,
    Refuted,
    TransferError,
    UnreadableOrder,
    is_a,
    is_in_vain,
    name_of,
)
from transfer_async._models.events import (
    DuplicateSuspected,
    HookUndone,
    NotSent,
    OrderCreated,
    OrderInDoubt,
    OrderRefused,
    OrderUnrecorded,
    Resolved,
    UndoPending,
)
from transfer_async._models.requests import OrderIntent, fingerprint
from transfer_async._models.responses import Order
from transfer_async._pipeline.attempt import OrderResponse
from transfer_async._pipeline.call import (
    NO_ORDER,
    Cancellation,
    ClaimedKey,
    ClientCore,
    OrderCall,
    OrderProgress,
    annotate_error,
)
from transfer_async._support.clock import is_over, within
from transfer_async._support.util import Raised, log, must_propagate, try_call
from transfer_async.journal.model import (
    Ending,
    Entry,
    KeyState,
    PendingUndo,
    Rejection,
    TransitionResult,
    undos_on_failure,
)
from transfer_async.journal.protocol import KeyForgotten, order_on_record
from transfer_async.journal.transitions import (
    CREATED_LATE,
    AddPendingUndos,
    Create,
    GoInDoubt,
    MarkUndone,
    Refute,
    Release,
    Resolve,
    Suspect,
)


async def settle(
    context: ClientCore,
    call: OrderCall,
    claimed: ClaimedKey,
    response: OrderResponse,
    *,
    is_reported: bool = False,
) -> Order:
    """Record that the order exists, and return the order.

    Pass ``is_reported=True`` to retry the write after the order id has been logged and published.

    Raises:
        JournalFailed: the journal failed, or its record contradicts the service's response.
        TransferError: the order belongs to another key; see `went_in_doubt`.
    """
    work, order = call.work, response.order
    create = Create(
        attempt=claimed.attempt or "",
        order_id=order.id,
        reply=response.result.body,
        retried=is_reported,
        publish=call.is_published,
    )
    try:
        verdict = await context.journal.write(work.intent.key, create, certain=Outcome.CREATED, order=order)
    except KeyForgotten as error:
        why = "the order was created after the journal had lost the key: a duplicate is suspected"
        await _record_suspicion(context, call, claimed, why, order=order, order_id=order.id)
        raise annotate_error(error, work, order_may_exist=True) from None
    except JournalFailed as error:
        again = partial(settle, context, call, claimed, response, is_reported=True)
        could_not_record(
            context, work, again, outcome=Outcome.CREATED, order_id=order.id, is_reported=is_reported
        )
        raise annotate_error(error, work, order_may_exist=True) from error.__cause__
    if verdict.denial is Rejection.FOREIGN:
        response.connection.distrust()
        work.correct_last(Outcome.UNKNOWN)
        why = "the response contains the order of another key"
        doubt = UnreadableOrder(why, raw=response.result.body, kind=CauseKind.UNREADABLE_ANSWER)
        return await went_in_doubt(context, call, claimed, doubt)
    entry = verdict.entry
    if entry.state is KeyState.CREATED and entry.order_id == order.id and entry.ending is None:
        context.publish(
            OrderCreated,
            work,
            order_id=order.id,
            status=response.result.status,
            took=response.took,
            request_id=response.result.request_id,
        )
        return order
    why = CREATED_LATE
    if entry.attempt == claimed.attempt and entry.order_id not in (None, order.id):
        why = f"the journal records order {entry.order_id} for the key, which was resolved with that id"
    if verdict.denial is None:  # The key was free, and is now bound to the order.
        _report_suspicion(context, work, why, order.id)
    else:
        await _record_suspicion(context, call, claimed, why, order=order, order_id=order.id)
    raise annotate_error(JournalFailed(why, outcome=Outcome.CREATED, order=order), work, order_may_exist=True)


# --- contradicting records ------------------------------------------------------------------------
# While a sender is running, another process may record a different outcome for the key.


def _ended_by_others(intent: OrderIntent, entry: Entry) -> bool:
    """Return whether another process ended ``intent`` before this worker reported its outcome.

    The other process has undone the hooks, but a hook may have acted after its undo.
    """
    return entry.intent_id != intent.id or entry.state is KeyState.FREE


async def _record_suspicion(
    context: ClientCore,
    call: OrderCall,
    claimed: ClaimedKey,
    why: str,
    *,
    order: Order | None = None,
    order_id: str | None = None,
) -> None:
    """Record and publish that the sender's result contradicts the key's record.

    A free key is put in doubt, and its pending undos are cancelled. If the order was refuted, the hold may
    already have been released.

    ``order`` and ``order_id`` come from the service's response. If the response is unreadable, ``order`` is
    None.

    Raises:
        JournalFailed: the journal could not be written; the write will be retried.
    """
    work, intent = call.work, call.work.intent
    suspect = Suspect(
        order_id=order_id,
        reason=why,
        intent=intent,
        fingerprint=fingerprint(intent.order),
        attempt=claimed.attempt or "",
        hooks=context.undoable if intent.held is None else context.undoable_but_hold,
        receipts=dict(work.receipts),
        cause=Cause(
            kind=CauseKind.SUPERSEDED, candidate=order_id, attempts=tuple(work.attempts[-KEPT_ATTEMPTS:])
        ),
        outcome=Outcome.UNKNOWN if order is None else Outcome.CREATED,
        publish=call.is_published,
    )
    await _write_suspicion(context, work, suspect, order=order)


async def _write_suspicion(
    context: ClientCore,
    work: OrderProgress,
    suspect: Suspect,
    *,
    order: Order | None = None,
    is_reported: bool = False,
) -> None:
    if not is_reported:
        _report_suspicion(context, work, suspect.reason, suspect.order_id)
    try:
        await context.journal.write(work.intent.key, suspect, certain=suspect.outcome, order=order)
    except JournalFailed as error:
        again = partial(_write_suspicion, context, work, suspect, order=order, is_reported=True)
        could_not_record(
            context, work, again, outcome=suspect.outcome, order_id=suspect.order_id, is_reported=True
        )
        raise annotate_error(error, work, order_may_exist=True) from error.__cause__


def _report_suspicion(context: ClientCore, work: OrderProgress, why: str, order_id: str | None) -> None:
    log.error("the record of the key %r contradicts the sender's report: %s", work.intent.key, why)
    context.publish(DuplicateSuspected, work, order_id=order_id)


async def went_in_doubt(
    context: ClientCore,
    call: OrderCall,
    claimed: ClaimedKey,
    doubt: OutcomeUnknown,
    *,
    is_reported: bool = False,
) -> Order:
    """Record the doubt and call ``resolve``. Return the order if ``resolve`` or an operator supplied it.

    Nothing is undone while the order is in doubt. Pass ``is_reported=True`` to retry the write after the
    order id has been logged and published.

    Raises:
        TransferError: the order is still in doubt or was refuted, or the journal failed.
    """
    work, candidate = call.work, getattr(doubt, "order_id", None)
    try:
        cause = _cause(call, doubt, candidate=candidate)
        transition = GoInDoubt(attempt=claimed.attempt or "", candidate=candidate, cause=cause)
        verdict = await context.journal.write(work.intent.key, transition, certain=Outcome.UNKNOWN)
    except KeyForgotten:
        why = "the journal had lost the key before the sender reported its result: a duplicate is suspected"
        await _record_suspicion(context, call, claimed, why, order_id=candidate)
        raise annotate_error(doubt, work, order_may_exist=True) from doubt.__cause__
    except JournalFailed as error:
        again = partial(went_in_doubt, context, call, claimed, doubt, is_reported=True)
        could_not_record(
            context, work, again, outcome=Outcome.UNKNOWN, order_id=candidate, is_reported=is_reported
        )
        raise annotate_error(error, work, order_may_exist=True) from doubt
    entry = verdict.entry
    if entry.state is KeyState.CREATED and entry.attempt == transition.attempt:
        # An operator resolved the order first.
        if candidate not in (None, entry.order_id):
            why = (
                f"the journal records order {entry.order_id}, but a response to the sender contains "
                f"{candidate}"
            )
            await _record_suspicion(context, call, claimed, why, order_id=candidate)
        return replay_created(entry, work)
    context.publish(OrderInDoubt, work, error=type(doubt).__name__, status=doubt.status)
    if verdict.denial is not None and _ended_by_others(work.intent, entry):
        why = f"the doubt had ended before the sender's report: {cause.told}; a duplicate is suspected"
        await _record_suspicion(context, call, claimed, why, order_id=candidate)
    if verdict.denial is not None:
        raise annotate_error(doubt, work, order_may_exist=True) from doubt.__cause__
    return await settle_doubt(context, work, call.cancellation, verdict, doubt)


def _cause(call: OrderCall, doubt: OutcomeUnknown, *, candidate: str | None) -> Cause:
    """Return the cause of the doubt, to be shown to operators."""
    kind = doubt.kind or CauseKind.NO_ANSWER
    attempts = tuple(call.work.attempts[-KEPT_ATTEMPTS:])
    beneath = doubt.__cause__
    return Cause(
        kind=CauseKind.CLOSED if call.cancellation.cut and kind is CauseKind.NO_ANSWER else kind,
        status=attempts[-1].status if doubt.status is None and attempts else doubt.status,
        error=None if beneath is None else name_of(beneath),
        candidate=candidate,
        attempts=attempts,
    )


# --- definite failure --------------------------------------------------------------------------------
# First the definite failure is recorded. Then the hooks are undone, and the error is delivered.


async def definite_failure(
    context: ClientCore, call: OrderCall, claimed: ClaimedKey, failure: TransferError | asyncio.CancelledError
) -> None:
    """Free the key and record the pending undos in a single write. The hooks are undone afterwards.

    Raises:
        JournalFailed: the failure could not be recorded, so nothing was undone and the key is not free.
        ClientClosed: the client was closed before the order was sent.
    """
    work, cancellation = call.work, call.cancellation
    cancellation.swallow()
    undos = pending_undos(context, work, claimed)
    ending = _ending(failure)
    transition = Release(
        intent_id=work.intent.id,
        epoch=claimed.epoch,
        attempt=claimed.attempt,
        ending=ending,
        pending_undos=undos,
        lease=context.lease,
        reason=_beneficiary_reason(failure),
    )
    try:
        verdict = await context.journal.write(work.intent.key, transition, certain=ending.outcome)
    except JournalFailed as error:
        annotate_journal_failure(context, work, claimed, error)
        raise
    if verdict.denial is None:
        if ending.outcome is Outcome.REFUSED:
            context.publish(OrderRefused, work, error=ending.error, status=ending.status)
        else:
            context.publish(NotSent, work, error=ending.error)
        await undo(context, work, cancellation, recorded(verdict.entry, undos))
        await undo_earlier(context, work, cancellation, claimed)
    elif undos and _ended_by_others(work.intent, verdict.entry):
        await _undo_late(context, work, cancellation, undos)
    may_exist = verdict.denial is not None
    if isinstance(failure, TransferError):
        annotate_error(failure, work, order_may_exist=may_exist)
    elif cancellation.cut:
        closed = ClientClosed("the client was closed before the order was sent")
        raise annotate_error(closed, work, order_may_exist=may_exist) from None


def _beneficiary_reason(failure: BaseException) -> str | None:
    """Return the reason for the history if the beneficiary was not verified, else None."""
    if not isinstance(failure, BeneficiaryNotVerified) or failure.reason is None:
        return None
    result, reason = (item.value.replace("_", " ") for item in (failure.result, failure.reason))
    return f"beneficiary: {result} ({reason})"


async def check_key(context: ClientCore, error: TransferError, *, client_made: bool) -> None:
    """Set ``order_may_exist`` on the error of a definite failure just before the error is delivered.

    The key became free when the failure was recorded. While the undos ran, or before the caller read the
    result, another call may have created an order. ``order_may_exist`` is false only if the key is still
    free, or if the client generated the key and the journal no longer contains it.
    """
    if error.order_may_exist or error.key is None or isinstance(error, JournalFailed):
        return
    error.order_may_exist = True
    with contextlib.suppress(JournalFailed):
        entry = await context.journal.read(error.key)
        is_free = client_made if entry is None else entry.state is KeyState.FREE and entry.is_readable
        error.order_may_exist = not is_free


async def _undo_late(
    context: ClientCore, work: OrderProgress, cancellation: Cancellation, undos: tuple[PendingUndo, ...]
) -> None:
    """Record and run the undos of hooks that acted after another process had ended the intent."""
    is_recorded = True
    try:
        add = AddPendingUndos(pending_undos=undos, lease=context.lease)
        verdict = await context.journal.write(work.intent.key, add, certain=Outcome.NOT_SENT)
        undos = tuple(recorded(verdict.entry, undos))
    except JournalFailed:  # The traceback is not logged, because it contains texts from the store.
        log.warning("a late undo could not be recorded as pending, so it is tried only once")
        is_recorded = False
    await undo(context, work, cancellation, undos, is_recorded=is_recorded)


def _ending(failure: TransferError | asyncio.CancelledError) -> Ending:
    if isinstance(failure, TransferError):
        return Ending(
            outcome=failure.outcome,
            error=type(failure).__name__,
            status=failure.status if isinstance(failure, Refused) else None,
            refused=isinstance(failure, PreflightFailed)
            and failure.refused
            and not isinstance(failure, HoldRequired),
            in_vain=is_in_vain(failure),
            fields=failure.fields if isinstance(failure, Refused) else (),
        )
    return Ending(outcome=Outcome.NOT_SENT, error="Cancelled")


# --- undo --------------------------------------------------------------------------------------------
# The hooks are undone if it is certain that the order does not exist. Each undo is first saved as pending.


def pending_undos(context: ClientCore, work: OrderProgress, claimed: ClaimedKey) -> tuple[PendingUndo, ...]:
    """Return the undos of all hooks that may have acted under the claim, in reverse order."""
    own = (name for name in context.undoable if name in claimed.entered or name in work.receipts)
    # A worker that crashed may have run any of the inherited hooks.
    names = claimed.inherited or own
    return tuple(
        PendingUndo(intent=work.intent, hook=name, receipt=work.receipts.get(name)) for name in names
    )


def annotate_journal_failure(
    context: ClientCore, work: OrderProgress, claimed: ClaimedKey, error: JournalFailed
) -> None:
    """Set the call's data on ``error``, and log the hooks that no recovery will undo.

    The call neither continues nor undoes its hooks, and if the journal lost the record of the claim, a
    recovery does not undo them either. Another worker may have taken over the claim and sent the order before
    the record was lost.
    """
    if isinstance(error, KeyForgotten) and (undos := pending_undos(context, work, claimed)):
        log.error(
            "the journal lost the record of the key %r, so no recovery will undo %s of the intent %s, for "
            "which this call created no order: undo them yourself once you know that no order exists",
            work.intent.key,
            [pending.hook for pending in undos],
            work.intent.id,
        )
    annotate_error(error, work, order_may_exist=True)


def recorded(entry: Entry, undos: Sequence[PendingUndo]) -> list[PendingUndo]:
    """Return the undos in ``undos`` that are pending in ``entry``, with their recorded leases."""
    on_record = {(item.intent.id, item.hook): item for item in entry.pending_undos}
    found = (on_record.get((pending.intent.id, pending.hook)) for pending in undos)
    return [item for item in found if item is not None]


async def undo(
    context: ClientCore,
    work: OrderProgress,
    cancellation: Cancellation,
    undos: Sequence[PendingUndo],
    *,
    is_recorded: bool = True,
) -> None:
    """Run the pending undos of one intent, and record which of them succeeded.

    An undo that fails stays pending. An error in an undo does not replace the call's own error.
    ``is_recorded`` is false if the journal could not record the undos as pending.

    Raises:
        asyncio.CancelledError: `recover` was cancelled. Undos that succeeded may run again, because their
            success is not recorded.
    """
    if not undos:
        return
    done = [
        pending.hook
        for pending in undos
        if (not is_recorded or await _is_still_pending(context, pending))
        and await _undo_one(context, work, cancellation, pending)
    ]
    try:
        undone = MarkUndone(intent_id=undos[0].intent.id, hooks=tuple(done), lease_until=undos[0].lease_until)
        await context.journal.write(work.intent.key, undone, certain=Outcome.NOT_SENT)
    except JournalFailed:
        log.warning("undos succeeded but could not be recorded, so they will be run again")
    work.undone += len(done)
    work.undos_pending += len(undos) - len(done)


async def _is_still_pending(context: ClientCore, pending: PendingUndo) -> bool:
    """Return whether an undo is still pending; a late report from the sender may have cancelled it."""
    try:
        entry = await context.journal.read(pending.intent.key)
    except JournalFailed:
        return False  # The undo stays pending.
    return entry is not None and bool(recorded(entry, (pending,)))


async def undo_earlier(
    context: ClientCore, work: OrderProgress, cancellation: Cancellation, claimed: ClaimedKey
) -> None:
    """Run the pending undos of the key's earlier intents, once per call."""
    earlier, claimed.earlier = claimed.earlier, ()
    for intent_id in dict.fromkeys(item.intent.id for item in earlier):
        await undo(context, work, cancellation, [item for item in earlier if item.intent.id == intent_id])


async def _undo_one(
    context: ClientCore, work: OrderProgress, cancellation: Cancellation, pending: PendingUndo
) -> bool:
    hook = next((hook for hook in context.hooks if hook.name == pending.hook), None)
    if hook is None:
        context.publish(UndoPending, work, hook=pending.hook, error="this client has no such hook")
        return False
    try:
        async with asyncio.timeout(context.timeouts.hook):
            undone = await try_call(hook.undo, pending.intent, pending.receipt)
    except (TimeoutError, asyncio.CancelledError) as error:
        undone = Raised(error)
    if type(undone) is Raised:  # After any error the undo stays pending.
        if is_a(undone.error, asyncio.CancelledError):
            cancellation.swallow()
        context.publish(UndoPending, work, hook=pending.hook, error=name_of(undone.error))
        return False
    context.publish(HookUndone, work, hook=pending.hook)
    return True


# --- doubt -------------------------------------------------------------------------------------------
# For a key in doubt, the bank's ``resolve`` is called. `NO_ORDER` is accepted only ``settle_after`` seconds
# after the last possible send, or ``abandoned_settle_after`` if the sender never reported.


def replay_created(entry: Entry, work: OrderProgress) -> Order:
    """Return the recorded order of a key in the created state.

    Raises:
        AlreadyCreated: only the order's id is recorded.
    """
    _restore_progress(entry, work)
    if order := order_on_record(entry):
        return order
    raise annotate_error(AlreadyCreated(order_id=entry.order_id or ""), work, order_may_exist=True)


def doubt_on_record(entry: Entry, text: str) -> OutcomeUnknown:
    """Create the error for a key recorded as in doubt, with the candidate order id if there is one."""
    if not entry.candidates:
        return OutcomeUnknown(text)
    return UnreadableOrder(text, order_id=entry.candidates[-1])


def replay_refused(entry: Entry, work: OrderProgress) -> TransferError:
    """Create the error for a recorded refusal of the same order."""
    _restore_progress(entry, work)
    ending = entry.ending
    assert ending is not None  # noqa: S101 - a refused key has an ending
    text = "the service refused this order before; the order was not sent again"
    error: TransferError
    if ending.outcome is Outcome.NOT_SENT:
        error = PreflightFailed(
            "a hook refused this order before; the hook was not called again", refused=True
        )
    elif ending.error == Refuted.__name__:
        error = Refuted(text)
    else:
        error = Refused(text, status=ending.status, fields=ending.fields)
    return annotate_error(error, work, order_may_exist=False)  # The key was free at the claim.


def _restore_progress(entry: Entry, work: OrderProgress) -> None:
    work.intent = attrs.evolve(work.intent, id=entry.intent_id)
    work.receipts, work.attempt_id = entry.all_receipts, entry.attempt


async def settle_doubt(
    context: ClientCore,
    work: OrderProgress,
    cancellation: Cancellation,
    found: TransitionResult,
    doubt: OutcomeUnknown,
) -> Order:
    """Call ``resolve`` for an entry in doubt that was just read, and return the order that ``resolve`` finds.

    Raises:
        AlreadyCreated: ``resolve`` returned only the order id.
        Refuted: the order does not exist and can no longer appear; the hooks are undone.
        OutcomeUnknown: the order is still in doubt.
        JournalFailed: the journal could not be written.
    """
    entry = found.entry
    work.intent = entry.intent or work.intent  # The recorded intent may differ from the caller's.
    work.receipts, work.attempt_id = entry.all_receipts, entry.attempt
    annotate_error(doubt, work, order_may_exist=True)
    answer = await _call_resolve(context, work, cancellation, entry, doubt)
    if isinstance(answer, (Order, str)):
        return await _resolved(context, work, entry, doubt, answer)
    settled_at = entry.settled_at(context.settle_after, context.abandoned_settle_after)
    if answer is NO_ORDER and found.now >= settled_at:
        # Use the time before the call to ``resolve``, because its result cannot reflect later events.
        await _refuted(context, work, cancellation, entry, doubt)
    raise doubt


async def _call_resolve(
    context: ClientCore, work: OrderProgress, cancellation: Cancellation, entry: Entry, doubt: OutcomeUnknown
) -> object:
    if context.resolve is None or entry.intent is None or is_over(context.clock, work.deadline):
        return None  # `recover` calls ``resolve`` later, if there is one.
    work.resolve_failed = True
    try:
        with cancellation:
            async with asyncio.timeout(within(context.timeouts.hook, context.clock, work.deadline)):
                answer = await try_call(context.resolve, entry.intent, doubt)
        if type(answer) is not Raised:
            checked = _checked_result(entry.intent, answer)
            work.resolve_failed = False
            return checked
        failed = answer.error
    except asyncio.CancelledError:
        cancellation.swallow()
        return None
    except BaseException as error:  # Reading a result of a bank's own class may raise any error.
        if must_propagate(error):
            raise
        failed = error
    log.warning("resolve did not return a usable result (%s); the key stays in doubt", name_of(failed))
    return None


# This is less strict than the specification, because people type ids.
_LIKE_AN_ID = re.compile(r"tx-[!-~]{1,100}")


def order_id_of(text: object) -> str | None:
    """Return ``text`` in lower case, without surrounding whitespace, if it looks like an order id, else None.

    The service's ids are in lower case (specification 1). Without the conversion, an id typed in upper case,
    for example from a printed statement, would count as another order, and two keys could be recorded with
    one order.
    """
    given = requests.ascii_lower(requests.to_text(text).strip()) if isinstance(text, str) else ""
    return given if _LIKE_AN_ID.fullmatch(given) else None


def _checked_result(intent: OrderIntent, answer: object) -> object:
    """Return ``answer`` if it is a valid result of ``resolve`` for ``intent``.

    Raises:
        ValueError: ``answer`` is an unreadable order, a different order, or not a valid type of result.
    """
    if isinstance(answer, Order):
        read = read_answer(answer.to_json())
        if other := other_order(intent.order, read):
            raise ValueError(f"a different order: {other} differs")
        return read.order
    if (order_id := order_id_of(answer)) is not None:
        return order_id
    if answer is None or answer is NO_ORDER:
        return answer
    raise ValueError("the result is not an order, an id, NO_ORDER or None")


async def _resolved(
    context: ClientCore, work: OrderProgress, entry: Entry, doubt: OutcomeUnknown, answer: Order | str
) -> Order:
    order, order_id = (answer, answer.id) if isinstance(answer, Order) else (None, answer)
    transition = Resolve(
        attempt=entry.attempt or "",
        order_id=order_id,
        reply=None if order is None else order.to_json(),
        by="resolve",
        reason="the client's resolve function found the order",
        by_program=True,
    )
    verdict = await _write(context, work, transition, Outcome.CREATED, order)
    if verdict.denial is not None:
        now = verdict.entry
        is_created, is_superseded = now.state is KeyState.CREATED, _ended_by_others(work.intent, now)
        if (is_created or is_superseded) and now.order_id != order_id:
            await _suspect_resolved(context, work, entry, order_id, found_in=now)
        if is_superseded and (now.order_id, now.fingerprint) != (order_id, entry.fingerprint):
            raise doubt  # The key belongs to another intent, perhaps with another order.
        if verdict.denial is Rejection.FOREIGN:
            log.warning(
                "resolve returned the order of another key; the key %r stays in doubt", work.intent.key
            )
        if not is_created:
            raise doubt
    context.publish(Resolved, work, outcome=Outcome.CREATED, order_id=verdict.entry.order_id)
    return replay_created(verdict.entry, work)


async def _suspect_resolved(
    context: ClientCore, work: OrderProgress, entry: Entry, order_id: str, *, found_in: Entry
) -> None:
    """Record that ``resolve`` found an order for ``entry`` after its doubt had ended with another outcome.

    Raises:
        JournalFailed: the journal could not be written; the write will be retried.
    """
    why = f"the client's resolve found {order_id} after the order had been refuted: a duplicate is suspected"
    if found_in.state is KeyState.CREATED and not _ended_by_others(work.intent, found_in):
        why = f"the journal records order {found_in.order_id}, but the client's resolve found {order_id}"
    suspect = Suspect(
        order_id=order_id,
        reason=why,
        intent=work.intent,
        fingerprint=entry.fingerprint,
        attempt=entry.attempt or "",
        hooks=entry.hooks,
        receipts=dict(entry.receipts),
        cause=Cause(
            kind=CauseKind.SUPERSEDED,
            candidate=order_id,
            attempts=() if entry.cause is None else entry.cause.attempts,
        ),
        by="resolve",
    )
    await _write_suspicion(context, work, suspect)


async def _refuted(
    context: ClientCore, work: OrderProgress, cancellation: Cancellation, entry: Entry, doubt: OutcomeUnknown
) -> None:
    """If the journal accepts the refutation, free the key and undo the hooks.

    Raises:
        Refuted: the journal accepted the refutation.
        JournalFailed: the journal could not be written.
    """
    pending = undos_on_failure(entry)
    transition = Refute(
        attempt=entry.attempt or "",
        settle_after=context.settle_after,
        abandoned_settle_after=context.abandoned_settle_after,
        by="resolve",
        reason="the client's resolve function reported that no order exists",
        by_program=True,
        pending_undos=pending,
        lease=context.lease,
    )
    verdict = await _write(context, work, transition, Outcome.REFUSED, None)
    if verdict.denial is not None:
        return
    context.publish(Resolved, work, outcome=Outcome.REFUSED)
    await undo(context, work, cancellation, recorded(verdict.entry, pending))
    raise annotate_error(Refuted(), work, order_may_exist=False) from doubt


async def _write(
    context: ClientCore,
    work: OrderProgress,
    transition: Resolve | Refute,
    certain: Outcome,
    order: Order | None,
) -> TransitionResult:
    try:
        return await context.journal.write(work.intent.key, transition, certain=certain, order=order)
    except JournalFailed as error:
        raise annotate_error(error, work, order_may_exist=True) from error.__cause__


# --- unrecorded answers ------------------------------------------------------------------------------
# If the journal cannot record a response, the order id is logged and published immediately, and the write is
# retried later.
#
# Until then, the key is in doubt for other processes. Only this process has the response, which is lost if
# the process ends.


MAX_UNRECORDED = 1000
"""The maximum number of unrecorded responses that a client keeps.

At this maximum, a response with an order id replaces the oldest one, and other responses are not kept.
"""


def could_not_record(
    context: ClientCore,
    work: OrderProgress,
    again: Callable[[], Awaitable[object]],
    *,
    outcome: Outcome,
    order_id: str | None,
    is_reported: bool,
) -> None:
    """Store ``again``, which retries the write. Unless ``is_reported``, log and publish the order id."""
    key, unrecorded = work.intent.key, context.unrecorded
    if key not in unrecorded and len(unrecorded) >= MAX_UNRECORDED:
        if order_id is None:
            return
        del unrecorded[next(iter(unrecorded))]
    unrecorded[key] = again
    if is_reported or order_id is None:
        return
    what = "was created" if outcome is Outcome.CREATED else "may exist: the response cannot be read"
    log.error(
        "order %s of the key %r %s; the journal could not record it: write down the id", order_id, key, what
    )
    context.publish(OrderUnrecorded, work, outcome=outcome, order_id=order_id)


async def flush_unjournaled(context: ClientCore, key: str) -> bool:
    """Try again to record an unrecorded response for ``key``, and return whether an order was recorded.

    Raises:
        JournalFailed: the journal still could not record the response.
    """
    again = context.unrecorded.pop(key, None)
    if again is None:
        return False
    try:
        order = await again()
    except asyncio.CancelledError:
        context.unrecorded.setdefault(key, again)
        raise
    except TransferError as error:
        if isinstance(error, JournalFailed) and key in context.unrecorded:
            raise
        return False
    return order is not None
