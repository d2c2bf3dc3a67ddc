"""A process that wants keys of a journal in a file that other processes want, too."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.journalling import claim, judged
from transfer_async import SQLiteJournal


def claim_all(path: str, number: int, keys: Sequence[str], together: Any, results: Any) -> None:
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
