"""Carry out the command of a message, and decide what to do with the message.

A message leads to at most one order, even if it is delivered several times. A consumer of any broker calls
`Handler.handle`, then publishes the outcome, then acts on the disposition::

    handled = await handler.handle(body)
    if handled.outcome is not None:
        await publish(handled.outcome.to_json())
    match handled.disposition.action: ...

If the published outcome is ``unknown``, the final outcome must be published once the order is resolved or
refuted. `Handler.untold` yields the final outcomes.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
from attrs import frozen

from transfer_async._client import TransferClient, context_of, run_call, worker_call
from transfer_async._converters.messages import EndOfDoubt, OrderCommand, OrderOutcome
from transfer_async._models.errors import (
    AlreadyCreated,
    BeneficiaryNotVerified,
    ClientClosed,
    ConnectionFailed,
    Expired,
    HoldRequired,
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    MatchResult,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    RateLimited,
    Refused,
    TokenUnavailable,
    TransferError,
    Unauthorized,
    is_in_vain,
)
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.attempt import limit_passed
from transfer_async._pipeline.call import ClientCore, OrderProgress
from transfer_async._support.clock import Duration, seconds
from transfer_async._support.util import FrozenStruct, check_count, is_positive, log, must_propagate
from transfer_async.journal.model import SUSPECTED, Entry, KeyState, OutboxEntry
from transfer_async.journal.protocol import order_on_record
from transfer_async.journal.transitions import MarkNotified, RequestNotification

BATCH = 100
"""The maximum number of keys that one read of the journal returns."""


@frozen(kw_only=True)
class Handled:
    """The result of handling one message.

    Args:
        disposition: what to do with the message.
        outcome: the outcome to publish before acknowledging the message, or None.
        key: the command's key, or None if the command could not be read.
        result: the order, or the error that was raised.
        asked: whether this call may have sent a request to the service.
    """

    disposition: Disposition
    outcome: OrderOutcome | None
    key: str | None
    result: Order | BaseException
    asked: bool = True


class Handler:
    """Carries out commands whose messages may be delivered several times.

    Args:
        client: a client with a durable journal.
        max_deliveries: how many deliveries of a command may end without sending the order. A delivery counts
            only if the order itself may be the cause. After one more such delivery, the command is
            dead-lettered.
        delays: the delays before redeliveries; by default ``Delays()``.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    def __init__(
        self, client: TransferClient, *, max_deliveries: int = 50, delays: Delays | None = None
    ) -> None:
        check_count("max_deliveries", max_deliveries)
        context = context_of(client)
        if not context.journal.store.durable:
            raise ValueError(
                "journal: must be durable, or a redelivered message could cause a second payment: use "
                "SQLiteJournal or PostgresJournal"
            )
        self.client: TransferClient = client
        """The client that carries out the commands. A `Sweeper` uses the same client for its recovery."""
        self._context: ClientCore = context
        self._max_deliveries = max_deliveries
        self._delays = delays or Delays()

    async def handle(self, command: OrderCommand | bytes, *, deliveries: int = 1) -> Handled:
        """Carry out a command, and return its result and the disposition of its message.

        Repeated calls with the same command lead to at most one order.

        Args:
            command: the message's body, or the command that was read from it.
            deliveries: the number of deliveries of the message, including this one.

        Raises:
            asyncio.CancelledError: the call was cancelled; do not reply to the broker.
        """
        work: OrderProgress | None = None
        result: Order | BaseException
        try:
            if not isinstance(command, OrderCommand):
                command = OrderCommand.from_json(command)
            call = worker_call(self.client, command.request)
            work = call.work
            result = await run_call(self.client, call)
        except BaseException as error:  # every message needs a disposition
            if must_propagate(error):
                raise
            result = error
        if work is None:
            return self._handled(result, None, deliveries)
        if isinstance(result, OutcomeUnknown):
            result = await self._request_notification(work.intent, result)
        return await self._dead_letter_if_hopeless(work.intent.key, self._handled(result, work, deliveries))

    def _handled(self, result: Order | BaseException, work: OrderProgress | None, deliveries: int) -> Handled:
        decided = disposition(result, deliveries=deliveries, delays=self._delays)
        if decided.action is Action.LEAVE and not isinstance(result, TransferError):
            # The error's text and traceback may contain personal data.
            log.error("a command could not be carried out (%s)", type(result).__name__)
        if work is None:
            return Handled(disposition=decided, outcome=None, key=getattr(result, "key", None), result=result)
        outcome = None
        if decided.action in (Action.ACK, Action.DEAD_LETTER) and _is_anothers(result):
            why = "another worker has used the key: the next delivery reads the result from the journal"
            decided = Disposition(action=Action.RETRY, after=self._delays.after(deliveries), reason=why)
        elif isinstance(result, Expired) and limit_passed(self._context.clock, work) is None:
            # Once this outcome is published, the sender may release its hold. But a redelivery could still
            # send the order until the limit has passed.
            why = "the rate limit would delay the order beyond its time limit"
            decided = Disposition(action=Action.RETRY, after=self._delays.after(deliveries), reason=why)
        elif decided.action is Action.ACK and isinstance(result, (Order, TransferError)):
            outcome = _outcome(result, work)
        asked = work.attempts_begun > 0
        return Handled(disposition=decided, outcome=outcome, key=work.intent.key, result=result, asked=asked)

    async def _request_notification(self, intent: OrderIntent, doubt: OutcomeUnknown) -> Exception:
        """Request a notification of the final outcome of ``doubt``, and return ``doubt``.

        Return a `JournalFailed` if the request failed, or if the order is no longer in doubt.
        """
        request = RequestNotification(intent_id=intent.id)
        try:
            written = await self._context.journal.write(intent.key, request, certain=Outcome.UNKNOWN)
        except JournalFailed as error:
            return error
        if written.denial is None:
            return doubt
        # The next delivery of the message reads the final result from the journal.
        return JournalFailed(
            "the order is no longer in doubt; the next delivery returns the outcome",
            outcome=Outcome.UNKNOWN,
            key=intent.key,
        )

    async def _dead_letter_if_hopeless(self, key: str, handled: Handled) -> Handled:
        if not handled.disposition.counts or _is_anothers(handled.result):
            return handled
        try:
            steps = await self._context.journal.history(key)
        except JournalFailed:
            return handled
        count = sum(step.ending is not None and step.ending.in_vain for step in steps)
        if count <= self._max_deliveries:
            return handled
        reason = f"{handled.disposition.reason}; {count} deliveries ended without sending the order"
        return attrs.evolve(handled, disposition=Disposition(action=Action.DEAD_LETTER, reason=reason))

    # --- how doubts ended -----------------------------------------------------------------------

    async def untold(self) -> AsyncIterator[OrderOutcome]:
        """Yield the final outcome of each order with a pending notification.

        Publish each outcome, then call `told` with it.

        Raises:
            JournalFailed: the journal could not be read.
        """
        journal, after = self._context.journal, ""
        while found := await journal.work(limit=BATCH, after=after):
            after = found[-1][0]
            for key, entry in found:
                for item in entry.pending_notifications if entry.is_readable else ():
                    # Read the key again, because another worker may have published the notification.
                    now = await journal.read(key)
                    if now is not None and item in now.pending_notifications:
                        yield _outcome_of(key, now, item)

    async def told(self, outcome: OrderOutcome) -> None:
        """Record that an outcome from `untold` was published.

        Raises:
            JournalFailed: the journal could not be written, so `untold` will yield the outcome again.
        """
        published = OutboxEntry(
            intent_id=outcome.intent_id,
            outcome=outcome.outcome,
            order_id=outcome.order_id,
            error=outcome.error,
            status=outcome.status,
            since=outcome.ended_at if isinstance(outcome, EndOfDoubt) else None,
        )
        await self._context.journal.write(
            outcome.key, MarkNotified(notification=published), certain=outcome.outcome
        )


def _is_anothers(result: Order | BaseException) -> bool:
    """Return whether this call failed only because another worker holds the key or created its order.

    A failure caused by another worker must not be published as the command's outcome.
    """
    is_failure = isinstance(result, TransferError) and result.outcome in (Outcome.NOT_SENT, Outcome.REFUSED)
    return (
        is_failure and not isinstance(result, KeyConflict) and bool(getattr(result, "order_may_exist", True))
    )


def _outcome(result: Order | TransferError, work: OrderProgress) -> OrderOutcome:
    intent, receipts = work.intent, dict(work.receipts)
    if intent.held is not None:
        receipts.setdefault("held", intent.held)
    return OrderOutcome.of(result, key=intent.key, intent_id=intent.id, receipts=receipts)


def _outcome_of(key: str, entry: Entry, ended: OutboxEntry) -> EndOfDoubt:
    is_current = entry.intent_id == ended.intent_id
    receipts = entry.all_receipts if is_current else {}
    is_suspected = any(other.error == SUSPECTED for other in entry.pending_notifications)
    order = order_on_record(entry) if ended.outcome is Outcome.CREATED and ended.error is None else None
    if order is not None and entry.order_id == ended.order_id:
        end = EndOfDoubt.of(order, key=key, intent_id=ended.intent_id, receipts=receipts)
        return attrs.evolve(end, ended_at=ended.since)
    return EndOfDoubt(
        key=key,
        intent_id=ended.intent_id,
        outcome=ended.outcome,
        order_may_exist=is_suspected or entry.state is not KeyState.FREE,
        order_id=ended.order_id,
        error=ended.error,
        status=ended.status,
        receipts=receipts,
        ended_at=ended.since,
    )


# --- disposition ------------------------------------------------------------------------------------
# A table decides what a worker does with a message, based on the result of the message's command. The first
# row that matches applies. Nothing here depends on a particular broker.


class Action(enum.Enum):
    """The ways in which a worker can finish a message."""

    ACK = "ack"
    """Publish the outcome, then acknowledge the message."""

    RETRY = "retry"
    """Request redelivery of the message in ``after`` seconds or later."""

    DEAD_LETTER = "dead_letter"
    """Store a copy of the message with ``reason`` on the dead-letter subject, then reject the message."""

    LEAVE = "leave"
    """Send no reply, so that the broker redelivers the message by itself."""


LONGEST_ASKED_FOR = 3600.0
"""The maximum delay in seconds that the service's ``Retry-After`` or a key's lease may cause."""


@frozen(kw_only=True)
class Disposition:
    """How a worker finishes one message.

    Args:
        action: see `Action`.
        after: the minimum number of seconds until redelivery, for `Action.RETRY`.
        reason: the reason for the action, without personal data.
        counts: whether this delivery counts towards ``max_deliveries``. A delivery counts if the order was
            not sent and the command may be the cause.
        ready: false if no command can succeed now. The worker then pauses and reports that it is not ready.
    """

    action: Action
    after: float = 0.0
    reason: str
    counts: bool = False
    ready: bool = True


@frozen
class Delays:
    """The delays before redeliveries. Each delay is twice the previous one, up to a maximum.

    Args:
        first: the delay after the first delivery, in seconds or as a ``timedelta``.
        longest: the maximum delay, in seconds or as a ``timedelta``. Only a ``Retry-After`` from the service,
            or a key's lease, may cause a longer delay.

    Raises:
        ValueError: a delay is not above 0 or not finite, or ``first`` is above ``longest``.
    """

    first: Duration = 1.0
    longest: Duration = 60.0

    def __attrs_post_init__(self) -> None:
        first, longest = seconds(self.first), seconds(self.longest)
        if not (is_positive(first) and is_positive(longest) and first <= longest):
            raise ValueError("first and longest: must be finite and above 0; first must not exceed longest")

    def after(self, deliveries: int) -> float:
        """Return the delay in seconds after delivery number ``deliveries``."""
        doublings = min(max(deliveries, 1) - 1, 60)
        return float(min(seconds(self.longest), seconds(self.first) * 2**doublings))


class Rule(FrozenStruct, frozen=True):
    """One row of the table of dispositions: a condition on the result, and the action to take."""

    fits: Callable[[Any], bool]
    action: Action
    reason: str
    ready: bool = True
    at_least: str | None = None
    """The field of the error that contains the minimum delay in seconds; None if it has no such field."""


def _is(*kinds: type[BaseException], **fields: Any) -> Callable[[Any], bool]:
    return lambda result: (
        isinstance(result, kinds)
        and all(getattr(result, name, None) == value for name, value in fields.items())
    )


def _is_unless_final(result: Any) -> bool:
    return isinstance(result, Refused) and not result.is_final


ACK, RETRY, DEAD_LETTER, LEAVE = Action.ACK, Action.RETRY, Action.DEAD_LETTER, Action.LEAVE

RULES: tuple[Rule, ...] = (
    Rule(lambda result: isinstance(result, Order), ACK, "the order exists"),
    Rule(_is(AlreadyCreated), ACK, "the order exists, and its id is known"),
    Rule(_is(OutcomeUnknown), ACK, "in doubt: the journal keeps the key, and nothing is sent again"),
    Rule(_is(Unauthorized), RETRY, "the service does not accept the token", ready=False),
    Rule(_is(Refused, status=404), RETRY, "the service was not found at this base URL", ready=False),
    Rule(_is(Refused, status=405), RETRY, "the service was not found at this base URL", ready=False),
    Rule(_is(RateLimited), RETRY, "the service is overloaded and did nothing", at_least="retry_after"),
    Rule(
        _is_unless_final,
        RETRY,
        "the service created no order, but a later attempt may succeed",
        at_least="retry_after",
    ),
    Rule(_is(Refused), ACK, "the service refused the order, and would refuse it again"),
    Rule(
        _is(BeneficiaryNotVerified, result=MatchResult.NOT_POSSIBLE, refused=False),
        RETRY,
        "the beneficiary could not be looked up",
    ),
    # An outcome that is published must stay true for a redelivery with the same hold: see `Claim.once`.
    Rule(_is(BeneficiaryNotVerified, refused=True), ACK, "the beneficiary check refused the order"),
    Rule(
        _is(HoldRequired),
        DEAD_LETTER,
        "no hold: the worker has no hold hook, and the command does not contain `held`",
    ),
    Rule(_is(PreflightFailed, refused=True), ACK, "a hook refused"),
    Rule(_is(PreflightFailed), RETRY, "a hook failed"),
    Rule(_is(Expired), ACK, "a time limit passed, or would pass, before the order could be sent"),
    Rule(_is(KeyBusy), RETRY, "another worker is processing the key", at_least="retry_after"),
    Rule(_is(TokenUnavailable), RETRY, "the token is not available", ready=False),
    Rule(_is(ConnectionFailed), RETRY, "the service cannot be reached", ready=False),
    Rule(_is(JournalFailed, outcome=Outcome.NOT_SENT), RETRY, "the journal failed before anything was sent"),
    Rule(_is(JournalFailed), LEAVE, "the journal failed after the order may have been sent"),
    Rule(_is(InvalidOrder), DEAD_LETTER, "the command is not valid"),
    Rule(_is(KeyConflict), DEAD_LETTER, "the key is bound to a different order"),
    Rule(_is(ClientClosed), LEAVE, "the client is closing"),
    Rule(_is(asyncio.CancelledError), LEAVE, "the worker is stopping"),
    Rule(_is(TransferError), LEAVE, "an unexpected error from create_order"),
    Rule(_is(BaseException), LEAVE, "an error inside the worker"),
)


def disposition(
    result: Order | BaseException, *, deliveries: int = 1, delays: Delays | None = None
) -> Disposition:
    """Return what to do with a message, given the result of its command.

    Args:
        result: what `TransferClient.create_order` returned or raised.
        deliveries: the number of deliveries of the message, including this one.
        delays: the delays before redeliveries; by default ``Delays()``.

    Raises:
        TypeError: ``result`` is neither an `Order` nor an error.
    """
    row = next((row for row in RULES if row.fits(result)), None)
    if row is None:
        raise TypeError("result: must be an Order, or the error that was raised")
    return Disposition(
        action=row.action,
        after=_after(row, result, deliveries, delays or Delays()) if row.action is RETRY else 0.0,
        reason=_reason(row, result),
        counts=row.action is RETRY and is_in_vain(result),
        ready=row.ready,
    )


def _after(row: Rule, result: Any, deliveries: int, delays: Delays) -> float:
    asked_for = getattr(result, row.at_least, None) if row.at_least else None
    if asked_for is not None and isinstance(result, KeyBusy):
        return min(float(asked_for), LONGEST_ASKED_FOR)
    return max(delays.after(deliveries), min(asked_for or 0.0, LONGEST_ASKED_FOR))


def _reason(row: Rule, result: Any) -> str:
    # The text of `InvalidOrder` names the invalid fields and contains no values. Other texts add nothing.
    return f"{row.reason}: {result}" if isinstance(result, InvalidOrder) else row.reason
