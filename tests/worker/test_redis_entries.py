"""Entries of Redis streams: none is lost, and none blocks others, even with too many fields for a script."""

import gc
import weakref

import pytest
from redis.exceptions import ResponseError

from tests.support.cases import each
from tests.support.trials import ONLY_IN_TRIALS
from tests.worker.case import Case, command
from tests.worker.sides import PATIENCE, RedisSide, until
from transfer_async.integrations.faststream import broker_at
from transfer_async.integrations.faststream.redis import DELIVERIES, FORGET_AFTER, PUT_BACK, _unpacked

MANY = 5000
"""A number of fields above the limit: Lua accepts at most 8,000 names and values."""

MORE_THAN_AN_ENVELOPE_TAKES = 66_000

ODD = bytes(range(256))


def fields(count):
    """Return ``count`` headers which together contain every byte value."""
    return {b"h%d" % number: b"v" for number in range(count - 1)} | {b"odd" + ODD: ODD}


@pytest.fixture
async def case(redis, tmp_path):
    async with Case(RedisSide(redis), tmp_path) as case:
        yield case


@pytest.fixture
async def line(case):
    line = broker_at(case.side.address, case.side.settings)
    await line.open()
    yield line
    await line.close()


@pytest.fixture
async def taken(case, line):
    """Return a function that takes the next message, as a worker that stops responding would."""
    subscriber = line.subscriber()
    await subscriber.start()

    async def take():
        return line.delivery(await subscriber.get_one(timeout=PATIENCE))

    yield take
    await subscriber.stop()


async def put_back(line):
    """Return all pending entries to the queue."""
    await line.run(PUT_BACK, line.keys[:1], [line.settings.group, 0, DELIVERIES, FORGET_AFTER])


async def pending(case):
    settings = case.side.settings
    return (await case.side.client.xpending(settings.commands, settings.group))["pending"]


async def nothing_is_pending(case):
    return await pending(case) == 0


# --- entries of any size ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["the worker", "its subscriber"])
async def test_a_lost_group_is_created_again_from_the_start_of_the_stream(case, line, by):
    await case.side.send(b"x")
    await case.side.forget()
    if by == "the worker":
        await line.prepare()
        assert len(await case.side.client.xinfo_groups(case.side.settings.commands)) == 1

    subscriber = line.subscriber()
    await subscriber.start()

    assert (await subscriber.get_one(timeout=1.0)).body == b"x"
    await subscriber.stop()


async def test_a_message_that_redis_cannot_dead_letter_or_delay_stays_pending(case, line, taken):
    await case.side.send(b"x")
    delivery = await taken()
    for name in (case.side.settings.dead_letters, line.keys[1]):
        await case.side.client.set(name, "something else")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.dead_letter("not valid")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await delivery.retry(0.0)

    await case.side.client.delete(line.keys[1])
    assert (await pending(case), await case.side.left()) == (1, 1)


async def test_pending_messages_are_checked_three_times_in_each_ack_wait(line):
    """Without this, a dead worker's messages wait for another worker much longer than ``ack_wait``."""
    assert (line.settings.ack_wait / 3, line.put_back) in line.chores


async def test_an_acknowledged_message_is_neither_stored_nor_pending(case, taken):
    """Without this, each message stays pending, and the worker puts back at most 100 of them at a time."""
    await case.side.send(b"x")

    await (await taken()).ack()

    assert (await pending(case), await case.side.left()) == (0, 0)


async def test_a_message_that_another_worker_holds_is_neither_dead_lettered_nor_delayed(case, line, taken):
    await case.side.send(b"x")
    delivery = await taken()
    await put_back(line)

    await delivery.dead_letter("not valid")
    await delivery.retry(0.0)

    assert (await case.side.count(case.side.settings.dead_letters), await case.side.left()) == (0, 1)


async def test_an_unreadable_delivery_count_does_not_block_redelivery(case, line, taken):
    await case.side.send(b"x")
    await case.side.send(b"y", {"transfer-deliveries": "often"})
    for _ in range(2):
        await taken()

    await put_back(line)

    assert [(one.body, one.deliveries) for one in (await taken(), await taken())] == [(b"x", 2), (b"y", 2)]


async def test_a_delayed_entry_that_cannot_be_decoded_stays_and_blocks_no_other(case, line, taken):
    """The delayed item was written by another program and is not an entry."""
    await case.side.client.zadd(line.keys[1], {b"nobody's": 0, b"": 0})
    await case.side.send(b"x")
    await (await taken()).retry(0.0)

    with pytest.raises(ResponseError):
        await line.move()

    assert (await taken()).body == b"x"
    assert await case.side.client.zcard(line.keys[1]) == 2


async def test_the_subscriber_of_a_slot_that_failed_is_not_kept(line):
    """Without this, each failure of a slot costs a worker memory until it is restarted."""
    subscriber = line.subscriber()
    kept = weakref.ref(subscriber)
    await subscriber.start()
    await subscriber.stop()
    del subscriber
    gc.collect()

    assert kept() is None


# --- large entries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4001, pytest.param(MORE_THAN_AN_ENVELOPE_TAKES, marks=ONLY_IN_TRIALS)])
async def test_a_large_entry_is_dead_lettered_with_its_reason_and_others_are_processed(case, count):
    await case.worker()

    await case.side.send(b"no command", fields(count))
    assert (await case.order())["outcome"] == "created"

    body, headers = await case.side.dead_letter()
    assert body == b"no command"
    assert headers["Transfer-Reason"].startswith("the command is not valid: ")
    await case.side.gone()
    # If the worker was slow, the entry was dead-lettered more than once.
    await until(lambda: nothing_is_pending(case))


async def test_a_dead_lettered_large_entry_is_packed_and_can_be_sent_again(case, line, taken, caplog):
    await case.side.send(b"x", fields(MANY))

    await (await taken()).dead_letter("not valid")

    ((_, parked),) = await case.side.client.xrange(case.side.settings.dead_letters)
    assert parked.keys() == {b"__data__", b"body", b"transfer-fields", b"Transfer-Reason"}
    assert (parked[b"body"], parked[b"Transfer-Reason"]) == (b"x", b"not valid")
    assert "a message was dead-lettered with all its fields packed into one: not valid" in caplog.text
    await case.side.send(parked[b"body"], {b"transfer-fields": parked[b"transfer-fields"]})
    assert (await taken())._fields == {b"body": b"x", **fields(MANY)}


@pytest.mark.parametrize("how", ["its worker died", "delayed"])
async def test_a_large_entry_is_redelivered_complete_and_blocks_no_other(case, line, taken, how):
    for number in range(3):
        await case.side.send(b"%d" % number, fields(MANY) if number == 0 else None)
        delivery = await taken()
        if how == "delayed":
            await delivery.retry(0.0)

    await (line.move() if how == "delayed" else put_back(line))
    again = [await taken() for _ in range(3)]
    if how == "delayed":  # delayed messages that are due together have no order
        again.sort(key=lambda one: one.body)

    assert [(one.body, one.deliveries) for one in again] == [(b"0", 2), (b"1", 2), (b"2", 2)]
    assert again[0]._fields == {b"body": b"0", DELIVERIES: b"1", **fields(MANY)}
    assert await case.side.left() == 3


async def test_another_worker_carries_out_a_dead_workers_large_command(case, taken):
    await case.side.send(command("large").to_json(), fields(MANY))
    await case.side.send(command("small").to_json())
    for _ in range(2):
        await taken()

    await case.worker()

    assert {(await case.side.outcome())["key"] for _ in range(2)} == {"large", "small"}
    await case.side.gone()
    await until(lambda: nothing_is_pending(case))


async def test_a_large_entry_that_an_older_version_delayed_is_redelivered(case, line, taken):
    put_aside = "redis.call('ZADD', KEYS[1], 0, cmsgpack.pack({'0-1', ARGV}))"
    parts = [part for field in {b"body": b"x", DELIVERIES: b"1", **fields(MANY)}.items() for part in field]
    await case.side.client.eval(put_aside, 1, line.keys[1], *parts)

    await line.move()

    large = await taken()
    assert (large.body, large.deliveries) == (b"x", 2)


async def test_an_entry_that_a_full_redis_cannot_put_back_stays_pending(case, line, taken):
    for number in range(2):
        await case.side.send(b"%d" % number, fields(MANY) if number == 0 else None)
        await taken()

    await case.side.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            await put_back(line)
        assert (await pending(case), await case.side.left()) == (2, 2)
    finally:
        await case.side.client.config_set("maxmemory", 0)

    await put_back(line)
    assert [(await taken()).body for _ in range(2)] == [b"0", b"1"]


@each(
    "packed",
    [b"", b"{", b"7", b"[7]", b'["a"]', b'"ab"', b'{"a":1,"b":2}', b"\xff", b'["\\u20ac","x"]', b"[" * 9999],
)
def test_a_field_that_only_looks_packed_is_not_unpacked(packed):
    fields = {b"body": b"x", b"transfer-fields": packed}

    assert _unpacked(fields) == fields
