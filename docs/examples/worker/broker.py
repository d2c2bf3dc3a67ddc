"""An in-memory broker that stands in for yours. It delivers each message at least once."""

import asyncio
from dataclasses import dataclass

from transfer_async import OrderOutcome


@dataclass(eq=False)
class Message:
    """A message with the number of its deliveries."""

    body: bytes
    deliveries: int = 0


class Broker:
    """A queue of commands, the published outcomes, and the dead letters."""

    def __init__(self) -> None:
        self.outcomes: list[OrderOutcome] = []
        self.dead_letters: list[tuple[bytes, str]] = []
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
        """Wait for the next message, and return it."""
        message = await self._waiting.get()
        message.deliveries += 1
        return message

    async def publish(self, outcome: OrderOutcome) -> None:
        """Publish an outcome; it is stored when this method returns."""
        self.outcomes.append(outcome)
        print(f"published  {outcome.key}: {outcome.outcome.value} {outcome.order_id or outcome.error or ''}")

    def acknowledge(self, message: Message) -> None:
        """Acknowledge the message."""
        self._open.discard(message)
        if not self._open:
            self._nothing_open.set()

    def deliver_again(self, message: Message, after: float) -> None:
        """Redeliver the message in ``after`` seconds."""
        print(f"redelivered in {after:g} s")
        asyncio.get_running_loop().call_later(after, self._waiting.put_nowait, message)

    def dead_letter(self, message: Message, reason: str) -> None:
        """Dead-letter the message, so that a person can look at it."""
        print(f"dead-lettered: {reason}")
        self.dead_letters.append((message.body, reason))
        self.acknowledge(message)

    def still_at_work(self, message: Message) -> None:
        """Receive a heartbeat, which postpones the delivery of the message to another worker."""

    async def nothing_open(self) -> None:
        """Wait until every message is acknowledged."""
        await self._nothing_open.wait()
