"""How each broker delivers, acknowledges, delays and dead-letters; each module needs an extra of its own."""

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
"""By an address's scheme: the module and the class of its line, and the extra that it needs."""


def broker_at(address: str, settings: WorkerSettings | None = None, **options: Any) -> Broker:
    """The line of the broker at ``address``: ``nats://``, ``tls://``, ``redis://`` or ``rediss://``.

    Args:
        address: several servers of one NATS cluster are separated by commas.
        settings: see `WorkerSettings`.
        options: whatever else FastStream's broker takes.

    Raises:
        ValueError: it names no broker that is known, or what it needs is not installed.
    """
    scheme = address.partition(":")[0].lower()
    if scheme not in BROKERS:
        known = ", ".join(f"{broker}://" for broker in BROKERS)
        raise ValueError(f"broker: must be an address that begins with one of {known}")
    module, name, extra = BROKERS[scheme]
    try:
        line: type[Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        needed = f'pip install "transfer_async[{extra}]"'
        raise ValueError(f"broker: {scheme}:// needs an extra: {needed}") from error
    made: Broker | None = None
    with contextlib.suppress(ValueError):  # its text may have a part of the password
        made = line.at(address, settings or WorkerSettings(), **options)
    if made is None:
        raise ValueError(f"broker: {scheme}:// is followed by what is no address")
    return made


def reason(error: BaseException) -> str:
    """Why a broker cannot be used, in a few words; of an ``error`` without any, its class alone."""
    if isinstance(error, TimeoutError):
        own = type(error) is TimeoutError and str(error)  # not a driver's, which says nothing more
        return own or "no answer in time"
    for item in _chain(error):
        if isinstance(item, socket.gaierror):
            return "its name is not known"
        if isinstance(item, OSError) and _is_refused(item):
            return "connection refused"
    # By name, and told from a cluster that has no leader yet, whose answer has a code.
    if type(error).__name__ in _NO_JETSTREAM and getattr(error, "err_code", None) in _NOT_ENABLED:
        return "has no JetStream (nats-server -js)"
    return type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, and what it came from: a driver's own has the address in its text, and no number."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_refused(error: OSError) -> bool:
    if isinstance(error, ConnectionRefusedError):
        return True
    # Of a name with several addresses asyncio has one error, with the numbers of all in its text.
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return bool(numbers) and set(numbers) == {str(errno.ECONNREFUSED)}


_NO_JETSTREAM = frozenset({"ServiceUnavailableError", "NoRespondersError"})
_NOT_ENABLED = frozenset({None, 10039, 10076})  # nobody answers; it is not enabled for the account, or at all


# --- line --------------------------------------------------------------------------------------------
# What a worker needs to know of a broker, and what workers of one kind agree on.


class TooLarge(ValueError):
    """A message that is larger than the broker takes: nothing was sent."""


_above_0 = positive("must be a number of seconds or a timedelta, above 0 and finite")


def _name(_: object, attribute: Attribute[Any], value: object) -> None:
    if not (isinstance(value, str) and value and not set(value) & set(" \t\r\n*>{}")):
        raise ValueError(f"{attribute.name}: must be a name without blanks, '*', '>' and braces")


@frozen(kw_only=True)
class WorkerSettings:
    """What workers of one kind agree on; durations are seconds or ``timedelta``.

    Args:
        commands: the subject or stream that commands come from.
        outcomes: where outcomes are published.
        dead_letters: where what cannot be carried out is put, with the reason.
        group: the name that all workers share, so that each message goes to one of them.
        concurrency: how many messages one worker has in hand at most.
        ack_wait: without a sign of life for so long, a message goes to another worker; a worker gives
            one three times as often.
        poll: how long a lane waits for a message before it looks whether it is to stop.
        publish_timeout: how long the broker may take to confirm a message.
        sweep_every: between two sweeps; the first comes after a random share of them.
        patience: how long what is in flight may take when the worker is stopped.

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
    """How one broker delivers, acknowledges, delays and dead-letters: all that a worker needs to know of it.

    Ours use FastStream's brokers. A bank's own is any subclass, on whatever client it has. The page "A broker
    of your own" shows one, and `BrokerContract` (in `transfer_async.testing.broker_contract`) tests any.

    Attributes:
        broker: FastStream's, whose connection and publishing are used as they are, middlewares included; or
            anything with its ``await start()``, ``await stop()`` and ``await ping(timeout=…)``, which is true
            if the broker answers.
        settings: the worker's.
    """

    broker: Any
    settings: WorkerSettings

    @abstractmethod
    async def prepare(self, *, only_to_send: bool = False) -> None:
        """Make what is missing: streams, groups, consumers; may be called again at any time.

        What is there stays as it is: it is called every few seconds, and while messages are in hand.

        Args:
            only_to_send: only what is needed to send commands, which are kept until there is a worker.
        """

    @abstractmethod
    def subscriber(self) -> Any:
        """What gives one lane the commands, as FastStream's do: ``await start()``, ``await stop()``, and
        ``await get_one(timeout=seconds)``.

        That gives a message, or None once so many seconds have passed in vain: None at once is taken for a
        connection that is closed. It fetches no message that it does not give: a lane asks for the next one
        when it is done with the last. Cancelled, it takes none along for good.
        """

    @abstractmethod
    def delivery(self, message: Any) -> Delivery:
        """A message that a subscriber gave, as a worker takes it.

        Unless it is answered it comes again, as often as need be: after ``settings.ack_wait`` without a
        beat, or when its worker is gone. a dead letter has the reason in its header ``Transfer-Reason``.
        """

    @abstractmethod
    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        """Publish an outcome; return once the broker has confirmed that it has it, or raise."""

    @abstractmethod
    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send to one of the settings' subjects; return once the broker has confirmed that it has it."""

    async def order(self, command: OrderCommand, headers: Mapping[str, str] | None = None) -> None:
        """Send a command to the workers; return once the broker has confirmed that it has it."""
        await self.send(self.settings.commands, command.to_json(), {**(headers or {}), **JSON})

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone for good: only a new process helps."""
        return False

    @property
    def chores(self) -> Sequence[tuple[float, Callable[[], Awaitable[object]]]]:
        """What is to be done now and then: seconds between two times, and what."""
        return [(5.0, self.prepare)]

    async def open(self, *, only_to_send: bool = False) -> None:
        """Connect, and make what is missing; see `prepare`."""
        await self.broker.start()
        await self.prepare(only_to_send=only_to_send)

    async def close(self) -> None:
        """Let the connection go."""
        await self.broker.stop()


# --- headers -----------------------------------------------------------------------------------------
# The headers that messages are sent along with, the same at each broker.


REASON = "Transfer-Reason"
"""Of a dead letter: why it is there."""

JSON = {"content-type": "application/json"}

LONGEST = 1000
"""Characters of a header's name or value: more would not fit everywhere."""


def reason_header(reason: str) -> dict[str, str]:
    """``reason`` as a header."""
    return {REASON: _fitting(reason)}


def fitting(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` as any broker takes them: each one line of ASCII, cut where it is long."""
    return {_fitting(name): _fitting(value) for name, value in headers.items()}


def _fitting(text: object) -> str:
    line = "".join(item if item.isprintable() else " " for item in str(text))
    return line.encode("ascii", "backslashreplace").decode()[:LONGEST]


def carried_on(headers: Mapping[str, str], *, without: str) -> dict[str, str]:
    """The headers of a message for its copy, but for those that begin with ``without``."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(without)}
