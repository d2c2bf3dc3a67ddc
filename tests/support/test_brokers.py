"""The brokers of the tests keep what they acknowledged, and can do what is needed of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from redis.asyncio import Redis

from tests.support.brokers import NatsServer, RedisServer

STOPS = pytest.mark.parametrize("at_once", [False, True], ids=["in order", "at once"])


@asynccontextmanager
async def jetstream(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = Client()
    await client.connect(server.address)
    try:
        yield client.jetstream()
    finally:
        await client.close()


@STOPS
async def test_nats_keeps_what_it_acknowledged(nats: NatsServer, at_once: bool):
    async with jetstream(nats) as stream:
        await stream.add_stream(name="kept", subjects=["kept.*"])
        sent = await stream.publish("kept.one", b"7")
    await asyncio.to_thread(nats.restart, at_once=at_once)
    async with jetstream(nats) as stream:
        found = await stream.get_msg("kept", sent.seq)

    assert (found.subject, found.data) == ("kept.one", b"7")


async def test_nats_gives_a_message_again_that_was_not_taken(nats: NatsServer):
    async with jetstream(nats) as stream:
        await stream.add_stream(name="again", subjects=["again"])
        await stream.publish("again", b"7")
        consumer = await stream.pull_subscribe("again", durable="worker")
        [first] = await consumer.fetch(1)
        await first.nak()
        [second] = await consumer.fetch(1)

    assert second.data == b"7"
    assert second.metadata.num_delivered == 2


@STOPS
async def test_redis_keeps_what_it_answered(redis: RedisServer, at_once: bool):
    async with Redis.from_url(redis.address) as client:
        sent = await client.xadd("kept", {"n": 7})
    await asyncio.to_thread(redis.restart, at_once=at_once)
    async with Redis.from_url(redis.address) as client:
        found = await client.xrange("kept", min=sent)

    assert found == [(sent, {b"n": b"7"})]


async def test_redis_gives_a_message_of_a_consumer_that_left_to_another(redis: RedisServer):
    async with Redis.from_url(redis.address) as client:
        await client.xgroup_create("left", "group", id="0", mkstream=True)
        sent = await client.xadd("left", {"n": 7})
        await client.xreadgroup("group", "one", {"left": ">"})
        _, found, *_ = await client.xautoclaim("left", "group", "another", min_idle_time=0)

    assert found == [(sent, {b"n": b"7"})]
