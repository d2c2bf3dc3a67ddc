"""Orders at a client's rate: they wait while nothing is held, and are refused at once if that is too long."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests._http.test_rate import stretch_over
from tests.support.bank import NOON, Gate, World, failure, new_order, turns
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
    """When each request began, by the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.times: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            self.times.append(self._world.time.seconds - 1000.0)


# --- before the hold ----------------------------------------------------------------------------


async def test_orders_wait_for_their_turn_while_nothing_is_held(world: World):
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
async def test_an_order_whose_turn_comes_too_late_is_refused_at_once_and_holds_nothing(
    world: World, limit: str
):
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        moment: Any = {limit: NOON + timedelta(seconds=10)}
        expired = await failure(client.create_order(new_order(), key="k", **moment), Expired)

        assert (expired.limit, expired.order_may_exist) == (limit, False)
        assert str(expired).startswith("the rate limit would delay the order by 10 s, and ")
        assert world.time.slept == []
        assert len(world.bank.placed) == 1
        assert (await world.entry()).state is KeyState.FREE

        moment = {limit: NOON + timedelta(seconds=10.1)}  # nobody has waited in its place
        await client.create_order(new_order(), key="k", **moment)


async def test_an_order_that_might_have_been_in_time_ends_with_its_deadline(
    world: World, loop_time: LoopTime
):
    gate = Gate()
    world.time.on_sleep = gate
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        deadline = NOON + timedelta(seconds=11)
        call = await gate.catches(failure(client.create_order(new_order(), key="k", deadline=deadline)))
        world.time.pass_(11.0)  # the loop is late
        await loop_time.pass_(11.0)

        assert type(await call) is Expired
    assert len(world.bank.placed) == 1


async def test_a_created_key_gives_its_order_back_without_a_turn(world: World):
    async with world.client(rate=ONE_IN_TEN) as client:
        order = await client.create_order(new_order(), key="a")
        assert await client.create_order(new_order(), key="a") == order
        assert client._context.rate_limiter is not None
        assert client._context.rate_limiter.before_hooks.ahead == 10.0

    assert world.time.slept == []


async def test_a_hook_that_refuses_gives_its_turn_to_the_next(world: World):
    world.bank.place_error = HoldFailed()
    async with world.client(rate=ONE_IN_TEN) as client:
        for key in "abc":
            await failure(client.create_order(new_order(), key=key))
        world.bank.place_error = None
        await client.create_order(new_order(), key="d")

    assert world.time.slept == []


async def test_whoever_is_cancelled_in_the_line_gives_the_place_back_and_frees_the_key(world: World):
    gate = Gate()
    world.time.on_sleep = gate
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        calls = [asyncio.create_task(client.create_order(new_order(), key=key)) for key in "kl"]
        await gate.reached.wait()
        calls[0].cancel()
        with suppress(asyncio.CancelledError):
            await calls[0]
        assert (await world.entry("k")).state is KeyState.FREE
        gate.open()
        await calls[1]

    assert world.bank.placed == [*world.bank.open]
    assert len(world.bank.placed) == 2
    assert world.time.seconds == 1010.0


async def test_a_client_that_closes_ends_who_is_in_the_line_with_nothing_held(world: World):
    gate = Gate()
    world.time.on_sleep = gate
    client = world.made(rate=ONE_IN_TEN)
    await client.create_order(new_order(), key="a")
    call = await gate.catches(failure(client.create_order(new_order(), key="k")))
    await client.close(timeout=0.0)

    closed = await call
    assert type(closed) is ClientClosed
    assert not closed.order_may_exist
    assert len(world.bank.placed) == 1


async def test_the_claim_of_whoever_waits_is_kept(world: World, loop_time: LoopTime):
    gate = Gate()
    world.time.on_sleep = gate
    async with world.client(rate=ONE_IN_TEN) as client:
        await client.create_order(new_order(), key="a")
        call = await gate.catches(client.create_order(new_order(), key="k"))
        await loop_time.pass_(20.0)
        await turns(5)
        assert world.journal.kinds[-1] == "RenewLease"
        gate.open()
        await call


# --- before each request ------------------------------------------------------------------------


async def test_hooks_that_are_done_all_at_once_do_not_make_a_crowd_of_requests(world: World):
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


async def test_a_further_attempt_takes_a_turn_like_any_request(world: World):
    world.sandbox.faults.add(BUSY)
    sent = Sent(world)
    async with world.client(rate=ONE_IN_TEN, observers=[sent, world.events.append]) as client:
        await client.create_order(new_order(), key="a")
        await client.create_order(new_order(), key="b")

    assert sent.times == [0.0, 10.0, 20.0]
    assert world.time.slept == [2.0, 8.0, 10.0]
    assert [event.pause for event in world.events_of(RetryScheduled)] == [2.0]
    assert [event.waited for event in world.events_of(RateLimitWaited)] == [8.0, 10.0]


async def test_an_attempt_whose_turn_comes_too_late_is_not_made_and_the_no_is_raised(world: World):
    world.sandbox.faults.add(BUSY)
    async with world.client(rate=ONE_IN_TEN) as client:
        deadline = NOON + timedelta(seconds=9)
        limited = await failure(client.create_order(new_order(), key="k", deadline=deadline), RateLimited)

    assert not limited.order_may_exist
    assert world.time.slept == []
    assert not world.bank.open


async def test_an_attempt_whose_turn_is_lost_in_the_pause_is_not_made_and_the_no_is_raised(world: World):
    world.sandbox.faults.add(BUSY)
    async with world.client(rate=ONE_IN_TEN) as client:
        rate_limiter = client._context.rate_limiter
        assert rate_limiter is not None

        async def others_come() -> None:
            for _ in range(3):
                rate_limiter.before_request.take_slot()

        world.time.on_sleep = others_come
        limited = await failure(client.create_order(new_order(), key="k"), RateLimited)
        ahead = rate_limiter.before_hooks.ahead

    assert [attempt.outcome for attempt in limited.attempts] == [Outcome.REFUSED]
    assert len(world.time.slept) == 1
    assert ahead == 8.0  # as if it had not been asked for


async def test_whoever_is_cancelled_before_a_further_attempt_ends_in_the_last_no(world: World):
    gate = Gate()
    world.sandbox.faults.add(BUSY)
    async with world.client(rate=ONE_IN_TEN) as client:

        async def once_in_the_line() -> None:
            if len(world.time.slept) == 2:
                await gate()

        world.time.on_sleep = once_in_the_line
        call = await gate.catches(client.create_order(new_order(), key="k"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await world.ended()

    assert len(world.sandbox.requests) == 1
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.trial(short=100, ci=1_000, long=10_000)
async def test_however_many_orders_no_stretch_of_time_has_more_requests_than_the_rate(
    world: World, size: int
):
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
