"""The customers, who send the commands and read the outcomes. Their process is never killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from nats.js.api import ConsumerConfig, DeliverPolicy

from tests.crash.bank import Book, is_known
from tests.crash.broker.harness import ACK_WAIT
from tests.crash.processes import Channel
from tests.crash.setting import SCOPE, Place, order_of
from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._models.errors import JournalFailed
from transfer_async.integrations.faststream.broker import WorkerSettings, broker_at
from transfer_async.journal import KeyState, PostgresJournal
from transfer_async.journal.model import Entry

OUTSTANDING = 60
"""The maximum number of commands without an outcome."""

TWICE = 0.1
"""The share of commands that are sent twice."""

KINDS = {"good": 0.82, "unknown": 0.08, "poor": 0.06, "bad": 0.04}


def serve(end: socket.socket, *, place: Place, seed: int) -> None:
    """Send commands until asked to stop, then read until every command has an outcome."""
    asyncio.run(_Customers(Channel(end), place, seed).run())


class _Customers:
    def __init__(self, channel: Channel, place: Place, seed: int) -> None:
        self._channel = channel
        self._place = place
        self._line: Any = broker_at(place.broker, WorkerSettings(ack_wait=ACK_WAIT))
        self._chance = random.Random(seed)
        self._outcomes = Book(place.path("outcomes"))
        self._open: set[str] = set()
        self._keys: list[str] = []
        self._room = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        await _sooner_or_later(self._line.open)
        settings = self._line.settings
        tasks = [
            asyncio.create_task(self._read(settings.outcomes, self._hear)),
            asyncio.create_task(self._read(settings.dead_letters, self._hear_of_parked)),
            asyncio.create_task(self._live()),
        ]
        self._channel.tell(ready=True)
        await self._channel.next()
        self._stop.set()
        self._room.set()
        await self._channel.next()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._place.path("keys").write_text("\n".join(self._keys), encoding="utf-8")

    async def _live(self) -> None:
        await self._send_until_stopped()
        while self._open:
            await self._room_made()
        self._channel.tell(answered=True)
        await self._until_all_is_published()
        self._channel.tell(quiet=True)

    # --- commands -------------------------------------------------------------------------------

    async def _send_until_stopped(self) -> None:
        while not self._stop.is_set():
            if len(self._open) >= OUTSTANDING:
                await self._room_made()
                continue
            (kind,) = self._chance.choices(list(KINDS), weights=list(KINDS.values()))
            key = f"{kind}-{len(self._keys)}"
            self._keys.append(key)
            self._open.add(key)
            for _ in range(2 if self._chance.random() < TWICE else 1):
                await _sooner_or_later(self._sending(key))

    def _sending(self, key: str) -> Callable[[], Awaitable[None]]:
        return lambda: self._line.send(self._line.settings.commands, _command_of(key), {})

    async def _room_made(self) -> None:
        self._room.clear()
        await self._room.wait()

    # --- outcomes -------------------------------------------------------------------------------

    async def _read(self, subject: str, hear: Callable[[Any], None]) -> None:
        async for message in self._messages(subject):
            hear(message)

    async def _messages(self, subject: str) -> AsyncIterator[Any]:
        """Yield every message of a stream exactly once, from the start, even if the broker is restarted."""
        last = 0
        while True:
            with contextlib.suppress(Exception):  # the broker is down, or has just restarted
                manager = await self._line._manager()
                config = ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=last + 1
                )
                reader = await manager.subscribe(subject, ordered_consumer=False, config=config)
                try:
                    while True:
                        message = await reader.next_msg(timeout=2.0)
                        sequence = message.metadata.sequence.stream
                        await message.ack()
                        if sequence > last:
                            last = sequence
                            yield message
                finally:
                    with contextlib.suppress(Exception):
                        await reader.unsubscribe()
            await asyncio.sleep(0.05)  # between two polls

    def _hear(self, message: Any) -> None:
        outcome = OrderOutcome.from_json(message.data)
        self._outcomes.write(outcome.key, outcome.outcome.value, outcome.order_id or "-")
        self._answered(outcome.key)

    def _hear_of_parked(self, message: Any) -> None:
        assert message.headers["Transfer-Reason"]
        key = msgspec.json.decode(message.data)["key"]
        self._outcomes.write(key, "parked", "-")
        self._answered(key)

    def _answered(self, key: str) -> None:
        self._open.discard(key)
        self._room.set()
        self._channel.tell(outcome=key)

    # --- the end --------------------------------------------------------------------------------

    async def _until_all_is_published(self) -> None:
        """Wait until the workers have resolved and published all doubts that can be resolved."""
        async with PostgresJournal(self._place.journal) as journal:
            while await self._waits(journal):  # noqa: ASYNC110 - the workers are elsewhere
                await asyncio.sleep(0.2)  # between two polls

    async def _waits(self, journal: PostgresJournal) -> bool:
        readable = [key for key in self._keys if not key.startswith("bad")]
        try:
            return any([_is_awaited(key, await journal.read(SCOPE, key)) for key in readable])
        except (JournalFailed, OSError):
            return True


def _is_awaited(key: str, entry: Entry | None) -> bool:
    """Return whether the workers still have something to do for a key."""
    return entry is not None and (
        bool(entry.pending_notifications or entry.pending_undos)
        or entry.state in (KeyState.CLAIMED, KeyState.SENDING)
        or (entry.state is KeyState.IN_DOUBT and is_known(key))
    )


def _command_of(key: str) -> bytes:
    """Return the command of a key. Some commands are unreadable on purpose."""
    if key.startswith("bad"):
        return f'{{"version": 1, "key": "{key}"}}'.encode()
    return OrderCommand(key=key, order=order_of(key)).to_json()


async def _sooner_or_later(do: Callable[[], Awaitable[object]]) -> None:
    """Retry until it succeeds, because the broker may be down."""
    while True:
        try:
            await do()
        except Exception:  # noqa: BLE001 - whatever it is, it goes on
            await asyncio.sleep(0.05)  # between two attempts
        else:
            return
