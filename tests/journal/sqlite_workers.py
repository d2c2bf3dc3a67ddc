"""Work for four processes that use the same journal files at once and report their results."""

import asyncio
import json
import multiprocessing
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.journalling import claim, judged
from transfer_async import JournalFailed, SQLiteJournal
from transfer_async.journal.sqlite import _File

FORK = multiprocessing.get_context("fork")
"""The start method "fork", because a child then need not import anything again."""


def claim_all(number: int, together: Any, results: Any, path: str, *keys: str) -> None:
    """Claim all keys at the same time as the other processes. Report the granted ones, or the error."""
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
                granted += [
                    key for key, verdict in zip(some, verdicts, strict=True) if verdict.denial is None
                ]
    return granted


def open_all(_number: int, together: Any, results: Any, *paths: str) -> None:
    """Open and close each file at the same time as the other processes. Report errors."""
    wrong = []
    for path in paths:
        together.wait(50)
        try:
            _File(Path(path), timeout=30.0).close()
        except (JournalFailed, OSError, sqlite3.Error) as error:
            wrong.append(repr(error))
    results.put(wrong)


def main(work: str, *arguments: str) -> None:
    together, results = FORK.Barrier(4), FORK.Queue()
    does = {"claim_all": claim_all, "open_all": open_all}[work]
    processes = [FORK.Process(target=does, args=(n, together, results, *arguments)) for n in range(4)]
    for process in processes:
        process.start()
    print(json.dumps([results.get(timeout=50) for _ in processes]))  # noqa: T201 - for the test
    for process in processes:
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
