"""`EagerStart` runs the first step of a coroutine at once, and the rest when it is awaited."""

import asyncio

import pytest

from transfer_async._pipeline.create_order import EagerStart


async def at_once() -> str:
    return "done"


def test_work_without_waiting_is_done_after_its_first_step():
    work = EagerStart(at_once())

    assert (work.done, work.result) == (True, "done")


def test_an_error_of_the_first_step_is_raised_at_once():
    async def breaks() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        EagerStart(breaks())


async def test_waiting_work_continues_where_it_stopped():
    event = asyncio.Event()

    async def waits() -> str:
        await event.wait()
        return "done"

    work = EagerStart(waits())
    before = work.done
    event.set()

    assert (before, await work) == (False, "done")


async def test_the_work_may_swallow_an_error_and_continue():
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
        return "continued"

    waiting = EagerStart(stubborn()).__await__()
    next(waiting)
    waiting.throw(TimeoutError())
    with pytest.raises(StopIteration) as end:
        waiting.send(None)

    assert end.value.value == "continued"


async def test_abandoned_work_is_closed():
    closed: list[bool] = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    waiting = EagerStart(tidy()).__await__()
    next(waiting)
    waiting.close()

    assert closed == [True]
