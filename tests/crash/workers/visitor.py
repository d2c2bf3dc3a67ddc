"""A process that opens, reads and closes the journal, as the command line does, or dies in between.

Sometimes it locks the file for longer than the workers wait, so that their calls fail while the file is open.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sqlite3
import time

from tests.crash.setting import PATIENCE, SCOPE, Place

PAUSE = 0.2
DEATHS = 0.05
LOCKS = 0.01
LOCKED = 1.2 * PATIENCE
"""The seconds for which it may lock a file."""


def visit(_end: socket.socket, *, place: Place, seed: int) -> None:
    """Open and close the journal repeatedly, until killed."""
    chance = random.Random(seed)
    while True:
        asyncio.run(look(place, chance))
        if not place.is_postgres and chance.random() < LOCKS:
            _lock(place.journal)
        time.sleep(chance.uniform(0, PAUSE))


async def look(place: Place, chance: random.Random) -> None:
    """Open, read and close the journal, or die in between."""
    try:
        async with place.new_journal() as journal:
            await journal.count_in_doubt(SCOPE)
            if chance.random() < DEATHS:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception:  # noqa: BLE001 - whatever its store raises: it may be away, or locked
        pass


def _lock(path: str) -> None:
    db = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    try:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED)
    except sqlite3.DatabaseError:
        pass  # another process was faster, or a planted fault has damaged the journal
    finally:
        db.close()
