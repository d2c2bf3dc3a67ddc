"""NATS JetStream.

==============  ================================================================================
deliver         a durable pull consumer that all workers share; explicit acknowledgement, and no
                end of deliveries: when to give up is the journal's to say
acknowledge     confirmed by the server (double ack)
delay           a negative acknowledgement with a delay
park            published, confirmed, then terminated; without headers where they do not fit
sign of life    "in progress"
count           the server's own
==============  ================================================================================

A stream that is missing is made: of commands as a work queue, on disk; of outcomes and parked messages
without a limit, on disk. One that is there is used as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Self

from faststream import AckPolicy
from faststream.exceptions import IncorrectState
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.js import JetStreamContext
from nats.js.api import AckPolicy as Acknowledge
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError

from transfer_async.context import log
from transfer_async.integrations.brokers.headers import JSON, carried_on, reason_header
from transfer_async.integrations.brokers.line import Line, WorkerSettings
from transfer_async.messages import OrderOutcome

_OWN = "nats-"
"""What the headers begin with that speak to the server."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""A header's name as the client sends it; others' clients send more."""

_ADDED = 1024
"""Bytes for what FastStream and its middlewares add to the headers."""


class TooLarge(ValueError):
    """A message that the server would not take, and close the connection over."""


class NatsLine(Line):
    """The line of a NATS server with JetStream.

    Args:
        broker: FastStream's; without ``max_reconnect_attempts=-1`` it gives up after two minutes.
        settings: see `WorkerSettings`.
    """

    def __init__(self, broker: NatsBroker, settings: WorkerSettings) -> None:
        self.broker: Any = broker
        self.settings: WorkerSettings = settings
        self._streams: dict[str, str] = {}

    @classmethod
    def at(cls, address: str, settings: WorkerSettings, **options: Any) -> Self:
        """The line of the server at ``address``, or of a cluster's at several, separated by commas."""
        servers = [one.strip() for one in address.split(",")]
        defaults: dict[str, Any] = {
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 1,
            "logger": log,
            "log_level": logging.DEBUG,
        }
        return cls(NatsBroker(servers, **defaults | options), settings)

    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Make the streams that are missing, and the consumer."""
        settings = self.settings
        await self._find(settings.commands, RetentionPolicy.WORK_QUEUE)
        if only_to_send:
            return
        await self._find(settings.outcomes, RetentionPolicy.LIMITS)
        await self._find(settings.parked, RetentionPolicy.LIMITS)
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
            ack_policy=Acknowledge.EXPLICIT,
            ack_wait=self.settings.ack_wait,
            max_deliver=-1,
            max_ack_pending=-1,  # what waits out a delay counts, and must not keep the others back
        )

    async def _manager(self) -> JetStreamContext:
        connection: Any = await self.broker.connect()
        manager: JetStreamContext = connection.jetstream(timeout=self.settings.publish_timeout)
        return manager

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good: unlike one that broke, it never comes back."""
        try:
            return bool(self.broker.connection.is_closed)
        except IncorrectState:  # there is none yet, or no more
            return False

    def subscriber(self) -> Any:
        """A pull subscription of its own, to the consumer that all share."""
        return self.broker.subscriber(
            self.settings.commands,
            stream=JStream(self._streams[self.settings.commands], declare=False),
            durable=self.settings.group,
            pull_sub=PullSub(batch_size=1),
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            persistent=False,
            include_in_schema=False,
        )

    def delivery(self, message: NatsMessage) -> NatsDelivery:
        """A message as a worker takes it."""
        return NatsDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome; one that comes twice within the stream's window is stored once."""
        told = (outcome.intent_id, outcome.outcome.value, outcome.order_id, outcome.order_may_exist)
        headers = {**headers, "Nats-Msg-Id": ":".join(map(str, told))}
        await self.send(self.settings.outcomes, outcome.to_json(), headers | JSON)

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Publish to one of the streams; return once it is stored.

        Raises:
            TooLarge: the server takes less; nothing was sent.
        """
        await self._check_size(body, headers)
        await self.broker.publish(
            body,
            subject,
            headers=dict(headers),
            stream=self._streams[subject],
            timeout=self.settings.publish_timeout,
        )

    async def _check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        # The client looks at the body alone; the server at both, and closes the connection.
        connection: Any = await self.broker.connect()
        lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        size, most = len(body) + lines + _ADDED, connection.max_payload
        if size > most:
            raise TooLarge(f"a message of {size} bytes with its headers, where the server takes {most}")

    async def send_bare(self, subject: str, body: bytes) -> None:
        """Publish the body alone, which may then be as large as the server takes; return once stored."""
        manager = await self._manager()
        await manager.publish(subject, body)


class NatsDelivery:
    """One message from JetStream; for a FastStream subscriber of one's own as well."""

    def __init__(self, line: NatsLine, message: NatsMessage) -> None:
        self._line, self._message = line, message

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
        """How often the server has delivered it."""
        return int(self._message.raw_message.metadata.num_delivered)

    async def ack(self) -> None:
        """Acknowledge, and wait until the server has taken note."""
        await self._message.ack_sync()

    async def retry(self, after: float) -> None:
        """Have it delivered again after that many seconds; were this lost, after ``ack_wait``."""
        await self._message.nack(delay=after)

    async def park(self, reason: str) -> None:
        """Publish it with the reason, then terminate it."""
        line, origin = self._line, self._message.raw_message.metadata
        # The time, too: in a stream that was made anew, the numbers begin anew.
        told = f"parked:{origin.stream}:{origin.sequence.stream}:{origin.timestamp.isoformat()}"
        own = reason_header(reason) | {"Nats-Msg-Id": told}
        try:
            await self._park({**self._carried_on(), **own}, own)
        except TooLarge:
            log.warning("a message is parked without its headers, which do not fit: %s", reason)
            await line.send_bare(line.settings.parked, self.body)
        await self._message.reject()

    def _carried_on(self) -> dict[str, str]:
        headers = carried_on(self.headers, without=_OWN)
        return {name: value for name, value in headers.items() if _NAME.fullmatch(name)}

    async def _park(self, all_headers: Mapping[str, str], own: Mapping[str, str]) -> None:
        line = self._line
        try:
            await line.send(line.settings.parked, self.body, all_headers)
        except TooLarge:
            await line.send(line.settings.parked, self.body, own)

    async def beat(self) -> None:
        """Say that work goes on."""
        await self._message.in_progress()
