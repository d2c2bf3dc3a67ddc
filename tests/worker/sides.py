"""The other side of each broker, which sends commands to a worker and reads what the worker publishes."""

import asyncio
import json
import secrets
import time
from collections import Counter

import nats
import pytest
import redis.asyncio
from faststream.redis.parser import BinaryMessageFormatV1

from transfer_async.integrations.faststream.broker import WorkerSettings

PATIENCE = 60.0


async def until(condition):
    """Poll until ``await condition()`` is true."""
    deadline = time.monotonic() + PATIENCE
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
        self.read = Counter()

    @property
    def address(self):
        return self.server.address

    async def outcome(self):
        """Return the next outcome as decoded JSON."""
        return json.loads((await self.next(self.settings.outcomes))[0])

    async def dead_letter(self):
        """Return the body and the headers of the next dead-lettered message."""
        return await self.next(self.settings.dead_letters)

    async def next(self, subject):
        """Return the body and the headers of the next message of a subject."""
        self.read[subject] += 1

        async def there():
            return await self.count(subject) >= self.read[subject]

        await until(there)
        return await self._message(subject, self.read[subject])

    async def published(self):
        """Return the number of published outcomes."""
        return await self.count(self.settings.outcomes)

    async def gone(self):
        """Wait until the broker has no commands left."""

        async def none():
            return await self.left() == 0

        await until(none)

    async def wipe(self):
        """Delete the stream of outcomes."""
        await self._delete(self.settings.outcomes)
        del self.read[self.settings.outcomes]


class NatsSide(Side):
    NAME = "nats"

    async def __aenter__(self):
        self._connection = await nats.connect(self.address)
        self.jetstream = self._connection.jetstream()
        await self.add_commands()
        return self

    async def __aexit__(self, *exc):
        await self._connection.close()

    @property
    def max_payload(self):
        return self._connection.max_payload

    @staticmethod
    def stream(subject):
        """Return the name of a subject's stream."""
        return subject.upper().replace(".", "_")

    async def add_commands(self):
        """Create the stream of commands."""
        commands = self.settings.commands
        await self.jetstream.add_stream(
            name=self.stream(commands), subjects=[commands], retention="workqueue"
        )

    async def send(self, body, headers=None):
        await self.jetstream.publish(self.settings.commands, body, headers=headers)

    async def _message(self, subject, number):
        message = await self.jetstream.get_msg(self.stream(subject), number)
        return message.data or b"", message.headers or {}

    async def count(self, subject):
        """Return the number of stored messages of a subject."""
        try:
            return (await self.jetstream.stream_info(self.stream(subject))).state.messages
        except nats.js.errors.NotFoundError:
            return 0

    async def left(self):
        """Return the number of commands that the broker still stores."""
        return await self.count(self.settings.commands)

    async def forget(self):
        """Delete the workers' consumer from the broker."""
        await self.jetstream.delete_consumer(self.stream(self.settings.commands), self.settings.group)

    async def _delete(self, subject):
        await self.jetstream.delete_stream(self.stream(subject))


class RedisSide(Side):
    NAME = "redis"

    async def __aenter__(self):
        self.client = redis.asyncio.Redis.from_url(self.address)
        return self

    async def __aexit__(self, *exc):
        await self.client.aclose()

    async def send(self, body, headers=None):
        await self.client.xadd(self.settings.commands, {"body": body, **(headers or {})})

    async def _message(self, stream, number):
        _, fields = (await self.client.xrange(stream, count=number))[-1]
        return BinaryMessageFormatV1.parse(fields[b"__data__"])

    async def count(self, stream):
        return await self.client.xlen(stream)

    async def left(self):
        commands = self.settings.commands
        return await self.count(commands) + await self.client.zcard(f"{{{commands}}}:delayed")

    async def forget(self):
        await self.client.xgroup_destroy(self.settings.commands, self.settings.group)

    async def _delete(self, stream):
        await self.client.delete(stream)


SIDES = {side.NAME: side for side in (NatsSide, RedisSide)}

on_nats = pytest.mark.parametrize("side", [NatsSide.NAME], indirect=True)
on_redis = pytest.mark.parametrize("side", [RedisSide.NAME], indirect=True)
"""`on_nats` and `on_redis` mark tests of a single broker. Other tests run on every broker."""
