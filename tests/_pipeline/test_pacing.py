"""Orders under a rate limit wait before the hold, or are refused at once if the wait would be too long."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests._http.test_rate import stretch_over
from tests.support.bank import NOON, Gate, World, failure, new_order, owed_hooks, turns
from tests.support.loop_time import LoopTime
from transfer_async import (
    AttemptStarted,
    ClientClosed,
    Event,
    Expired,
    HoldFailed,
    KeyState,
    OrderRequest,
    Outcome,
    Rate,
    RateLimited,
    RateLimitWaited,
    RetryBudget,
    RetryPolicy,
    RetryScheduled,
)
from transfer_async._models.requests import OrderIntent
from transfer_async.sandbox import Status

BUSY = Status(429, headers={"Retry-After": "2"})
ONE_IN_TEN = Rate(0.1)


class Sent:
    """Records the start time of each request."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.times: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            self.times.append(self._world.time.seconds - 1000.0)


# --- before the hold ----------------------------------------------------------------------------


async def test_orders_wait_in_the_rate_limiter_before_anything_is_held(world: World):
    held_meanwhile = []

    async def look() -> None:
        held_meanwhile.append((len(world.bank.placed), (await world.entry("b")).state))

    world.time.on_sleep = look
    sent = Sent(world)
    async with world.client(rate=ONE_IN_TEN, observers=[sent, world.events.append]) as client:
        for key in "ab":
            await client.create_order(new_order(), key=key)

    assert sent.times == [0.0, 10.0]
    assert world.time.slept == [10.0]
    assert held_meanwhile == [(1, KeyState.CLAIMED)]
    assert [(event.key, event.waited) for event in world.events_of(RateLimitWaited)] == [("b", 10.0)]


@pytest.mark.parametrize("limit", ["deadline", "send_before"])
async def test_an_order_that_would_wait_too_long_is_refused_before_the_hold(world: World, limit: str):
    async with world.client(rate=Rate(2.0)) as client:
        await client.create_order(new_order(), key="a")
        moment: Any = {limit: NOON + timedelta(seconds=0.5)}
        expired = await failure(client.create_order(new_order(), key="k", **moment), Expired)

        assert (expired.limit, expired.order_may_exist) == (limit, False)
        assert str(expired).startswith("the rate limit would delay the order by 0.5 s, beyond ")
        assert world.time.slept == []
        assert len(world.bank.placed) == 1
        assert (await world.entry()).state is KeyState.FREE

        moment = {limit: NOON + timedelta(seconds=0.6)}  # no other call took the slot of the failed call
        await client.create_order(new_order(), key="k", **moment)


async def test_an_order_that_runs_out_of_time_in_the_queue_ends_at_its_deadline(
    world: World, loop_time: LoopTime
):
    gate = world.time.on_sleep = Gate()
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        call = client.create_order(new_order(), key="k", deadline=NOON + timedelta(seconds=11))
        waiting = await gate.catches(call)
        world.time.pass_(11.0)  # the loop runs late
        await loop_time.pass_(11.0)
        await failure(waiting, Expired)

    assert len(world.bank.placed) == 1


async def test_a_pending_undo_of_the_key_does_not_wait_for_the_rate(world: World):
    """The earlier hold is released at once, even while the new order waits before it places its own."""
    await world.owing()
    (old,) = world.bank.open
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="first")
        await failure(
            client.create_order(new_order(), key="k", deadline=NOON + timedelta(seconds=5)), Expired
        )

    assert [intent_id for intent_id, _ in world.bank.released] == [old]
    assert world.bank.placed.count(old) == 1
    assert not (await world.entry()).pending_undos


async def test_an_undo_that_cancels_itself_does_not_end_a_call_with_a_rate(world: World):
    await world.owing()
    world.bank.release_error = asyncio.CancelledError()
    order = await world.create(rate=ONE_IN_TEN)

    assert order.id in world.sandbox.orders
    assert owed_hooks(await world.entry()) == ["funds_hold"]


async def test_a_created_key_returns_its_order_without_using_the_rate(world: World):
    async with world.client(rate=ONE_IN_TEN) as client:
        order = await client.create_order(new_order(), key="a")
        assert await client.create_order(new_order(), key="a") == order
        assert client._context.rate_limiter is not None
        assert client._context.rate_limiter.before_hooks.ahead == 10.0

    assert world.time.slept == []


async def test_a_refusing_hook_gives_its_slot_to_the_next_order(world: World):
    world.bank.place_error = HoldFailed()
    async with world.client(rate=ONE_IN_TEN) as client:
        for key in "abc":
            await failure(client.create_order(new_order(), key=key))
        world.bank.place_error = None
        await client.create_order(new_order(), key="d")

    assert world.time.slept == []


async def test_an_order_cancelled_in_the_queue_gives_up_its_slot_and_frees_the_key(world: World):
    gate = world.time.on_sleep = Gate()
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        calls = [asyncio.create_task(client.create_order(new_order(), key=key)) for key in "kl"]
        await gate.reached.wait()
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        freed = (await world.entry("k")).state
        gate.open()
        await calls[1]

    assert freed is KeyState.FREE
    assert world.bank.placed == [*world.bank.open]
    assert len(world.bank.placed) == 2
    assert world.time.seconds == 1010.0


async def test_closing_the_client_ends_queued_orders_before_the_hold(world: World):
    gate = world.time.on_sleep = Gate()
    client = world.made(rate=ONE_IN_TEN)
    await client.create_order(new_order(), key="a")
    call = await gate.catches(client.create_order(new_order(), key="k"))
    await client.close(timeout=0.0)

    assert not (await failure(call, ClientClosed)).order_may_exist
    assert len(world.bank.placed) == 1


async def test_the_claim_of_a_queued_order_is_renewed(world: World, loop_time: LoopTime):
    gate = world.time.on_sleep = Gate()
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        call = await gate.catches(client.create_order(new_order(), key="k"))
        await loop_time.pass_(20.0)
        await turns(5)
        assert world.journal.kinds[-1] == "RenewLease"
        gate.open()
        await call


# --- before each request ------------------------------------------------------------------------


async def test_hooks_that_finish_together_do_not_cause_a_burst_of_requests(world: World):
    gate, came = Gate(), []

    async def slow(intent: OrderIntent) -> None:
        came.append(intent.key)
        await gate()

    world.bank.on_place = slow
    sent = Sent(world)
    async with world.client(rate=Rate(1.0), observers=[sent]) as client:
        calls = [asyncio.create_task(client.create_order(new_order(), key=key)) for key in "abc"]
        while len(came) < 3:  # noqa: ASYNC110 - each in its turn, a second after the other
            await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(*calls)

    assert sent.times == [2.0, 3.0, 4.0]


async def test_a_retry_counts_against_the_rate(world: World):
    world.sandbox.faults.add(BUSY)
    sent = Sent(world)
    async with world.client(rate=ONE_IN_TEN, observers=[sent, world.events.append]) as client:
        await client.create_order(new_order(), key="a")
        await client.create_order(new_order(), key="b")

    assert sent.times == [0.0, 10.0, 20.0]
    assert world.time.slept == [2.0, 8.0, 10.0]
    assert [event.pause for event in world.events_of(RetryScheduled)] == [2.0]
    assert [event.waited for event in world.events_of(RateLimitWaited)] == [8.0, 10.0]


async def test_a_retry_that_would_queue_too_long_raises_the_last_failure(world: World):
    world.sandbox.faults.add(BUSY)
    async with world.client(rate=ONE_IN_TEN) as client:
        deadline = NOON + timedelta(seconds=9)
        limited = await failure(client.create_order(new_order(), key="k", deadline=deadline), RateLimited)

    assert not limited.order_may_exist
    assert world.time.slept == []
    assert not world.bank.open


async def test_a_retry_whose_slot_is_lost_in_the_pause_raises_the_last_failure(world: World):
    world.sandbox.faults.add(BUSY)
    async with world.client(rate=ONE_IN_TEN) as client:
        rate_limiter = client._context.rate_limiter
        assert rate_limiter is not None

        async def others_come() -> None:
            world.time.on_sleep = None  # others that came in every pause would keep a faulty wait from ending
            for _ in range(3):
                rate_limiter.before_request.take_slot()

        world.time.on_sleep = others_come
        limited = await failure(client.create_order(new_order(), key="k"), RateLimited)
        ahead = rate_limiter.before_hooks.ahead

    assert [attempt.outcome for attempt in limited.attempts] == [Outcome.REFUSED]
    assert len(world.time.slept) == 1
    assert ahead == 8.0  # as if the last request had never been queued


async def test_a_call_cancelled_before_a_retry_records_the_last_failure(world: World):
    gate = Gate()
    world.sandbox.faults.add(BUSY)

    async def once_in_the_line() -> None:
        if len(world.time.slept) == 2:
            await gate()

    world.time.on_sleep = once_in_the_line
    async with world.client(rate=ONE_IN_TEN) as client:
        call = await gate.catches(client.create_order(new_order(), key="k"))
        call.cancel()
        await asyncio.wait([call])
        await world.ended()

    assert call.cancelled()
    assert len(world.sandbox.requests) == 1
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.trial(short=100, ci=1_000, long=10_000)
async def test_no_period_has_more_requests_than_the_rate_allows(world: World, size: int):
    rate, sent, busy = Rate(50.0, burst=10), Sent(world), min(50, size // 20)
    world.sandbox.faults.add(Status(429), times=busy)
    retry = RetryPolicy(attempts=9, budget=RetryBudget(throttle_cost=0))
    async with world.client(rate=rate, retry=retry, observers=[sent]) as client:
        requests = (OrderRequest(new_order(), key=f"k{number}", held="ours") for number in range(size))
        results = [result async for result in client.create_orders(requests, concurrency=64)]

    assert len(results) == size
    assert len(sent.times) == size + busy
    assert len(world.sandbox.orders) == size
    assert stretch_over(rate, sent.times) < 1e-6
    assert world.time.seconds - 1000.0 == pytest.approx((len(sent.times) - 10) / 50.0, rel=0.1)
