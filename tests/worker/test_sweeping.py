import asyncio

import pytest

from tests.support.bank import Gate, Time, new_order
from transfer_async import JournalFailed, OutcomeUnknown
from transfer_async._converters.messages import OrderCommand
from transfer_async._pipeline.recovery import Recovery
from transfer_async._support.clock import Clock
from transfer_async.sandbox import CloseAfterProcessing
from transfer_async.worker.consumer import Health, Sweeper
from transfer_async.worker.handler import Handler


class Desk:
    """A handler with doubts that have ended, and a publisher that records outcomes."""

    def __init__(self, client, **settings):
        self.client = client
        self.handler = Handler(client)
        self.published, self.gate = [], None
        self.headers = []
        self.sweeper = Sweeper(self.handler, self.publish, **settings)

    async def publish(self, outcome, headers):
        if self.gate is not None:
            await self.gate()
        self.published.append((outcome.key, outcome.outcome.value, outcome.order_id))
        self.headers.append(headers)

    async def ended_doubt(self, key):
        """Publish the outcome "unknown" of a command, then resolve its doubt as an operator."""
        handled = await self.handler.handle(OrderCommand(key=key, order=new_order()))
        assert isinstance(handled.result, OutcomeUnknown)
        await self.client.resolve(key, order_id=f"tx-{key}", by="ops", reason="seen")


@pytest.fixture
async def make(world):
    world.journal.durable = True
    world.sandbox.faults.add(CloseAfterProcessing(), times=5)
    async with world.client() as client:
        yield lambda **settings: Desk(client, **settings)


async def test_the_end_of_a_doubt_is_published_once(make):
    desk = make(inject=lambda: {"traceparent": "00"})
    await desk.ended_doubt("a")
    await desk.ended_doubt("b")

    report = await desk.sweeper.sweep()
    await desk.sweeper.sweep()

    assert desk.published == [("a", "created", "tx-a"), ("b", "created", "tx-b")]
    assert desk.headers == [{"traceparent": "00"}] * 2
    assert report.in_doubt == 0


async def test_an_outcome_that_cannot_be_published_blocks_no_other_and_is_published_in_the_next_sweep(make):
    desk = make()
    await desk.ended_doubt("a")
    await desk.ended_doubt("b")
    errors = [OSError()]

    async def once():
        if errors:
            raise errors.pop()

    desk.gate = once
    with pytest.raises(OSError):
        await desk.sweeper.sweep()

    assert desk.published == [("b", "created", "tx-b")]
    await desk.sweeper.sweep()
    assert desk.published[1:] == [("a", "created", "tx-a")]


async def test_a_failed_recovery_does_not_keep_outcomes_from_being_published(make, monkeypatch):
    async def broken(_):
        raise JournalFailed

    desk = make()
    await desk.ended_doubt("a")
    monkeypatch.setattr(Recovery, "run", broken)
    with pytest.raises(JournalFailed):
        await desk.sweeper.sweep()

    assert desk.published == [("a", "created", "tx-a")]


async def test_a_cancelled_sweep_ends_even_if_the_pending_outcomes_cannot_be_read(make, monkeypatch):
    begun = asyncio.Event()

    async def forever(_):
        begun.set()
        await asyncio.Event().wait()

    async def fails():
        raise JournalFailed
        yield

    desk = make(every=0.01)
    desk.handler.untold = fails
    monkeypatch.setattr(Recovery, "run", forever)
    task = asyncio.create_task(desk.sweeper.run())
    await begun.wait()
    task.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([task])

    assert task.cancelled()


async def test_sweeps_repeat_and_a_failed_one_does_not_end_them(make, caplog):
    time, health, pauses = Time(), Health(), []
    going = asyncio.Event()

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            desk.handler.untold = fails
        if len(pauses) == 3:
            found.extend(await health.not_ready())
            desk.handler.untold = breaks
        if len(pauses) == 4:
            del desk.handler.untold
        if len(pauses) == 5:
            going.set()
            await asyncio.Event().wait()

    async def fails():
        raise JournalFailed("the disk is full")
        yield

    async def breaks():
        raise OSError("ada.okafor@example.org")
        yield

    found = []
    clock = Clock(now=time.now, sleep=sleep, chance=lambda: 0.25)
    desk = make(every=60, health=health, clock=clock)
    await desk.ended_doubt("a")
    task = asyncio.create_task(desk.sweeper.run())
    await going.wait()
    await desk.sweeper.stop(task, patience=5)

    assert pauses == [15.0, 60.0, 60.0, 60.0, 60.0]
    assert found == ["journal: the periodic recovery failed (the disk is full)"]
    assert await health.not_ready() == []
    assert "the periodic recovery failed (JournalFailed: the disk is full)" in caplog.text
    assert "the periodic recovery failed (OSError)" in caplog.text
    assert "ada" not in caplog.text


async def test_a_stopped_sweep_ends_after_the_current_outcome(make):
    desk = make(every=0.01)
    await desk.ended_doubt("a")
    await desk.ended_doubt("b")
    desk.gate = Gate()
    task = await desk.gate.catches(desk.sweeper.run())

    stopping = asyncio.create_task(desk.sweeper.stop(task, patience=10))
    await asyncio.sleep(0)
    desk.gate.open()
    await stopping

    assert desk.published == [("a", "created", "tx-a")]
    assert [one.key async for one in desk.handler.untold()] == ["b"]


async def test_a_sweep_stopped_without_a_grace_period_is_cancelled(make):
    desk = make(every=0.01)
    await desk.ended_doubt("a")
    desk.gate = Gate()
    task = await desk.gate.catches(desk.sweeper.run())

    await desk.sweeper.stop(task, patience=0)

    assert task.cancelled()
    assert desk.published == []


@pytest.mark.parametrize("wrong", [0, float("inf"), "often"])
async def test_the_interval_between_sweeps_is_checked(make, wrong):
    with pytest.raises(ValueError, match="every: "):
        make(every=wrong)
