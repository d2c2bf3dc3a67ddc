"""Workers on Redis Streams. Redis 6.2 or later is required. Clusters are not supported.

==============  ================================================================================
deliver         a consumer group that all workers share, from the stream's beginning; the messages
                of a dead worker return to the stream when no heartbeat came for ``ack_wait``
acknowledge     acknowledge and delete in one transaction, so that the stream does not grow
delay           move the message to a set sorted by due time, and back at that time
dead-letter     one script copies the fields, then acknowledges and deletes the message; too many
                fields for a script are packed into one field
heartbeat       the worker claims the message again, which resets the message's idle time
delivery count  stored in a field of the message
==============  ================================================================================

Lua scripts move the messages. A script adds the new entry before it deletes the old one, because Redis does
not roll back a script that fails. A script does nothing if the message is no longer pending for the worker's
group. An entry that cannot be moved stays where it is and does not block other entries. Configure Redis to
write to disk before it replies (``appendonly yes``, ``appendfsync always``); otherwise a crash may lose
messages.

Commands can come from FastStream or from any other program. A program without FastStream must store the
command in the field ``body``, and each header in a separate field. If an entry has too many fields, a script
packs them into one field ``transfer-fields``, a JSON list of names and values. The worker reads packed and
original entries in the same way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from faststream import AckPolicy
from faststream.message import gen_cor_id
from faststream.redis import BinaryMessageFormatV1, RedisBroker, RedisStreamMessage, StreamSub
from redis.exceptions import ResponseError

from transfer_async._converters.messages import OrderOutcome
from transfer_async._support.util import log
from transfer_async.integrations.faststream.broker import (
    JSON,
    Broker,
    WorkerSettings,
    reason_header,
    sanitized,
)

DATA, BODY, DELIVERIES = b"__data__", b"body", b"transfer-deliveries"
"""The fields of an entry: FastStream's envelope, the body from another program, and the delivery count."""

PACKED = b"transfer-fields"
"""The field into which all fields of an entry are packed if there are too many for a script."""

MAX_FIELDS = 3500
"""The maximum number of fields that a script writes. Lua can pass about 8000 values to one call."""

MOVE_EVERY = 0.25
"""The seconds between two checks for due messages. A redelivery may be this much later than requested."""

FORGET_AFTER = 3_600_000
"""The milliseconds after which an idle consumer without pending messages is deleted."""

_PACKED = f"""
local function packed(fields)
  if #fields <= {2 * MAX_FIELDS} then return fields end
  return {{'{PACKED.decode()}', cjson.encode(fields)}}
end
"""

_EACH = """
-- Calls move for each entry. An error does not block the other entries. Returns the last error, or nil.
local function each(entries, move)
  local failed
  for _, entry in ipairs(entries) do
    local moved, raised = pcall(move, entry)
    if not moved then failed = raised end
  end
  return failed
end
"""

_COUNTED = """
local function counted(fields, name)
  local found = false
  for i = 1, #fields, 2 do
    if fields[i] == name then fields[i + 1] = tostring((tonumber(fields[i + 1]) or 0) + 1); found = true end
  end
  if not found then fields[#fields + 1] = name; fields[#fields + 1] = '1' end
  return fields
end
"""

_IN_HAND = """
local function in_hand(stream, group, id)
  return #redis.call('XPENDING', stream, group, id, id, 1) > 0
end
local function done_with(stream, group, id)
  redis.call('XACK', stream, group, id)
  redis.call('XDEL', stream, id)
end
"""

DELAY = (
    _PACKED
    + _COUNTED
    + _IN_HAND
    + """
-- KEYS: the stream, the delayed entries. ARGV: group, id, milliseconds, the field of the count.
if not in_hand(KEYS[1], ARGV[1], ARGV[2]) then return 0 end -- another worker has it now
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if entry then
  local time = redis.call('TIME')
  local due = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[3])
  redis.call('ZADD', KEYS[2], due, cmsgpack.pack({ARGV[2], counted(packed(entry[2]), ARGV[4])}))
end
done_with(KEYS[1], ARGV[1], ARGV[2])
return 1
"""
)

DEAD_LETTER = (
    _IN_HAND
    + """
-- KEYS: the stream, the dead letters. ARGV: group, id, the fields of the copy.
if not in_hand(KEYS[1], ARGV[1], ARGV[2]) then return 0 end -- another worker has it now
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
done_with(KEYS[1], ARGV[1], ARGV[2])
return 1
"""
)

MOVE = (
    _PACKED
    + _EACH
    + """
-- KEYS: the stream, the delayed entries.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)
local failed = each(due, function(delayed)
  -- An entry that an older version delayed may not be packed.
  redis.call('XADD', KEYS[1], '*', unpack(packed(cmsgpack.unpack(delayed)[2])))
  redis.call('ZREM', KEYS[2], delayed)
end)
if failed then error(failed, 0) end
return #due
"""
)

PUT_BACK = (
    _PACKED
    + _EACH
    + _COUNTED
    + """
-- KEYS: the stream. ARGV: group, idle milliseconds, the field of the count,
-- idle milliseconds of a dead consumer.
local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], '-', '+', 100)
local failed = each(idle, function(pending)
  local entry = redis.call('XRANGE', KEYS[1], pending[1], pending[1])[1]
  if entry then redis.call('XADD', KEYS[1], '*', unpack(counted(packed(entry[2]), ARGV[3]))) end
  redis.call('XACK', KEYS[1], ARGV[1], pending[1])
  redis.call('XDEL', KEYS[1], pending[1])
end)
for _, pairs in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #pairs, 2 do consumer[pairs[i]] = pairs[i + 1] end
  if consumer['pending'] == 0 and consumer['idle'] > tonumber(ARGV[4]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
  end
end
if failed then error(failed, 0) end
return #idle
"""
)


class RedisStreamsBroker(Broker):
    """A Redis server of version 6.2 or later.

    Args:
        broker: FastStream's broker.
        settings: see `WorkerSettings`.
    """

    def __init__(self, broker: RedisBroker, settings: WorkerSettings) -> None:
        self.broker: Any = broker
        self.settings: WorkerSettings = settings
        self.consumer: str = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # The second key must be in the same hash slot as the stream, because scripts use both keys.
        self.keys: list[str] = [settings.commands, f"{{{settings.commands}}}:delayed"]

    @classmethod
    def at(cls, address: str, settings: WorkerSettings, **options: Any) -> Self:
        """Return the broker at ``address``."""
        defaults: dict[str, Any] = {
            "socket_timeout": settings.poll + settings.publish_timeout,  # detects a silent server
            "socket_connect_timeout": settings.publish_timeout,
            "max_connections": 2 * settings.concurrency + 16,
            "logger": log,
            "log_level": logging.DEBUG,
        }
        return cls(RedisBroker(address, **defaults | options), settings)

    @property
    def chores(self) -> Sequence[tuple[float, Callable[[], Awaitable[object]]]]:
        """The periodic tasks; see `Broker.chores`."""
        return [*super().chores, (MOVE_EVERY, self.move), (self.settings.ack_wait / 3, self.put_back)]

    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Create the stream and its group.

        If ``only_to_send`` is true, do nothing, because sending creates the stream.
        """
        if only_to_send:
            return
        client = await self.broker.connect()
        try:
            await client.xgroup_create(self.settings.commands, self.settings.group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def move(self) -> None:
        """Move delayed messages back to the stream when they are due."""
        await self.run(MOVE, self.keys, [])

    async def put_back(self) -> None:
        """Move messages back to the stream if their worker has sent no heartbeat for too long."""
        idle = int(self.settings.ack_wait * 1000)
        await self.run(PUT_BACK, self.keys[:1], [self.settings.group, idle, DELIVERIES, FORGET_AFTER])

    async def run(self, script: str, keys: list[str], arguments: list[Any]) -> None:
        """Run a Lua script on the server."""
        client: Any = await self.broker.connect()
        await client.register_script(script)(keys=keys, args=arguments)

    def subscriber(self) -> Any:
        """Return a subscriber that receives messages for the consumer group."""
        stream = StreamSub(self.settings.commands, group=self.settings.group, consumer=self.consumer)
        subscriber: Any = self.broker.subscriber(
            stream=stream,
            parser=_parsed,
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            persistent=False,
            include_in_schema=False,
        )
        # If `start` creates the group, it reads from the stream's beginning, not from its end.
        subscriber.last_id = "0"
        return subscriber

    def delivery(self, message: RedisStreamMessage) -> RedisDelivery:
        """Wrap a message as a `Delivery`."""
        return RedisDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome."""
        await self.send(self.settings.outcomes, outcome.to_json(), {**headers, **JSON})

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Append a message to a stream in FastStream's format."""
        await self.broker.publish(body, stream=subject, headers=sanitized(headers))


async def _parsed(
    message: Any, original: Callable[[Any], Awaitable[RedisStreamMessage]]
) -> RedisStreamMessage:
    fields = _unpacked(message["data"])
    message = {**message, "data": fields}
    if fields.get(DATA):
        with contextlib.suppress(Exception):  # A field of another program may have the same name.
            return await original(message)
    parsed = await original(
        {**message, "data": {DATA: b"-"}}
    )  # FastStream cannot parse the fields of other programs.
    parsed.raw_message = message
    parsed.body = fields.get(BODY, fields.get(DATA, b""))
    parsed.headers = {
        _text(name): _text(value) for name, value in fields.items() if name not in (DATA, BODY, DELIVERIES)
    }
    return parsed


def _in_one(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the body and one field that contains all other fields. All bytes are preserved."""
    body = {name: value for name, value in fields.items() if name == BODY}
    parts = [part.decode("latin-1") for field in fields.items() if field[0] != BODY for part in field]
    return {**body, PACKED: json.dumps(parts, ensure_ascii=False).encode("latin-1")}


def _unpacked(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return all fields of an entry, including those that are packed into a single field."""
    if PACKED not in fields:
        return dict(fields)
    try:
        packed = _pairs(json.loads(fields[PACKED].decode("latin-1")))
    except Exception:  # noqa: BLE001 - another program's field with the same name
        return dict(fields)
    return {**packed, **{name: value for name, value in fields.items() if name != PACKED}}


def _pairs(parts: Any) -> dict[bytes, bytes]:
    if not isinstance(parts, list):
        raise TypeError("not a list of names and values")
    encoded = [part.encode("latin-1") for part in parts]
    return dict(zip(encoded[::2], encoded[1::2], strict=True))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


class RedisDelivery:
    """One entry of a stream. You can also use `RedisDelivery` with your own FastStream subscriber."""

    def __init__(self, broker: RedisStreamsBroker, message: RedisStreamMessage) -> None:
        self._broker, self._message = broker, message
        raw: Any = message.raw_message
        self._entry: bytes = raw["message_ids"][0]
        self._fields: dict[bytes, bytes] = raw["data"]

    @property
    def body(self) -> bytes:
        """The message's body."""
        return bytes(self._message.body)

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self._message.headers

    @property
    def deliveries(self) -> int:
        """The number of deliveries of the message, incremented when it returns to the stream."""
        before = self._fields.get(DELIVERIES, b"0")
        return int(before) + 1 if before.isdigit() else 1

    async def ack(self) -> None:
        """Acknowledge the message and delete it from the stream."""
        settings = self._broker.settings
        async with (await self._client()).pipeline(transaction=True) as transaction:
            transaction.xack(settings.commands, settings.group, self._entry)
            transaction.xdel(settings.commands, self._entry)
            await transaction.execute()

    async def retry(self, after: float) -> None:
        """Remove the message from the stream, and add it again after ``after`` seconds."""
        broker = self._broker
        delay = [broker.settings.group, self._entry, int(after * 1000), DELIVERIES]
        await broker.run(DELAY, broker.keys, delay)

    async def dead_letter(self, reason: str) -> None:
        """Copy the message, with the reason, to the dead letters; then acknowledge and delete the original.

        FastStream can read the copy, in which headers are truncated to `MAX_LENGTH`. The copy also contains
        the unchanged fields of an entry from another program. If the message has too many fields, they are
        packed into one field, and the reason is the only header.
        """
        why = reason_header(reason)
        headers: Mapping[str, str] = {**self.headers, **why}
        others = {name: value for name, value in self._fields.items() if name not in (DATA, DELIVERIES)}
        if len(others) > MAX_FIELDS:
            log.warning("a message was dead-lettered with all its fields packed into one: %s", reason)
            headers, others = why, _in_one(others)
        envelope = await BinaryMessageFormatV1.encode(
            message=self.body, reply_to=None, headers=sanitized(headers), correlation_id=gen_cor_id()
        )
        others |= {name.encode(): value.encode() for name, value in why.items()}
        copy = [part for field in {DATA: envelope, **others}.items() for part in field]
        settings = self._broker.settings
        keys = [settings.commands, settings.dead_letters]
        await self._broker.run(DEAD_LETTER, keys, [settings.group, self._entry, *copy])

    async def beat(self) -> None:
        """Send a heartbeat by claiming the message again, which resets its idle time."""
        settings, client = self._broker.settings, await self._client()
        await client.xclaim(
            settings.commands, settings.group, self._broker.consumer, 0, [self._entry], justid=True
        )

    async def _client(self) -> Any:
        return await self._broker.broker.connect()
