"""A broker that a bank might write: an SQLite table that any number of processes share."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from transfer_async import OrderOutcome
from transfer_async.integrations.faststream import Broker, WorkerSettings

LOOK_EVERY = 0.02
"""Seconds between two queries for a message, because a table cannot send notifications."""

TABLE = """CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, subject TEXT, body BLOB, headers TEXT,
    deliveries INTEGER DEFAULT 0, due REAL DEFAULT 0
)"""
SEND = "INSERT INTO messages (subject, body, headers) VALUES (?, ?, ?)"
TAKE = """UPDATE messages SET deliveries = deliveries + 1, due = ?
    WHERE id = (SELECT id FROM messages WHERE subject = ? AND due <= ? ORDER BY id LIMIT 1)
    RETURNING id, body, headers, deliveries"""
MINE = "id = ? AND deliveries = ?"  # after a redelivery, the message belongs to another worker


class TableConnection:
    """A connection to the table, with the start, stop and ping that a worker needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def start(self) -> None:
        await self.run((TABLE, ()))

    async def stop(self) -> None:
        """Do nothing: every transaction opens and closes its own connection."""

    async def ping(self, timeout: float) -> bool:  # noqa: ASYNC109 - as it is called
        async with asyncio.timeout(timeout):
            await self.run(("SELECT 1", ()))
        return True

    async def run(self, *statements: tuple[str, tuple[Any, ...]]) -> list[Any]:
        """Run all statements in one durable transaction. Return the rows of the last one."""
        return await asyncio.to_thread(self._run, statements)

    def _run(self, statements: tuple[tuple[str, tuple[Any, ...]], ...]) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            rows = [connection.execute(*statement).fetchall() for statement in statements]
            connection.execute("COMMIT")
        return rows[-1]


class TableBroker(Broker):
    def __init__(self, path: Path, settings: WorkerSettings) -> None:
        self.broker, self.settings = TableConnection(path), settings

    async def prepare(self, *, only_to_send: bool = False) -> None:
        await self.broker.start()

    def subscriber(self) -> "TableSlot":
        return TableSlot(self)

    def delivery(self, message: tuple[int, bytes, str, int]) -> "TableDelivery":
        return TableDelivery(self, message)

    async def publish(self, outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
        await self.send(self.settings.outcomes, outcome.to_json(), headers)

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        await self.broker.run((SEND, (subject, body, json.dumps(dict(headers)))))


class TableSlot:
    def __init__(self, broker: TableBroker) -> None:
        self.broker = broker

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def get_one(self, *, timeout: float) -> Any:  # noqa: ASYNC109 - as it is called
        for _ in range(max(1, round(timeout / LOOK_EVERY))):
            if found := await self.taken():
                return found[0]
            await asyncio.sleep(LOOK_EVERY)
        return None

    async def taken(self) -> list[Any]:
        now, settings = time.time(), self.broker.settings
        return await self.broker.broker.run((TAKE, (now + settings.ack_wait, settings.commands, now)))


class TableDelivery:
    def __init__(self, broker: TableBroker, message: tuple[int, bytes, str, int]) -> None:
        self.broker = broker
        number, self.body, headers, self.deliveries = message
        self.headers: Mapping[str, str] = json.loads(headers)
        self.mine = (number, self.deliveries)

    async def ack(self) -> None:
        await self.broker.broker.run((f"DELETE FROM messages WHERE {MINE}", self.mine))

    async def retry(self, after: float) -> None:
        await self.due_in(after)

    async def dead_letter(self, reason: str) -> None:
        headers = json.dumps({**self.headers, "Transfer-Reason": reason})
        copy = (SEND, (self.broker.settings.dead_letters, self.body, headers))
        await self.broker.broker.run(copy, (f"DELETE FROM messages WHERE {MINE}", self.mine))

    async def beat(self) -> None:
        await self.due_in(self.broker.settings.ack_wait)

    async def due_in(self, seconds: float) -> None:
        due = (time.time() + seconds, *self.mine)
        await self.broker.broker.run((f"UPDATE messages SET due = ? WHERE {MINE}", due))
