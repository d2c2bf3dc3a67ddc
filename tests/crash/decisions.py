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
import socket
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.crash.processes import Runs, as_options, await_end, fork
from tests.crash.setting import SCOPE, Place
from tests.crash.verdict import Report
from tests.support.journalling import claim, doubt, made, mark
from transfer_async import KeyState, SQLiteJournal
from transfer_async.journal.sqlite import _KEYS, _File

DECISIONS = {"resolve": KeyState.CREATED, "refute": KeyState.FREE}
"""The commands, and the state in which each leaves a key."""

TIMEOUT = 60.0
"""The timeout of a process, in seconds."""

_DECIDED = f"""
    SELECT k.state, (SELECT count(*) FROM history WHERE key_id = k.id AND move IN ('resolve', 'refute'))
    FROM {_KEYS}
"""
"""The state of each key, and the number of decisions in its history."""


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial."""
    chance, report = random.Random(options.seed), Report(f"decisions, seed {options.seed}")
    until = time.monotonic() + options.timeout
    doubts = directory / "doubts.db"
    # In a process of its own, because this one must not have threads.
    await_end(fork(partial(_fill, path=doubts, rows=options.rows)), TIMEOUT)
    longest = math.inf  # the first run is not killed, because its duration is measured
    while report.counts["kills"] < options.kills and not report.violations:
        if time.monotonic() > until:
            report.trouble(f"ended early after {options.timeout:g} s")
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


def _is_over(time_of_kill: float) -> bool:
    return time.monotonic() >= time_of_kill


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
    arguments = ["journal", name, *as_options(settings)]
    arguments += ["--yes", "--settle-after", "0"] if name == "refute" else []
    decided, undecided = (DECISIONS[name].value, 1), (KeyState.IN_DOUBT.value, 0)
    while True:
        began = time.monotonic()
        due = began + chance.uniform(0.0, 1.1) * longest
        until = began + TIMEOUT
        runs = Runs(
            arguments=arguments, options=options, report=report, codes=(0,), chance=chance, until=until
        )
        was_killed = runs.kill(partial(_is_over, due))
        took = time.monotonic() - began
        report.counts["came to their end"] += not was_killed
        with closing(_File(where / "journal.db", timeout=TIMEOUT)) as file:
            found = Counter(file.query(_DECIDED))
        report.counts["killed between two rows"] += was_killed and 0 < found[decided] < options.rows
        for what in found.keys() - {decided, undecided}:
            report.violations.append(("twice", f"{found[what]} keys of {name}: {what}"))
        if not was_killed and found[decided] != options.rows:
            report.violations.append(("unended", f"{dict(found)}"))
        if report.violations or not was_killed:
            return took
