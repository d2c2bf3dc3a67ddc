"""What a worker needs to know of a broker, and what workers of one kind agree on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import Attribute, field, frozen

from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._support.clock import in_seconds
from transfer_async._support.validators import count, positive
from transfer_async.integrations.faststream.headers import JSON
from transfer_async.worker.consumer import Delivery


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
        parked: the dead letters: where what cannot be carried out is put, with the reason.
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
    parked: str = field(default="transfer.parked", validator=_name)
    group: str = field(default="transfer-workers", validator=_name)
    concurrency: int = field(default=16, validator=count())
    ack_wait: float = field(default=30.0, converter=in_seconds, validator=_above_0)
    poll: float = field(default=1.0, converter=in_seconds, validator=_above_0)
    publish_timeout: float = field(default=5.0, converter=in_seconds, validator=_above_0)
    sweep_every: float = field(default=60.0, converter=in_seconds, validator=_above_0)
    patience: float = field(default=35.0, converter=in_seconds, validator=_above_0)

    def __attrs_post_init__(self) -> None:
        if len({self.commands, self.outcomes, self.parked}) < 3:
            raise ValueError("commands, outcomes, parked: must differ from one another")


class Line(ABC):
    """How one broker delivers, acknowledges, delays and parks: all that a worker needs to know of it.

    Ours are on FastStream's brokers. A bank's own is any subclass, on whatever client it has; the page
    "A line of your own" shows one, and `LineContract` (in `transfer_async.testing.line_contract`) tries any.

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
        beat, or when its worker is gone. A parked copy has the reason in its header ``Transfer-Reason``.
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
