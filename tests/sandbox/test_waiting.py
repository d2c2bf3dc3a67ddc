import asyncio

import pytest

from transfer_async.sandbox.faults import Waiting


async def test_a_waiter_returns_when_its_condition_is_true():
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


async def test_a_cancelled_waiter_is_removed():
    waiting = Waiting()
    for end in (waiting.changed, waiting.close):
        waiter = asyncio.create_task(waiting.until(lambda: False))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        end()

        assert waiter.cancelled()


async def test_closing_fails_present_and_later_waiters():
    waiting = Waiting()
    waiter = asyncio.create_task(waiting.until(lambda: False))
    await asyncio.sleep(0)
    waiting.close()

    with pytest.raises(RuntimeError, match="closed before the awaited event"):
        await waiter
    with pytest.raises(RuntimeError, match="is closed"):
        await waiting.until(lambda: False)
