"""Brokers restart or lose their state, and workers die: no message is lost, and no order is created twice."""

import asyncio
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
from redis.exceptions import ResponseError

from tests.support.bank import Gate
from tests.worker.case import Case, Run, command
from tests.worker.sides import PATIENCE, NatsSide, RedisSide, on_nats, on_redis, until
from transfer_async.integrations.faststream import broker_at, worker
from transfer_async.integrations.faststream.redis import DELIVERIES, FORGET_AFTER, PUT_BACK
from transfer_async.sandbox import CloseAfterProcessing

LONGER_THAN_A_LINE = "x" * 5000
"""A subject so long that NATS closes the connection and sends the reason."""


# --- brokers ----------------------------------------------------------------------------------------


@on_redis
async def test_a_worker_waiting_for_its_broker_can_be_stopped(case, closed_port):
    case.side.server = SimpleNamespace(address=f"{case.side.NAME}://127.0.0.1:{closed_port}")
    run = Run(case)
    run.task = asyncio.create_task(run.worker.run(run.stopping))
    await asyncio.sleep(0)

    await run.stop()

    assert "worker: has stopped" in await run.health.not_ready()


class Deaf:
    """A broker whose ``open()`` hangs and ignores ``times`` cancellations, as Python 3.11's ``wait_for``
    may.
    """

    def __init__(self, times):
        self.times, self.reached, self.ended = times, asyncio.Event(), asyncio.Event()

    async def open(self):
        self.reached.set()
        while not self.ended.is_set():
            try:
                await self.ended.wait()
            except asyncio.CancelledError:
                if self.times == 0:
                    raise
                self.times -= 1


async def waiting_at(case, deaf):
    run = Run(case)
    run.line.open = deaf.open
    run.task = asyncio.create_task(run.worker.run(run.stopping))
    await deaf.reached.wait()
    return run


@pytest.mark.parametrize("ignored", [1, 1_000_000])
@on_redis
async def test_a_worker_can_be_stopped_even_if_its_driver_ignores_cancellations(case, monkeypatch, ignored):
    if ignored > 1:
        monkeypatch.setattr(worker, "GRACE", 0.1)
    deaf = Deaf(times=ignored)
    run = await waiting_at(case, deaf)

    try:
        await run.stop()
    finally:
        deaf.ended.set()  # without this, the loop would wait for it at the end

    assert run.task.result() is None
    assert "worker: has stopped" in await run.health.not_ready()


@on_redis
async def test_opening_is_retried_after_the_driver_loses_a_cancellation(case, monkeypatch):
    monkeypatch.setattr(worker, "OPENING", 0.05)
    deaf = Deaf(times=1)
    run = await waiting_at(case, deaf)
    case.runs.append(run)

    del run.line.open

    await run.ready()
    assert deaf.times == 0


async def test_a_deleted_consumer_is_created_again(case):
    await case.worker()
    await case.side.send(command("k0").to_json())
    await case.side.outcome()
    await case.side.gone()

    await case.side.forget()
    await case.side.send(command("k1").to_json())

    assert (await case.side.outcome())["key"] == "k1"


async def test_outcomes_are_published_to_a_new_stream_if_theirs_was_deleted(case):
    run = await case.worker()
    await case.side.send(command("k0").to_json())
    await case.side.outcome()
    await case.side.gone()

    await case.side.wipe()
    case.side._seen.clear()
    await run.line.prepare()
    await case.side.send(command("k1").to_json())

    assert (await case.side.outcome())["key"] == "k1"


async def test_a_connection_that_the_broker_closed_for_good_ends_the_running_worker(nats, tmp_path):
    """The connection cannot be restored, so the worker must end and be restarted by its supervisor."""
    async with Case(NatsSide(nats, concurrency=1), tmp_path) as case:
        run = await case.worker()
        await case.side.send(case.body)
        await case.side.outcome()  # by now its slot has made the driver's own requests, which take seconds
        connection = await run.line.broker.connect()

        async def closed_or_connected_again(before):
            return connection.is_closed or connection.stats["reconnects"] > before

        # If a reset arrives before the server's reason, the driver reconnects.
        while not connection.is_closed:
            before = connection.stats["reconnects"]
            await connection.publish(LONGER_THAN_A_LINE, b"")
            await until(partial(closed_or_connected_again, before))

        with pytest.raises(ConnectionError, match="the broker closed the connection"):
            async with asyncio.timeout(PATIENCE):
                await run.task
        assert run.health.not_live() == ["the broker closed the connection"]


@on_nats
async def test_a_connection_closed_for_good_at_the_start_ends_the_worker(case):
    run = Run(case)
    case.runs.append(run)
    await (await run.line.broker.connect()).close()

    run.task = asyncio.create_task(run.worker.run(run.stopping))

    with pytest.raises(ConnectionError, match="the broker closed the connection"):
        async with asyncio.timeout(PATIENCE):
            await run.task


@on_nats
async def test_messages_of_a_recreated_stream_are_dead_lettered(case):
    """The sequence numbers of a recreated stream start at 1 again."""
    await case.worker()
    await case.side.send(b"first")
    assert (await case.side.dead_letter())[0] == b"first"
    await case.side.gone()

    commands = case.side.settings.commands
    await case.side._jetstream.delete_stream(case.side._streams[commands])
    await case.side._jetstream.add_stream(
        name=case.side._streams[commands], subjects=[commands], retention="workqueue"
    )
    await case.side.send(b"second")

    assert (await case.side.dead_letter())[0] == b"second"


@pytest.fixture
async def taken(redis, tmp_path):
    """Yield a case on Redis, its broker, and a delivered message."""
    async with Case(RedisSide(redis), tmp_path) as case:
        line = broker_at(case.side.address, case.side.settings)
        await line.open()
        await case.side.send(b"x")
        subscriber = line.subscriber()
        await subscriber.start()
        yield case, line, line.delivery(await subscriber.get_one(timeout=PATIENCE))
        await subscriber.stop()
        await line.close()


async def test_a_message_that_redis_cannot_dead_letter_or_delay_stays_pending(taken):
    case, line, delivery = taken
    for name in (case.side.settings.dead_letters, line.keys[1]):
        await case.side._client.set(name, "something else")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.dead_letter("not valid")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.retry(0.0)

    await case.side._client.delete(line.keys[1])
    assert await case.side.left() == 1
    pending = await case.side._client.xpending(case.side.settings.commands, case.side.settings.group)
    assert pending["pending"] == 1


async def test_a_message_that_another_worker_holds_is_neither_dead_lettered_nor_delayed(taken):
    case, line, delivery = taken
    await line.run(PUT_BACK, line.keys[:1], [case.side.settings.group, 0, DELIVERIES, FORGET_AFTER])

    await delivery.dead_letter("not valid")
    await delivery.retry(0.0)

    assert await case.side._client.xlen(case.side.settings.dead_letters) == 0
    assert await case.side.left() == 1


async def test_an_unreadable_delivery_count_does_not_block_redelivery(taken):
    case, line, _ = taken
    await case.side.send(b"y", {"transfer-deliveries": "often"})
    subscriber = line.subscriber()
    await subscriber.start()
    await subscriber.get_one(timeout=PATIENCE)

    await line.run(PUT_BACK, line.keys[:1], [case.side.settings.group, 0, DELIVERIES, FORGET_AFTER])
    again = line.delivery(await subscriber.get_one(timeout=PATIENCE))
    last = line.delivery(await subscriber.get_one(timeout=PATIENCE))

    assert [(one.body, one.deliveries) for one in (again, last)] == [(b"x", 2), (b"y", 2)]
    await subscriber.stop()


@on_redis
async def test_a_lost_group_is_created_again_from_the_start_of_the_stream(case):
    line = broker_at(case.side.address, case.side.settings)
    await line.open()
    await case.side.send(b"x")
    await case.side.forget()

    subscriber = line.subscriber()
    await subscriber.start()

    assert (await subscriber.get_one(timeout=1.0)).body == b"x"
    await subscriber.stop()
    await line.close()


# --- doubts -----------------------------------------------------------------------------------------


@on_nats
async def test_a_running_worker_publishes_the_end_of_a_doubt_once(tmp_path, side):
    side.settings = attrs.evolve(side.settings, sweep_every=0.2)
    async with Case(side, tmp_path) as case:
        run = await case.worker()
        case.sandbox.faults.add(CloseAfterProcessing())
        await side.send(case.body)
        assert (await side.outcome())["outcome"] == "unknown"

        await run.client.resolve("k", order_id="tx-found", by="ops", reason="seen")
        ended = await side.outcome()

        assert (ended["outcome"], ended["order_id"]) == ("created", "tx-found")

        async def nothing_untold():
            return not [one async for one in run.worker._sweeper._handler.untold()]

        await until(nothing_untold)
        assert await side.published() == 2


# --- endings ----------------------------------------------------------------------------------------


@on_redis
async def test_a_command_that_outlasts_the_grace_period_is_cancelled_and_redelivered(case):
    side = case.side
    side.settings = attrs.evolve(side.settings, patience=0.1, ack_wait=0.3)
    gate = Gate()
    case.bank.on_place = gate
    run = await case.worker()
    await side.send(case.body)
    await gate.reached.wait()

    run.stopping.set()
    await asyncio.wait([run.task])
    assert await side.left() == 1
    assert await side.published() == 0
    case.bank.on_place = None
    gate.open()
    await run.client.close()
    await case.worker()

    assert (await side.outcome())["outcome"] == "created"
    assert len(case.sandbox.orders) == 1
