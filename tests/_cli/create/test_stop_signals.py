"""The first signal stops the run; the second interrupts the orders in flight."""

import asyncio
import os
import signal

import pytest

from transfer_async._cli.process import Stopping


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_stops_and_the_second_cuts_off(number, code):
    stopping = Stopping()
    with stopping.by_signals():
        os.kill(os.getpid(), number)
        await stopping.asked.wait()
        first = stopping.cut.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.cut.wait()

    assert not first
    assert stopping.exit_code == code


async def test_signal_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stopping().by_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_no_signals_are_handled_in_another_thread():
    before = signal.getsignal(signal.SIGTERM)

    async def inside() -> bool:
        with Stopping().by_signals():
            return signal.getsignal(signal.SIGTERM) is before

    assert await asyncio.to_thread(asyncio.run, inside())


async def test_work_without_a_signal_returns_its_result():
    async def seven() -> int:
        return 7

    async def broken() -> int:
        raise LookupError

    stopping = Stopping()
    assert await stopping.unless_asked(seven()) == 7
    with pytest.raises(LookupError):
        await stopping.unless_asked(broken())
    assert stopping.exit_code is None


async def test_a_signal_cancels_the_work():
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    stopping = Stopping()
    asyncio.get_running_loop().call_soon(stopping.ask, signal.SIGINT)

    assert await stopping.unless_asked(endless()) is None
    assert ended == [True]
