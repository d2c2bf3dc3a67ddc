"""Workers whose broker, connection or service fails: no message is lost, and no order is created twice."""

import asyncio
from types import SimpleNamespace

import attrs
import pytest

from tests.support.bank import Gate
from tests.worker.case import Case, Run, command
from tests.worker.sides import on_nats, on_redis, until
from transfer_async.integrations.faststream import worker
from transfer_async.sandbox import CloseAfterProcessing
from transfer_async.worker.handler import Handler

# --- opening ----------------------------------------------------------------------------------------


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


@on_redis
async def test_a_worker_waiting_for_its_broker_can_be_stopped(case, closed_port):
    case.side.server = SimpleNamespace(address=f"{case.side.NAME}://127.0.0.1:{closed_port}")
    run = Run(case)
    run.start()
    await asyncio.sleep(0)

    await run.stop()

    assert run.task.result() is None
    assert "worker: has stopped" in await run.health.not_ready()


async def waiting_at(case, deaf):
    run = Run(case)
    run.line.open = deaf.open
    run.start()
    await deaf.reached.wait()
    return run


@pytest.mark.parametrize("ignored", [0, 1, 1_000_000])
@on_redis
async def test_a_worker_can_be_stopped_while_it_opens_its_broker(case, monkeypatch, ignored):
    """The driver may ignore cancellations."""
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

    del run.line.open

    await run.ready()
    assert deaf.times == 0


# --- losing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["consumer", "stream of outcomes"])
async def test_what_was_deleted_at_the_broker_is_created_again(case, lost):
    run = await case.worker()
    await case.order("k0")
    await case.side.gone()

    if lost == "consumer":
        await case.side.forget()
    else:
        await case.side.wipe()
        await run.line.prepare()

    assert (await case.order("k1"))["key"] == "k1"


@on_nats
async def test_messages_of_a_recreated_stream_are_dead_lettered(case):
    """The sequence numbers of a recreated stream start at 1 again."""
    await case.worker()
    side = case.side
    for body in (b"first", b"second"):
        await side.send(body)
        assert (await side.dead_letter())[0] == body
        await side.gone()
        await side.jetstream.delete_stream(side.stream(side.settings.commands))
        await side.add_commands()


@pytest.mark.parametrize("is_running", [False, True])
@on_nats
async def test_a_connection_closed_for_good_ends_the_worker(case, is_running):
    """The connection cannot be restored, so the worker must end and be restarted by its supervisor."""
    run = await case.worker() if is_running else Run(case)
    await (await run.line.broker.connect()).close()
    if not is_running:
        run.start()

    with pytest.raises(ConnectionError, match="the broker closed the connection"):
        await run.ended()
    assert run.health.not_live() == ["the broker closed the connection"]


@on_redis
async def test_a_worker_task_that_ends_unexpectedly_ends_the_worker(case, monkeypatch):
    monkeypatch.setattr(worker.OrderWorker, "_run_slot", lambda _: asyncio.sleep(0))

    run = await case.worker()
    with pytest.raises(RuntimeError, match="ended unexpectedly"):
        await run.ended()

    assert run.health.not_live() == ["a task of the worker ended unexpectedly"]


@on_redis
async def test_a_broker_that_returns_nothing_without_waiting_counts_as_lost(case):
    async def nothing(*, timeout):  # noqa: ASYNC109 - as it is called
        return None

    run = started_with(case, lambda get_one: nothing)

    await run.reports("broker: is not delivering messages (ConnectionError)")


def started_with(case, change):
    """Start a worker whose subscribers have their ``get_one`` changed."""
    run = Run(case)
    made = run.line.subscriber

    def subscriber():
        one = made()
        one.get_one = change(one.get_one)
        return one

    run.line.subscriber = subscriber
    run.start()
    return run


# --- the service and doubts --------------------------------------------------------------------------


@on_nats
async def test_a_worker_with_a_bad_token_is_not_ready_until_the_token_works(case):
    case.token = "run-out"
    run = await case.worker()
    await case.side.send(command().to_json())

    await run.reports("service: the service does not accept the token")
    case.token = case.sandbox.token

    assert (await case.side.outcome())["outcome"] == "created"
    await run.ready()


@on_nats
async def test_a_running_worker_publishes_the_end_of_a_doubt_once(tmp_path, side):
    side.settings = attrs.evolve(side.settings, sweep_every=0.2)
    async with Case(side, tmp_path) as case:
        run = await case.worker()
        case.sandbox.faults.add(CloseAfterProcessing())
        assert (await case.order())["outcome"] == "unknown"

        await run.client.resolve("k", order_id="tx-found", by="ops", reason="seen")
        ended = await side.outcome()

        async def notified():
            return not [one async for one in run.worker._sweeper._handler.untold()]

        await until(notified)
        assert (ended["outcome"], ended["order_id"]) == ("created", "tx-found")
        assert await side.published() == 2


async def sweep(handler, line):
    """Publish all pending notifications twice, like two workers at the same time."""
    for end in [end async for end in handler.untold()]:
        for _ in range(2):
            await line.publish(end, {})
        await handler.told(end)


@on_nats
async def test_the_last_published_id_is_the_recorded_one_even_if_published_before(case):
    """An operator amends an id and amends it back. Readers use the last outcome, so each must be stored."""
    run = await case.worker()
    case.sandbox.faults.add(CloseAfterProcessing())
    handler, why = Handler(run.client), {"by": "ada", "reason": "seen on the statement"}
    await handler.handle(command().to_json())

    await run.client.operators.resolve("k", order_id="tx-1", **why)
    await sweep(handler, run.line)
    for order_id in ("tx-2", "tx-1"):
        await run.client.operators.amend("k", order_id=order_id, **why)
        await sweep(handler, run.line)

    order_ids = [(await case.side.outcome())["order_id"] for _ in range(await case.side.published())]
    assert order_ids == ["tx-1", "tx-2", "tx-1"]


# --- stopping ---------------------------------------------------------------------------------------


@on_redis
async def test_a_message_delivered_to_a_stopping_worker_is_returned_at_once(case):
    def stopping(get_one):
        async def get_one_and_stop(*, timeout):  # noqa: ASYNC109 - as it is called
            message = await get_one(timeout=timeout)
            if message is not None:
                run.stopping.set()
                await run.reports("worker: is stopping")
            return message

        return get_one_and_stop

    run = started_with(case, stopping)
    await run.worker.started.wait()
    await case.side.send(command().to_json())
    await run.ended()
    assert case.deliveries == []
    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"
    assert case.deliveries[0] > 1


async def test_a_command_that_outlasts_the_grace_period_is_cancelled_and_redelivered(case):
    side = case.side
    side.settings = attrs.evolve(side.settings, patience=0.1, ack_wait=0.3)
    case.bank.on_place = gate = Gate()
    run = await case.worker()
    await side.send(command().to_json())
    await gate.reached.wait()

    run.stopping.set()
    await run.ended()
    assert (await side.left(), await side.published()) == (1, 0)
    case.bank.on_place = None
    await run.client.close()
    await case.worker()

    assert (await side.outcome())["outcome"] == "created"
    assert len(case.sandbox.orders) == 1
