"""Until when an order may be sent: the deadline of all attempts, and what the caller has said.

The caller may say two things, and each only shortens. ``send_before`` is about the order: no byte of it
leaves after that. ``deadline`` is about the caller, who waits no longer: it ends hooks and exchanges, too.
"""

from __future__ import annotations

from transfer_async._models.errors import Expired
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.work import Work
from transfer_async._support.clock import Clock
from transfer_async._support.deadlines import NEVER, is_over


def is_time(clock: Clock, intent: OrderIntent, deadline: float, ahead: float = 0.0) -> bool:
    """Whether ``intent`` may still be sent in ``ahead`` seconds."""
    return clock.now() + ahead < deadline and not is_expired(clock, intent, ahead)


def is_expired(clock: Clock, intent: OrderIntent, ahead: float = 0.0) -> bool:
    """Whether ``send_before`` has passed, or will have in ``ahead`` seconds."""
    limit = intent.send_before
    return limit is not None and (limit - clock.utc()).total_seconds() <= ahead


def too_late(clock: Clock, work: Work, ahead: float = 0.0) -> Expired | None:
    """What to raise if the caller wants no request to be sent any more, or will not in ``ahead`` seconds."""
    if work.intent.send_before is not None and is_expired(clock, work.intent, ahead):
        return Expired("send_before passed before the order could be sent")
    if work.deadline != NEVER and is_over(clock, work.deadline, ahead):
        return Expired("the call's deadline passed before the order could be sent", limit="deadline")
    return None
