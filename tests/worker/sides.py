"""The other side of each broker, which sends commands to a worker and reads what the worker publishes."""

import asyncio
import json
import secrets
import time

import nats
import pytest
import redis.asyncio
from faststream.redis.parser import BinaryMessageFormatV1

from transfer_async.integrations.faststream.broker import WorkerSettings

PATIENCE = 60.0


async def until(condition, *, patience=PATIENCE):
    """Poll until ``await condition()`` is true."""
    deadline = time.monotonic() + patience
    while not await condition():
        assert time.monotonic() < deadline, "the condition has not become true"
        await asyncio.sleep(0.005)


class Side:
    """A program on the other side of the broker. Its names are unique, so that tests do not interfere."""

    def __init__(self, server, **settings):
        self.server = server
        mine = f"t{secrets.token_hex(5)}"
        names = {name: f"{mine}.{name}" for name in ("commands", "outcomes", "dead_letters")}
        times = {"ack_wait": 1.0, "poll": 0.05, "concurrency": 4}
        self.settings = WorkerSettings(**names, **times | settings)

    @property
    def address(self):
        return self.server.address

    async def outcome(self):
        """Return the next outcome as decoded JSON."""
        return json.loads((await self._next(self.settings.outcomes))[0])

    async def dead_letter(self):
        """Return the body and the headers of the next dead-lettered message."""
        return await self._next(self.settings.dead_letters)

    async def gone(self):
        """Wait until the broker has no commands left."""

        async def none():
            return await self.left() == 0

        await until(none)


class NatsSide(Side):
    NAME = "nats"

    async def __aenter__(self):
        patience = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1}
        self._connection = await nats.connect(self.address, **patience)
        self._jetstream = self._connection.jetstream()
        self._seen = {}
        self._streams = {}
        for name in (self.settings.commands, self.settings.outcomes, self.settings.dead_letters):
            self._streams[name] = name.upper().replace(".", "_")
        retention = nats.js.api.RetentionPolicy.WORK_QUEUE
        await self._jetstream.add_stream(
            name=self._streams[self.settings.commands], subjects=[self.settings.commands], retention=retention
        )
        return self

    async def __aexit__(self, *exc):
        await self._connection.close()

    async def send(self, body, headers=None):
        await self._jetstream.publish(self.settings.commands, body, headers=headers)

    async def _next(self, subject):
        async def there():
            return await self._count(subject) > self._seen.get(subject, 0)

        await until(there)
        self._seen[subject] = self._seen.get(subject, 0) + 1
        message = await self._jetstream.get_msg(self._streams[subject], self._seen[subject])
        return message.data or b"", message.headers or {}

    async def _count(self, subject):
        try:
            return (await self._jetstream.stream_info(self._streams[subject])).state.messages
        except (nats.js.errors.NotFoundError, nats.errors.Error):
            return 0

    async def published(self):
        """Return the number of published outcomes."""
        return await self._count(self.settings.outcomes)

    async def left(self):
        """Return the number of commands that the broker still stores."""
        return (await self._jetstream.stream_info(self._streams[self.settings.commands])).state.messages

    async def forget(self):
        """Delete the workers' consumer from the broker."""
        await self._jetstream.delete_consumer(self._streams[self.settings.commands], self.settings.group)

    async def wipe(self):
        """Delete the stream of outcomes."""
        await self._jetstream.delete_stream(self._streams[self.settings.outcomes])


class RedisSide(Side):
    NAME = "redis"

    async def __aenter__(self):
        self._client = redis.asyncio.Redis.from_url(self.address)
        self._seen = {}
        return self

    async def __aexit__(self, *exc):
        await self._client.aclose()

    async def send(self, body, headers=None):
        await self._client.xadd(self.settings.commands, {"body": body, **(headers or {})})

    async def _next(self, stream):
        async def there():
            try:
                return await self._client.xlen(stream) > self._seen.get(stream, 0)
            except redis.exceptions.RedisError:
                return False

        await until(there)
        self._seen[stream] = self._seen.get(stream, 0) + 1
        _, fields = (await self._client.xrange(stream, count=self._seen[stream]))[-1]
        return BinaryMessageFormatV1.parse(fields[b"__data__"])

    async def published(self):
        return await self._client.xlen(self.settings.outcomes)

    async def left(self):
        commands = self.settings.commands
        return await self._client.xlen(commands) + await self._client.zcard(f"{{{commands}}}:delayed")

    async def forget(self):
        await self._client.xgroup_destroy(self.settings.commands, self.settings.group)

    async def wipe(self):
        await self._client.delete(self.settings.outcomes)


SIDES = {side.NAME: side for side in (NatsSide, RedisSide)}

on_nats = pytest.mark.parametrize("side", [NatsSide.NAME], indirect=True)
on_redis = pytest.mark.parametrize("side", [RedisSide.NAME], indirect=True)
"""`on_nats` and `on_redis` mark tests of a single broker. Other tests run on every broker."""
