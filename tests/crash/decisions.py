"""Decisions: the command that makes the decisions in a file is killed.

After each kill, every row has been decided at most once. The command is run until it ends by itself. Then
every row has been decided exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import signal
import socket
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.crash.processes import as_options, await_end, command, fork, last_words
from tests.crash.setting import SCOPE, Place
from tests.crash.verdict import Report
from tests.support.journalling import claim, doubt, made, mark
from transfer_async import KeyState, SQLiteJournal
from transfer_async.journal.sqlite import _KEYS, _File

DECISIONS = {"resolve": KeyState.CREATED, "refute": KeyState.FREE}
"""The commands, and the state in which each leaves a key."""

PATIENCE = 60.0
"""The timeout of a process, in seconds."""

_DECIDED = f"""
    SELECT k.state, (SELECT count(*) FROM history WHERE key_id = k.id AND move IN ('resolve', 'refute'))
    FROM {_KEYS}
"""
"""The state of each key, and the number of decisions in its history."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this trial."""
    parser.add_argument("--rows", type=int, default=40, help="decisions in each file")


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial."""
    chance, report = random.Random(options.seed), Report(f"decisions, seed {options.seed}")
    until = time.monotonic() + options.patience
    doubts = directory / "doubts.db"
    # In a process of its own, because this one must not have threads.
    await_end(fork(partial(_fill, path=doubts, rows=options.rows)), PATIENCE)
    longest = math.inf  # the first run is not killed, because its duration is measured
    while report.counts["kills"] < options.kills and not report.violations:
        if time.monotonic() > until:
            report.trouble(f"cut short after {options.patience:g} s")
            break
        where = directory / str(report.counts["files"])
        where.mkdir()
        shutil.copy(doubts, where / "journal.db")
        Place(directory=str(where), journal=str(where / "journal.db"), base_url="", token="").enter()
        took = _decided_in_the_end(options, where, chance, report, longest=longest)
        longest = took if math.isinf(longest) else longest
        report.counts["files"] += 1
    return report


def _fill(_: socket.socket, *, path: Path, rows: int) -> None:
    """Create a journal with keys in doubt."""

    async def fill() -> None:
        async with SQLiteJournal(path) as journal:
            for n in range(rows):
                moves = (claim(n), mark(f"a{n}", number=n), doubt(f"a{n}"))
                await made(journal, *moves, key=f"key-{n}", scope=SCOPE)

    asyncio.run(fill())


def _decided_in_the_end(
    options: argparse.Namespace, where: Path, chance: random.Random, report: Report, *, longest: float
) -> float:
    """Kill runs for one file until a run ends by itself. Read every key after each run.

    Return the seconds that the last run took.
    """
    name = chance.choice(list(DECISIONS))
    order_id = "tx-{}" if name == "resolve" else ""
    rows = [f"key-{n},{name},{order_id.format(n)},looked it up,3\n" for n in range(options.rows)]
    (where / "rows.csv").write_text("key,decision,order_id,reason,seen\n" + "".join(rows), encoding="utf-8")
    settings = {"from": where / "rows.csv", "journal": where / "journal.db", "scope": SCOPE, "by": "ada"}
    words = ["journal", name, *as_options(settings)]
    words += ["--yes", "--settle-after", "0"] if name == "refute" else []
    decided, undecided = (DECISIONS[name].value, 1), (KeyState.IN_DOUBT.value, 0)
    while True:
        began = time.monotonic()
        child = fork(partial(command, words=words, fault=options.planted))
        await_end(child, min(PATIENCE, chance.uniform(0.0, 1.1) * longest))
        took = time.monotonic() - began
        was_killed = child.code == -signal.SIGKILL
        report.counts["kills" if was_killed else "came to their end"] += 1
        with closing(_File(where / "journal.db", timeout=PATIENCE)) as file:
            found = Counter(file.query(_DECIDED))
        report.counts["killed between two rows"] += was_killed and 0 < found[decided] < options.rows
        for what in found.keys() - {decided, undecided}:
            report.violations.append(("twice", f"{found[what]} keys of {name}: {what}"))
        if not was_killed and child.code:
            report.trouble(f"ended with {child.code}: {last_words()}")
        if not was_killed and found[decided] != options.rows:
            report.violations.append(("unended", f"{dict(found)}"))
        if report.violations or not was_killed:
            return took
