"""A sandbox in its own thread, used from any event loop or from synchronous code."""

import asyncio
import threading

import pytest

from transfer_async import TransferClient
from transfer_async.sandbox import StallBeforeProcessing
from transfer_async.testing import RunningSandbox, make_new_order


async def pay(sandbox, **arguments):
    async with TransferClient(sandbox.base_url, sandbox.token) as client:
        return await client.create_order(make_new_order(), key="k", held="our-own", **arguments)


async def test_another_thread_can_release_a_stalled_order(beside):
    beside.faults.add(StallBeforeProcessing())
    paying = asyncio.create_task(pay(beside))
    await beside.stalled()

    assert beside.faults.release() == 1
    assert (await paying).id in beside.orders
    await beside.finished()


def test_sync_code_can_wait_for_events_of_the_sandbox(beside):
    order = asyncio.run(pay(beside))

    beside.wait(beside.created())
    assert beside.wait(beside.match_now()) == [order.id]
    beside.wait(beside.matched(order.id))


async def test_closing_the_sandbox_fails_pending_waits():
    sandbox = await asyncio.to_thread(RunningSandbox().__enter__)
    waiting = asyncio.create_task(sandbox.received(1))
    while not sandbox._waiting._waiters:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0)
    await asyncio.to_thread(sandbox.__exit__)

    with pytest.raises(RuntimeError, match="the sandbox was closed before the awaited event"):
        await waiting


def test_closing_the_sandbox_ends_its_thread():
    with RunningSandbox():
        assert "sandbox" in {thread.name for thread in threading.enumerate()}

    assert "sandbox" not in {thread.name for thread in threading.enumerate()}


def test_using_a_stopped_sandbox_explains_how_to_start_it():
    sandbox = RunningSandbox()

    with pytest.raises(RuntimeError, match="use it as `with RunningSandbox"):
        sandbox.wait(sandbox.created())


def test_entering_a_sandbox_on_a_port_in_use_raises_os_error(beside):
    port = int(beside.base_url.rpartition(":")[2])

    with pytest.raises(OSError, match="address already in use"), RunningSandbox(port=port):
        pass
