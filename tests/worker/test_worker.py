import asyncio
import sys
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import Mock, call

import pytest

from tests.support.bank import Gate
from tests.support.cases import each
from tests.support.samples import encode, order_json
from tests.worker.deliveries import Beats, FakeDelivery, FakeHandler, FakePublisher, Log
from transfer_async._models.errors import (
    ClientClosed,
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    Refused,
    TokenUnavailable,
    Unauthorized,
)
from transfer_async._models.responses import Order
from transfer_async._support.clock import Clock
from transfer_async.worker.consumer import JITTER, Worker

ORDER = Order.from_json(encode(order_json()))
BEAT_EVERY = 7.0
INVALID = InvalidOrder([("order", "is missing")])
STEPS = {
    "ack": (ORDER, ["handle", "publish", "ack"]),
    "retry": (KeyBusy(retry_after=3.0), ["handle", "retry"]),
    "dead_letter": (INVALID, ["handle", "dead_letter"]),
    "leave": (ClientClosed(), ["handle"]),
}
"""A result for each disposition, and the steps that follow."""


class Desk:
    """A worker with fakes, and a clock that the test controls."""

    def __init__(self, result=ORDER, **settings):
        self.log = Log()
        self.handler = FakeHandler(self.log, result)
        self.publisher = FakePublisher(self.log)
        self.beats = Beats()
        self.now, self.chance = 100.0, 0.0
        clock = Clock(now=lambda: self.now, sleep=self.beats.sleep, chance=lambda: self.chance)
        settings = {"beat_every": BEAT_EVERY, **settings}
        self.worker = Worker(self.handler, self.publisher, clock=clock, **settings)
        self.delivery = FakeDelivery(self.log)
        self.not_ready = self.worker.health.not_ready

    async def take(self, result=None):
        if result is not None:
            self.handler.result = result
        await self.worker.take(self.delivery)
        return self.log.names

    @asynccontextmanager
    async def at(self, step):
        """Hold a message at ``step`` for the duration of the block."""
        gate = self.log.gates[step] = Gate()
        task = await gate.catches(self.take())
        yield task
        gate.open()
        await task

    async def first_heartbeat_due(self, loop_time):
        """Advance the loop's clock to the first heartbeat. Later heartbeats wait in the fake sleep."""
        await loop_time.pass_(BEAT_EVERY - 0.1)
        assert self.beats.asked == []
        await loop_time.pass_(0.2)
        assert self.beats.asked == [0.0]

    async def heartbeats_sent(self, times=1):
        """End the waits between heartbeats until ``times`` heartbeats were sent."""
        for _ in range(times):
            await self.beats.pass_()
        while self.log.names.count("beat") < times:  # noqa: ASYNC110
            await asyncio.sleep(0)


# --- the order of the steps --------------------------------------------------------------------------


@each("disposition", [*STEPS])
async def test_each_result_leads_to_its_steps_in_order_and_is_measured(disposition):
    result, steps = STEPS[disposition]
    desk = Desk(result, measure=(measure := Mock()))
    desk.delivery.deliveries = 3
    async with desk.at("handle"):
        desk.now += 2.5

    assert desk.log.names == steps
    assert measure.mock_calls == [call(disposition=disposition, deliveries=3, seconds=2.5)]


@each("when", ["before", "after"])
@each(
    ("result", "step", "done"),
    [(result, step, steps[: steps.index(step)]) for result, steps in STEPS.values() for step in steps],
)
async def test_no_step_follows_a_failed_step_and_the_delivery_is_measured_as_failed(result, step, done, when):
    """A handled message may stay unpublished, and a published one unacknowledged, but never the reverse."""
    desk = Desk(result, measure=(measure := Mock()))
    getattr(desk.log, when)[step] = OSError("gone")

    assert await desk.take() == (done if when == "before" else [*done, step])
    assert measure.mock_calls == [call(disposition="failed", deliveries=1, seconds=0.0)]


@each(("step", "done"), [("handle", []), ("publish", ["handle"]), ("ack", ["handle", "publish"])])
async def test_a_cancelled_worker_sends_nothing_more_to_the_broker_and_measures_nothing(step, done):
    desk = Desk(measure=(measure := Mock()))
    with pytest.raises(asyncio.CancelledError):
        async with desk.at(step) as task:
            task.cancel()
            await asyncio.wait([task])

    assert desk.log.names == done
    assert measure.mock_calls == []


async def test_a_message_without_an_outcome_is_never_acknowledged():
    desk = Desk()
    desk.handler.outcome = None

    assert await desk.take() == ["handle"]


async def test_an_error_is_logged_without_its_text(caplog):
    desk = Desk()
    desk.log.before["publish"] = OSError("ada.okafor@example.org")

    await desk.take()

    assert "processing a message failed; the message will be redelivered (OSError)" in caplog.text
    assert "ada" not in caplog.text


async def test_a_measurement_that_fails_changes_nothing_else(caplog):
    desk = Desk(measure=Mock(side_effect=OSError("s3cr3t")))

    assert await desk.take() == ["handle", "publish", "ack"]
    assert "the measurements of a processed message could not be recorded (OSError)" in caplog.text
    assert "s3cr3t" not in caplog.text


@each(("chance", "after"), [(0.0, 3.0), (0.5, 3.75), (0.999, 3.0 * (1 + 0.999 * JITTER))])
async def test_a_message_is_never_redelivered_earlier_than_requested(chance, after):
    desk = Desk(KeyBusy(retry_after=3.0))
    desk.chance = chance

    await desk.take()

    assert desk.log.steps[-1] == ("retry", pytest.approx(after))


# --- heartbeats ------------------------------------------------------------------------------------


@each(
    ("step", "names"),
    [
        ("handle", ["beat", "beat", "handle", "publish", "ack"]),
        ("publish", ["handle", "beat", "beat", "publish", "ack"]),
    ],
)
async def test_heartbeats_are_sent_only_while_a_command_is_carried_out_and_published(loop_time, step, names):
    desk = Desk()
    async with desk.at(step):
        await desk.first_heartbeat_due(loop_time)
        await desk.heartbeats_sent(2)
    await loop_time.pass_(10 * BEAT_EVERY)

    assert desk.log.names == names
    assert desk.beats.asked == [0.0, BEAT_EVERY, BEAT_EVERY]


async def test_no_heartbeat_follows_a_message_that_ended_before_the_first(loop_time):
    desk = Desk()

    await desk.take()
    await loop_time.pass_(10 * BEAT_EVERY)

    assert desk.log.names == ["handle", "publish", "ack"]
    assert desk.beats.asked == []


@each("error", [OSError("ada.okafor@example.org"), asyncio.CancelledError("ada.okafor@example.org")])
async def test_a_failed_heartbeat_is_logged_and_the_next_one_is_sent(error, caplog, loop_time):
    desk = Desk()
    desk.log.before["beat"] = error
    caplog.clear()
    async with desk.at("handle"):
        await desk.first_heartbeat_due(loop_time)
        await desk.beats.pass_()
        while "a heartbeat failed" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0)
        del desk.log.before["beat"]
        await desk.heartbeats_sent()

    assert desk.log.names == ["beat", "handle", "publish", "ack"]
    assert f"a heartbeat failed ({type(error).__name__})" in caplog.text
    assert "ada" not in caplog.text


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks before Python 3.12")
async def test_heartbeats_are_sent_by_eager_tasks(loop_time):
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    desk = Desk()
    async with desk.at("handle"):
        await desk.first_heartbeat_due(loop_time)
        await desk.heartbeats_sent()

    assert desk.log.names == ["beat", "handle", "publish", "ack"]


def test_the_interval_between_heartbeats_is_checked():
    with pytest.raises(ValueError, match="beat_every: "):
        Desk(beat_every=0)


# --- traces -----------------------------------------------------------------------------------------


async def test_a_trace_continues_from_the_message_to_the_call_and_the_outcome():
    seen = []

    @contextmanager
    def around(headers):
        seen.append(headers)
        log.steps.append("begin")
        yield
        log.steps.append("end")

    desk = Desk(around=around, inject=lambda: {"traceparent": "00-child"})
    log = desk.log
    desk.delivery.headers = {"traceparent": "00-parent"}

    assert await desk.take() == ["begin", "handle", "publish", "ack", "end"]
    assert seen == [{"traceparent": "00-parent"}]
    assert desk.publisher.headers == [{"traceparent": "00-child"}]


# --- readiness --------------------------------------------------------------------------------------


async def test_a_bad_token_makes_the_worker_not_ready_until_the_service_accepts_a_request():
    """A replayed result needs no request, so it does not show that the token works now."""
    desk = Desk(Unauthorized(status=401))

    await desk.take()
    pause = desk.worker.pause
    await desk.take(KeyBusy(retry_after=1.0))
    desk.handler.asked = False
    await desk.take(ORDER)
    assert desk.worker.pause == pause > 0
    assert await desk.not_ready() == ["service: the service does not accept the token"]

    desk.handler.asked = True
    await desk.take(Refused(status=422))
    assert (desk.worker.pause, await desk.not_ready()) == (0, [])


async def test_no_command_is_taken_while_none_could_succeed():
    desk = Desk(TokenUnavailable())

    await desk.take()
    waiting = asyncio.create_task(desk.worker.ready())
    await asyncio.sleep(0)
    assert desk.beats.asked[-1] == 1.0
    desk.now += 1.0
    while not waiting.done():
        await desk.beats.pass_()
        await asyncio.sleep(0)
    await waiting


async def test_a_failed_journal_is_reported_until_a_message_is_acknowledged(caplog):
    desk = Desk(JournalFailed("the disk is full"))
    why = "the journal failed before anything was sent (the disk is full)"

    for result in (None, INVALID, KeyBusy(retry_after=3.0)):
        await desk.take(result)
        assert await desk.not_ready() == [f"journal: {why}"]
    assert f"the journal cannot be used: {why}" in caplog.text
    await desk.take(ORDER)
    assert await desk.not_ready() == []


async def test_a_failed_publication_is_reported_until_one_succeeds():
    desk = Desk()
    desk.log.before["publish"] = OSError()

    await desk.take()
    assert await desk.not_ready() == ["publishing: an outcome could not be published (OSError)"]
    desk.log.before.clear()
    await desk.take()
    assert await desk.not_ready() == []
