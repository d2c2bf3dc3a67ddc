"""The first signal stops the run; the second interrupts the orders in flight."""

import asyncio
import os
import signal

import pytest

from transfer_async._cli.process import Stopping


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_stops_and_the_second_cuts_off(number, code):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopping = Stopping()
    with stopping.by_signals():
        os.kill(os.getpid(), number)
        await stopping.asked.wait()
        first = stopping.cut.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.cut.wait()

    assert (first, stopping.exit_code) == (False, code)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_no_signals_are_handled_in_another_thread():
    before = signal.getsignal(signal.SIGTERM)

    async def inside() -> bool:
        with Stopping().by_signals():
            return signal.getsignal(signal.SIGTERM) is before

    assert await asyncio.to_thread(asyncio.run, inside())


async def test_work_returns_its_result_or_raises_its_error_unless_a_signal_cancels_it():
    ended = []

    async def work(error: type[Exception] | None = None) -> int:
        if error is not None:
            raise error
        return 7

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    stopping = Stopping()
    assert await stopping.unless_asked(work()) == 7
    with pytest.raises(LookupError):
        await stopping.unless_asked(work(LookupError))
    assert stopping.exit_code is None
    asyncio.get_running_loop().call_soon(stopping.ask, signal.SIGINT)
    assert await stopping.unless_asked(endless()) is None
    assert ended == [True]
