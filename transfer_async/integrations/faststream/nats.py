"""NATS JetStream.

==============  ================================================================================
deliver         a durable pull consumer that all workers share, and from which the lanes of one ask
                together; explicit acknowledgement, and no end of deliveries: when to give up is the
                journal's to say
acknowledge     confirmed by the server (double ack)
delay           a negative acknowledgement with a delay
dead_letter     published, confirmed, then terminated; without headers where they do not fit
sign of life    "in progress"
count           the server's own
==============  ================================================================================

A stream that is missing is made: of commands as a work queue, on disk; of outcomes and dead letters
without a limit, on disk. One that is there is used as it is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self
from uuid import uuid4

from faststream.exceptions import IncorrectState
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DEFAULT_PREFIX, AckPolicy, ConsumerConfig, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError

from transfer_async._converters.messages import EndOfDoubt, OrderOutcome
from transfer_async._models.errors import Outcome
from transfer_async._support.util import log
from transfer_async.integrations.faststream.broker import (
    JSON,
    Broker,
    TooLarge,
    WorkerSettings,
    carried_on,
    reason_header,
)

_OWN = "nats-"
"""What the headers begin with that speak to the server."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A header's name as the client sends it; others' clients send more."""

_ADDED = 1024
"""Bytes for what FastStream and its middlewares add to the headers."""

_STATUS = "Status"
"""The header by which the client knows word from the server, whoever sent it."""

_STATUS_OF_SENDER = "X-Status"
"""What it is called once the server has stored it for somebody."""

_TO_ACKNOWLEDGE = "$JS.ACK."
"""What the reply of a stored message begins with; word from the server has no such reply."""

_MESSAGE_ID = "Nats-Msg-Id"
"""The header by which the server knows what it has stored already."""

_CORRELATION = "correlation_id"
"""The header by which FastStream knows what belongs together."""

_PARTS, _DELIVERED = 9, 4
"""How many parts the reply of a stored message has, and which of them is how often it was delivered."""


class JetStreamBroker(Broker):
    """The line of a NATS server with JetStream.

    Args:
        broker: FastStream's; without ``max_reconnect_attempts=-1`` it gives up after two minutes.
        settings: see `WorkerSettings`.
    """

    def __init__(self, broker: NatsBroker, settings: WorkerSettings) -> None:
        self.broker: Any = broker
        self.settings: WorkerSettings = settings
        self._streams: dict[str, str] = {}
        self._seen_to: Any = None
        self._jetstream: JetStreamContext | None = None
        self._failed = 0
        self._pull: SharedPull | None = None
        self._pulling = asyncio.Lock()

    @classmethod
    def at(cls, address: str, settings: WorkerSettings, **options: Any) -> Self:
        """The line of the server at ``address``, or of a cluster's at several, separated by commas."""
        servers = [item.strip() for item in address.split(",")]

        async def failed(error: Exception) -> None:
            line._note_failed(error, servers=len(servers))

        defaults: dict[str, Any] = {
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "logger": log,
            "log_level": logging.DEBUG,
            "error_cb": failed,
        }
        line = cls(NatsBroker(servers, **defaults | options), settings)
        return line

    def _note_failed(self, error: Exception, *, servers: int) -> None:
        """Take note of what the driver has met; ends the making of a connection that nobody accepts.

        It would try for ever, and say nothing. A connection that breaks later is made again for ever.

        Raises:
            OSError: ``error``, if none of the ``servers`` can be connected to, and there is no connection.
        """
        # One that says nothing may be starting: whoever waits for it knows how long.
        is_certain = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        self._failed = self._failed + 1 if is_certain else 0
        if self._failed >= servers and not self._has_connection:
            raise error

    async def open(self, *, only_to_send: bool = False) -> None:
        """Connect, and make what is missing.

        Raises:
            OSError: no server can be connected to: a port that is closed, a name that is not known.
        """
        self._failed = 0
        await super().open(only_to_send=only_to_send)

    @property
    def _has_connection(self) -> bool:
        try:
            return self.broker.connection is not None
        except IncorrectState:  # there is none yet, or no more
            return False

    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Make the streams that are missing, and the consumer."""
        settings = self.settings
        await self._find(settings.commands, RetentionPolicy.WORK_QUEUE)
        if only_to_send:
            return
        await self._find(settings.outcomes, RetentionPolicy.LIMITS)
        await self._find(settings.dead_letters, RetentionPolicy.LIMITS)
        manager = await self._manager()
        await manager.add_consumer(self._streams[settings.commands], self._consumer())

    async def _find(self, subject: str, retention: RetentionPolicy) -> None:
        manager = await self._manager()
        try:
            name = await manager.find_stream_name_by_subject(subject)
        except NotFoundError:
            name = re.sub(r"[^A-Z0-9-]", "_", subject.upper())
            await manager.add_stream(
                name=name, subjects=[subject], retention=retention, storage=StorageType.FILE
            )
        self._streams[subject] = name

    def _consumer(self) -> ConsumerConfig:
        return ConsumerConfig(
            name=self.settings.group,
            durable_name=self.settings.group,
            filter_subject=self.settings.commands,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self.settings.ack_wait,
            max_deliver=-1,
            max_ack_pending=-1,  # what waits out a delay counts, and must not keep the others back
        )

    async def _manager(self) -> JetStreamContext:
        await self._connection()
        assert self._jetstream is not None  # noqa: S101 - it is of the connection
        return self._jetstream

    async def _connection(self) -> Any:
        """The connection, on which reconnecting goes on and each stored message is one."""
        connection: Any = await self.broker.connect()
        if connection is not self._seen_to:
            self._seen_to = connection
            self._jetstream = connection.jetstream(timeout=self.settings.publish_timeout)
            connection.msg_class = _StoredMessage
            if report := getattr(connection, "_error_cb", None):
                # Not among FastStream's options: what it is given, it wraps.
                connection._error_cb = _harmless(report)
        return connection

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good: unlike one that broke, it never comes back."""
        if not self._has_connection:
            return False
        connection: Any = self.broker.connection
        return bool(connection.is_closed) or _is_given_up(connection)

    def subscriber(self) -> PullingLane:
        """A lane of the pull that all lanes share, from the consumer that all workers share."""
        return PullingLane(self._opened_pull)

    async def _opened_pull(self) -> SharedPull:
        connection = await self._connection()
        async with self._pulling:
            if self._pull is None or self._pull.connection is not connection:
                pull = SharedPull(connection, self._address_of_next)
                await pull.open()
                self._pull = pull
            return self._pull

    def _address_of_next(self) -> str:
        stream = self._streams[self.settings.commands]
        return f"{DEFAULT_PREFIX}.CONSUMER.MSG.NEXT.{stream}.{self.settings.group}"

    def delivery(self, message: NatsMessage | Msg) -> NatsDelivery:
        """A message as a worker takes it."""
        return NatsDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome; one that is known to come twice within the stream's window is stored once."""
        headers = {_CORRELATION: outcome.intent_id, **headers, **_known_again_by(outcome)}
        await self.send(self.settings.outcomes, outcome.to_json(), headers | JSON)

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Publish to one of the streams; return once it is stored.

        Raises:
            TooLarge: the server takes less; nothing was sent.
        """
        await self._check_size(body, headers)
        headers = {_CORRELATION: headers.get(_CORRELATION) or str(uuid4()), **headers}
        if not self.broker.middlewares:  # then nobody sees the difference, but the processor
            await (await self._manager()).publish(subject, body, headers=headers)
            return
        await self.broker.publish(
            body,
            subject,
            headers=headers,
            stream=self._streams[subject],
            timeout=self.settings.publish_timeout,
            correlation_id=headers[_CORRELATION],
        )

    async def _check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        # The client looks at the body alone; the server at both, and closes the connection.
        connection = await self._connection()
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        size, most = len(body) + len(lines.encode()) + _ADDED, connection.max_payload
        if size > most:
            raise TooLarge(f"a message of {size} bytes with its headers, where the server takes {most}")

    async def send_bare(self, subject: str, body: bytes) -> None:
        """Publish the body alone, which may then be as large as the server takes; return once stored."""
        manager = await self._manager()
        await manager.publish(subject, body)


def _known_again_by(outcome: OrderOutcome) -> dict[str, str]:
    """The header by which the server takes an outcome for one that it has; none where it might be another.

    An order's id that the service did not answer itself may be amended, and amended back: what was told
    first is then told again, and must come last. Only since when the id is on record tells the two apart.
    """
    told: list[object] = [outcome.intent_id, outcome.outcome.value, outcome.order_id, outcome.order_may_exist]
    if outcome.outcome is Outcome.CREATED and outcome.state is None:
        ended_at = outcome.ended_at if isinstance(outcome, EndOfDoubt) else None
        if ended_at is None:
            return {}
        told.append(ended_at)
    return {_MESSAGE_ID: ":".join(map(str, told))}


class _StoredMessage(Msg):
    """A message whose sender's ``Status`` is not taken for the server's.

    The client hands on nothing that has such a header, and the command would come back for ever. Nor is it
    parked under that name: those who fetch dead letters would not get it either.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        headers = self.headers
        if headers and _STATUS in headers and self.reply.startswith(_TO_ACKNOWLEDGE):
            others = {name: value for name, value in headers.items() if name != _STATUS}
            self.headers = {_STATUS_OF_SENDER: headers[_STATUS], **others}


def _harmless(report: Callable[[Exception], Awaitable[None]]) -> Callable[[Exception], Awaitable[None]]:
    """``report``, whose own errors end nothing.

    FastStream's raises what it holds for beyond repair, such as a refused password; it would end
    reconnecting for ever, without the connection being closed. A password may be accepted the next time.
    """

    async def told(error: Exception) -> None:
        try:
            await report(error)
        except Exception as raised:  # noqa: BLE001 - whatever it is, reconnecting goes on
            log.debug("the broker's connection has trouble (%s); going on", type(raised).__name__)

    return told


def _is_given_up(connection: Any) -> bool:
    """Whether a connection broke, and what was to make it again has ended.

    The client sets the status of a broken connection and starts that task without an ``await`` between, and
    the task itself sets the status before it ends: in good health, the two are never seen apart.
    """
    again: Any = getattr(connection, "_reconnection_task", None)
    return again is not None and bool(again.done()) and not connection.is_connected


class NatsDelivery:
    """One message from JetStream; for a FastStream subscriber of one's own as well."""

    def __init__(self, line: JetStreamBroker, message: NatsMessage | Msg) -> None:
        self._line = line
        if isinstance(message, Msg):
            self._message, self._body, self._headers = message, message.data, message.headers or {}
        else:
            self._message, self._body, self._headers = message.raw_message, message.body, message.headers

    @property
    def body(self) -> bytes:
        """What was sent."""
        return bytes(self._body)

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent along with it."""
        return self._headers

    @property
    def deliveries(self) -> int:
        """How often the server has delivered it."""
        # All else that stands in the reply, such as a time, is dear to read, and nobody asks for it here.
        parts = self._message.reply.split(".", _PARTS)
        if len(parts) == _PARTS and self._message.reply.startswith(_TO_ACKNOWLEDGE):
            return int(parts[_DELIVERED])
        return int(self._message.metadata.num_delivered)  # of a server with a domain, or none of a server

    async def ack(self) -> None:
        """Acknowledge, and wait until the server has taken note."""
        await self._message.ack_sync()

    async def retry(self, after: float) -> None:
        """Have it delivered again after that many seconds; were this lost, after ``ack_wait``."""
        await self._message.nak(delay=after)

    async def dead_letter(self, reason: str) -> None:
        """Publish it with the reason, then terminate it."""
        line, origin = self._line, self._message.metadata
        # The time, too: in a stream that was made anew, the numbers begin anew.
        told = f"parked:{origin.stream}:{origin.sequence.stream}:{origin.timestamp.isoformat()}"
        own = reason_header(reason) | {_MESSAGE_ID: told}
        try:
            await self._park({**self._carried_on(), **own}, own)
        except TooLarge:
            log.warning("a message is dead-lettered without its headers, which do not fit: %s", reason)
            await line.send_bare(line.settings.dead_letters, self.body)
        await self._message.term()

    def _carried_on(self) -> dict[str, str]:
        headers = carried_on(self.headers, without=_OWN)
        return {name: value for name, value in headers.items() if _NAME.fullmatch(name)}

    async def _park(self, all_headers: Mapping[str, str], own: Mapping[str, str]) -> None:
        line = self._line
        try:
            await line.send(line.settings.dead_letters, self.body, all_headers)
        except TooLarge:
            await line.send(line.settings.dead_letters, self.body, own)

    async def beat(self) -> None:
        """Say that work goes on."""
        await self._message.in_progress()


# --- nats pull ---------------------------------------------------------------------------------------
# The messages of one pull consumer of JetStream, for any number of lanes: they ask together.
#
# The client's own ``fetch`` sends a request for each message; or, asked for several, it keeps the first
# waiting for the last. Here each lane is given a message as soon as one comes, and lanes that become free
# at about the same time share a request. Never is more asked for than there are lanes that wait: what is
# not worked on is not fetched. What comes all the same, as its lane has ended meanwhile, is given back at
# once.


SHARE, LONGEST = 0.25, 0.05
"""How long a lane waits for others before it asks: a part of what a message takes, and seconds at most.

Orders that begin together share their commits, and those are half of the work. No message waits for this as
long as another lane has nothing to do: that one's request is at the server.
"""

REMEMBERED = 16
"""Of how many messages the time that one takes is about the mean."""

LATE = 0.5
"""Seconds that the server may take, beyond the time that it was given, to say that there was nothing."""

_EXPIRED = "408"
_NOT_YET = ""


class SharedPull:
    """Asks one consumer for as many messages as there are lanes that wait.

    Args:
        connection: of the client's.
        address: where requests for the consumer's messages go, as it is now.

    Attributes:
        lanes: how many there are; once all of them wait, there is nobody left to wait for.
    """

    def __init__(self, connection: Any, address: Callable[[], str]) -> None:
        self.connection: Any = connection
        self._address = address
        self._inbox: str = connection.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[asyncio.Future[Msg | None], str] = {}
        """Those that wait, the one that has waited longest first; and where its request is answered."""
        self.lanes: int = 0
        self._patience = self._usual = 0.0
        self._asking: asyncio.TimerHandle | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Hear what the server sends, until the connection ends."""
        await self.connection.subscribe(f"{self._inbox}.*", cb=self._came)

    async def next(self, patience: float) -> Msg | None:
        """The next message; None if none came in ``patience`` seconds, which is the same for all lanes.

        Raises:
            ConnectionError: the consumer is gone, or the server gives nothing for another reason.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Msg | None] = loop.create_future()
        self._waiting[waiter], self._patience = _NOT_YET, patience
        if len(self._waiting) >= self.lanes:
            self._ask()
        elif self._asking is None:
            self._asking = loop.call_later(min(SHARE * self._usual, LONGEST), self._ask)
        # A connection that breaks takes the request along, and nothing is heard of it.
        too_late = loop.call_later(patience + LATE, _end, waiter)
        try:
            return await waiter
        finally:
            too_late.cancel()
            self._waiting.pop(waiter, None)

    def note(self, seconds: float) -> None:
        """So long did it take until a lane was done with a message."""
        self._usual += (seconds - self._usual) / REMEMBERED

    def _ask(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        new = [waiter for waiter, reply in self._waiting.items() if reply == _NOT_YET]
        # While there is no connection requests would heap up, and all be answered when it is back.
        if not new or not self.connection.is_connected:
            return
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._waiting |= dict.fromkeys(new, reply)
        request = asyncio.create_task(self._request(len(new), reply))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _request(self, wanted: int, reply: str) -> None:
        asked = json.dumps({"batch": wanted, "expires": int(self._patience * 1e9)})
        try:
            await self.connection.publish(self._address(), asked.encode(), reply=reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
            self._end_all(reply, error)

    async def _came(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status == _EXPIRED:
            self._end_all(message.subject)
        elif status is not None:
            why = f"the consumer gives nothing (status {status})"
            self._end_all(message.subject, ConnectionError(why))
        elif not self._give(message):
            await message.nak()

    def _give(self, message: Msg) -> bool:
        """Give ``message`` to whoever has waited longest, as the server does; false if nobody waits."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(message)
                del self._waiting[waiter]
                return True
        return False

    def _end_all(self, reply: str, error: Exception | None = None) -> None:
        """End the waiting of those whose request is answered at ``reply``."""
        for waiter, asked in self._waiting.items():
            if asked == reply:
                _end(waiter, error)


def _end(waiter: asyncio.Future[Msg | None], error: Exception | None = None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class PullingLane:
    """One lane, as a worker sees a subscriber of FastStream's.

    Args:
        pull: gives what all lanes share.
    """

    def __init__(self, pull: Callable[[], Awaitable[SharedPull]]) -> None:
        self._shared = pull
        self._pull: SharedPull | None = None
        self._given_at: float | None = None

    async def start(self) -> None:
        """Have what all lanes share opened; it ends with the connection."""
        self._pull = await self._shared()
        self._pull.lanes += 1

    async def stop(self) -> None:
        """Be a lane no more."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.lanes -= 1

    async def get_one(self, *, timeout: float) -> Msg | None:  # noqa: ASYNC109 - as FastStream's are called
        """The next message; None if none came in that many seconds."""
        assert self._pull is not None  # noqa: S101 - it was started
        if self._given_at is not None:
            self._pull.note(time.monotonic() - self._given_at)
        message = await self._pull.next(timeout)
        self._given_at = None if message is None else time.monotonic()
        return message
