"""A third broker is one more line, and one more row in the table of lines; nothing else knows of it.

This one is in memory:

==============  ================================================================================
deliver         from a queue that all workers share; what is delivered is in hand
acknowledge     it is in hand no more
delay           put aside with the seconds, until the test says that they have passed
park            copied with the reason, then acknowledged
sign of life    noted
count           with the message
==============  ================================================================================
"""

import asyncio
from collections import defaultdict

import pytest
from attrs import define, field

from tests.support.bank import Gate, new_order
from tests.worker.case import Case, command
from tests.worker.sides import PATIENCE, Side
from transfer_async._models.errors import KeyBusy, RateLimited
from transfer_async.integrations.faststream.broker import LINES, Line
from transfer_async.integrations.faststream.headers import JSON, reason_header
from transfer_async.sandbox import Status

SERVERS = {}
"""By their addresses."""


@define(eq=False)
class Message:
    body: bytes
    headers: dict
    deliveries: int = 0


@define(eq=False)
class MemoryServer:
    """Streams of messages, and those that are neither in a stream nor done with."""

    address: str
    streams: defaultdict = field(factory=lambda: defaultdict(asyncio.Queue))
    in_hand: set = field(factory=set)
    delayed: asyncio.Queue = field(factory=asyncio.Queue)
    beaten: asyncio.Event = field(factory=asyncio.Event)

    # As FastStream's brokers are called.

    async def start(self): ...

    async def stop(self): ...

    async def ping(self, **_):
        return True


class MemoryLine(Line):
    def __init__(self, broker, settings):
        self.broker, self.settings = broker, settings

    @classmethod
    def at(cls, address, settings):
        return cls(SERVERS[address], settings)

    async def prepare(self, *, only_to_send=False):
        """Every stream is there."""

    def subscriber(self):
        return MemorySubscriber(self.broker, self.settings.commands)

    def delivery(self, message):
        return MemoryDelivery(self, message)

    async def publish(self, outcome, headers):
        await self.send(self.settings.outcomes, outcome.to_json(), {**headers, **JSON})

    async def send(self, subject, body, headers):
        self.broker.streams[subject].put_nowait(Message(body, dict(headers)))


@define
class MemorySubscriber:
    server: MemoryServer
    subject: str

    async def start(self): ...

    async def stop(self): ...

    async def get_one(self, *, timeout):  # noqa: ASYNC109 - as FastStream's are called
        try:
            async with asyncio.timeout(timeout):
                message = await self.server.streams[self.subject].get()
        except TimeoutError:
            return None
        message.deliveries += 1
        self.server.in_hand.add(message)
        return message


class MemoryDelivery:
    def __init__(self, line, message):
        self._line, self._server, self._message = line, line.broker, message
        self.body, self.headers, self.deliveries = message.body, message.headers, message.deliveries

    async def ack(self):
        self._server.in_hand.remove(self._message)

    async def retry(self, after):
        self._server.in_hand.remove(self._message)
        self._server.delayed.put_nowait((after, self._message))

    async def park(self, reason):
        headers = {**self.headers, **reason_header(reason)}
        await self._line.send(self._line.settings.parked, self.body, headers)
        await self.ack()

    async def beat(self):
        self._server.beaten.set()


class MemorySide(Side):
    """Somebody else at this broker, whose time a test holds in its hands."""

    async def __aenter__(self):
        SERVERS[self.address] = self.server
        return self

    async def __aexit__(self, *exc):
        del SERVERS[self.address]

    async def send(self, body, headers=None):
        self.server.streams[self.settings.commands].put_nowait(Message(body, headers or {}))

    async def _next(self, subject):
        async with asyncio.timeout(PATIENCE):
            message = await self.server.streams[subject].get()
        return message.body, message.headers

    async def left(self):
        server = self.server
        waiting = server.streams[self.settings.commands].qsize() + server.delayed.qsize()
        return waiting + len(server.in_hand)

    async def due(self):
        """Let the delay of the next message pass; how long it was to be."""
        async with asyncio.timeout(PATIENCE):
            after, message = await self.server.delayed.get()
        self.server.streams[self.settings.commands].put_nowait(message)
        return after


@pytest.fixture
async def case(monkeypatch, tmp_path):
    monkeypatch.setitem(LINES, "memory", (__name__, "MemoryLine", "memory"))
    side = MemorySide(MemoryServer("memory://here"), ack_wait=0.15)
    async with Case(side, tmp_path) as case:
        yield case


async def test_an_order_is_created_and_its_outcome_published(case):
    run = await case.worker()

    await run.line.order(command())
    told = await case.side.outcome()
    await case.side.gone()

    assert (told["key"], told["outcome"]) == ("k", "created")
    assert [told["order_id"]] == list(case.sandbox.orders)


async def test_the_same_command_again_has_the_same_outcome_and_no_second_order(case):
    await case.worker()

    told = []
    for _ in range(2):
        await case.side.send(case.body)
        told.append(await case.side.outcome())

    assert told[0] == told[1]
    assert len(case.sandbox.orders) == 1


async def test_what_is_no_command_is_parked_with_the_reason(case):
    await case.worker()

    await case.side.send(b"{}", {"x-origin": "a test"})
    body, headers = await case.side.parked()
    await case.side.gone()

    assert (body, headers["x-origin"]) == (b"{}", "a test")
    assert headers["Transfer-Reason"].startswith("the command is not valid: version: is not 1")


async def test_a_service_that_is_overloaded_gets_the_time_that_it_asks_for(case):
    case.sandbox.faults.add(Status(429, headers={"Retry-After": "7"}))
    await case.worker()

    await case.side.send(case.body)
    after = await case.side.due()
    first, second = await case.handled(), await case.handled()

    assert isinstance(first.result, RateLimited)
    assert after >= 7.0
    assert (first.deliveries, second.deliveries) == (1, 2)
    assert (await case.side.outcome())["outcome"] == "created"


async def test_a_key_that_somebody_else_is_at_work_on_waits_for_their_lease(case):
    gate = Gate()
    case.bank.on_place = gate
    async with case.client() as other:
        theirs = asyncio.create_task(other.create_order(new_order(), key="k"))
        await gate.reached.wait()
        await case.worker()

        await case.side.send(case.body)
        busy = await case.handled()
        gate.open()
        order = await theirs

    assert isinstance(busy.result, KeyBusy)
    assert await case.side.due() >= busy.handled.disposition.after > 0
    assert (await case.side.outcome())["order_id"] == order.id


async def test_a_message_that_takes_long_gives_signs_of_life(case):
    gate = Gate()
    case.bank.on_place = gate
    await case.worker()

    await case.side.send(case.body)
    await gate.reached.wait()
    async with asyncio.timeout(PATIENCE):
        await case.side.server.beaten.wait()
    assert await case.side.left() == 1
    gate.open()

    assert (await case.side.outcome())["outcome"] == "created"
