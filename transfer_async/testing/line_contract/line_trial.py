"""What a trial of a line has in its hands: names of its own at the broker, and workers' hands there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

import attrs

from transfer_async.integrations.faststream import Line, WorkerSettings
from transfer_async.worker import Delivery

T = TypeVar("T")

NewLine = Callable[[WorkerSettings], Line]
"""Makes a line with the settings it is given, not opened yet: each is another worker's, at one broker."""

PATIENCE = 30.0
"""Seconds after which what should have happened long ago is a failure."""

MARK, LAST = b"left unanswered", b"sent in the end"


async def soon(work: Awaitable[T], what: str) -> T:
    """What ``work`` gives; should that last too long, a failure that says ``what`` did not happen."""
    scope = asyncio.timeout(PATIENCE)
    try:
        async with scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise AssertionError(f"{what}: not within {PATIENCE:g} s") from None


class Taken:
    """One message in hand: what came of it, and the lane that took it, which is done once it is answered."""

    def __init__(self, delivery: Delivery, lane: Any) -> None:
        self._lane = lane
        self.delivery: Delivery = delivery
        self.body: bytes = bytes(delivery.body)
        self.headers: dict[str, str] = dict(delivery.headers)
        self.deliveries: int = delivery.deliveries

    async def ack(self) -> None:
        """Acknowledge it."""
        await self._answered(self.delivery.ack())

    async def retry(self, after: float) -> None:
        """Give it back, to come again after that many seconds."""
        await self._answered(self.delivery.retry(after))

    async def park(self, reason: str) -> None:
        """Put it aside."""
        await self._answered(self.delivery.park(reason))

    async def _answered(self, answer: Awaitable[None]) -> None:
        await soon(answer, "the broker took note of an answer")
        await self._lane.stop()

    @asynccontextmanager
    async def beaten(self, every: float) -> AsyncIterator[None]:
        """Give signs of life as long as this is open."""
        beating = asyncio.create_task(_again(every, self.delivery.beat))
        try:
            yield
        finally:
            await _end([beating])


class Hand:
    """One worker's hand: a line that is open, its chores, and a lane for each message."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._lanes: list[Any] = []
        self._chores: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await soon(self.line.open(), "the line is open")
        self._chores = [asyncio.create_task(_again(every, do)) for every, do in self.line.chores]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.go()

    async def lane(self) -> Any:
        """A subscriber that has been started."""
        lane = self.line.subscriber()
        self._lanes.append(lane)
        await soon(lane.start(), "a lane has begun")
        return lane

    async def take(self) -> Taken:
        """The next message, on a lane of its own: no lane asks for more than it works on."""
        lane = await self.lane()
        return Taken(self.line.delivery(await soon(self._next(lane), "a message came")), lane)

    async def _next(self, lane: Any) -> Any:
        while True:
            message = await lane.get_one(timeout=self.line.settings.poll)
            if message is not None:
                return message
            await asyncio.sleep(0)  # it may not have waited

    async def go(self) -> None:
        """Let go of all, as a worker that ends; what is in hand is left as it is."""
        await _end(self._chores)
        lanes, self._lanes, self._chores = self._lanes, [], []
        for end in (*(lane.stop for lane in lanes), self.line.close):
            with contextlib.suppress(Exception):  # its connection may be gone
                await soon(end(), "a line has ended")


class LineTrial:
    """A trial of one line.

    Args:
        new_line: see `NewLine`.
        ack_wait: as of `WorkerSettings`.

    Attributes:
        settings: of all lines, with subjects that no other trial has.
    """

    def __init__(self, new_line: NewLine, *, ack_wait: float) -> None:
        mine = f"t{secrets.token_hex(5)}"
        self.settings: WorkerSettings = WorkerSettings(
            commands=f"{mine}.commands",
            outcomes=f"{mine}.outcomes",
            parked=f"{mine}.parked",
            ack_wait=ack_wait,
            poll=0.05,
            concurrency=2,
            publish_timeout=2.0,
        )
        self.new_line = new_line
        self._stack = AsyncExitStack()
        self._readers: dict[str, Hand] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def line(self, **changes: Any) -> Line:
        """One more line, not opened yet."""
        return self.new_line(attrs.evolve(self.settings, **changes))

    async def hand(self, **changes: Any) -> Hand:
        """One more worker's hand."""
        return await self._stack.enter_async_context(Hand(self.line(**changes)))

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send what is taken for a command, as somebody who does nothing else."""
        async with self.sender() as line:
            await soon(line.send(line.settings.commands, body, headers or {}), "a message is sent")

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Line]:
        """A line that is open for sending only."""
        line = self.line()
        await soon(line.open(only_to_send=True), "the line is open")
        try:
            yield line
        finally:
            await line.close()

    # --- what was published ---------------------------------------------------------------------

    async def published(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The next outcome, as a tree, and its headers."""
        taken = await self._read(self.settings.outcomes)
        return json.loads(taken.body), taken.headers

    async def outcome(self) -> dict[str, Any]:
        """The next outcome, as a tree."""
        return (await self.published())[0]

    async def parked(self) -> Taken:
        """The next of what was put aside."""
        return await self._read(self.settings.parked)

    async def _read(self, subject: str) -> Taken:
        """The next message of a subject, by a line of the same kind for which it is where commands are."""
        if subject not in self._readers:
            names = {name: f"{subject}.{name}" for name in ("outcomes", "parked")}
            self._readers[subject] = await self.hand(commands=subject, group="readers", **names)
        taken = await self._readers[subject].take()
        await taken.ack()
        return taken

    async def forget_readers(self) -> None:
        """Let those go who read what is published: the next look is another's."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.go()

    async def come_again(self, keeper: Hand) -> list[bytes]:
        """What comes again of all that has been taken: it has done so when what is taken last comes again.

        Args:
            keeper: whose hand leaves one unanswered.
        """
        found: list[bytes] = []
        await self.send(MARK)
        while (await keeper.take()).body != MARK:
            pass
        other = await self.hand()
        for wanted in (MARK, LAST):
            if wanted is LAST:
                await self.send(LAST)
            while (taken := await other.take()).body != wanted:
                found.append(taken.body)
                assert len(found) < 20, f"it never ends: {found}"
            await taken.ack()
        return found

    async def lost(self, bodies: Iterable[bytes]) -> set[bytes]:
        """Which of them neither come again nor are among the parked, once nobody has any in hand."""
        left = set(bodies).difference(await self.come_again(await self.hand()))
        with contextlib.suppress(AssertionError):  # no more are parked
            while left:
                left.discard((await self.parked()).body)
        return left


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.05)  # a broker's driver may swallow a cancellation


async def _again(every: float, do: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(every)
        with contextlib.suppress(Exception):  # the next time may go well, as with a worker
            await do()
