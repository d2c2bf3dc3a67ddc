"""Redis Streams, from Redis 6.2 on; not a cluster.

==============  ================================================================================
deliver         a consumer group that all workers share, from the stream's beginning; what a dead
                worker had in hand is put back into the stream once its idle time has passed
acknowledge     acknowledged and deleted in one transaction, so that the stream does not grow
delay           moved to a sorted set, by the time when it is due, and back when that has come
dead_letter     copied with its fields as they are, acknowledged and deleted by one script; those
                that are too many for a script, in one field
sign of life    claimed again, by the worker that has it, which resets its idle time
count           carried along with the message, in a field
==============  ================================================================================

Every move is one script, which adds before it takes away: one that fails on its way is not rolled back. And
it does nothing once the message is no longer in hand. An entry that cannot be moved stays where it is, and
keeps none of the others back. Redis must write before it answers
(``appendonly yes``, ``appendfsync always``), or what it loses in a crash is lost.

A command is what FastStream publishes to a stream; or an entry of any other program with a field ``body``,
whose other fields are taken for headers. An entry that was moved with too many fields for a script has one
field ``transfer-fields``, a list of their names and values in JSON, and is read as what it was.
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
    fitting,
    reason_header,
)

DATA, BODY, DELIVERIES = b"__data__", b"body", b"transfer-deliveries"
"""The fields of an entry: FastStream's own, other programs', and how often it has been delivered before."""

PACKED = b"transfer-fields"
"""The field that has the others of an entry with too many of them."""

MOST = 3500
"""Fields of an entry that a script writes: Lua passes on 8000 names and values, those it adds included."""

MOVE_EVERY = 0.25
"""Seconds between two looks at what is due: how much longer a delay may last."""

FORGET_AFTER = 3_600_000
"""Milliseconds after which a consumer that said nothing, and has nothing in hand, is forgotten."""

_PACKED = f"""
local function packed(fields)
  if #fields <= {2 * MOST} then return fields end
  return {{'{PACKED.decode()}', cjson.encode(fields)}}
end
"""

_EACH = """
-- One that fails keeps none of the others back; the error of the last that did, if any.
local function each(entries, move)
  local failed
  for _, entry in ipairs(entries) do
    local moved, why = pcall(move, entry)
    if not moved then failed = why end
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
-- KEYS: the stream, what is delayed. ARGV: group, id, milliseconds, the field of the count.
if not in_hand(KEYS[1], ARGV[1], ARGV[2]) then return 0 end -- somebody else has it now
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
-- KEYS: the stream, what is dead-lettered. ARGV: group, id, the fields of the copy.
if not in_hand(KEYS[1], ARGV[1], ARGV[2]) then return 0 end -- somebody else has it now
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
done_with(KEYS[1], ARGV[1], ARGV[2])
return 1
"""
)

MOVE = (
    _PACKED
    + _EACH
    + """
-- KEYS: the stream, what is delayed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)
local failed = each(due, function(delayed)
  redis.call('XADD', KEYS[1], '*', unpack(packed(cmsgpack.unpack(delayed)[2]))) -- older ones are not packed
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
-- KEYS: the stream. ARGV: group, idle milliseconds, the field of the count, when to forget a consumer.
local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], '-', '+', 100)
local failed = each(idle, function(pending)
  local entry = redis.call('XRANGE', KEYS[1], pending[1], pending[1])[1]
  if entry then redis.call('XADD', KEYS[1], '*', unpack(counted(packed(entry[2]), ARGV[3]))) end
  redis.call('XACK', KEYS[1], ARGV[1], pending[1])
  redis.call('XDEL', KEYS[1], pending[1])
end)
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #told, 2 do consumer[told[i]] = told[i + 1] end
  if consumer['pending'] == 0 and consumer['idle'] > tonumber(ARGV[4]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
  end
end
if failed then error(failed, 0) end
return #idle
"""
)


class RedisStreamsBroker(Broker):
    """The line of a Redis server.

    Args:
        broker: FastStream's.
        settings: see `WorkerSettings`.
    """

    def __init__(self, broker: RedisBroker, settings: WorkerSettings) -> None:
        self.broker: Any = broker
        self.settings: WorkerSettings = settings
        self.consumer: str = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # In one slot with the stream, as the scripts need it.
        self._keys = [settings.commands, f"{{{settings.commands}}}:delayed"]

    @classmethod
    def at(cls, address: str, settings: WorkerSettings, **options: Any) -> Self:
        """The line of the server at ``address``."""
        defaults: dict[str, Any] = {
            "socket_timeout": settings.poll + settings.publish_timeout,  # one that is gone says nothing
            "socket_connect_timeout": settings.publish_timeout,
            "max_connections": 2 * settings.concurrency + 16,
            "logger": log,
            "log_level": logging.DEBUG,
        }
        return cls(RedisBroker(address, **defaults | options), settings)

    @property
    def chores(self) -> Sequence[tuple[float, Callable[[], Awaitable[object]]]]:
        """What is to be done now and then."""
        return [*super().chores, (MOVE_EVERY, self.move), (self.settings.ack_wait / 3, self.put_back)]

    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Make the stream and its group; whoever sends makes the stream."""
        if only_to_send:
            return
        client = await self.broker.connect()
        try:
            await client.xgroup_create(self.settings.commands, self.settings.group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def move(self) -> None:
        """Put what is due back into the stream."""
        await self.run(MOVE, self._keys, [])

    async def put_back(self) -> None:
        """Put back what a worker has had in hand for too long without a sign of life."""
        idle = int(self.settings.ack_wait * 1000)
        await self.run(PUT_BACK, self._keys[:1], [self.settings.group, idle, DELIVERIES, FORGET_AFTER])

    async def delay(self, entry: bytes, after: float) -> None:
        """Put an entry aside for that many seconds."""
        await self.run(DELAY, self._keys, [self.settings.group, entry, int(after * 1000), DELIVERIES])

    async def dead_letter(self, entry: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Put an entry away for good, as a copy with those fields."""
        keys = [self.settings.commands, self.settings.dead_letters]
        copy = [part for field in fields.items() for part in field]
        await self.run(DEAD_LETTER, keys, [self.settings.group, entry, *copy])

    async def run(self, script: str, keys: list[str], arguments: list[Any]) -> None:
        """Run a script."""
        client: Any = await self.broker.connect()
        await client.register_script(script)(keys=keys, args=arguments)

    def subscriber(self) -> Any:
        """A member of the group."""
        stream = StreamSub(self.settings.commands, group=self.settings.group, consumer=self.consumer)
        made: Any = self.broker.subscriber(
            stream=stream,
            parser=_parsed,
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            persistent=False,
            include_in_schema=False,
        )
        made.last_id = "0"  # should `start` have to make the group: from the stream's beginning, not its end
        return made

    def delivery(self, message: RedisStreamMessage) -> RedisDelivery:
        """A message as a worker takes it."""
        return RedisDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome."""
        await self.send(self.settings.outcomes, outcome.to_json(), {**headers, **JSON})

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Append to a stream, as FastStream does."""
        await self.broker.publish(body, stream=subject, headers=fitting(headers))


async def _parsed(
    message: Any, original: Callable[[Any], Awaitable[RedisStreamMessage]]
) -> RedisStreamMessage:
    fields = _unpacked(message["data"])
    message = {**message, "data": fields}
    if fields.get(DATA):
        with contextlib.suppress(Exception):  # it is not FastStream's after all
            return await original(message)
    parsed = await original({**message, "data": {DATA: b"-"}})  # which fails over any other program's
    parsed.raw_message = message
    parsed.body = fields.get(BODY, fields.get(DATA, b""))
    parsed.headers = {
        _text(name): _text(value) for name, value in fields.items() if name not in (DATA, BODY, DELIVERIES)
    }
    return parsed


def _in_one(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The body, and all else in one field, as the scripts write it: bytes as they are, UTF-8 or not."""
    body = {name: value for name, value in fields.items() if name == BODY}
    parts = [part.decode("latin-1") for field in fields.items() if field[0] != BODY for part in field]
    return {**body, PACKED: json.dumps(parts, ensure_ascii=False).encode("latin-1")}


def _unpacked(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """All fields of an entry, those that are in one among them."""
    if PACKED not in fields:
        return dict(fields)
    try:
        packed = _pairs(json.loads(fields[PACKED].decode("latin-1")))
    except Exception:  # noqa: BLE001 - it is somebody else's, whatever it is
        return dict(fields)
    return {**packed, **{name: value for name, value in fields.items() if name != PACKED}}


def _pairs(parts: Any) -> dict[bytes, bytes]:
    if not isinstance(parts, list):
        raise TypeError("no list of names and values")
    each = [part.encode("latin-1") for part in parts]
    return dict(zip(each[::2], each[1::2], strict=True))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


class RedisDelivery:
    """One entry of a stream; for a FastStream subscriber of one's own as well."""

    def __init__(self, line: RedisStreamsBroker, message: RedisStreamMessage) -> None:
        self._line, self._message = line, message
        raw: Any = message.raw_message
        self._entry: bytes = raw["message_ids"][0]
        self._fields: dict[bytes, bytes] = raw["data"]

    @property
    def body(self) -> bytes:
        """What was sent."""
        return bytes(self._message.body)

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent along with it."""
        return self._message.headers

    @property
    def deliveries(self) -> int:
        """How often it has been delivered, as far as it was put back since."""
        before = self._fields.get(DELIVERIES, b"0")
        return int(before) + 1 if before.isdigit() else 1

    async def ack(self) -> None:
        """Acknowledge and delete."""
        settings = self._line.settings
        async with (await self._client()).pipeline(transaction=True) as transaction:
            transaction.xack(settings.commands, settings.group, self._entry)
            transaction.xdel(settings.commands, self._entry)
            await transaction.execute()

    async def retry(self, after: float) -> None:
        """Put it aside for that many seconds."""
        await self._line.delay(self._entry, after)

    async def dead_letter(self, reason: str) -> None:
        """Copy it to the dead letters with the reason, acknowledge and delete.

        The copy can be read as FastStream's, with the headers cut where they are long; the fields of any
        other program are beside that, unchanged. Where they are too many, they are there in one, and the
        reason is the only header.
        """
        why = reason_header(reason)
        headers: Mapping[str, str] = {**self.headers, **why}
        others = {name: value for name, value in self._fields.items() if name not in (DATA, DELIVERIES)}
        if len(others) > MOST:
            log.warning("a message is dead-lettered with its fields in one, as they are too many: %s", reason)
            headers, others = why, _in_one(others)
        envelope = await BinaryMessageFormatV1.encode(
            message=self.body, reply_to=None, headers=fitting(headers), correlation_id=gen_cor_id()
        )
        others |= {name.encode(): value.encode() for name, value in why.items()}
        await self._line.dead_letter(self._entry, {DATA: envelope, **others})

    async def beat(self) -> None:
        """Claim it again: its idle time begins anew."""
        settings, client = self._line.settings, await self._client()
        await client.xclaim(
            settings.commands, settings.group, self._line.consumer, 0, [self._entry], justid=True
        )

    async def _client(self) -> Any:
        return await self._line.broker.connect()
