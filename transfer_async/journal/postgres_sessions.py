"""Connections to PostgreSQL, what is kept in them, and the server's time as it is reckoned in between."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

IDLE = 300.0
"""Seconds after which a connection that nobody used is not trusted: a firewall may have dropped it."""


class Session:
    """One connection.

    Args:
        connection: asyncpg's.
        keeps: the server keeps prepared statements in it.
        is_plain: one statement is a transaction as the journal needs it, without a word before it.
    """

    def __init__(self, connection: Any, *, keeps: bool, is_plain: bool) -> None:
        self._connection = connection
        self.keeps: bool = keeps
        self.is_plain: bool = is_plain
        self._prepared: dict[str, Any] = {}
        self.used: float = asyncio.get_running_loop().time()

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return bool(self._connection.is_closed())

    async def say(self, sql: str) -> None:
        """Say what has neither parameters nor an answer."""
        await self._connection.execute(sql)

    async def fetch(self, sql: str, *values: object) -> list[Any]:
        """The rows that ``sql`` gives: in one round trip, where it is prepared."""
        if not self.keeps:
            return list(await self._connection.fetch(sql, *values))
        statement = self._prepared.get(sql)
        if statement is None:
            statement = await self._connection.prepare(sql, name=_name_of(sql))
            self._prepared[sql] = statement
        return list(await statement.fetch(*values))

    async def value(self, sql: str, *values: object) -> Any:
        """The first value of the first row, if there is one."""
        found = await self.fetch(sql, *values)
        return found[0][0] if found else None

    def terminate(self) -> None:
        """End it at once."""
        self._connection.terminate()

    async def close(self) -> None:
        """End it in order."""
        await self._connection.close()


def _name_of(sql: str) -> str:
    """A name that means this text and no other, whoever prepared it, in whatever connection.

    Behind a proxy that pools transactions, a counted name may be another program's, for another text.
    """
    return f"transfer_async_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"


class Sessions:
    """A few connections, opened as they are needed; the one that was used last is used next.

    Args:
        connect: opens one.
        limit: how many there are at most.
    """

    def __init__(self, connect: Callable[[], Awaitable[Session]], *, limit: int) -> None:
        self._connect = connect
        self._free: list[Session] = []
        self._places = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def one(self, *, unharmed_by: tuple[type[Exception], ...] = ()) -> AsyncIterator[Session]:
        """A connection for the block; whatever else than those errors leaves it, it is not used again."""
        async with self._places:
            session = self._waiting() or await self._connect()
            try:
                yield session
            except unharmed_by:
                self._free.append(session)
                raise
            except BaseException:
                # It may be waiting for anything: the server gives up the transaction of a lost connection.
                session.terminate()
                raise
            session.used = asyncio.get_running_loop().time()
            self._free.append(session)

    def _waiting(self) -> Session | None:
        while self._free:
            session = self._free.pop()
            if not session.is_closed and asyncio.get_running_loop().time() - session.used < IDLE:
                return session
            session.terminate()
        return None

    async def close(self) -> None:
        """Close those that are free: nothing is under way."""
        while self._free:
            session = self._free.pop()
            try:
                await session.close()
            except Exception:  # noqa: BLE001 - nothing is under way: a server that is gone loses nothing by it
                session.terminate()
            except BaseException:
                session.terminate()
                raise


class ReckonedTime:
    """The server's time, reckoned from what it said: wrong by no more than a round trip.

    It goes on as the loop's does, and is put right only as far as an answer proves it wrong, so that of two
    moves the later one is mostly the one with the later time.
    """

    def __init__(self) -> None:
        self._ahead = -math.inf  # before it has said anything, it is no time at all

    def heard(self, said: float, *, asked: float) -> None:
        """The server, asked at ``asked`` on the loop's clock, has answered so just now."""
        least, most = said - asyncio.get_running_loop().time(), said - asked
        self._ahead = min(max(self._ahead, least), most)

    @property
    def now(self) -> float:
        """The time that it is there now."""
        return asyncio.get_running_loop().time() + self._ahead
