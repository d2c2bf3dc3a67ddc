"""A process that does to a journal's file what other processes do at the same time."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.journalling import claim, judged
from transfer_async import JournalFailed, SQLiteJournal
from transfer_async.journal.sqlite import _File


def claim_all(number: int, together: Any, results: Any, path: str, keys: Sequence[str]) -> None:
    """Claim them all, at once with the others; tells which were granted, or what went wrong."""
    try:
        results.put(asyncio.run(_claim_all(path, number, keys, together)))
    except BaseException as error:
        results.put(repr(error))
        raise


async def _claim_all(path: str, number: int, keys: Sequence[str], together: Any) -> list[str]:
    async with asyncio.timeout(50):
        await asyncio.to_thread(together.wait)
        granted: list[str] = []
        async with SQLiteJournal(path, timeout=30.0) as journal:
            for first in range(0, len(keys), 10):
                some = keys[first : first + 10]
                verdicts = await asyncio.gather(*(judged(journal, claim(number), key=key) for key in some))
                granted += [key for key, said in zip(some, verdicts, strict=True) if said.denial is None]
    return granted


def open_all(_number: int, together: Any, results: Any, paths: Sequence[str]) -> None:
    """Open each of the files, and close it, at once with the others; tells what went wrong."""
    wrong = []
    for path in paths:
        together.wait(50)
        try:
            _File(Path(path), timeout=30.0).close()
        except (JournalFailed, OSError, sqlite3.Error) as error:
            wrong.append(repr(error))
    results.put(wrong)
