"""The interface that a broker offers to workers, and what all brokers share.

The modules of the single brokers each need an extra of their own.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Attribute, field, frozen

from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._support.clock import in_seconds
from transfer_async._support.util import count, positive
from transfer_async.worker.consumer import Delivery

__all__ = ["BROKERS", "Broker", "WorkerSettings", "broker_at", "reason"]

BROKERS: dict[str, tuple[str, str, str]] = {
    "nats": ("transfer_async.integrations.faststream.nats", "JetStreamBroker", "nats"),
    "tls": ("transfer_async.integrations.faststream.nats", "JetStreamBroker", "nats"),
    "redis": ("transfer_async.integrations.faststream.redis", "RedisStreamsBroker", "redis"),
    "rediss": ("transfer_async.integrations.faststream.redis", "RedisStreamsBroker", "redis"),
}
"""For each scheme of an address: the broker's module and class, and the extra that it needs."""


def broker_at(address: str, settings: WorkerSettings | None = None, **options: Any) -> Broker:
    """Return the broker at ``address``: ``nats://``, ``tls://``, ``redis://`` or ``rediss://``.

    Args:
        address: the broker's address; for a NATS cluster, addresses separated by commas.
        settings: see `WorkerSettings`.
        options: other arguments of FastStream's broker.

    Raises:
        ValueError: the scheme is unknown, the address is not valid, or the extra is not installed.
    """
    scheme = address.partition(":")[0].lower()
    if scheme not in BROKERS:
        known = ", ".join(f"{broker}://" for broker in BROKERS)
        raise ValueError(f"broker: must be an address that begins with one of {known}")
    module, name, extra = BROKERS[scheme]
    try:
        broker_class: type[Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        needed = f'pip install "transfer_async[{extra}]"'
        raise ValueError(f"broker: {scheme}:// needs an extra: {needed}") from error
    broker: Broker | None = None
    with contextlib.suppress(ValueError):  # its text may contain a part of the password
        broker = broker_class.at(address, settings or WorkerSettings(), **options)
    if broker is None:
        raise ValueError(f"broker: the text after {scheme}:// is not a valid address")
    return broker


def reason(error: BaseException) -> str:
    """Return in a few words why a broker cannot be used; if unknown, the name of the error's class."""
    if isinstance(error, TimeoutError):
        own = type(error) is TimeoutError and str(error)  # a driver's subclass has no useful text
        return own or "no response in time"
    for cause in _chain(error):
        if isinstance(cause, socket.gaierror):
            return "its host name is unknown"
        if isinstance(cause, OSError) and _is_refused(cause):
            return "connection refused"
    # The driver's classes are compared by name. A cluster without a leader raises the same class with a code.
    if type(error).__name__ in _NO_JETSTREAM and getattr(error, "err_code", None) in _NOT_ENABLED:
        return "JetStream is not enabled (start nats-server with -js)"
    return type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error`` and its causes: a driver's own error has the address in its text, but no number."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_refused(error: OSError) -> bool:
    if isinstance(error, ConnectionRefusedError):
        return True
    # If a name has several addresses, asyncio raises one error with the numbers of all in its text.
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return bool(numbers) and set(numbers) == {str(errno.ECONNREFUSED)}


_NO_JETSTREAM = frozenset({"ServiceUnavailableError", "NoRespondersError"})
_NOT_ENABLED = frozenset({None, 10039, 10076})  # no responders; disabled for the account; disabled entirely


# --- broker ------------------------------------------------------------------------------------------
# What a worker needs from a broker, and the settings that all workers of one group share.


class TooLarge(ValueError):
    """A message exceeds the broker's size limit; it was not sent."""


_above_0 = positive("must be a number of seconds or a timedelta, above 0 and finite")


def _name(_: object, attribute: Attribute[Any], value: object) -> None:
    if not (isinstance(value, str) and value and not set(value) & set(" \t\r\n*>{}")):
        raise ValueError(f"{attribute.name}: must be a name without blanks, '*', '>' or braces")


@frozen(kw_only=True)
class WorkerSettings:
    """The settings that all workers of one group share; durations are seconds or ``timedelta``.

    Args:
        commands: the subject or stream that commands arrive on.
        outcomes: the subject or stream that outcomes are published to.
        dead_letters: the subject or stream for messages that cannot be processed, with the reason.
        group: the name that the workers share, so that each message goes to one of them.
        concurrency: the largest number of messages that one worker processes at a time.
        ack_wait: after this time without a heartbeat, the broker gives a message to another worker. A
            worker sends heartbeats three times as often.
        poll: how long a consumer slot waits for a message before it checks whether to stop.
        publish_timeout: how long the broker may take to confirm a message.
        sweep_every: the time between two recoveries; the first starts after a random share of it.
        patience: the grace period for messages in progress when the worker is stopped.

    Raises:
        ValueError: names the argument and the rule.
    """

    commands: str = field(default="transfer.commands", validator=_name)
    outcomes: str = field(default="transfer.outcomes", validator=_name)
    dead_letters: str = field(default="transfer.parked", validator=_name)
    group: str = field(default="transfer-workers", validator=_name)
    concurrency: int = field(default=16, validator=count())
    ack_wait: float = field(default=30.0, converter=in_seconds, validator=_above_0)
    poll: float = field(default=1.0, converter=in_seconds, validator=_above_0)
    publish_timeout: float = field(default=5.0, converter=in_seconds, validator=_above_0)
    sweep_every: float = field(default=60.0, converter=in_seconds, validator=_above_0)
    patience: float = field(default=35.0, converter=in_seconds, validator=_above_0)

    def __attrs_post_init__(self) -> None:
        if len({self.commands, self.outcomes, self.dead_letters}) < 3:
            raise ValueError("commands, outcomes, dead_letters: must differ from one another")


class Broker(ABC):
    """A message broker as a worker uses it: delivery, acknowledgement, delay and dead-lettering.

    The subclasses here use FastStream's brokers. A bank's own subclass may use any client. The page "A
    broker of your own" shows one. `BrokerContract` (in `transfer_async.testing.broker_contract`) tests any.

    Attributes:
        broker: FastStream's broker, whose connection, publishing and middlewares are used; or any object
            with ``await start()``, ``await stop()`` and ``await ping(timeout=…)``, which returns true if
            the broker responds.
        settings: see `WorkerSettings`.
    """

    broker: Any
    settings: WorkerSettings

    @abstractmethod
    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Create the streams, groups and consumers that are missing.

        This is called every few seconds, also while messages are in progress: never change what exists.

        Args:
            only_to_send: create only what is needed to send commands. The broker keeps the commands
                until a worker starts.
        """

    @abstractmethod
    def subscriber(self) -> Any:
        """Return the subscriber of one consumer slot, with the methods of a FastStream subscriber.

        It has ``await start()``, ``await stop()`` and ``await get_one(timeout=seconds)``. The last returns
        a message, or None after the timeout. None before the timeout means that the connection is closed.
        It must not fetch messages ahead: a slot asks for the next one after it has finished the last. If
        it is cancelled, no message may be lost.
        """

    @abstractmethod
    def delivery(self, message: Any) -> Delivery:
        """Wrap a message from a subscriber as a `Delivery`.

        Without a reply, the broker redelivers the message any number of times: after
        ``settings.ack_wait`` without a heartbeat, or when its worker is gone. A dead letter has the reason
        in its header ``Transfer-Reason``.
        """

    @abstractmethod
    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome. Return after the broker's confirmation, or raise."""

    @abstractmethod
    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send to one of the settings' subjects. Return after the broker's confirmation, or raise."""

    async def order(self, command: OrderCommand, headers: Mapping[str, str] | None = None) -> None:
        """Send a command to the workers. Return after the broker's confirmation, or raise."""
        await self.send(self.settings.commands, command.to_json(), {**(headers or {}), **JSON})

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good, so that the process must be restarted."""
        return False

    @property
    def chores(self) -> Sequence[tuple[float, Callable[[], Awaitable[object]]]]:
        """The periodic tasks: for each the seconds between two runs, and the function to call."""
        return [(5.0, self.prepare)]

    async def open(self, *, only_to_send: bool = False) -> None:
        """Connect, and create what is missing; see `prepare`."""
        await self.broker.start()
        await self.prepare(only_to_send=only_to_send)

    async def close(self) -> None:
        """Close the connection."""
        await self.broker.stop()


# --- headers -----------------------------------------------------------------------------------------
# The headers of messages, the same at each broker.


REASON = "Transfer-Reason"
"""The header of a dead letter that says why it could not be processed."""

JSON = {"content-type": "application/json"}

MAX_LENGTH = 1000
"""The longest header name or value in characters; some brokers accept no more."""


def reason_header(reason: str) -> dict[str, str]:
    """Return ``reason`` as a header."""
    return {REASON: _sanitized(reason)}


def sanitized(headers: Mapping[str, str]) -> dict[str, str]:
    """Return ``headers`` as every broker accepts them: one line of ASCII each, cut at `MAX_LENGTH`."""
    return {_sanitized(name): _sanitized(value) for name, value in headers.items()}


def _sanitized(text: object) -> str:
    line = "".join(character if character.isprintable() else " " for character in str(text))
    return line.encode("ascii", "backslashreplace").decode()[:MAX_LENGTH]
