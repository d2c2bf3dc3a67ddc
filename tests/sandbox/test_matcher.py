import asyncio

import pytest

from transfer_async.sandbox import Sandbox

from .wire_client import connected, order_body


async def test_match_now_matches_processing_orders_in_the_order_of_creation(sandbox: Sandbox):
    async with connected(sandbox) as client:
        ids = [(await client.ask(order_body())).json["id"] for _ in range(3)]

    assert await sandbox.match_now() == ids
    assert await sandbox.match_now() == []
    assert all(order.is_matched for order in sandbox.orders.values())


async def test_the_matcher_bot_runs_at_its_interval():
    waits: list[float] = []
    tick = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await tick.acquire()

    async with Sandbox(match_every=42.0, sleep=sleep) as sandbox, connected(sandbox) as client:
        for _ in range(2):
            order_id = (await client.ask(order_body())).json["id"]
            early = sandbox.orders[order_id].is_matched
            tick.release()
            await sandbox.matched(order_id)

            assert not early
    assert set(waits) == {42.0}


async def test_a_waiter_may_wait_for_a_future_order(sandbox: Sandbox):
    order_id = "tx-41pjso2krv6sk1wj6936"  # the first of seed 0
    waiter = asyncio.create_task(sandbox.matched(order_id))
    async with connected(sandbox) as client:
        await client.ask(order_body())
    await sandbox.match_now()
    await waiter

    assert list(sandbox.orders) == [order_id]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_the_interval_of_the_matcher_bot_is_positive(seconds: float):
    with pytest.raises(ValueError, match="match_every must be greater than 0"):
        Sandbox(match_every=seconds)
