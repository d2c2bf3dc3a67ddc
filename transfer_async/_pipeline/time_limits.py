"""Until when an order may be sent: the deadline of all attempts, and the caller's ``send_before``."""

from __future__ import annotations

from transfer_async._models.requests import OrderIntent
from transfer_async._support.clock import Clock


def is_time(clock: Clock, intent: OrderIntent, deadline: float, ahead: float = 0.0) -> bool:
    """Whether ``intent`` may still be sent in ``ahead`` seconds."""
    return clock.now() + ahead < deadline and not is_expired(clock, intent, ahead)


def is_expired(clock: Clock, intent: OrderIntent, ahead: float = 0.0) -> bool:
    """Whether ``send_before`` has passed, or will have in ``ahead`` seconds."""
    limit = intent.send_before
    return limit is not None and (limit - clock.utc()).total_seconds() <= ahead
