"""What becomes of a doubt: the bank's own ``resolve`` is asked, and believed only as far as it can know."""

from __future__ import annotations

import asyncio
import re

import attrs

from transfer_async._converters.order import read_answer
from transfer_async._http.classify import other_order
from transfer_async._models import texts
from transfer_async._models.errors import (
    AlreadyCreated,
    JournalFailed,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    Refused,
    Refuted,
    TransferError,
    UnreadableOrder,
)
from transfer_async._models.events import Resolved
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.resolution import NO_ORDER
from transfer_async._pipeline.undo import recorded, undo
from transfer_async._pipeline.work import Work, stamped
from transfer_async._support.deadlines import is_over, within
from transfer_async._support.log import log
from transfer_async.journal.entries import Ending, Entry, KeyState, Verdict, owed_by
from transfer_async.journal.moves import Refute, Resolve
from transfer_async.journal.protocol import order_on_record

ABANDONED = "Abandoned"
"""In place of an error's name: the worker is gone, and left none."""


def given_back(entry: Entry, work: Work) -> Order:
    """The order of a key that is created.

    Raises:
        AlreadyCreated: only its id is on record.
    """
    _on_record(entry, work)
    if order := order_on_record(entry):
        return order
    raise stamped(AlreadyCreated(order_id=entry.order_id or ""), work, order_may_exist=True)


def doubt_on_record(entry: Entry, text: str) -> OutcomeUnknown:
    """The doubt of an earlier call, with the order's id if an answer named one."""
    if not entry.candidates:
        return OutcomeUnknown(text)
    return UnreadableOrder(text, order_id=entry.candidates[-1])


def refused_before(entry: Entry, work: Work) -> TransferError:
    """The refusal that the same order met before, from the record."""
    _on_record(entry, work)
    ending = entry.ending
    assert ending is not None  # noqa: S101 - it was refused
    return stamped(_said_before(ending), work, order_may_exist=False)  # as the claim found it


def _said_before(ending: Ending) -> TransferError:
    if ending.outcome is Outcome.NOT_SENT:
        return PreflightFailed("a hook refused this order before; it was not asked again", refused=True)
    text = "the service refused this order before; it was not asked again"
    if ending.error == Refuted.__name__:
        return Refuted(text)
    return Refused(text, status=ending.status, fields=ending.fields)


def _on_record(entry: Entry, work: Work) -> None:
    work.intent = attrs.evolve(work.intent, id=entry.intent_id)
    work.receipts = entry.all_receipts


async def settle_doubt(
    context: Context, work: Work, cancellation: Cancellation, found: Verdict, doubt: OutcomeUnknown
) -> Order:
    """Ask ``resolve`` about an entry that was found in doubt just now.

    Returns:
        The order, if ``resolve`` has it.

    Raises:
        AlreadyCreated: ``resolve`` has only its id.
        Refuted: there is none, and none can appear; the hooks are undone.
        OutcomeUnknown: nobody knows yet.
    """
    entry = found.entry
    work.intent = entry.intent or work.intent  # the doubt's own, whoever asks
    work.receipts = entry.all_receipts
    stamped(doubt, work, order_may_exist=True)
    answer = await _ask(context, cancellation, entry, doubt, deadline=work.deadline)
    if isinstance(answer, Order):
        return await _resolved(context, work, entry, doubt, order_id=answer.id, order=answer)
    if isinstance(answer, str):
        return await _resolved(context, work, entry, doubt, order_id=answer, order=None)
    if answer is NO_ORDER and found.now >= entry.sent_until + context.settle_after:
        # Whoever was asked earlier could not know, however late the answer comes.
        await _refuted(context, work, cancellation, entry, doubt)
    raise doubt


async def _ask(
    context: Context, cancellation: Cancellation, entry: Entry, doubt: OutcomeUnknown, *, deadline: float
) -> object:
    if context.resolve is None or entry.intent is None or is_over(context.clock, deadline):
        return None  # `recover` has the time to ask
    try:
        with cancellation.stoppable():
            async with asyncio.timeout(within(context.timeouts.hook, context.clock, deadline)):
                return _believable(entry.intent, await context.resolve(entry.intent, doubt))
    except asyncio.CancelledError:
        cancellation.swallow()
    except Exception as error:  # noqa: BLE001 - a resolve that fails knows nothing
        log.warning("resolve gave no usable answer (%s); the key stays in doubt", type(error).__name__)
    return None


_LIKE_AN_ID = re.compile(r"tx-[!-~]{1,100}")  # looser than the specification: a person may have typed it


def order_id_of(text: object) -> str | None:
    """``text``, trimmed, if it looks like the id of an order."""
    given = texts.to_text(text).strip() if isinstance(text, str) else ""
    return given if _LIKE_AN_ID.fullmatch(given) else None


def _believable(intent: OrderIntent, answer: object) -> object:
    """``answer``, if it can be one to the question.

    Raises:
        ValueError: it is an order that cannot be read again, or another one, or nothing like an id.
    """
    if isinstance(answer, Order):
        read = read_answer(answer.to_json())
        if other := other_order(intent.order, read):
            raise ValueError(f"another order: {other} differs")
        return read.order
    if (order_id := order_id_of(answer)) is not None:
        return order_id
    if answer is None or answer is NO_ORDER:
        return answer
    raise ValueError("neither an order, an id, NO_ORDER nor None")


async def _resolved(
    context: Context, work: Work, entry: Entry, doubt: OutcomeUnknown, *, order_id: str, order: Order | None
) -> Order:
    move = Resolve(
        attempt=entry.attempt or "",
        order_id=order_id,
        reply=None if order is None else order.to_json(),
        by="resolve",
        reason="the client's resolve knew the order",
    )
    verdict = await _write(context, work, move, Outcome.CREATED, order)
    if verdict.denial is not None and verdict.entry.state is not KeyState.CREATED:
        raise doubt  # another's order, or another's doubt by now
    context.tell(Resolved, work, outcome=Outcome.CREATED, order_id=verdict.entry.order_id)
    return given_back(verdict.entry, work)


async def _refuted(
    context: Context, work: Work, cancellation: Cancellation, entry: Entry, doubt: OutcomeUnknown
) -> None:
    """Free the key, if no request can take effect any more, and undo the hooks."""
    owed = owed_by(entry)
    move = Refute(
        attempt=entry.attempt or "",
        settle_after=context.settle_after,
        by="resolve",
        reason="the client's resolve was certain that no order exists",
        owed=owed,
        lease=context.lease,
    )
    verdict = await _write(context, work, move, Outcome.REFUSED, None)
    if verdict.denial is not None:
        return
    context.tell(Resolved, work, outcome=Outcome.REFUSED)
    await undo(context, work, cancellation, recorded(verdict.entry, owed))
    raise stamped(Refuted(), work, order_may_exist=False) from doubt


async def _write(
    context: Context, work: Work, move: Resolve | Refute, certain: Outcome, order: Order | None
) -> Verdict:
    try:
        return await context.write(work.intent.key, move, certain=certain, order=order)
    except JournalFailed as error:
        raise stamped(error, work, order_may_exist=True) from error.__cause__
