"""What the service answered and the journal could not be told: told to people at once, and made up for later.

The key ends in doubt for everybody else. This process alone knows better, as long as it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from transfer_async._models.errors import JournalFailed, Outcome, TransferError
from transfer_async._models.events import OrderUnrecorded
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.work import Work
from transfer_async._support.log import log

KEPT = 1000
"""How many answers are kept at most; of those beyond it, what was told remains."""


def could_not_record(
    context: Context,
    work: Work,
    again: Callable[[], Awaitable[object]],
    *,
    outcome: Outcome,
    order_id: str,
    told: bool,
) -> None:
    """Tell the order's id, unless it was ``told`` before, and keep ``again``, which writes it down later."""
    key, kept = work.intent.key, context.unrecorded
    if key not in kept and len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = again
    if told:
        return
    what = "was created" if outcome is Outcome.CREATED else "may be the one: its answer cannot be read"
    log.error("order %s of the key %r %s; the journal could not be told", order_id, key, what)
    context.tell(OrderUnrecorded, work, outcome=outcome, order_id=order_id)


async def made_up(context: Context, key: str) -> bool:
    """Write down what the key was answered; whether that is on record now as an order.

    Raises:
        JournalFailed: the journal cannot be told yet.
    """
    again = context.unrecorded.pop(key, None)
    if again is None:
        return False
    try:
        await again()
    except asyncio.CancelledError:
        context.unrecorded.setdefault(key, again)
        raise
    except TransferError as error:
        if isinstance(error, JournalFailed) and key in context.unrecorded:
            raise
        return False
    return True
