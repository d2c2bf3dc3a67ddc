"""Taking back what the hooks did, once it is certain that no order exists: recorded first, then done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from transfer_async._models.errors import JournalFailed, Outcome
from transfer_async._models.events import HookUndone, UndoOwed
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.claimed_key import ClaimedKey
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.work import Work
from transfer_async._support.log import log
from transfer_async.journal.entries import Entry, Owed
from transfer_async.journal.moves import Paid


def what_is_owed(context: Context, work: Work, claimed: ClaimedKey) -> tuple[Owed, ...]:
    """The undos of every hook that ran under the claim, last first."""
    own = (name for name in context.undoable if name in claimed.entered or name in work.receipts)
    # Of those that are inherited a dead worker may have entered any.
    names = claimed.inherited or own
    return tuple(Owed(intent=work.intent, hook=name, receipt=work.receipts.get(name)) for name in names)


def recorded(entry: Entry, debts: Sequence[Owed]) -> list[Owed]:
    """``debts`` as they are on record in ``entry``, under the lease they got there."""
    on_record = {(one.intent.id, one.hook): one for one in entry.owed}
    found = (on_record.get((one.intent.id, one.hook)) for one in debts)
    return [one for one in found if one is not None]


async def undo(context: Context, work: Work, cancellation: Cancellation, debts: Sequence[Owed]) -> None:
    """Undo ``debts``, all of one intent and as they are on record, and record what is done.

    What fails stays owed, and does not hide why it became due.

    Raises:
        asyncio.CancelledError: `recover` was cancelled; what was undone may be undone once more.
    """
    if not debts:
        return
    done = [one.hook for one in debts if await _undo_one(context, work, cancellation, one)]
    try:
        paid = Paid(intent_id=debts[0].intent.id, hooks=tuple(done), lease_until=debts[0].lease_until)
        await context.write(work.intent.key, paid, certain=Outcome.NOT_SENT)
    except JournalFailed:
        log.warning("could not record what was undone: it will be undone again")
    work.undone += len(done)
    work.owed += len(debts) - len(done)


async def undo_earlier(context: Context, work: Work, cancellation: Cancellation, claimed: ClaimedKey) -> None:
    """What hooks did for an earlier intent goes before they act for this one, or with its end."""
    earlier, claimed.earlier = claimed.earlier, ()
    for intent_id in dict.fromkeys(one.intent.id for one in earlier):
        await undo(context, work, cancellation, [one for one in earlier if one.intent.id == intent_id])


async def _undo_one(context: Context, work: Work, cancellation: Cancellation, debt: Owed) -> bool:
    hook = next((hook for hook in context.hooks if hook.name == debt.hook), None)
    if hook is None:
        context.tell(UndoOwed, work, hook=debt.hook, error="this client has no such hook")
        return False
    try:
        async with asyncio.timeout(context.timeouts.hook):
            await hook.undo(debt.intent, debt.receipt)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, it is owed
        if isinstance(error, asyncio.CancelledError):
            cancellation.swallow()
        context.tell(UndoOwed, work, hook=debt.hook, error=type(error).__name__)
        return False
    context.tell(HookUndone, work, hook=debt.hook)
    return True
