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

    def run_until_idle(self) -> None:
        """Run until nothing is left to do."""
        while not self.run():
            pass


@frozen(kw_only=True)
class OutageSchedule:
    """What happens to the service, and when; all in seconds.

    Args:
        capacity: orders a second that it can create when it is well.
        healthy: for so long at first.
        slow: then for so long at ``slow_capacity`` of its capacity.
        slow_capacity: see ``slow``.
        outage: then for so long it takes no order at all; after that it is well again.
        failure: how it turns orders away, then and whenever its queue is full.
        queue: of how many seconds' work; what comes on top is turned away.
        rejection_cost: what it costs to answer 429, in orders; to refuse a connection costs nothing.
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
        """When the full outage begins."""
        return self.healthy + self.slow

    @property
    def outage_end(self) -> float:
        """When it is over."""
        return self.outage_start + self.outage

    def capacity_at(self, now: float) -> float:
        """Orders a second; 0 while it is out."""
        if self.outage_start <= now < self.outage_end:
            return 0.0
        return self.capacity * (self.slow_capacity if self.healthy <= now < self.outage_start else 1.0)


@define
class SimulatedService:
    """Takes orders, one after the other, or turns them away.

    Args:
        schedule: what happens to it.
        loop: its time, which began at 1000.
        requests: that reached it or tried to, by minute.
    """

    schedule: OutageSchedule
    loop: Loop
    requests: Counter[int] = field(factory=Counter)
    requests_in_outage: int = 0
    _free_at: float = 0.0
    _ids: Any = field(factory=itertools.count)

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.loop.time() - 1000.0

    def admit(self) -> float | None:
        """Take one request: the seconds until its order exists, or None if it is turned away."""
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
            # Also to say no is work; but what it cannot even say no to is dropped before it costs anything.
            self._free_at = min(start + schedule.rejection_cost / capacity, now + 2.0 * schedule.queue)
        return None

    def respond(self, order: bytes) -> bytes:
        """Give the answer that an order exists; ``order`` is `response_template` what was sent."""
        return order.replace(b"HERE", b"tx-%d" % next(self._ids))


def response_template(order: NewOrder) -> bytes:
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


class _FakeWriter:
    """What aiohttp would write to."""

    protocol = None

    @property
    def transport(self) -> _FakeWriter:
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
"""Every retry that the policy allows is paid for."""

MAX_AMPLIFICATION = 1.1
"""Requests for each order wanted, at most, over a full outage."""

RECOVERED_FRACTION = 0.1
"""The part of the backlog that is left when the fleet has recovered."""

SAMPLE_INTERVAL = 5.0
"""Seconds between two counts of what is waited for."""

_NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@frozen(kw_only=True)
class Scenario:
    """One simulation.

    Args:
        clients: how many, each with its own journal and its own budget.
        rate: orders a second of the whole fleet.
        schedule: of the service.
        budget: of each client.
        retry_pauses: seconds before an order is brought again, the first time and from then on.
        recovery_window: how long a recovery is waited for, in lengths of the outage.
        seed: of everything.
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
        """Seconds after the outage's end for which a recovery is waited for."""
        return self.recovery_window * (self.schedule.slow + self.schedule.outage)


@frozen(kw_only=True)
class OutageResult:
    """What one simulation found.

    Args:
        scenario: which it was.
        calls: of ``create_order`` during the full outage.
        requests: that were sent meanwhile.
        per_minute: calls and requests of each minute from the beginning.
        backlog: orders wanted before the outage's end that did not exist at that moment.
        backlog_over_time: minutes, and how many orders were wanted and did not exist then.
        recovered_after: seconds from the outage's end until a tenth of it was left; None if never.
        other_load: of the service from the outage's end until then, in orders a second: new orders, and
            turning away the first request of each call. Where it never was, the new orders alone.
        doubts: orders in doubt.
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
        """Requests for each order wanted, over the whole of the full outage."""
        return self.requests / self.calls if self.calls else 0.0

    @property
    def amplification_per_minute(self) -> list[float]:
        """The same of each minute from the beginning."""
        return [requests / calls if calls else 0.0 for calls, requests in self.per_minute]

    @property
    def calls_per_client(self) -> float:
        """How many calls each client made during the full outage."""
        return self.calls / self.scenario.clients

    @property
    def goals_met(self) -> tuple[bool, bool]:
        """Whether the goals are met: for amplification, and for recovery."""
        in_time = self.recovered_after is not None and self.recovered_after <= self.expected_recovery
        return self.amplification <= MAX_AMPLIFICATION, in_time

    @property
    def expected_recovery(self) -> float:
        """Seconds that the backlog needs: it, divided by the service's spare capacity."""
        return self.backlog / (self.scenario.schedule.capacity - self.other_load)


class _Client(TransferClient):
    """A client of the simulated service."""

    def __init__(self, transport: OutageTransport, **settings: Any) -> None:
        self._simulated_transport = transport
        super().__init__("https://service.example", "made-up", **settings)

    def _transport_to(self, *_: Any, **__: Any) -> Any:
        return self._simulated_transport


class Fleet:
    """The simulation while it runs.

    Args:
        scenario: decides everything.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._schedule = scenario, scenario.schedule
        self._loop = Loop()
        self._service = SimulatedService(scenario.schedule, self._loop)
        self._rng = random.Random(f"fleet:{scenario.seed}")
        (self._order,) = new_orders(1)
        self._missing: set[int] = set()  # and not there yet
        self._backlog = self._calls_in_outage = self._doubts = 0
        self._new_orders = self._rejected_calls = 0  # between the outage's end and the recovery
        self._calls: Counter[int] = Counter()
        self._backlog_over_time: list[tuple[float, int]] = []
        self._recovered_at: float | None = None

    def run(self) -> OutageResult:
        """Run it to its end, in no time."""
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
        """Bring one order, until it exists."""
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
        """Call once; false after a certain no."""
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
        """Whether all that is to be seen was seen: the recovery and a minute more, or its failing."""
        now, recovered_at = self._service.now(), self._recovered_at
        if recovered_at is not None:
            return now >= recovered_at + 60.0
        return now >= self._schedule.outage_end + self._scenario.recovery_timeout
