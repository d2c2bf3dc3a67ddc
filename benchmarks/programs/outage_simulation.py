"""Simulate a fleet of clients during an outage of the service, in virtual time.

Orders arrive at random (a Poisson process) and are spread over the clients. If a call of ``create_order``
ends with a definite failure, its caller calls again after a pause, as a broker's redelivery would: after half
a minute the first time and after a minute from then on, with a jitter of 50 %.

The amplification factor is the number of requests divided by the number of calls. It measures the client's
own retries, which the retry budget limits. How often the caller repeats a call does not affect it.

The backlog is the number of orders that have been requested but do not exist. The fleet has recovered when
the backlog has fallen to a tenth of what it was at the end of the outage. The expected recovery time is that
backlog divided by the spare capacity of the service: its capacity, minus the new orders, minus the work of
rejecting the first request of each call, which the client cannot avoid. The work that the client's retries
cause is not subtracted: the remaining tenth of the backlog is the margin for it. So a fleet whose retries
slow down its own recovery misses the goal.
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
"""How the service rejects a request: with status 429, or by refusing the connection. Both may be retried."""

LATENCY = 0.02
"""Network latency in seconds, in addition to the time in the service's queue."""

_FLAGS = ("is_matched", "is_confirmed", "is_completed", "is_accepted", "is_cancelled", "is_processing")


class Loop(VirtualLoop):
    """A virtual-time event loop that does not keep references to completed tasks."""

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_until_idle(self) -> None:
        """Run until no task or timer is left."""
        while not self.run():
            pass


@frozen(kw_only=True)
class OutageSchedule:
    """The phases of the service: healthy, slow, outage, and healthy again.

    Args:
        capacity: orders per second that the healthy service can create.
        healthy: the duration of the first phase, in seconds.
        slow: the duration of the slow phase, in seconds.
        slow_capacity: the share of the capacity that is left in the slow phase.
        outage: the duration of the outage, in seconds. The service creates no orders.
        failure: how the service rejects requests during the outage and when its queue is full.
        queue: the length of the queue, in seconds of work.
        rejection_cost: the work of responding with 429, in orders. Refusing a connection costs nothing.
    """

    capacity: float
    healthy: float = 60.0
    slow: float = 60.0
    slow_capacity: float = 0.5
    outage: float = 600.0
    failure: Failure = "429"
    queue: float = 1.0
    rejection_cost: float = 0.02

    @property
    def outage_start(self) -> float:
        """Seconds from the start of the simulation to the start of the outage."""
        return self.healthy + self.slow

    @property
    def outage_end(self) -> float:
        """Seconds from the start of the simulation to the end of the outage."""
        return self.outage_start + self.outage

    def capacity_at(self, now: float) -> float:
        """Return the capacity at a time, in orders per second."""
        if self.outage_start <= now < self.outage_end:
            return 0.0
        return self.capacity * (self.slow_capacity if self.healthy <= now < self.outage_start else 1.0)


@define
class SimulatedService:
    """A service that creates orders one after the other, or rejects them.

    Args:
        schedule: the phases of the service.
        loop: the event loop, whose time starts at 1000.
        requests: the number of requests by minute, including refused connections.
        requests_in_outage: the number of requests during the outage.
    """

    schedule: OutageSchedule
    loop: Loop
    requests: Counter[int] = field(factory=Counter)
    requests_in_outage: int = 0
    _free_at: float = 0.0
    _ids: Any = field(factory=itertools.count)

    def now(self) -> float:
        """Return the seconds since the start of the simulation."""
        return self.loop.time() - 1000.0

    def admit(self) -> float | None:
        """Process a request. Return the seconds until its order exists, or None if it is rejected."""
        schedule, now = self.schedule, self.now()
        self.requests[int(now // 60)] += 1
        self.requests_in_outage += schedule.outage_start <= now < schedule.outage_end
        capacity = schedule.capacity_at(now)
        if not capacity:
            return None
        start = max(self._free_at, now)
        if start - now < schedule.queue:
            self._free_at = start + 1.0 / capacity
            return self._free_at - now
        if schedule.failure == "429":
            # Rejections use capacity, too, but requests beyond twice the queue length are dropped at no cost.
            self._free_at = min(start + schedule.rejection_cost / capacity, now + 2.0 * schedule.queue)
        return None

    def respond(self, order: bytes) -> bytes:
        """Return the response for a new order, from its `response_template`."""
        return order.replace(b"HERE", b"tx-%d" % next(self._ids))


def response_template(order: NewOrder) -> bytes:
    """Return the service's response to an order, with HERE in place of the id."""
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


class _FakeWriter:
    """A stub of the writer that aiohttp passes to a request body."""

    protocol = None

    @property
    def transport(self) -> _FakeWriter:
        return self

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None

    async def write(self, content: bytes) -> None:
        """Discard the content."""


class OutageTransport:
    """Replaces `transfer_async._http.transport.Transport`. Everything else is the real client."""

    is_open = False

    def __init__(self, service: SimulatedService, reply: bytes) -> None:
        self._service, self._reply = service, reply

    def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def stays_quiet(self, _carrier: ConnectionState) -> bool:
        """Return whether nothing followed a response; here, nothing ever does."""
        return True

    async def post_order(self, body: GuardedBody, *, headers: Any, left: float) -> ExchangeResult:
        del headers, left  # all responses arrive in time
        wait = self._service.admit()
        if wait is None and self._service.schedule.failure == "refused":
            body.spent = True
            return ExchangeResult(sent=False, error=ConnectionRefusedError())
        await body.take(_FakeWriter(), None)
        await asyncio.sleep(LATENCY + (wait or 0.0))
        if wait is None:
            return ExchangeResult(
                sent=True, status=429, body=b'{"message": "Too Many Requests"}', intact=True
            )
        return ExchangeResult(sent=True, status=200, body=self._service.respond(self._reply), intact=True)


# --- the fleet ------------------------------------------------------------------------------------

NO_BUDGET = RetryBudget(capacity=10**9, cost=0, throttle_cost=0)
"""A budget that never runs out: only the retry policy limits the retries."""

MAX_AMPLIFICATION = 1.1
"""The goal for the amplification factor during the outage."""

RECOVERED_FRACTION = 0.1
"""The fleet has recovered when this fraction of the backlog is left."""

SAMPLE_INTERVAL = 5.0
"""Seconds between two samples of the backlog."""

_NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@frozen(kw_only=True)
class Scenario:
    """The parameters of a simulation.

    Args:
        clients: the number of clients, each with its own journal and retry budget.
        rate: the arrival rate of the whole fleet, in orders per second.
        schedule: the phases of the service.
        budget: the retry budget of each client.
        retry_pauses: the seconds before the caller repeats a call, the first time and later.
        recovery_window: how long to wait for the recovery, in multiples of the slow and outage phases.
        seed: seeds all randomness.
    """

    clients: int
    rate: float
    schedule: OutageSchedule
    budget: RetryBudget = field(factory=RetryBudget)
    retry_pauses: tuple[float, float] = (30.0, 60.0)
    recovery_window: float = 1.5
    seed: int = 0

    @property
    def recovery_timeout(self) -> float:
        """How long to wait for the recovery after the end of the outage, in seconds."""
        return self.recovery_window * (self.schedule.slow + self.schedule.outage)


@frozen(kw_only=True)
class OutageResult:
    """The result of a simulation.

    Args:
        scenario: the parameters of the simulation.
        calls: the number of ``create_order`` calls during the outage.
        requests: the number of requests during the outage.
        per_minute: the numbers of calls and requests in each minute.
        backlog: the backlog at the end of the outage.
        backlog_over_time: samples of the backlog: (minute, number of orders).
        recovered_after: the recovery time in seconds, from the end of the outage; None if the fleet did not
            recover.
        other_load: the load during the recovery that does not reduce the backlog, in orders per second: new
            orders, and the rejection of the first request of each call. Without a recovery, only new orders.
        doubts: the number of orders in doubt.
    """

    scenario: Scenario
    calls: int
    requests: int
    per_minute: tuple[tuple[int, int], ...]
    backlog: int
    backlog_over_time: tuple[tuple[float, int], ...]
    recovered_after: float | None
    other_load: float
    doubts: int

    @property
    def amplification(self) -> float:
        """The amplification factor during the outage."""
        return self.requests / self.calls if self.calls else 0.0

    @property
    def amplification_per_minute(self) -> list[float]:
        """The amplification factor of each minute."""
        return [requests / calls if calls else 0.0 for calls, requests in self.per_minute]

    @property
    def calls_per_client(self) -> float:
        """The average number of calls per client during the outage."""
        return self.calls / self.scenario.clients

    @property
    def goals_met(self) -> tuple[bool, bool]:
        """Whether the goals for the amplification factor and for the recovery time are met."""
        in_time = self.recovered_after is not None and self.recovered_after <= self.expected_recovery
        return self.amplification <= MAX_AMPLIFICATION, in_time

    @property
    def expected_recovery(self) -> float:
        """The expected recovery time in seconds: the backlog divided by the spare capacity."""
        return self.backlog / (self.scenario.schedule.capacity - self.other_load)


class _Client(TransferClient):
    """A client with a simulated transport."""

    def __init__(self, transport: OutageTransport, **settings: Any) -> None:
        self._simulated_transport = transport
        super().__init__("https://service.example", "made-up", **settings)

    def _transport_to(self, *_: Any, **__: Any) -> Any:
        return self._simulated_transport


class Fleet:
    """Runs a simulation.

    Args:
        scenario: the parameters of the simulation.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._schedule = scenario, scenario.schedule
        self._loop = Loop()
        self._service = SimulatedService(scenario.schedule, self._loop)
        self._rng = random.Random(f"fleet:{scenario.seed}")
        (self._order,) = new_orders(1)
        self._missing: set[int] = set()  # orders that have been requested but do not exist
        self._backlog = self._calls_in_outage = self._doubts = 0
        self._new_orders = self._rejected_calls = 0  # between the end of the outage and the recovery
        self._calls: Counter[int] = Counter()
        self._backlog_over_time: list[tuple[float, int]] = []
        self._recovered_at: float | None = None

    def run(self) -> OutageResult:
        """Run the simulation and return its result."""
        self._clients = list(self._create_clients())
        self._loop.create_task(self._generate_orders())
        self._loop.create_task(self._sample_backlog())
        self._loop.call_at(1000.0 + self._schedule.outage_end, self._record_backlog)
        self._loop.run_until_idle()
        recovered_at, minutes = self._recovered_at, range(int(self._backlog_over_time[-1][0]))
        after = None if recovered_at is None else recovered_at - self._schedule.outage_end
        return OutageResult(
            scenario=self._scenario,
            calls=self._calls_in_outage,
            requests=self._service.requests_in_outage,
            per_minute=tuple((self._calls[minute], self._service.requests[minute]) for minute in minutes),
            backlog=self._backlog,
            backlog_over_time=tuple(self._backlog_over_time),
            recovered_after=after,
            other_load=self._other_load(after),
            doubts=self._doubts,
        )

    def _create_clients(self) -> Iterator[TransferClient]:
        loop, reply = self._loop, response_template(self._order)
        clock = Clock(
            now=loop.time,
            utc=lambda: _NOON + timedelta(seconds=loop.time()),
            sleep=asyncio.sleep,
            chance=self._rng.random,
        )
        policy = RetryPolicy(budget=self._scenario.budget)
        for _ in range(self._scenario.clients):
            yield _Client(OutageTransport(self._service, reply), retry=policy, clock=clock)

    async def _generate_orders(self) -> None:
        for number, moment in enumerate(poisson(self._scenario.rate, seed=self._scenario.seed)):
            await asyncio.sleep(moment - self._service.now())
            if self._is_finished():
                return
            self._missing.add(number)
            self._new_orders += self._is_recovering()
            self._loop.create_task(self._request_until_created(number, self._rng.choice(self._clients)))

    async def _request_until_created(self, number: int, client: TransferClient) -> None:
        """Call ``create_order`` until the order exists."""
        pause, next_pause = self._scenario.retry_pauses
        while not await self._call(number, client):
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            if self._is_finished():
                return
            pause = next_pause
        self._missing.discard(number)
        if (
            self._backlog
            and self._recovered_at is None
            and len(self._missing) <= self._backlog * RECOVERED_FRACTION
        ):
            self._recovered_at = self._service.now()

    async def _call(self, number: int, client: TransferClient) -> bool:
        """Call ``create_order`` once. Return False after a definite failure."""
        now = self._service.now()
        self._calls[int(now // 60)] += 1
        self._calls_in_outage += self._schedule.outage_start <= now < self._schedule.outage_end
        try:
            await client.create_order(self._order, key=f"order-{number}", held="made-up")
        except TransferError as error:
            if error.outcome is not Outcome.UNKNOWN:
                self._rejected_calls += self._is_recovering()
                return False
            self._doubts += 1
        return True

    async def _sample_backlog(self) -> None:
        while not self._is_finished():
            self._backlog_over_time.append((self._service.now() / 60, len(self._missing)))
            await asyncio.sleep(SAMPLE_INTERVAL)
        self._backlog_over_time.append((self._service.now() / 60, len(self._missing)))

    def _is_recovering(self) -> bool:
        return self._recovered_at is None and self._service.now() >= self._schedule.outage_end

    def _other_load(self, after: float | None) -> float:
        if not after:
            return self._scenario.rate
        cost = self._schedule.rejection_cost if self._schedule.failure == "429" else 0.0
        return (self._new_orders + cost * self._rejected_calls) / after

    def _record_backlog(self) -> None:
        self._backlog = len(self._missing)

    def _is_finished(self) -> bool:
        """Return whether the fleet recovered a minute ago, or did not recover in time."""
        now, recovered_at = self._service.now(), self._recovered_at
        if recovered_at is not None:
            return now >= recovered_at + 60.0
        return now >= self._schedule.outage_end + self._scenario.recovery_timeout
