"""What PostgreSQL's errors mean for a move, and how long it goes on trying."""

from __future__ import annotations

import asyncio
from typing import Any

from transfer_async._models.errors import JournalFailed


class Overtaken(Exception):
    """A key came in between looking and writing: look again."""


class Patience:
    """How long a move waits for a database that cannot be reached, and how often it looks."""

    def __init__(self, seconds: float) -> None:
        self.end: float = asyncio.get_running_loop().time() + seconds
        self._pause = 0.02

    @property
    def has_some_left(self) -> bool:
        """Whether there is time for another look."""
        return asyncio.get_running_loop().time() + self._pause < self.end

    async def pause(self) -> None:
        """Wait until the next look, each time for longer."""
        await asyncio.sleep(self._pause)
        self._pause = min(0.5, self._pause * 2)


def may_go_again(error: Exception) -> bool:
    """Whether the same may well succeed in a moment: the server is away, or two were in each other's way."""
    asyncpg = driver()
    return is_of_names(error) or isinstance(
        error,
        (
            Overtaken,
            OSError,  # TimeoutError among them
            asyncpg.InterfaceError,
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,
            asyncpg.TransactionRollbackError,
            asyncpg.UniqueViolationError,
        ),
    )


def is_of_names(error: Exception) -> bool:
    """Whether what was prepared is not what is there: another connection than before has answered."""
    asyncpg = driver()
    names = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
    return isinstance(error, names)


def driver() -> Any:
    """The package asyncpg, which is an extra.

    Raises:
        JournalFailed: it is not installed.
    """
    try:
        import asyncpg
    except ImportError as error:
        raise JournalFailed(
            "a PostgresJournal needs asyncpg: pip install 'transfer_async[postgres]'"
        ) from error
    return asyncpg
