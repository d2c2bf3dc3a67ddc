"""Until when an order may be sent: the deadline of all attempts, and what the caller has said.

The caller may say two things, and each only shortens. ``send_before`` is about the order: no byte of it
leaves after that. ``deadline`` is about the caller, who waits no longer: it ends hooks and exchanges, too.
"""

from __future__ import annotations

from transfer_async._models.errors import Expired, Limit
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.work import Work
from transfer_async._support.clock import Clock
from transfer_async._support.deadlines import NEVER, is_over, seconds_left

NAMED: dict[Limit, str] = {"send_before": "send_before", "deadline": "the call's deadline"}


def is_time(clock: Clock, intent: OrderIntent, deadline: float, ahead: float = 0.0) -> bool:
    """Whether ``intent`` may still be sent in ``ahead`` seconds."""
    return clock.now() + ahead < deadline and not is_expired(clock, intent, ahead)


def is_expired(clock: Clock, intent: OrderIntent, ahead: float = 0.0) -> bool:
    """Whether ``send_before`` has passed, or will have in ``ahead`` seconds."""
    limit = intent.send_before
    return limit is not None and (limit - clock.utc()).total_seconds() <= ahead


def too_late(clock: Clock, work: Work) -> Expired | None:
    """What to raise if the caller wants no request to be sent any more."""
    if work.deadline == NEVER and work.intent.send_before is None:  # most often, and for each hook
        return None
    if (limit := limit_passed(clock, work)) is None:
        return None
    return Expired(f"{NAMED[limit]} passed before the order could be sent", limit=limit)


def limit_passed(clock: Clock, work: Work, ahead: float = 0.0) -> Limit | None:
    """What of the two has passed, or will have in ``ahead`` seconds."""
    if is_expired(clock, work.intent, ahead):
        return "send_before"
    return "deadline" if is_over(clock, work.deadline, ahead) else None


def patience(clock: Clock, work: Work, deadline: float) -> float | None:
    """Seconds until the first of the two, or of another ``deadline``; None if there is none of them."""
    left = seconds_left(clock, min(work.deadline, deadline))
    if work.intent.send_before is not None:
        seconds = max(0.0, (work.intent.send_before - clock.utc()).total_seconds())
        left = seconds if left is None else min(left, seconds)
    return left
