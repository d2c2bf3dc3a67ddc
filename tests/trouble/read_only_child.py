"""A worker that may read the journal's file and no more: tells what became of its call.

As ``root`` may write everything, it becomes somebody else once it has made the journal.
"""

import asyncio
import json
import os
import pwd
import sys
from pathlib import Path

from tests.support.bank import new_order
from tests.trouble.storm import stormy_world
from transfer_async import JournalFailed, SQLiteJournal

NOBODY = "nobody"


async def _call(path: Path) -> dict[str, object]:
    made = stormy_world(lambda world: SQLiteJournal(path, clock=world.time.clock))
    async with made as world, world.client() as client:
        try:
            await client.create_order(new_order(), key="k")
        except JournalFailed as error:
            return {
                "cause": str(error.__cause__),
                "outcome": error.outcome.name,
                "requests": len(world.sandbox.requests),
                "holds": len(world.bank.open),
            }
    return {}


async def _make(path: Path) -> None:
    async with SQLiteJournal(path):
        pass


def main() -> None:
    path = Path(sys.argv[1])
    asyncio.run(_make(path))
    path.chmod(0o444)
    path.parent.chmod(0o555)
    if not os.getuid():
        os.setuid(pwd.getpwnam(NOBODY).pw_uid)
    print(json.dumps(asyncio.run(_call(path))))  # noqa: T201 - for the test


if __name__ == "__main__":
    main()
