import asyncio

import pytest

from transfer_async.sandbox.faults import Waiting


async def test_a_waiter_wakes_when_its_own_condition_is_true():
    waiting, seen = Waiting(), 0
    first = asyncio.create_task(waiting.until(lambda: seen >= 1))
    second = asyncio.create_task(waiting.until(lambda: seen >= 2))
    await asyncio.sleep(0)
    seen = 1
    waiting.changed()
    await first
    done_early = second.done()
    seen = 2
    waiting.changed()
    await second

    assert not done_early


async def test_a_waiter_that_was_cancelled_is_forgotten():
    waiting = Waiting()
    for end in (waiting.changed, waiting.close):
        waiter = asyncio.create_task(waiting.until(lambda: False))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        end()

        assert waiter.cancelled()


async def test_closing_fails_those_who_wait_and_those_who_come_later():
    waiting = Waiting()
    waiter = asyncio.create_task(waiting.until(lambda: False))
    await asyncio.sleep(0)
    waiting.close()

    with pytest.raises(RuntimeError, match="closed before it happened"):
        await waiter
    with pytest.raises(RuntimeError, match="is closed"):
        await waiting.until(lambda: False)
