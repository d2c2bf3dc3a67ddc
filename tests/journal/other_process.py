"""A worker in another process, which the test controls line by line."""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.bank import new_order
from transfer_async import SQLiteJournal, TransferClient, TransferError


class OtherProcess:
    """The test's connection to the process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def does(self, what: str) -> str:
        """Run a command in the process and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n".encode())
        return (await self._process.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def other_process(*arguments: str) -> AsyncIterator[OtherProcess]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.journal.other_process", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield OtherProcess(process)
    finally:
        await process.communicate(b"")  # closing its input ends the process


async def _visit(path: str) -> str:
    """Open and close the journal, as a command of the command line does."""
    async with SQLiteJournal(path):
        return "been there"


async def _order(path: str, base_url: str, token: str, key: str) -> str:
    async with SQLiteJournal(path) as journal, TransferClient(base_url, token, journal=journal) as client:
        try:
            return (await client.create_order(new_order(), key=key, held="H")).id
        except TransferError as error:
            return type(error).__name__


def main() -> None:
    path, base_url, token = sys.argv[1:]
    db = sqlite3.connect(Path(path).with_name("unused.db"), isolation_level=None)
    for line in sys.stdin:
        match line.split():
            case ["visit"]:
                answer = asyncio.run(_visit(path))
            case ["lock"]:
                db = sqlite3.connect(path, isolation_level=None)
                db.execute("BEGIN IMMEDIATE")
                answer = "locked"
            case ["unlock"]:
                db.close()
                answer = "unlocked"
            case _:
                answer = asyncio.run(_order(path, base_url, token, line.split()[1]))
        print(answer, flush=True)  # noqa: T201 - for the test


if __name__ == "__main__":
    main()
