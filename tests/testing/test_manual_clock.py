"""`ManualClock`, a clock that a test controls."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from transfer_async import NO_ORDER, KeyBusy, OutcomeUnknown, Refuted, SQLiteJournal
from transfer_async.sandbox import CloseBeforeReading, Status
from transfer_async.testing import FakeClient, ManualClock, assert_hold_released, make_new_order


async def test_advancing_the_clock_ends_a_dead_workers_lease(holds, hands, tmp_path):
    entered = asyncio.Event()

    async def die(intent):
        entered.set()
        await asyncio.Event().wait()

    async with SQLiteJournal(tmp_path / "journal", clock=hands) as journal:
        one = FakeClient(hooks=[die, holds.hook], journal=journal, clock=hands)
        other = FakeClient(hooks=[holds.hook], journal=journal, clock=hands)
        dead = asyncio.create_task(one.create_order(make_new_order(), key="k"))
        await entered.wait()
        with pytest.raises(KeyBusy):
            await other.create_order(make_new_order(), key="k")
        hands.advance(61)
        order = await other.create_order(make_new_order(), key="k")
        dead.cancel()
        await asyncio.wait([dead])
        await one.close()
        await other.close()

    assert order.id in other.sandbox.orders


async def test_advancing_the_clock_passes_settle_after(holds, hands):
    async def none_of_it(intent, doubt):
        return NO_ORDER

    async with FakeClient(hooks=[holds.hook], clock=hands, resolve=none_of_it) as client:
        client.sandbox.faults.add(CloseBeforeReading())
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.create_order(make_new_order(), key="k")
        hands.advance(timedelta(minutes=6))
        with pytest.raises(Refuted):
            await client.create_order(make_new_order(), key="k")

        await assert_hold_released("k", client=client, held=holds.held)


async def test_a_retry_pause_advances_a_manual_clock_immediately(holds, hands):
    async with FakeClient(hooks=[holds.hook], clock=hands) as client:
        client.sandbox.faults.add(Status(429, headers={"Retry-After": "7"}))
        before = hands.now()
        await client.create_order(make_new_order())

    assert hands.now() - before >= 7.0


def test_a_manual_clock_starts_at_the_given_time_and_never_goes_back():
    clock = ManualClock(datetime(2030, 1, 2, tzinfo=UTC))
    clock.advance(90)

    assert clock.utc() == datetime(2030, 1, 2, 0, 1, 30, tzinfo=UTC)
    assert clock.chance() == 0.5
    with pytest.raises(ValueError, match="by: must be 0 seconds or more"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="start: must be an aware datetime"):
        ManualClock(datetime(2030, 1, 2))  # noqa: DTZ001 - it is what is refused
