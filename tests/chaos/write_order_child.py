"""Clients that write each step to stderr, for a test that traces their system calls."""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.bank import new_order
from transfer_async import FundsHold, SQLiteJournal, TransferClient
from transfer_async._models.requests import OrderIntent
from transfer_async.journal import sqlite_file
from transfer_async.sandbox import Sandbox


async def _place(intent: OrderIntent) -> str:
    os.write(2, b"HOOK\n")
    return "hold"


async def _release(intent: OrderIntent, receipt: str | None) -> None:
    raise AssertionError("nothing is undone")


async def _orders(path: Path, count: int) -> None:
    hold = FundsHold(_place, _release)
    async with (
        Sandbox() as sandbox,
        SQLiteJournal(path) as journal,
        TransferClient(sandbox.base_url, sandbox.token, hooks=[hold], journal=journal) as client,
    ):
        for number in range(count):
            await client.create_order(new_order(), key=f"k-{number}")
            os.write(2, b"DONE\n")


def main() -> None:
    directory, *clients = sys.argv[1:]
    as_they_are = sqlite_file._SETTINGS
    for count, level in zip(clients[::2], clients[1::2], strict=True):
        sqlite_file._SETTINGS = tuple(one.replace("=FULL", f"={level}") for one in as_they_are)
        path = Path(directory) / level
        path.mkdir()
        asyncio.run(_orders(path / "journal.db", int(count)))
        os.write(2, b"END\n")


if __name__ == "__main__":
    main()
