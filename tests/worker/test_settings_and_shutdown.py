import asyncio
import errno
import functools
import socket
import sys
from datetime import timedelta

import pytest

from tests.support.cases import each
from tests.worker.case import Run, command
from tests.worker.sides import on_nats, on_redis, until
from transfer_async.integrations.faststream import OrderWorker
from transfer_async.integrations.faststream.broker import BROKERS, WorkerSettings, broker_at, reason
from transfer_async.sandbox import CloseAfterProcessing
from transfer_async.worker.handler import Handler


def test_durations_may_be_timedeltas():
    assert WorkerSettings(ack_wait=timedelta(minutes=1)).ack_wait == 60.0


@each(
    ("settings", "why"),
    [
        ({"concurrency": 0}, "concurrency: must be a whole number, 1 or more"),
        ({"concurrency": True}, "concurrency: must be a whole number, 1 or more"),
        ({"ack_wait": 0}, "ack_wait: must be a finite number of seconds or a timedelta, greater than 0"),
        ({"poll": "soon"}, "poll: must be"),
        ({"patience": float("inf")}, "patience: must be"),
        ({"commands": ""}, "commands: must be a name"),
        ({"dead_letters": "a b"}, "dead_letters: must be a name"),
        ({"group": None}, "group: must be a name"),
        ({"outcomes": "transfer.commands"}, "commands, outcomes, dead_letters: must differ"),
    ],
)
def test_a_wrong_worker_setting_is_named(settings, why):
    with pytest.raises(ValueError, match=why):
        WorkerSettings(**settings)


@each("address", ["kafka://host", "localhost:4222", ""])
def test_an_unknown_broker_scheme_is_rejected(address):
    with pytest.raises(
        ValueError, match="broker: must be an address that begins with one of nats://, tls://"
    ):
        broker_at(address)


@pytest.mark.parametrize("scheme", BROKERS)
def test_a_missing_broker_library_is_reported_with_its_extra(scheme, monkeypatch):
    module, _, extra = BROKERS[scheme]
    monkeypatch.delitem(sys.modules, module, raising=False)
    for one in ("faststream", "faststream.exceptions"):
        monkeypatch.setitem(sys.modules, one, None)

    needed = rf"{scheme}:// needs an extra: pip install \"transfer_async\[{extra}\]\"$"
    with pytest.raises(ValueError, match=needed):
        broker_at(f"{scheme}://host")


class ServiceUnavailableError(Exception):
    """An error like the driver's, with the code of the server's error."""

    def __init__(self, err_code=None):
        self.err_code = err_code


def caused_by(error):
    """Return an error like the driver's, with the broker's address in its text."""
    try:
        raise ConnectionError("Error 111 connecting to me:secret@host") from error
    except ConnectionError as told:
        return told


@each(
    ("error", "why"),
    [
        (ServiceUnavailableError(), "JetStream is not enabled (start nats-server with -js)"),
        (ServiceUnavailableError(10076), "JetStream is not enabled (start nats-server with -js)"),
        (ServiceUnavailableError(10008), "ServiceUnavailableError"),
        (TimeoutError("no response within 10 s"), "no response within 10 s"),
        (TimeoutError(), "no response in time"),
        (OSError("ada.okafor@example.org"), "OSError"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "ada.okafor@example.org"), "connection refused"),
        (socket.gaierror(-2, "ada.okafor@example.org"), "the host name is unknown"),
        (caused_by(ConnectionRefusedError()), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] of ::1, [Errno 111] of 127.0.0.1"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] of ::1, [Errno 113] of 127.0.0.1"), "OSError"),
    ],
)
def test_the_reason_why_a_broker_cannot_be_used_shows_no_secret(error, why):
    assert reason(error) == why


@on_redis
async def test_a_worker_task_that_ends_unexpectedly_ends_the_worker(case, monkeypatch):
    monkeypatch.setattr(OrderWorker, "_run_slot", lambda _: asyncio.sleep(0))

    run = await case.worker()
    with pytest.raises(RuntimeError, match="ended unexpectedly"):
        await run.task

    assert run.health.not_live() == ["a task of the worker ended unexpectedly"]


def spoilt(case, spoil):
    """Return a worker that is not started, whose slots take their messages through ``spoil``."""
    run = Run(case)
    case.runs.append(run)
    made = run.line.subscriber

    def subscriber():
        one = made()
        one.get_one = functools.partial(spoil, run, one.get_one)
        return one

    run.line.subscriber = subscriber
    return run


async def says(run, word):
    """Wait until the worker's health contains ``word``."""

    async def said():
        return any(word in why for why in await run.health.not_ready())

    await until(said)


@on_redis
async def test_a_message_delivered_to_a_stopping_worker_is_returned_at_once(case):
    async def take(run, get_one, *, timeout):  # noqa: ASYNC109 - as it is called
        message = await get_one(timeout=timeout)
        if message is not None:
            run.stopping.set()
            await says(run, "worker: is stopping")
        return message

    run = spoilt(case, take)
    await run.start()
    await case.side.send(case.body)
    await run.stop()
    assert case.seen.empty()
    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"
    assert (await case.handled()).deliveries > 1


@on_redis
async def test_a_broker_that_returns_nothing_without_waiting_counts_as_lost(case):
    async def take(_run, _get_one, *, timeout):  # noqa: ASYNC109 - as it is called
        return None

    run = spoilt(case, take)
    await run.start()

    await says(run, "broker: is not delivering messages (ConnectionError)")


# --- ends of doubts, published more than once ---------------------------------------------------------


async def in_doubt(case, handler):
    case.sandbox.faults.add(CloseAfterProcessing())
    await handler.handle(command())


async def sweep(handler, line):
    """Publish all pending notifications twice, like two workers at the same time."""
    for end in [end async for end in handler.untold()]:
        for _ in range(2):
            await line.publish(end, {})
        await handler.told(end)


@on_nats
async def test_the_last_published_id_is_the_recorded_one_even_if_published_before(case):
    """An operator amends an id and amends it back. Readers use the last outcome, so each must be stored."""
    async with case.client() as client:
        handler, line = Handler(client), broker_at(case.side.address, case.side.settings)
        await line.open()
        await in_doubt(case, handler)
        words = {"by": "ada", "reason": "seen on the statement"}
        await client.operators.resolve("k", order_id="tx-1", **words)
        await sweep(handler, line)
        for order_id in ("tx-2", "tx-1"):
            await client.operators.amend("k", order_id=order_id, **words)
            await sweep(handler, line)
        await line.close()
    told = [(await case.side.outcome())["order_id"] for _ in range(await case.side.published())]

    assert told == ["tx-1", "tx-2", "tx-1"]
