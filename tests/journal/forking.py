"""A program that opens journals, forks, and reports which calls work in the child and in the parent."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from tests.support.journalling import SCOPE, claim
from transfer_async import JournalFailed
from transfer_async.journal import journal_at
from transfer_async.journal.protocol import Journal

HANGS = 20
"""Seconds after which a call in the child counts as hanging."""


def _calls(journal: Journal) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "move": lambda: journal.move(SCOPE, "k", claim()),
        "read": lambda: journal.read(SCOPE, "k"),
        "work": lambda: journal.work(SCOPE, limit=1),
        "in_doubt": lambda: journal.in_doubt(SCOPE),
        "count_in_doubt": lambda: journal.count_in_doubt(SCOPE),
        "history": lambda: journal.history(SCOPE, "k"),
        "prune": lambda: journal.prune(SCOPE, before=datetime.min.replace(tzinfo=UTC)),
        "enter": journal.__aenter__,
        "close": journal.close,
    }


async def _tried(journal: Journal) -> dict[str, str]:
    results = {}
    for name, call in _calls(journal).items():
        try:
            await call()
        except JournalFailed as error:
            results[name] = "fork" if "fork" in str(error) else str(error)
        else:
            results[name] = "done"
    return results


async def _results(address: str, journal: Journal) -> dict[str, dict[str, str]]:
    return {"its parent's": await _tried(journal), "its own": await _tried(journal_at(address))}


def _forked(parent: asyncio.Runner, address: str) -> None:
    journal = journal_at(address)
    parent.run(journal.__aenter__())
    child = os.fork()
    if not child:
        signal.alarm(HANGS)
        print(json.dumps(asyncio.run(_results(address, journal))), flush=True)  # noqa: T201 - for the test
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print(json.dumps(parent.run(_tried(journal))), flush=True)  # noqa: T201 - for the test


def main() -> None:
    with asyncio.Runner() as parent:
        for address in sys.argv[1:]:
            _forked(parent, address)


if __name__ == "__main__":
    main()
