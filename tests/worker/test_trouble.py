"""Brokers that restart and forget, workers that die: nothing is lost, and no order is created twice."""

import asyncio
import signal
import sys
from functools import partial

import attrs
import pytest
from redis.exceptions import ResponseError

from tests.support.bank import Gate, refused_order
from tests.support.brokers import NatsServer, RedisServer
from tests.worker.case import Case, Run, command
from tests.worker.sides import PATIENCE, SIDES, NatsSide, RedisSide, on_nats, on_redis, until
from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import Outcome
from transfer_async.integrations.faststream import line_at, worker
from transfer_async.integrations.faststream.redis import DELIVERIES, FORGET_AFTER, PUT_BACK
from transfer_async.sandbox import CloseAfterProcessing, Status

SERVERS = {"nats": NatsServer, "redis": RedisServer}

LONGER_THAN_A_LINE = "x" * 5000
"""A subject over which NATS closes a connection, and says why."""


def keys(count):
    return [f"k{number}" for number in range(count)]


async def told(case, count):
    """So many outcomes, by key."""
    outcomes = {}
    while len(outcomes) < count:
        outcome = await case.side.outcome()
        outcomes[outcome["key"]] = outcome
    return outcomes


# --- brokers ----------------------------------------------------------------------------------------


@pytest.fixture(params=SERVERS)
def server(request):
    """A server of the test's own: it may be stopped."""
    kind = SERVERS[request.param]
    if not kind.is_installed():
        pytest.skip(f"there is no {kind.NAME} to be had for this platform")
    with kind() as server:
        yield server


@pytest.fixture
async def own(server, tmp_path):
    """A case at a server of its own."""
    async with Case(SIDES[server.SCHEME](server), tmp_path) as case:
        yield case


async def test_a_broker_that_restarts_under_a_worker_loses_nothing(own):
    run = await own.worker()
    for key in keys(5):
        await own.side.send(command(key).to_json())
    gate = Gate()
    own.bank.on_place = gate
    for key in keys(20)[5:]:
        await own.side.send(command(key).to_json())
    await gate.reached.wait()

    await asyncio.to_thread(own.side.server.stop_at_once)
    gate.open()
    assert any("broker" in why for why in await run.health.not_ready())
    await asyncio.to_thread(own.side.server.start)

    assert {outcome["outcome"] for outcome in (await told(own, 20)).values()} == {"created"}
    await own.side.gone()
    assert len(own.sandbox.orders) == 20
    await run.ready()


async def test_a_broker_that_is_not_there_at_first_is_waited_for(own):
    await asyncio.to_thread(own.side.server.stop_at_once)
    run = Run(own)
    own.runs.append(run)
    run.task = asyncio.create_task(run.worker.run(run.stopping))

    async def seen():
        return "worker: is starting" in await run.health.not_ready()

    await until(seen)
    await asyncio.to_thread(own.side.server.start)
    await own.side.send(own.body)

    assert (await own.side.outcome())["outcome"] == "created"


async def test_a_worker_that_waits_for_its_broker_can_be_stopped(own):
    await asyncio.to_thread(own.side.server.stop_at_once)
    run = Run(own)
    run.task = asyncio.create_task(run.worker.run(run.stopping))
    await asyncio.sleep(0)

    await run.stop()

    assert "worker: has stopped" in await run.health.not_ready()
    await asyncio.to_thread(own.side.server.start)


class Deaf:
    """Opens no line, and hears not before it was told so often: Python 3.11's ``wait_for`` loses some."""

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


async def test_a_worker_can_be_stopped_although_its_driver_loses_a_cancellation(case):
    run = await waiting_at(case, Deaf(times=1))

    await run.stop()

    assert run.task.result() is None
    assert "worker: has stopped" in await run.health.not_ready()


async def test_a_worker_can_be_stopped_although_its_driver_hears_no_cancellation(case, monkeypatch):
    monkeypatch.setattr(worker, "GRACE", 0.1)
    deaf = Deaf(times=1_000_000)
    run = await waiting_at(case, deaf)

    try:
        await run.stop()
    finally:
        deaf.ended.set()  # the loop would wait for it

    assert run.task.result() is None


async def test_a_driver_that_loses_a_cancellation_is_tried_again(case, monkeypatch):
    monkeypatch.setattr(worker, "OPENING", 0.05)
    deaf = Deaf(times=1)
    run = await waiting_at(case, deaf)
    case.runs.append(run)

    del run.line.open

    await run.ready()
    assert deaf.times == 0


async def test_a_consumer_that_was_deleted_is_made_again(case):
    await case.worker()
    await case.side.send(command("k0").to_json())
    await told(case, 1)
    await case.side.gone()

    await case.side.forget()
    await case.side.send(command("k1").to_json())

    assert (await case.side.outcome())["key"] == "k1"


async def test_an_outcome_that_cannot_be_published_leaves_its_message(case):
    """And it is published in the end, from the record."""
    run = await case.worker()
    publish, errors = run.worker._worker._publish, [OSError("disk full")]

    async def fail(outcome, headers):
        if errors:
            raise errors.pop()
        await publish(outcome, headers)

    run.worker._worker._publish = fail
    await case.side.send(case.body)

    outcome = await case.side.outcome()
    assert outcome["outcome"] == "created"
    assert (await case.handled()).deliveries == 1
    assert (await case.handled()).deliveries == 2
    await case.side.gone()
    assert len(case.sandbox.orders) == 1


async def test_outcomes_whose_stream_was_deleted_are_published_to_a_new_one(case):
    run = await case.worker()
    await case.side.send(command("k0").to_json())
    await told(case, 1)
    await case.side.gone()

    await case.side.wipe()
    case.side._seen.clear()
    await run.line.prepare()
    await case.side.send(command("k1").to_json())

    assert (await case.side.outcome())["key"] == "k1"


async def test_a_connection_that_the_broker_closed_for_good_ends_the_worker(nats, tmp_path):
    """It never comes back, whatever is tried: whoever runs the worker starts it again."""
    async with Case(NatsSide(nats, concurrency=1), tmp_path) as case:
        run = await case.worker()
        await case.side.send(case.body)
        await case.side.outcome()  # its lane is beyond the driver's own questions, which wait for seconds
        connection = await run.line.broker.connect()

        async def closed_or_connected_again(before):
            return connection.is_closed or connection.stats["reconnects"] > before

        while not connection.is_closed:  # a reset may overtake the server's reason: then it connects again
            before = connection.stats["reconnects"]
            await connection.publish(LONGER_THAN_A_LINE, b"")
            await until(partial(closed_or_connected_again, before))

        with pytest.raises(ConnectionError, match="the broker closed the connection"):
            async with asyncio.timeout(PATIENCE):
                await run.task
        assert run.health.not_live() == ["the broker closed the connection"]


@on_nats
async def test_a_connection_that_is_closed_for_good_at_the_start_ends_the_worker(case):
    run = Run(case)
    case.runs.append(run)
    await (await run.line.broker.connect()).close()

    run.task = asyncio.create_task(run.worker.run(run.stopping))

    with pytest.raises(ConnectionError, match="the broker closed the connection"):
        async with asyncio.timeout(PATIENCE):
            await run.task


@on_nats
async def test_messages_of_a_stream_that_was_made_anew_are_parked_too(case):
    """Their numbers begin anew, too."""
    await case.worker()
    await case.side.send(b"first")
    assert (await case.side.parked())[0] == b"first"
    await case.side.gone()

    commands = case.side.settings.commands
    await case.side._jetstream.delete_stream(case.side._streams[commands])
    await case.side._jetstream.add_stream(
        name=case.side._streams[commands], subjects=[commands], retention="workqueue"
    )
    await case.side.send(b"second")

    assert (await case.side.parked())[0] == b"second"


@on_nats
async def test_an_outcome_that_says_more_of_an_order_is_not_taken_for_the_one_before(case):
    run = await case.worker()
    told = {"key": "k", "intent_id": "i", "outcome": Outcome.NOT_SENT, "error": "PreflightFailed"}

    for order_may_exist in (True, True, False):
        await run.line.publish(OrderOutcome(**told, order_may_exist=order_may_exist), {})

    assert [(await case.side.outcome())["order_may_exist"] for _ in range(2)] == [True, False]
    assert await case.side.published() == 2


@pytest.fixture
async def taken(redis, tmp_path):
    """A message in hand, at Redis, and the case."""
    async with Case(RedisSide(redis), tmp_path) as case:
        line = line_at(case.side.address, case.side.settings)
        await line.open()
        await case.side.send(b"x")
        subscriber = line.subscriber()
        await subscriber.start()
        yield case, line, line.delivery(await subscriber.get_one(timeout=PATIENCE))
        await subscriber.stop()
        await line.close()


async def test_a_message_that_redis_cannot_park_or_delay_stays(taken):
    case, line, delivery = taken
    for name in (case.side.settings.parked, line._keys[1]):
        await case.side._client.set(name, "something else")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.park("not valid")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.retry(0.0)

    await case.side._client.delete(line._keys[1])
    assert await case.side.left() == 1
    pending = await case.side._client.xpending(case.side.settings.commands, case.side.settings.group)
    assert pending["pending"] == 1


async def test_a_message_that_somebody_else_has_is_neither_parked_nor_delayed(taken):
    case, line, delivery = taken
    await line.run(PUT_BACK, line._keys[:1], [case.side.settings.group, 0, DELIVERIES, FORGET_AFTER])

    await delivery.park("not valid")
    await delivery.retry(0.0)

    assert await case.side._client.xlen(case.side.settings.parked) == 0
    assert await case.side.left() == 1


async def test_a_count_of_others_making_does_not_keep_messages_from_being_put_back(taken):
    case, line, _ = taken
    await case.side.send(b"y", {"transfer-deliveries": "often"})
    subscriber = line.subscriber()
    await subscriber.start()
    await subscriber.get_one(timeout=PATIENCE)

    await line.run(PUT_BACK, line._keys[:1], [case.side.settings.group, 0, DELIVERIES, FORGET_AFTER])
    again = line.delivery(await subscriber.get_one(timeout=PATIENCE))
    last = line.delivery(await subscriber.get_one(timeout=PATIENCE))

    assert [(one.body, one.deliveries) for one in (again, last)] == [(b"x", 2), (b"y", 2)]
    await subscriber.stop()


@on_redis
async def test_a_group_that_is_lost_before_a_lane_begins_is_made_from_the_streams_beginning(case):
    line = line_at(case.side.address, case.side.settings)
    await line.open()
    await case.side.send(b"x")
    await case.side.forget()

    subscriber = line.subscriber()
    await subscriber.start()

    assert (await subscriber.get_one(timeout=1.0)).body == b"x"
    await subscriber.stop()
    await line.close()


# --- deliveries -------------------------------------------------------------------------------------


async def test_a_hook_that_takes_longer_than_the_broker_waits_is_not_run_twice(case):
    """Another worker stands by, and gets nothing: heart-beats go out."""
    gate, beats = Gate(), asyncio.Queue()
    case.bank.on_place = gate
    for run in [await case.worker(), await case.worker()]:
        beating(run.line, beats)
    await case.side.send(case.body)

    for _ in range(5):  # three would come while the broker waits
        async with asyncio.timeout(PATIENCE):
            await beats.get()
    gate.open()

    assert (await case.side.outcome())["outcome"] == "created"
    await case.side.gone()
    assert case.seen.qsize() == 1
    assert len(case.bank.placed) == 1


def beating(line, beats):
    """Count the signs of life of a line's messages."""
    made = line.delivery

    def delivery(message):
        one = made(message)
        beat = one.beat

        async def counted():
            await beat()
            beats.put_nowait(one)

        one.beat = counted
        return one

    line.delivery = delivery


async def test_no_more_messages_are_fetched_than_can_be_worked_on(case):
    gate = Gate()
    case.bank.on_place = gate
    first = await case.worker()
    for key in keys(10):
        await case.side.send(command(key).to_json())

    async def all_lanes_busy():
        return len(case.bank.placed) == case.side.settings.concurrency

    await until(all_lanes_busy)
    await case.worker()

    async def others_busy():
        return len(case.bank.placed) == 2 * case.side.settings.concurrency

    await until(others_busy)
    gate.open()
    assert len(await told(case, 10)) == 10
    assert first.task is not None


async def test_what_was_sent_before_there_was_a_worker_is_carried_out(case):
    await case.side.send(case.body)

    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"


async def test_a_refusal_that_comes_again_is_answered_from_the_record(case):
    await case.worker()
    body = command(order=refused_order()).to_json()

    await case.side.send(body)
    first = await case.side.outcome()
    await case.side.send(body)
    await case.side.gone()

    assert first["outcome"] == "refused"
    assert (await case.handled()).handled.outcome == (await case.handled()).handled.outcome
    assert len([one for one in case.sandbox.requests if one.method == "POST"]) == 1


async def test_a_command_that_was_not_sent_too_often_is_parked(case):
    async def broken(intent):
        raise OSError

    case.hooks = [broken, case.bank.hold]
    await case.worker(max_deliveries=2)

    await case.side.send(case.body)
    body, headers = await case.side.parked()

    assert body == case.body
    assert headers["Transfer-Reason"] == "a hook broke; it was not sent 3 times"
    await case.side.gone()
    assert [(await case.handled()).deliveries for _ in range(3)] == [1, 2, 3]


async def test_what_a_worker_gave_back_comes_to_another_one(case):
    """It waits at the broker, not in the worker."""
    case.sandbox.faults.add(Status(429))
    first = await case.worker()

    async def stop():
        first.stopping.set()

    case.heal = stop
    await case.side.send(case.body)
    await case.handled()
    await first.stop()

    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"
    assert (await case.handled()).deliveries >= 2


# --- doubts -----------------------------------------------------------------------------------------


async def test_how_a_doubt_has_ended_is_told_once(tmp_path, side):
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


async def test_a_worker_that_is_stopped_finishes_what_is_in_flight_and_takes_no_more(case):
    gate = Gate()
    case.bank.on_place = gate
    run = await case.worker()
    for key in keys(6):
        await case.side.send(command(key).to_json())

    async def all_lanes_busy():
        return len(case.bank.placed) == 4

    await until(all_lanes_busy)
    run.stopping.set()

    async def is_stopping():
        return "worker: is stopping" in await run.health.not_ready()

    await until(is_stopping)
    gate.open()
    await run.stop()

    assert len(await told(case, 4)) == 4
    assert await case.side.left() == 2
    assert len(case.bank.placed) == 4


async def test_what_outlasts_the_patience_is_cut_off_and_comes_again(case):
    side = case.side
    side.settings = attrs.evolve(side.settings, patience=0.1)
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


async def test_what_a_worker_that_is_killed_had_in_hand_is_taken_over(case, tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.worker.process", case.side.address, str(tmp_path / "journal.db")),
        *(case.base_url, case.good_token, case.side.settings.commands),
        stdout=asyncio.subprocess.PIPE,
    )
    await case.side.send(case.body)
    assert await process.stdout.readline() == b"has it in hand\n"

    process.send_signal(signal.SIGKILL)
    await process.wait()
    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"
    await case.side.gone()
    assert len(case.sandbox.orders) == 1
    while not case.seen.empty():
        last = await case.handled()
    assert last.deliveries >= 2
