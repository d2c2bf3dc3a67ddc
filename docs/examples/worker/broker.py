"""A broker in memory: it stands for yours, and delivers each message at least once."""

import asyncio
from dataclasses import dataclass

from transfer_async import OrderOutcome


@dataclass(eq=False)
class Message:
    """A message, and how often it has been delivered."""

    body: bytes
    deliveries: int = 0


class Broker:
    """A queue of commands, the outcomes that were published, and what was put aside."""

    def __init__(self) -> None:
        self.outcomes: list[OrderOutcome] = []
        self.parked: list[tuple[bytes, str]] = []
        self._waiting: asyncio.Queue[Message] = asyncio.Queue()
        self._open: set[Message] = set()
        self._nothing_open = asyncio.Event()

    def send(self, body: bytes) -> None:
        """Put a command in the queue."""
        message = Message(body)
        self._open.add(message)
        self._nothing_open.clear()
        self._waiting.put_nowait(message)

    async def next(self) -> Message:
        """The next message, once there is one."""
        message = await self._waiting.get()
        message.deliveries += 1
        return message

    async def publish(self, outcome: OrderOutcome) -> None:
        """Publish an outcome; it is safe when this returns."""
        self.outcomes.append(outcome)
        print(f"published  {outcome.key}: {outcome.outcome.value} {outcome.order_id or outcome.error or ''}")

    def acknowledge(self, message: Message) -> None:
        """The message is done with."""
        self._open.discard(message)
        if not self._open:
            self._nothing_open.set()

    def deliver_again(self, message: Message, after: float) -> None:
        """Deliver the message again, so many seconds later."""
        print(f"comes again after {after:g} s")
        asyncio.get_running_loop().call_later(after, self._waiting.put_nowait, message)

    def dead_letter(self, message: Message, reason: str) -> None:
        """Put the message aside, for somebody to look at."""
        print(f"put aside: {reason}")
        self.parked.append((message.body, reason))
        self.acknowledge(message)

    def still_at_work(self, message: Message) -> None:
        """Work on the message goes on: do not deliver it to anybody else yet."""

    async def nothing_open(self) -> None:
        """Wait until no message is left that was not acknowledged."""
        await self._nothing_open.wait()
