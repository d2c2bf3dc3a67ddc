"""A service that slows down, fails and comes back, and the way to it, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from typing import Any, Literal

from attrs import define, field, frozen

from tests.simulation.loop import VirtualLoop
from transfer_async import NewOrder
from transfer_async._http.transport import ExchangeResult
from transfer_async._http.write_guard import ConnectionState, GuardedBody

Failure = Literal["429", "refused"]
"""How the service says that it will not: an answer, or no connection. Both may be sent again."""

LATENCY = 0.02
"""Seconds, beside the time spent in the service's queue."""

_FLAGS = ("is_matched", "is_confirmed", "is_completed", "is_accepted", "is_cancelled", "is_processing")


class Loop(VirtualLoop):
    """Virtual time that keeps no task longer than it lives."""

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_out(self) -> None:
        """Run until nothing is left to do."""
        while not self.run():
            pass


@frozen(kw_only=True)
class Weather:
    """What happens to the service, and when; all in seconds.

    Args:
        capacity: orders a second that it can create when it is well.
        well: for so long at first.
        slow: then for so long at ``slowness`` of its capacity.
        slowness: see ``slow``.
        out: then for so long it takes no order at all; after that it is well again.
        failure: how it turns orders away, then and whenever its queue is full.
        queue: of how many seconds' work; what comes on top is turned away.
        turning_away: what it costs to answer 429, in orders; to refuse a connection costs nothing.
    """

    capacity: float
    well: float = 60.0
    slow: float = 60.0
    slowness: float = 0.5
    out: float = 600.0
    failure: Failure = "429"
    queue: float = 1.0
    turning_away: float = 0.02

    @property
    def fails_at(self) -> float:
        """When the full outage begins."""
        return self.well + self.slow

    @property
    def ends_at(self) -> float:
        """When it is over."""
        return self.fails_at + self.out

    def capacity_at(self, now: float) -> float:
        """Orders a second; 0 while it is out."""
        if self.fails_at <= now < self.ends_at:
            return 0.0
        return self.capacity * (self.slowness if self.well <= now < self.fails_at else 1.0)


@define
class SimulatedService:
    """Takes orders, one after the other, or turns them away.

    Args:
        weather: what happens to it.
        loop: its time, which began at 1000.
        requests: that reached it or tried to, by minute.
    """

    weather: Weather
    loop: Loop
    requests: Counter[int] = field(factory=Counter)
    during: int = 0
    _free_at: float = 0.0
    _ids: Any = field(factory=itertools.count)

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.loop.time() - 1000.0

    def wait_of(self) -> float | None:
        """Take one request: the seconds until its order exists, or None if it is turned away."""
        weather, now = self.weather, self.now()
        self.requests[int(now // 60)] += 1
        self.during += weather.fails_at <= now < weather.ends_at
        capacity = weather.capacity_at(now)
        if not capacity:
            return None
        start = max(self._free_at, now)
        if start - now < weather.queue:
            self._free_at = start + 1.0 / capacity
            return self._free_at - now
        if weather.failure == "429":
            # Also to say no is work; but what it cannot even say no to is dropped before it costs anything.
            self._free_at = min(start + weather.turning_away / capacity, now + 2.0 * weather.queue)
        return None

    def answer(self, order: bytes) -> bytes:
        """Give the answer that an order exists; ``order`` is `reply_to` what was sent."""
        return order.replace(b"HERE", b"tx-%d" % next(self._ids))


def reply_to(order: NewOrder) -> bytes:
    """Make the service's answer to an order, with HERE in the place of its id."""
    names = ("poster_currency", "matcher_currency", "poster_amount", "matcher_amount", "exchange_rate")
    fields: dict[str, Any] = {
        "id": "HERE",
        "poster_fee": 1,
        **{name: str(getattr(order, name)) for name in names[:2]},
        **{name: float(getattr(order, name)) for name in names[2:]},
        **dict.fromkeys(_FLAGS, 0),
        "user": {"username": order.poster_username},
        "postersBeneficiary": {"username": order.poster_recipient_username},
        "external_order": {
            "current_account_balance": 900000.1,
            "transaction_fee": 250,
            "transaction_fee_currency": "NGN",
        },
    }
    return json.dumps(fields).encode()


class _Wire:
    """What aiohttp would write to."""

    protocol = None

    @property
    def transport(self) -> _Wire:
        return self

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None

    async def write(self, content: bytes) -> None:
        """It arrives."""


class OutageTransport:
    """In the place of `transfer_async._http.transport.Transport`: all else is the real client."""

    is_open = False

    def __init__(self, service: SimulatedService, reply: bytes) -> None:
        self._service, self._reply = service, reply

    def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def stays_quiet(self, _carrier: ConnectionState) -> bool:
        """Whether nothing came after an answer: nothing does here."""
        return True

    async def post_order(self, body: GuardedBody, *, headers: Any, left: float) -> ExchangeResult:
        """Send one request; see the original."""
        del headers, left  # no answer takes as long as that
        wait = self._service.wait_of()
        if wait is None and self._service.weather.failure == "refused":
            body.spent = True
            return ExchangeResult(sent=False, error=ConnectionRefusedError())
        await body.take(_Wire(), None)
        await asyncio.sleep(LATENCY + (wait or 0.0))
        if wait is None:
            return ExchangeResult(
                sent=True, status=429, body=b'{"message": "Too Many Requests"}', intact=True
            )
        return ExchangeResult(sent=True, status=200, body=self._service.answer(self._reply), intact=True)
