"""The table that decides what a worker does with a message, based on the result of the message's command.

The first row that matches applies. Nothing in this module depends on a particular broker.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any

from attrs import frozen

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
from transfer_async._models.responses import Order
from transfer_async._support.clock import Duration, seconds
from transfer_async._support.util import FrozenStruct, is_positive


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
        reason: why the worker takes this action, without personal data.
        counts: whether this delivery counts towards ``max_deliveries``. A delivery counts if the order was
            certainly not sent and the order itself may be the cause.
        ready: whether other commands may succeed now. If false, the worker pauses and is not ready.
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
        longest: the maximum delay, in seconds or as a ``timedelta``. Only the service's ``Retry-After`` or a
            key's lease may cause a longer delay.

    Raises:
        ValueError: a delay is not above 0 or not finite, or ``first`` is above ``longest``.
    """

    first: Duration = 1.0
    longest: Duration = 60.0

    def __attrs_post_init__(self) -> None:
        first, longest = seconds(self.first), seconds(self.longest)
        if not (is_positive(first) and is_positive(longest) and first <= longest):
            raise ValueError("first and longest: must be above 0 and finite, and first at most longest")

    def after(self, deliveries: int) -> float:
        """Return the delay in seconds after delivery number ``deliveries``."""
        doublings = min(max(deliveries, 1) - 1, 60)
        return float(min(seconds(self.longest), seconds(self.first) * 2**doublings))


class Rule(FrozenStruct, frozen=True):
    """One row of the table: a condition on the result, and the action and reason if it is met."""

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
    """Return what to do with a message whose command ended with ``result``.

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
