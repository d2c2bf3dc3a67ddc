"""What a consumer does with a message, given what became of its command: one table.

The first row that fits decides. Nothing here knows a broker.
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
    """What to do with the message."""

    ACK = "ack"
    """It is done with: publish the outcome, then acknowledge."""

    RETRY = "retry"
    """Have it delivered again, but not before ``after`` seconds have passed."""

    DEAD_LETTER = "dead_letter"
    """Put it aside with ``reason`` for somebody to look at (a dead-letter subject), then reject it."""

    LEAVE = "leave"
    """Say nothing: the broker delivers it again by itself."""


LONGEST_ASKED_FOR = 3600.0
"""Seconds: whoever asks for more patience is asked again after that."""


@frozen(kw_only=True)
class Disposition:
    """What to do with one message.

    Args:
        action: see `Action`.
        after: seconds to wait before it is delivered again; for `Action.RETRY`.
        reason: why, in words that name nobody; never empty for `Action.DEAD_LETTER`.
        counts: it was certainly not sent, for a reason that may be the order's own: more than
            ``max_deliveries`` of these, and it is dead-lettered.
        ready: false if nothing else would fare better now: the worker is not ready.
    """

    action: Action
    after: float = 0.0
    reason: str
    counts: bool = False
    ready: bool = True


@frozen
class Delays:
    """How long a message waits before it is delivered again: doubling with each delivery.

    Args:
        first: seconds, or a ``timedelta``, after the first delivery.
        longest: the most that any waits, but for what a service or a lease asks for.
    """

    first: Duration = 1.0
    longest: Duration = 60.0

    def __attrs_post_init__(self) -> None:
        first, longest = seconds(self.first), seconds(self.longest)
        if not (is_positive(first) and is_positive(longest) and first <= longest):
            raise ValueError("first and longest: must be more than 0, finite, and first not above longest")

    def after(self, deliveries: int) -> float:
        """Seconds after the ``deliveries``-th delivery."""
        doublings = min(max(deliveries, 1) - 1, 60)
        return float(min(seconds(self.longest), seconds(self.first) * 2**doublings))


class Rule(FrozenStruct, frozen=True):
    """One row of the table: does it fit, what to do then, and why."""

    fits: Callable[[Any], bool]
    action: Action
    reason: str
    ready: bool = True
    at_least: str | None = None
    """The field of the error with the seconds that were asked for."""


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
    Rule(_is(OutcomeUnknown), ACK, "in doubt: the journal owns it now, and will not send it again"),
    Rule(_is(Unauthorized), RETRY, "the token is not good: no other order would fare better", ready=False),
    Rule(_is(Refused, status=404), RETRY, "the service is not where it should be", ready=False),
    Rule(_is(Refused, status=405), RETRY, "the service is not where it should be", ready=False),
    Rule(_is(RateLimited), RETRY, "the service is overloaded, and did nothing", at_least="retry_after"),
    Rule(_is_unless_final, RETRY, "the service did nothing, and may another time", at_least="retry_after"),
    Rule(_is(Refused), ACK, "the service said no, and would again"),
    Rule(
        _is(BeneficiaryNotVerified, result=MatchResult.NOT_POSSIBLE),
        RETRY,
        "the beneficiary could not be looked up",
    ),
    Rule(_is(BeneficiaryNotVerified), ACK, "the beneficiary is not who the customer means"),
    Rule(_is(HoldRequired), DEAD_LETTER, "neither this worker nor the command has a hold"),
    Rule(_is(PreflightFailed, refused=True), ACK, "a hook refused"),
    Rule(_is(PreflightFailed), RETRY, "a hook broke"),
    Rule(_is(Expired), ACK, "it came too late to be sent"),
    Rule(_is(KeyBusy), RETRY, "another worker is at work on the key", at_least="retry_after"),
    Rule(_is(TokenUnavailable), RETRY, "there is no token to be had", ready=False),
    Rule(_is(ConnectionFailed), RETRY, "the service cannot be reached", ready=False),
    Rule(_is(JournalFailed, outcome=Outcome.NOT_SENT), RETRY, "the journal failed before anything was sent"),
    Rule(_is(JournalFailed), LEAVE, "the journal failed after the order may have been sent"),
    Rule(_is(InvalidOrder), DEAD_LETTER, "the command is not valid"),
    Rule(_is(KeyConflict), DEAD_LETTER, "the key is bound to a different order"),
    Rule(_is(ClientClosed), LEAVE, "the client is closing"),
    Rule(_is(asyncio.CancelledError), LEAVE, "the worker is stopping"),
    Rule(_is(TransferError), LEAVE, "nothing that create-order is known to raise"),
    Rule(_is(BaseException), LEAVE, "an error of the worker's own"),
)


def disposition(
    result: Order | BaseException, *, deliveries: int = 1, delays: Delays | None = None
) -> Disposition:
    """What to do with a message whose command came to ``result``.

    Args:
        result: what `TransferClient.create_order` returned or raised.
        deliveries: how often the message has been delivered, this time included.
        delays: see `Delays`.

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
    # Of the errors' own texts, those of `InvalidOrder` alone say more: the fields at fault, never a value.
    return f"{row.reason}: {result}" if isinstance(result, InvalidOrder) else row.reason
