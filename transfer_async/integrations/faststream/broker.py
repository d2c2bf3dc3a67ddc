"""The interface between workers and message brokers, and the code shared by all brokers.

Each broker has its own module and needs its own extra.
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
"""The broker's module, its class and the extra that it needs, for each scheme of an address."""


def broker_at(address: str, settings: WorkerSettings | None = None, **options: Any) -> Broker:
    """Return the broker at ``address``: ``nats://``, ``tls://``, ``redis://`` or ``rediss://``.

    Args:
        address: the broker's address; for a NATS cluster, addresses separated by commas.
        settings: see `WorkerSettings`.
        options: additional arguments passed to FastStream's broker.

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
    with contextlib.suppress(ValueError):  # The error's text may contain a part of the password.
        broker = broker_class.at(address, settings or WorkerSettings(), **options)
    if broker is None:
        raise ValueError(f"broker: the text after {scheme}:// is not a valid address")
    return broker


def reason(error: BaseException) -> str:
    """Return the reason why a broker cannot be used, in a few words or as the class name of ``error``."""
    if isinstance(error, TimeoutError):
        own = type(error) is TimeoutError and str(error)  # The texts of subclasses in drivers do not help.
        return own or "no response in time"
    for cause in _chain(error):
        if isinstance(cause, socket.gaierror):
            return "the host name is unknown"
        if isinstance(cause, OSError) and _is_refused(cause):
            return "connection refused"
    # The driver's classes are compared by name, because the driver may not be installed. A cluster without a
    # leader raises the same class, but with another code.
    if type(error).__name__ in _NO_JETSTREAM and getattr(error, "err_code", None) in _NOT_ENABLED:
        return "JetStream is not enabled (start nats-server with -js)"
    return type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error`` and its causes.

    A driver's error may lack the error number that one of its causes has.
    """
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_refused(error: OSError) -> bool:
    if isinstance(error, ConnectionRefusedError):
        return True
    # If a host has several addresses, asyncio raises one error whose text contains all error numbers.
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return bool(numbers) and set(numbers) == {str(errno.ECONNREFUSED)}


_NO_JETSTREAM = frozenset({"ServiceUnavailableError", "NoRespondersError"})
# The codes: no responders; JetStream is disabled for the account; JetStream is disabled for the server.
_NOT_ENABLED = frozenset({None, 10039, 10076})


# --- broker ------------------------------------------------------------------------------------------
# The interface between a worker and its broker, and the settings that all workers of one group share.


class TooLarge(ValueError):
    """Raised if a message was not sent because it exceeds the broker's size limit."""


_above_0 = positive("must be a finite number of seconds or a timedelta, greater than 0")


def _name(_: object, attribute: Attribute[Any], value: object) -> None:
    if not (isinstance(value, str) and value and not set(value) & set(" \t\r\n*>{}")):
        raise ValueError(f"{attribute.name}: must be a name without blanks, '*', '>' or braces")


@frozen(kw_only=True)
class WorkerSettings:
    """The settings that all workers in a group share. Durations are in seconds or ``timedelta`` objects.

    Args:
        commands: the subject or stream from which workers read commands.
        outcomes: the subject or stream to which workers publish outcomes.
        dead_letters: the subject or stream for messages that cannot be processed. Each dead letter contains
            the reason in a header.
        group: the name that the workers share. The broker delivers each message to one worker of the group.
        concurrency: the maximum number of messages that one worker processes at a time.
        ack_wait: the time without a heartbeat after which the broker delivers a message to another worker. A
            worker sends three heartbeats in every ``ack_wait``.
        poll: how long a consumer slot waits for a message before it checks whether to stop.
        publish_timeout: how long to wait for the broker to confirm a published message.
        sweep_every: the time between two sweeps of the journal. The first sweep starts after a random
            fraction of ``sweep_every``.
        patience: how long a stopping worker waits for the messages in progress.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
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
    """The interface between workers and a message broker.

    A subclass connects to the message broker, delivers messages and publishes outcomes.

    The subclasses in this package use FastStream's brokers. A bank's own subclass may use any client library.
    The page "A broker of your own" shows an example. Test every subclass with `BrokerContract`, in
    `transfer_async.testing.broker_contract`.

    Attributes:
        broker: FastStream's broker, or any object with the methods ``await start()``, ``await stop()`` and
            ``await ping(timeout=…)``. ``ping`` returns true if the broker responds within the timeout.
        settings: see `WorkerSettings`.
    """

    broker: Any
    settings: WorkerSettings

    @abstractmethod
    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Create the streams, groups and consumers that are missing.

        Workers call `prepare` every few seconds, even while messages are in progress. `prepare` must not
        change any existing stream, group or consumer.

        Args:
            only_to_send: create only what is needed to send commands and to store them until a worker starts.
        """

    @abstractmethod
    def subscriber(self) -> Any:
        """Return the subscriber of one consumer slot.

        Like FastStream's subscribers, the returned subscriber has the methods ``await start()``, ``await
        stop()`` and ``await get_one(timeout=seconds)``. ``get_one`` returns a message, or None after the
        timeout. If ``get_one`` returns None before the timeout, the worker treats the connection as closed.
        The subscriber must not fetch messages in advance: it may request a message only while ``get_one``
        runs. No message may be lost if ``get_one`` is cancelled.
        """

    @abstractmethod
    def delivery(self, message: Any) -> Delivery:
        """Wrap a message from a subscriber as a `Delivery`.

        The broker must redeliver an unacknowledged message without limit: after ``settings.ack_wait`` without
        a heartbeat, or when the message's worker has ended. A dead letter must contain the reason in its
        header ``Transfer-Reason``.
        """

    @abstractmethod
    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome, and return once the broker has confirmed it.

        Raise an error if the outcome could not be published.
        """

    @abstractmethod
    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a message to a subject or stream in the settings, and return once the broker has confirmed it.

        Raise an error if the message could not be sent.
        """

    async def order(self, command: OrderCommand, headers: Mapping[str, str] | None = None) -> None:
        """Send a command to the workers, and return once the broker has confirmed it.

        Args:
            command: the command to send.
            headers: additional headers of the message.
        """
        await self.send(self.settings.commands, command.to_json(), {**(headers or {}), **JSON})

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is permanently closed, so that the process must be restarted."""
        return False

    @property
    def chores(self) -> Sequence[tuple[float, Callable[[], Awaitable[object]]]]:
        """The functions that the worker calls periodically, each with its interval in seconds."""
        return [(5.0, self.prepare)]

    async def open(self, *, only_to_send: bool = False) -> None:
        """Connect to the broker, and create missing streams, groups and consumers; see `prepare`."""
        await self.broker.start()
        await self.prepare(only_to_send=only_to_send)

    async def close(self) -> None:
        """Close the connection to the broker."""
        await self.broker.stop()


# --- headers -----------------------------------------------------------------------------------------
# The headers of messages, for every broker.


REASON = "Transfer-Reason"
"""The name of the header that contains the reason why a dead letter could not be processed."""

JSON = {"content-type": "application/json"}

MAX_LENGTH = 1000
"""The maximum length of a header's name or value, in characters. Some brokers accept no longer ones."""


def reason_header(reason: str) -> dict[str, str]:
    """Return the header that contains ``reason`` in a dead letter."""
    return {REASON: _sanitized(reason)}


def sanitized(headers: Mapping[str, str]) -> dict[str, str]:
    """Return ``headers``, changed so that every broker accepts the names and values.

    Each name and value becomes one line of ASCII, at most `MAX_LENGTH` characters long.
    """
    return {_sanitized(name): _sanitized(value) for name, value in headers.items()}


def _sanitized(text: object) -> str:
    line = "".join(character if character.isprintable() else " " for character in str(text))
    return line.encode("ascii", "backslashreplace").decode()[:MAX_LENGTH]
