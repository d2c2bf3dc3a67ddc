"""Somebody who comes and goes, as the command line does: opens the journal, looks, closes it, or dies there.

Once in a while it writes for longer than the workers wait, so that their calls fail with the file open.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sqlite3
import time

from tests.deaths.trial import LOCKED, PATIENCE, SCOPE, Trial, journal_of

PAUSE = 0.2
DEATHS = 0.05
LOCKS = 0.01


def visit(_end: socket.socket, *, trial: Trial, seed: int) -> None:
    """Come and go until killed."""
    chance = random.Random(seed)
    while True:
        asyncio.run(look(trial, chance))
        if not trial.is_postgres and chance.random() < LOCKS:
            _lock(trial.journal)
        time.sleep(chance.uniform(0, PAUSE))


async def look(trial: Trial, chance: random.Random) -> None:
    """Open, look, and close; or die in between."""
    try:
        async with journal_of(trial) as journal:
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
        pass  # somebody was faster, or a fault of our own making has spoiled it
    finally:
        db.close()
