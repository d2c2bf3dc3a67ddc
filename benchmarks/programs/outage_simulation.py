"""A fleet of clients that goes on wanting orders through an outage, and what it did to the service.

Orders arrive at random, spread over the clients. An order whose call ends in a certain no is brought
again by its owner after a pause, as a broker would: half a minute at first, a minute from then on, a
random half of it less or more. Every call of ``create_order`` counts as an order wanted: what the retry
budget governs is how many requests the client makes of each; how often its owner brings it again is not
the client's affair.

**Recovered** is the fleet when the orders that are wanted and do not exist have come down to a tenth of
those at the outage's end (the backlog). It is **due** after the time that the backlog needs: the backlog,
divided by the service's spare capacity. That is what it can create in a second, less the new orders that
came in a second meanwhile, and less the work of turning the first request of each call away: this the
owners cause by bringing orders again, whatever the client does. The work that retries cause is not taken
off, so a fleet whose retries stand in its own way is late; the last tenth is the room that they have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from attrs import define, field, frozen

from benchmarks.measuring.workload import new_orders, poisson
from tests.simulation.loop import VirtualLoop
from transfer_async import NewOrder, RetryBudget, RetryPolicy, TransferClient
from transfer_async._http.transport import ExchangeResult
from transfer_async._http.write_guard import ConnectionState, GuardedBody
from transfer_async._models.errors import Outcome, TransferError
from transfer_async._support.clock import Clock

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


# --- the fleet ------------------------------------------------------------------------------------

NO_BUDGET = RetryBudget(capacity=10**9, cost=0, throttle_cost=0)
"""Every retry that the policy allows is paid for."""

GOAL = 1.1
"""Requests for each order wanted, at most, over a full outage."""

LEFT = 0.1
"""The part of the backlog that is left when the fleet has recovered."""

LOOK_EVERY = 5.0
"""Seconds between two counts of what is waited for."""

_NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@frozen(kw_only=True)
class Setting:
    """One simulation.

    Args:
        clients: how many, each with its own journal and its own budget.
        rate: orders a second of the whole fleet.
        weather: of the service.
        budget: of each client.
        pauses: seconds before an order is brought again, the first time and from then on.
        watched: how long a recovery is waited for, in lengths of the outage.
        seed: of everything.
    """

    clients: int
    rate: float
    weather: Weather
    budget: RetryBudget = field(factory=RetryBudget)
    pauses: tuple[float, float] = (30.0, 60.0)
    watched: float = 1.5
    seed: int = 0

    @property
    def patience(self) -> float:
        """Seconds after the outage's end for which a recovery is waited for."""
        return self.watched * (self.weather.slow + self.weather.out)


@frozen(kw_only=True)
class OutageFindings:
    """What one simulation found.

    Args:
        setting: which it was.
        calls: of ``create_order`` during the full outage.
        requests: that were sent meanwhile.
        by_minute: calls and requests of each minute from the beginning.
        backlog: orders wanted before the outage's end that did not exist at that moment.
        waiting: minutes, and how many orders were wanted and did not exist then.
        recovered_after: seconds from the outage's end until a tenth of it was left; None if never.
        other_work: of the service from the outage's end until then, in orders a second: new orders, and
            turning away the first request of each call. Where it never was, the new orders alone.
        doubts: orders in doubt.
    """

    setting: Setting
    calls: int
    requests: int
    by_minute: tuple[tuple[int, int], ...]
    backlog: int
    waiting: tuple[tuple[float, int], ...]
    recovered_after: float | None
    other_work: float
    doubts: int

    @property
    def amplification(self) -> float:
        """Requests for each order wanted, over the whole of the full outage."""
        return self.requests / self.calls if self.calls else 0.0

    @property
    def amplifications(self) -> list[float]:
        """The same of each minute from the beginning."""
        return [requests / calls if calls else 0.0 for calls, requests in self.by_minute]

    @property
    def calls_a_client(self) -> float:
        """How many calls each client made during the full outage."""
        return self.calls / self.setting.clients

    @property
    def met(self) -> tuple[bool, bool]:
        """Whether the goals are met: for amplification, and for recovery."""
        in_time = self.recovered_after is not None and self.recovered_after <= self.due_after
        return self.amplification <= GOAL, in_time

    @property
    def due_after(self) -> float:
        """Seconds that the backlog needs: it, divided by the service's spare capacity."""
        return self.backlog / (self.setting.weather.capacity - self.other_work)


class _Client(TransferClient):
    """A client of the simulated service."""

    def __init__(self, transport: OutageTransport, **settings: Any) -> None:
        self._way = transport
        super().__init__("https://service.example", "made-up", **settings)

    def _transport_to(self, *_: Any, **__: Any) -> Any:
        return self._way


class Fleet:
    """The simulation while it runs.

    Args:
        setting: decides everything.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting, self._weather = setting, setting.weather
        self._loop = Loop()
        self._service = SimulatedService(setting.weather, self._loop)
        self._chance = random.Random(f"fleet:{setting.seed}")
        (self._order,) = new_orders(1)
        self._wanted: set[int] = set()  # and not there yet
        self._backlog = self._during = self._doubts = 0
        self._new = self._turned_away = 0  # between the outage's end and the recovery
        self._calls: Counter[int] = Counter()
        self._waiting: list[tuple[float, int]] = []
        self._recovered_at: float | None = None

    def run(self) -> OutageFindings:
        """Run it to its end, in no time."""
        self._clients = list(self._made())
        self._loop.create_task(self._arrive())
        self._loop.create_task(self._look())
        self._loop.call_at(1000.0 + self._weather.ends_at, self._come_back)
        self._loop.run_out()
        ended, minutes = self._recovered_at, range(int(self._waiting[-1][0]))
        after = None if ended is None else ended - self._weather.ends_at
        return OutageFindings(
            setting=self._setting,
            calls=self._during,
            requests=self._service.during,
            by_minute=tuple((self._calls[minute], self._service.requests[minute]) for minute in minutes),
            backlog=self._backlog,
            waiting=tuple(self._waiting),
            recovered_after=after,
            other_work=self._other_work(after),
            doubts=self._doubts,
        )

    def _made(self) -> Iterator[TransferClient]:
        loop, reply = self._loop, reply_to(self._order)
        clock = Clock(
            now=loop.time,
            utc=lambda: _NOON + timedelta(seconds=loop.time()),
            sleep=asyncio.sleep,
            chance=self._chance.random,
        )
        policy = RetryPolicy(budget=self._setting.budget)
        for _ in range(self._setting.clients):
            yield _Client(OutageTransport(self._service, reply), retry=policy, clock=clock)

    async def _arrive(self) -> None:
        for number, moment in enumerate(poisson(self._setting.rate, seed=self._setting.seed)):
            await asyncio.sleep(moment - self._service.now())
            if self._is_over():
                return
            self._wanted.add(number)
            self._new += self._is_recovering()
            self._loop.create_task(self._want(number, self._chance.choice(self._clients)))

    async def _want(self, number: int, client: TransferClient) -> None:
        """Bring one order, until it exists."""
        pause, later = self._setting.pauses
        while not await self._call(number, client):
            await asyncio.sleep(pause * (0.5 + self._chance.random()))
            if self._is_over():
                return
            pause = later
        self._wanted.discard(number)
        if self._backlog and self._recovered_at is None and len(self._wanted) <= self._backlog * LEFT:
            self._recovered_at = self._service.now()

    async def _call(self, number: int, client: TransferClient) -> bool:
        """Call once; false after a certain no."""
        now = self._service.now()
        self._calls[int(now // 60)] += 1
        self._during += self._weather.fails_at <= now < self._weather.ends_at
        try:
            await client.create_order(self._order, key=f"order-{number}", held="made-up")
        except TransferError as error:
            if error.outcome is not Outcome.UNKNOWN:
                self._turned_away += self._is_recovering()
                return False
            self._doubts += 1
        return True

    async def _look(self) -> None:
        while not self._is_over():
            self._waiting.append((self._service.now() / 60, len(self._wanted)))
            await asyncio.sleep(LOOK_EVERY)
        self._waiting.append((self._service.now() / 60, len(self._wanted)))

    def _is_recovering(self) -> bool:
        return self._recovered_at is None and self._service.now() >= self._weather.ends_at

    def _other_work(self, after: float | None) -> float:
        if not after:
            return self._setting.rate
        cost = self._weather.turning_away if self._weather.failure == "429" else 0.0
        return (self._new + cost * self._turned_away) / after

    def _come_back(self) -> None:
        self._backlog = len(self._wanted)

    def _is_over(self) -> bool:
        """Whether all that is to be seen was seen: the recovery and a minute more, or its failing."""
        now, ended = self._service.now(), self._recovered_at
        if ended is not None:
            return now >= ended + 60.0
        return now >= self._weather.ends_at + self._setting.patience
