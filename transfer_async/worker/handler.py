"""A message from wherever it came: its command is carried out, and what to do with the message is said.

At least once in, at most one order out. A consumer of any broker calls `Handler.handle`, publishes the
outcome that it is given, and then does what the disposition says, in this order::

    handled = await handler.handle(body)
    if handled.outcome is not None:
        await publish(handled.outcome.to_json())
    match handled.disposition.action: ...

Whoever was told ``unknown`` is told later how it ended: `Handler.untold` has what is still to be told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
from attrs import frozen

from transfer_async._client import TransferClient, context_of, run_call, worker_call
from transfer_async._converters.messages import EndOfDoubt, OrderCommand, OrderOutcome
from transfer_async._models.errors import JournalFailed, KeyConflict, Outcome, OutcomeUnknown, TransferError
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import ClientCore, OrderProgress
from transfer_async._support.util import check_count, log, must_propagate
from transfer_async.journal.model import SUSPECTED, Entry, KeyState, OutboxEntry
from transfer_async.journal.protocol import order_on_record
from transfer_async.journal.transitions import MarkNotified, RequestNotification
from transfer_async.worker.disposition import Action, Delays, Disposition, disposition

BATCH = 100
"""How many keys are asked for at once."""


@frozen(kw_only=True)
class Handled:
    """What became of one message.

    Args:
        disposition: what to do with the message.
        outcome: to be published before the message is acknowledged; None where there is none to be told.
        key: the command's; None where it could not be read.
        result: the order, or what was raised.
        asked: whether the service was asked this time, and answered or not.
    """

    disposition: Disposition
    outcome: OrderOutcome | None
    key: str | None
    result: Order | BaseException
    asked: bool = True


class Handler:
    """Carries out the commands of messages that may come more than once.

    Args:
        client: with a journal that survives its process.
        max_deliveries: a command that has certainly not been sent more often than this, for reasons
            that may be its own, is dead-lettered.
        delays: how long a message waits until it is delivered again.

    Raises:
        ValueError: names the argument and the rule.
    """

    def __init__(
        self, client: TransferClient, *, max_deliveries: int = 50, delays: Delays | None = None
    ) -> None:
        check_count("max_deliveries", max_deliveries)
        context = context_of(client)
        if not context.journal.store.durable:
            raise ValueError(
                "journal: must survive the process, or a message that is delivered again pays again: use "
                "SQLiteJournal, or PostgresJournal"
            )
        self.client: TransferClient = client
        """The client that it was given: whoever tells how doubts ended recovers by the same one."""
        self._context: ClientCore = context
        self._max_deliveries = max_deliveries
        self._delays = delays or Delays()

    async def handle(self, command: OrderCommand | bytes, *, deliveries: int = 1) -> Handled:
        """Carry out a command, at most once whatever comes again.

        Args:
            command: as a message has it, or read already.
            deliveries: how often the message has been delivered, this time included.

        Raises:
            asyncio.CancelledError: the caller was cancelled: nothing may be said of the message.
        """
        work: OrderProgress | None = None
        result: Order | BaseException
        try:
            if not isinstance(command, OrderCommand):
                command = OrderCommand.from_json(command)
            call = worker_call(self.client, command.request, once=True)
            work = call.work
            result = await run_call(self.client, call)
        except BaseException as error:  # whatever it is, something must be said of the message
            if must_propagate(error):
                raise
            result = error
        if work is None:
            return self._said(result, None, deliveries)
        if isinstance(result, OutcomeUnknown):
            result = await self._promised(work.intent, result)
        return await self._parked_if_hopeless(work.intent.key, self._said(result, work, deliveries))

    def _said(self, result: Order | BaseException, work: OrderProgress | None, deliveries: int) -> Handled:
        what = disposition(result, deliveries=deliveries, delays=self._delays)
        if what.action is Action.LEAVE and not isinstance(result, TransferError):
            # Without its text or a traceback, which may tell of people.
            log.error("a command could not be carried out (%s)", type(result).__name__)
        if work is None:
            return Handled(disposition=what, outcome=None, key=getattr(result, "key", None), result=result)
        outcome = None
        if what.action in (Action.ACK, Action.DEAD_LETTER) and _is_anothers(result):
            why = "another worker has, or had, the key: the record will have the answer"
            what = Disposition(action=Action.RETRY, after=self._delays.after(deliveries), reason=why)
        elif what.action is Action.ACK and isinstance(result, (Order, TransferError)):
            outcome = _outcome(result, work)
        asked = work.attempts_begun > 0
        return Handled(disposition=what, outcome=outcome, key=work.intent.key, result=result, asked=asked)

    async def _promised(self, intent: OrderIntent, doubt: OutcomeUnknown) -> Exception:
        """Write down that the end of ``doubt`` must be told; what is to be said if that cannot be."""
        promise = RequestNotification(intent_id=intent.id)
        try:
            verdict = await self._context.journal.write(intent.key, promise, certain=Outcome.UNKNOWN)
        except JournalFailed as error:
            return error
        if verdict.denial is None:
            return doubt
        # It ended this very moment: when the message comes again, the record has the answer.
        return JournalFailed("the doubt has ended meanwhile", outcome=Outcome.UNKNOWN, key=intent.key)

    async def _parked_if_hopeless(self, key: str, handled: Handled) -> Handled:
        if not handled.disposition.counts or _is_anothers(handled.result):
            return handled
        try:
            steps = await self._context.journal.history(key)
        except JournalFailed:
            return handled
        count = sum(step.ending is not None and step.ending.in_vain for step in steps)
        if count <= self._max_deliveries:
            return handled
        reason = f"{handled.disposition.reason}; it was not sent {count} times"
        return attrs.evolve(handled, disposition=Disposition(action=Action.DEAD_LETTER, reason=reason))

    # --- how doubts ended -----------------------------------------------------------------------

    async def untold(self) -> AsyncIterator[OrderOutcome]:
        """Every outcome of a doubt that has ended and that nobody was told of: publish it, then say `told`.

        Raises:
            JournalFailed: the journal could not be read.
        """
        journal, after = self._context.journal, ""
        while found := await journal.work(limit=BATCH, after=after):
            after = found[-1][0]
            for key, entry in found:
                for item in entry.pending_notifications if entry.is_readable else ():
                    # What was read with a whole page of others may have become old since.
                    now = await journal.read(key)
                    if now is not None and item in now.pending_notifications:
                        yield _outcome_of(key, now, item)

    async def told(self, outcome: OrderOutcome) -> None:
        """Write down that an outcome of `untold` has been published.

        Raises:
            JournalFailed: the journal could not be written: it will be told again.
        """
        untold = OutboxEntry(
            intent_id=outcome.intent_id,
            outcome=outcome.outcome,
            order_id=outcome.order_id,
            error=outcome.error,
            status=outcome.status,
            since=outcome.ended_at if isinstance(outcome, EndOfDoubt) else None,
        )
        await self._context.journal.write(
            outcome.key, MarkNotified(notification=untold), certain=outcome.outcome
        )


def _is_anothers(result: Order | BaseException) -> bool:
    """Whether a certain no is only this call's: the key is another worker's now, and may have its order."""
    is_no = isinstance(result, TransferError) and result.outcome in (Outcome.NOT_SENT, Outcome.REFUSED)
    return is_no and not isinstance(result, KeyConflict) and bool(getattr(result, "order_may_exist", True))


def _outcome(result: Order | TransferError, work: OrderProgress) -> OrderOutcome:
    intent, receipts = work.intent, dict(work.receipts)
    if intent.held is not None:
        receipts.setdefault("held", intent.held)
    return OrderOutcome.of(result, key=intent.key, intent_id=intent.id, receipts=receipts)


def _outcome_of(key: str, entry: Entry, one: OutboxEntry) -> EndOfDoubt:
    is_current = entry.intent_id == one.intent_id
    receipts = entry.all_receipts if is_current else {}
    is_suspected = any(other.error == SUSPECTED for other in entry.pending_notifications)
    order = order_on_record(entry) if one.outcome is Outcome.CREATED and one.error is None else None
    if order is not None and entry.order_id == one.order_id:
        end = EndOfDoubt.of(order, key=key, intent_id=one.intent_id, receipts=receipts)
        return attrs.evolve(end, ended_at=one.since)
    return EndOfDoubt(
        key=key,
        intent_id=one.intent_id,
        outcome=one.outcome,
        order_may_exist=is_suspected or entry.state is not KeyState.FREE,
        order_id=one.order_id,
        error=one.error,
        status=one.status,
        receipts=receipts,
        ended_at=one.since,
    )
