"""Workers on NATS JetStream.

==============  ================================================================================
deliver         a durable pull consumer that all workers share; the slots of one worker share their
                requests. Acknowledgement is explicit. The number of deliveries is unlimited, because
                the worker decides from the journal when to dead-letter
acknowledge     with the server's confirmation (double ack)
delay           a negative acknowledgement with a delay
dead-letter     publish a copy, wait for the confirmation, then terminate the message; the copy
                has no headers if they would exceed the size limit
heartbeat       an "in progress" acknowledgement
delivery count  the count of the server
==============  ================================================================================

Missing streams are created on disk. The stream for commands is a work queue. The streams for outcomes and
dead letters have no limits. An existing stream is never changed.
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
    reason_header,
)
from transfer_async.journal.model import SUSPECTED

_SERVER_PREFIX = "nats-"  # the prefix of headers that control the server
_MESSAGE_ID = "Nats-Msg-Id"  # the header by which the server detects duplicates
_CORRELATION = "correlation_id"  # FastStream's header
_STATUS = "Status"  # the header of the server's control messages; the client expects it only there
_STATUS_OF_SENDER = "X-Status"  # the new name of a ``Status`` header in a stored message

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""The header names that the Python client can send. Other clients can send more names."""

_ADDED = 1024
"""The number of bytes reserved for headers that FastStream and its middlewares add."""

_TO_ACKNOWLEDGE = "$JS.ACK."
"""The prefix of the reply subject of stored messages. Control messages have no such prefix."""

_PARTS, _DELIVERED = 9, 4
"""The number of parts of a stored message's reply subject, and the index of the delivery count."""


class JetStreamBroker(Broker):
    """A NATS server or cluster with JetStream.

    Args:
        broker: FastStream's broker. Set the option ``max_reconnect_attempts`` to -1; otherwise, reconnecting
            stops after about two minutes.
        settings: see `WorkerSettings`.
    """

    def __init__(self, broker: NatsBroker, settings: WorkerSettings) -> None:
        self.broker: Any = broker
        self.settings: WorkerSettings = settings
        self._streams: dict[str, str] = {}
        self._configured: Any = None
        self._jetstream: JetStreamContext | None = None
        self._failed = 0
        self._pull: SharedPull | None = None
        self._pulling = asyncio.Lock()

    @classmethod
    def at(cls, address: str, settings: WorkerSettings, **options: Any) -> Self:
        """Return the broker at ``address``. For a cluster, pass several addresses separated by commas."""
        servers = [item.strip() for item in address.split(",")]

        async def failed(error: Exception) -> None:
            broker._note_failed(error, servers=len(servers))

        defaults: dict[str, Any] = {
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "logger": log,
            "log_level": logging.DEBUG,
            "error_cb": failed,
        }
        broker = cls(NatsBroker(servers, **defaults | options), settings)
        return broker

    def _note_failed(self, error: Exception, *, servers: int) -> None:
        """Count consecutive connection failures. Raise an error if every server refuses the first connection.

        If no error were raised, the driver would retry forever without logging. After the first connection,
        no error is raised, so that the driver always reconnects.

        Raises:
            OSError: every server refused the first connection.
        """
        # A timeout does not count, because the server may be starting. The caller limits the wait.
        is_certain = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        self._failed = self._failed + 1 if is_certain else 0
        if self._failed >= servers and not self._has_connection:
            raise error

    async def open(self, *, only_to_send: bool = False) -> None:
        """Connect, and create the missing streams and the consumer.

        Raises:
            OSError: no server accepts a connection, for example because the port is closed or the host name
                is unknown.
        """
        self._failed = 0
        await super().open(only_to_send=only_to_send)

    @property
    def _has_connection(self) -> bool:
        try:
            return self.broker.connection is not None
        except IncorrectState:  # There is no connection yet, or it is closed.
            return False

    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Create the missing streams, and the consumer if it is missing."""
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
            max_ack_pending=-1,  # Delayed messages count as pending, and must not block other messages.
        )

    async def _manager(self) -> JetStreamContext:
        await self._connection()
        assert self._jetstream is not None  # noqa: S101 - `_connection` sets it
        return self._jetstream

    async def _connection(self) -> Any:
        """Return the connection, set up to use `_StoredMessage` and to reconnect after any error."""
        connection: Any = await self.broker.connect()
        if connection is not self._configured:
            self._configured = connection
            self._jetstream = connection.jetstream(timeout=self.settings.publish_timeout)
            connection.msg_class = _StoredMessage
            if report := getattr(connection, "_error_cb", None):
                # Set here because FastStream wraps any callback that it gets as an option.
                connection._error_cb = _without_raising(report)
        return connection

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is permanently closed, and is not being restored."""
        if not self._has_connection:
            return False
        connection: Any = self.broker.connection
        return bool(connection.is_closed) or _is_given_up(connection)

    def subscriber(self) -> PullSlot:
        """Return a consumer slot. All slots of a worker share one `SharedPull`."""
        return PullSlot(self._opened_pull)

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
        """Wrap a message as a `Delivery`."""
        return NatsDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome. The server drops duplicates that arrive within the stream's window."""
        headers = {_CORRELATION: outcome.intent_id, **headers, **_deduplication_header(outcome)}
        await self.send(self.settings.outcomes, outcome.to_json(), headers | JSON)

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Publish a message to one of the streams, and return after the server has stored it.

        Raises:
            TooLarge: the message exceeds the server's limit; nothing was sent.
        """
        await self._check_size(body, headers)
        headers = {_CORRELATION: headers.get(_CORRELATION) or str(uuid4()), **headers}
        # Without middlewares, publishing directly has the same result and is faster.
        if not self.broker.middlewares:
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

    async def send_body(self, subject: str, body: bytes) -> None:
        """Publish a message without headers, bypassing FastStream's middlewares, which may add headers."""
        await (await self._manager()).publish(subject, body)

    async def _check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        # The client checks only the body's size. The server also counts the headers, and closes the
        # connection if the limit is exceeded.
        connection = await self._connection()
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        size, limit = len(body) + len(lines.encode()) + _ADDED, connection.max_payload
        if size > limit:
            raise TooLarge(
                f"the message is {size} bytes long, including headers; the server accepts at most {limit}"
            )


def _deduplication_header(outcome: OrderOutcome) -> dict[str, str]:
    """Return the header by which the server detects duplicate outcomes, or no header.

    The server must not drop an outcome that is published again after a person has changed a recorded order id
    and changed it back. An outcome before the correction and the one after it differ only in ``ended_at``,
    the time at which the id was recorded. The header therefore contains ``ended_at``, and is omitted if
    ``ended_at`` is unknown. The same applies to a suspected duplicate, whose outcome may equal the one that
    was published when the doubt began. The header of a refutation also contains the time of the refutation,
    because an order that is suspected after a refutation may be refuted again.
    """
    parts: list[object] = [
        outcome.intent_id,
        outcome.outcome.value,
        outcome.order_id,
        outcome.order_may_exist,
    ]
    is_suspicion = outcome.error == SUSPECTED
    ended_at = outcome.ended_at if isinstance(outcome, EndOfDoubt) else None
    if is_suspicion or (outcome.outcome is Outcome.CREATED and outcome.state is None):
        if ended_at is None:
            return {}
        parts.append(ended_at)
    elif outcome.outcome is Outcome.REFUSED and ended_at is not None:
        parts.append(f"at {ended_at}")
    if is_suspicion:
        parts.append(outcome.error)
    return {_MESSAGE_ID: ":".join(map(str, parts))}


class _StoredMessage(Msg):
    """A stored message whose ``Status`` header, if the sender set one, is renamed.

    The Python client treats every message with a ``Status`` header as a control message, and drops it. If the
    header were not renamed, the server would redeliver the command forever. Dead letters keep the renamed
    header, so that Python clients can fetch them too.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        headers = self.headers
        if headers and _STATUS in headers and self.reply.startswith(_TO_ACKNOWLEDGE):
            others = {name: value for name, value in headers.items() if name != _STATUS}
            self.headers = {_STATUS_OF_SENDER: headers[_STATUS], **others}


def _without_raising(
    report: Callable[[Exception], Awaitable[None]],
) -> Callable[[Exception], Awaitable[None]]:
    """Return a function that calls ``report``, and logs errors instead of raising them.

    FastStream's callback raises errors that it considers final, such as a refused password. An error raised
    in the callback would end the reconnection attempts without closing the connection, although the next
    attempt may succeed.
    """

    async def report_or_log(error: Exception) -> None:
        try:
            await report(error)
        except Exception as raised:  # noqa: BLE001 - the client must go on reconnecting after any error
            log.debug("the connection to the broker failed (%s); reconnecting", type(raised).__name__)

    return report_or_log


def _is_given_up(connection: Any) -> bool:
    """Return whether the connection is broken and the Python client has stopped reconnecting.

    The client sets the status of a broken connection and starts the reconnection task without an ``await`` in
    between. The task changes the status before it ends. The result is therefore never true while the client
    is reconnecting.
    """
    reconnecting: Any = getattr(connection, "_reconnection_task", None)
    return reconnecting is not None and bool(reconnecting.done()) and not connection.is_connected


class NatsDelivery:
    """One message from JetStream. You can also use `NatsDelivery` with your own FastStream subscriber."""

    def __init__(self, broker: JetStreamBroker, message: NatsMessage | Msg) -> None:
        self._broker = broker
        if isinstance(message, Msg):
            self._message, self._body, self._headers = message, message.data, message.headers or {}
        else:
            self._message, self._body, self._headers = message.raw_message, message.body, message.headers

    @property
    def body(self) -> bytes:
        """The message's body."""
        return bytes(self._body)

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self._headers

    @property
    def deliveries(self) -> int:
        """The number of deliveries of the message, as the server counts them."""
        # The Python client's `metadata` also parses the time, which is slow and not needed here.
        parts = self._message.reply.split(".", _PARTS)
        if len(parts) == _PARTS and self._message.reply.startswith(_TO_ACKNOWLEDGE):
            return int(parts[_DELIVERED])
        # The server has a domain, or the message is not from a server.
        return int(self._message.metadata.num_delivered)

    async def ack(self) -> None:
        """Acknowledge the message, and wait for the server's confirmation."""
        await self._message.ack_sync()

    async def retry(self, after: float) -> None:
        """Request redelivery in ``after`` seconds.

        If the request is lost, the message is redelivered after ``ack_wait``.
        """
        await self._message.nak(delay=after)

    async def dead_letter(self, reason: str) -> None:
        """Publish a copy that contains the reason, then tell the server not to redeliver the message."""
        broker, origin = self._broker, self._message.metadata
        # The id contains the time because message numbers restart if the stream is created again.
        message_id = f"parked:{origin.stream}:{origin.sequence.stream}:{origin.timestamp.isoformat()}"
        own = reason_header(reason) | {_MESSAGE_ID: message_id}
        copied = {
            name: value
            for name, value in self.headers.items()
            if _NAME.fullmatch(name) and not name.lower().startswith(_SERVER_PREFIX)
        }
        if not (await self._send_copy(copied | own) or await self._send_copy(own)):
            log.warning("a message was dead-lettered without its headers, which were too large: %s", reason)
            await broker.send_body(broker.settings.dead_letters, self.body)
        await self._message.term()

    async def _send_copy(self, headers: Mapping[str, str]) -> bool:
        """Publish a copy with ``headers`` as a dead letter. Return false if the copy is too large."""
        try:
            await self._broker.send(self._broker.settings.dead_letters, self.body, headers)
        except TooLarge:
            return False
        return True

    async def beat(self) -> None:
        """Send a heartbeat."""
        await self._message.in_progress()


# --- shared pull -------------------------------------------------------------------------------------
# All slots of a worker share the requests to one pull consumer of JetStream.
#
# The Python client's own ``fetch`` either requests one message at a time, or requests several and returns the
# first only after the last has arrived. Here each slot receives its message immediately. Slots that become
# free at about the same time share a request. The number of requested messages never exceeds the number of
# waiting slots, so no message waits for a slot. If a message arrives when no slot waits, it is returned to
# the server.


SHARE, LONGEST = 0.25, 0.05
"""The time that a free slot waits for other free slots before they send a shared request.

It is the share `SHARE` of the mean processing time, but at most `LONGEST` seconds. Orders that begin together
share their commits, which are half of the work. If another slot already waits for a message, this wait delays
no message, because the server has that slot's request.
"""

REMEMBERED = 16
"""The approximate number of recent messages over which the mean processing time is computed."""

LATE = 0.5
"""The seconds after a request's timeout within which the server must report that there is no message."""

_EXPIRED = "408"
_NOT_YET = ""


class SharedPull:
    """Requests messages from a JetStream consumer: one message for each waiting slot.

    Args:
        connection: the Python client's connection.
        address: a function that returns the subject for requests to the consumer.

    Attributes:
        slots: the number of slots. As soon as all slots are waiting, a request is sent.
    """

    def __init__(self, connection: Any, address: Callable[[], str]) -> None:
        self.connection: Any = connection
        self._address = address
        self._inbox: str = connection.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[asyncio.Future[Msg | None], str] = {}
        """The waiting slots, longest wait first, each with the reply subject of its request."""
        self.slots: int = 0
        self._timeout = self._usual = 0.0
        self._asking: asyncio.TimerHandle | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe to the server's replies, until the connection closes."""
        await self.connection.subscribe(f"{self._inbox}.*", cb=self._received)

    async def next(self, timeout: float) -> Msg | None:  # noqa: ASYNC109 - the server needs it
        """Return the next message, or None after ``timeout`` seconds. All slots must use the same timeout.

        Raises:
            ConnectionError: the consumer was deleted, or the server reported another error.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Msg | None] = loop.create_future()
        self._waiting[waiter], self._timeout = _NOT_YET, timeout
        if len(self._waiting) >= self.slots:
            self._ask()
        elif self._asking is None:
            self._asking = loop.call_later(min(SHARE * self._usual, LONGEST), self._ask)
        # If the connection breaks, the request is lost and gets no reply.
        too_late = loop.call_later(timeout + LATE, _end, waiter)
        try:
            return await waiter
        finally:
            too_late.cancel()
            self._waiting.pop(waiter, None)

    def note(self, seconds: float) -> None:
        """Update the mean processing time of messages with the time of one message, in seconds."""
        self._usual += (seconds - self._usual) / REMEMBERED

    def _ask(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        new = [waiter for waiter, reply in self._waiting.items() if reply == _NOT_YET]
        # Without a connection, requests would accumulate, and the server would fulfil all of them later.
        if not new or not self.connection.is_connected:
            return
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._waiting |= dict.fromkeys(new, reply)
        request = asyncio.create_task(self._request(len(new), reply))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _request(self, wanted: int, reply: str) -> None:
        request = json.dumps({"batch": wanted, "expires": int(self._timeout * 1e9)})
        try:
            await self.connection.publish(self._address(), request.encode(), reply=reply)
        except Exception as error:  # noqa: BLE001 - the waiting slots raise it
            self._end_all(reply, error)

    async def _received(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status == _EXPIRED:
            self._end_all(message.subject)
        elif status is not None:
            why = f"the consumer is not delivering messages (status {status})"
            self._end_all(message.subject, ConnectionError(why))
        elif not self._give(message):
            await message.nak()

    def _give(self, message: Msg) -> bool:
        """Pass ``message`` to the slot that has waited longest. Return false if no slot is waiting."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(message)
                del self._waiting[waiter]
                return True
        return False

    def _end_all(self, reply: str, error: Exception | None = None) -> None:
        """Wake all slots whose request uses the reply subject ``reply``."""
        for waiter, subject in self._waiting.items():
            if subject == reply:
                _end(waiter, error)


def _end(waiter: asyncio.Future[Msg | None], error: Exception | None = None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class PullSlot:
    """One consumer slot, with the methods of a FastStream subscriber.

    Args:
        pull: an async function that returns the open `SharedPull` of all slots.
    """

    def __init__(self, pull: Callable[[], Awaitable[SharedPull]]) -> None:
        self._shared = pull
        self._pull: SharedPull | None = None
        self._given_at: float | None = None

    async def start(self) -> None:
        """Join the shared pull, opening it first if it is not open on the current connection."""
        self._pull = await self._shared()
        self._pull.slots += 1

    async def stop(self) -> None:
        """Stop taking messages from the shared pull."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.slots -= 1

    async def get_one(self, *, timeout: float) -> Msg | None:  # noqa: ASYNC109 - FastStream's signature
        """Return the next message, or None after ``timeout`` seconds."""
        assert self._pull is not None  # noqa: S101 - `start` sets it
        if self._given_at is not None:
            self._pull.note(time.monotonic() - self._given_at)
        message = await self._pull.next(timeout)
        self._given_at = None if message is None else time.monotonic()
        return message
