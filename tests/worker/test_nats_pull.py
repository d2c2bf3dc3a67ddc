"""Slots that request messages together: what the server receives, and which slot gets each message."""

import asyncio
import json

import pytest
from attrs import define, field

from tests.support.loop_time import LoopTime
from transfer_async.integrations.faststream.nats import (
    LATE,
    LONGEST,
    REMEMBERED,
    SHARE,
    PullSlot,
    SharedPull,
)

PATIENCE = 1.0


@define(eq=False)
class Message:
    subject: str = "transfer.commands"
    headers: dict | None = None
    given_back: bool = False

    async def nak(self):
        self.given_back = True


@define(eq=False)
class Connection:
    """A client's connection. The test sets the server's responses."""

    is_connected: bool = True
    fails: Exception | None = None
    asked: list = field(factory=list)
    subject: str | None = None
    come: object = None

    def new_inbox(self):
        return "inbox"

    async def subscribe(self, subject, *, cb):
        self.subject, self.come = subject, cb

    async def publish(self, subject, payload, *, reply):
        if self.fails is not None:
            raise self.fails
        self.asked.append((subject, json.loads(payload), reply))

    async def answer(self, status, request=0):
        await self.come(Message(self.asked[request][2], {"Status": status}))


class Desk:
    """A shared pull, and slots that wait for its messages."""

    def __init__(self, time):
        self.time, self.connection = time, Connection()
        self.pull = SharedPull(self.connection, lambda: "next.of.consumer")
        self.pull.slots = 9  # the other nine slots are busy

    async def slots(self, count=1):
        """Add ``count`` waiting slots, and send their request."""
        if self.connection.subject is None:
            await self.pull.open()
        tasks = [asyncio.create_task(self.pull.next(PATIENCE)) for _ in range(count)]
        await asyncio.sleep(0)
        await self.time.pass_(LONGEST)
        return tasks


@pytest.fixture
def desk(loop_time: LoopTime):
    return Desk(loop_time)


async def test_slots_that_become_free_together_share_a_request(desk):
    slots = await desk.slots(3)

    assert desk.connection.asked == [("next.of.consumer", {"batch": 3, "expires": 1_000_000_000}, "inbox.0")]
    assert desk.connection.subject == "inbox.*"
    await desk.connection.answer("408")
    assert await asyncio.gather(*slots) == [None] * 3


async def test_a_message_goes_to_the_slot_that_has_waited_longest(desk):
    first, second = Message(), Message()
    slots = [*await desk.slots(), *await desk.slots()]

    await desk.connection.come(first)
    await desk.connection.come(second)

    assert await asyncio.gather(*slots) == [first, second]
    assert [first.given_back, second.given_back] == [False, False]


async def test_a_slot_that_becomes_free_requests_one_message(desk):
    slots = await desk.slots(2)
    await desk.connection.come(Message())
    await slots[0]
    slots += await desk.slots()

    assert [asked["batch"] for _, asked, _ in desk.connection.asked] == [2, 1]
    for slot in slots[1:]:
        slot.cancel()


async def test_a_message_that_no_slot_waits_for_is_returned(desk):
    (slot,) = await desk.slots()
    slot.cancel()
    await asyncio.wait([slot])
    message = Message()

    await desk.connection.come(message)

    assert message.given_back


async def test_a_message_that_arrives_as_one_request_expires_goes_to_the_next_slot(desk):
    early, late = [*await desk.slots(), *await desk.slots()]
    message = Message()

    await desk.connection.answer("408", request=0)
    await desk.connection.come(message)

    assert (await early, await late) == (None, message)


@pytest.mark.parametrize("status", ["409", "503"])
async def test_a_missing_consumer_raises_only_in_the_slots_that_asked(desk, status):
    early, late = [*await desk.slots(), *await desk.slots()]

    await desk.connection.answer(status, request=1)

    with pytest.raises(ConnectionError, match=f"status {status}"):
        await late
    assert not early.done()
    early.cancel()


async def test_a_request_that_cannot_be_sent_raises_in_its_slot(desk):
    desk.connection.fails = OSError("no way")
    (slot,) = await desk.slots()

    with pytest.raises(OSError, match="no way"):
        await slot


async def test_without_a_connection_nothing_is_requested_and_the_wait_still_ends(desk):
    desk.connection.is_connected = False
    (slot,) = await desk.slots()

    await desk.time.pass_(PATIENCE + LATE)

    assert await slot is None
    assert desk.connection.asked == []


async def test_a_slot_cancelled_before_the_request_is_not_counted(desk):
    await desk.pull.open()
    slot = asyncio.create_task(desk.pull.next(PATIENCE))
    await asyncio.sleep(0)
    slot.cancel()
    await asyncio.wait([slot])
    await desk.time.pass_(LONGEST)

    assert desk.connection.asked == []


async def test_a_slot_that_was_just_cancelled_keeps_no_other_waiting(desk):
    cancelled, other = await desk.slots(2)
    cancelled.cancel()

    await desk.connection.answer("408")

    assert await other is None


async def test_the_request_is_sent_at_once_when_all_slots_wait(desk):
    desk.pull.slots = 2
    desk.pull.note(60.0)
    await desk.pull.open()

    slots = [asyncio.create_task(desk.pull.next(PATIENCE)) for _ in range(2)]
    for _ in range(3):
        await asyncio.sleep(0)

    assert [asked["batch"] for _, asked, _ in desk.connection.asked] == [2]
    await desk.time.pass_(LONGEST)
    assert len(desk.connection.asked) == 1
    for slot in slots:
        slot.cancel()


@pytest.mark.parametrize(("usual", "wait"), [(0.0, 0.0), (0.04, SHARE * 0.04), (60.0, LONGEST)])
async def test_a_slot_waits_for_others_for_a_share_of_the_usual_handling_time(desk, usual, wait):
    for _ in range(50 * REMEMBERED):
        desk.pull.note(usual)
    loop = asyncio.get_running_loop()

    before = loop.time()
    slot = asyncio.create_task(desk.pull.next(PATIENCE))
    await asyncio.sleep(0)
    due = desk.pull._asking.when() if desk.pull._asking else before

    assert before + 0.999 * wait <= due <= loop.time() + wait
    slot.cancel()


async def test_handling_time_runs_from_a_messages_arrival_to_the_next_request(desk):
    noted = []
    desk.pull.note = noted.append

    async def opened():
        await desk.pull.open()
        return desk.pull

    slot = PullSlot(opened)
    await slot.start()
    assert desk.pull.slots == 10
    for answer in (Message(), None, None):
        asking = asyncio.create_task(slot.get_one(timeout=PATIENCE))
        await asyncio.sleep(0)
        await desk.time.pass_(LONGEST)
        await (desk.connection.answer("408", -1) if answer is None else desk.connection.come(answer))
        assert await asking is answer
    await slot.stop()
    await slot.stop()

    assert desk.pull.slots == 9
    assert len(noted) == 1  # only the message counts, not the empty responses
    assert noted[0] >= 0
