"""Decisions: the command that makes the decisions in a file is killed.

After each kill, every row has been decided at most once. The command is run until it ends by itself. Then
every row has been decided exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.crash.processes import as_options, await_end, command, fork, last_words
from tests.crash.setting import SCOPE, Place
from tests.crash.upgrades import Report
from tests.support.journalling import claim, doubt, mark, of_key
from transfer_async import KeyState, SQLiteJournal

DECISIONS = {"resolve": KeyState.CREATED, "refute": KeyState.FREE}
"""The commands, and the state in which each leaves a key."""

PATIENCE = 60.0
"""The timeout of a process, in seconds."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this trial."""
    parser.add_argument("--rows", type=int, default=40, help="decisions in each file")


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial."""
    chance, report = random.Random(options.seed), Report(f"decisions, seed {options.seed}")
    until = time.monotonic() + options.patience
    longest = math.inf  # the first run is not killed, because its duration is measured
    while report.counts["kills"] < options.kills and not report.violations:
        if time.monotonic() > until:
            report.violations.append(f"cut short after {options.patience:g} s")
            break
        where = directory / str(report.counts["files"])
        where.mkdir()
        Place(directory=str(where), journal=str(where / "journal.db"), base_url="", token="").enter()
        took = _decided_in_the_end(options, where, chance, report, longest=longest)
        longest = took if math.isinf(longest) else longest
        report.counts["files"] += 1
    return report


def _decided_in_the_end(
    options: argparse.Namespace, where: Path, chance: random.Random, report: Report, *, longest: float
) -> float:
    """Kill runs for one file until a run ends by itself. Read every key after each run.

    Return the seconds that the last run took.
    """
    name = chance.choice(list(DECISIONS))
    _asked(partial(_fill, rows=options.rows, name=name))
    settings = {"from": where / "rows.csv", "journal": where / "journal.db", "scope": SCOPE, "by": "ada"}
    words = ["journal", name, *as_options(settings)]
    words += ["--yes", "--settle-after", "0"] if name == "refute" else []
    while True:
        began = time.monotonic()
        child = fork(partial(command, words=words, fault=options.planted))
        await_end(child, min(PATIENCE, chance.uniform(0.0, 1.1) * longest))
        took = time.monotonic() - began
        was_killed = child.code == -signal.SIGKILL
        report.counts["kills" if was_killed else "came to their end"] += 1
        found = Counter(_asked(_look))
        decided = json.dumps([DECISIONS[name].value, 1])
        report.counts["killed between two rows"] += was_killed and 0 < found[decided] < options.rows
        wrong = found.keys() - {decided, json.dumps([KeyState.IN_DOUBT.value, 0])}
        report.violations += [f"{found[what]} keys of {name}: {what}" for what in wrong]
        if not was_killed:
            report.violations += [] if child.code == 0 else [f"ended with {child.code}: {last_words()}"]
            report.violations += [] if found[decided] == options.rows else [f"the end: {dict(found)}"]
        if report.violations or not was_killed:
            return took


def _asked(work: Callable[[socket.socket], None]) -> list[str]:
    """Read the journal in a child process, because this one must not have threads. Return its keys."""
    child = fork(work)
    told = child.hear() or {}
    await_end(child, PATIENCE)
    return list(told.get("keys", ()))


# --- the processes that are not killed ----------------------------------------------------------------


def _fill(end: socket.socket, *, rows: int, name: str) -> None:
    """Create a journal with keys in doubt, and a file of decisions about them."""
    place = Place.here()

    async def fill() -> list[str]:
        lines = ["key,decision,order_id,reason,seen\n"]
        async with SQLiteJournal(place.journal) as journal:
            for number in range(rows):
                key, order_id = f"key-{number}", f"tx-{number}" if name == "resolve" else ""
                moves = (claim(number), mark(f"a{number}", number=number), doubt(f"a{number}"))
                for move in moves:
                    verdict = await journal.move(SCOPE, key, of_key(move, key))
                    assert verdict is not None
                    assert verdict.denial is None, verdict
                lines.append(f"{key},{name},{order_id},looked it up,{verdict.entry.version}\n")
        return lines

    place.path("rows.csv").write_text("".join(asyncio.run(fill())), encoding="utf-8")
    end.send(b"{}")


def _look(end: socket.socket) -> None:
    """Send each key's state and the number of decisions in its history."""
    place = Place.here()

    async def look() -> list[str]:
        async with SQLiteJournal(place.journal) as journal:
            found = []
            for key in [
                row.partition(",")[0]
                for row in place.path("rows.csv").read_text(encoding="utf-8").splitlines()[1:]
            ]:
                entry = await journal.read(SCOPE, key)
                assert entry is not None
                steps = await journal.history(SCOPE, key)
                times = sum(step.move in DECISIONS for step in steps)
                found.append(json.dumps([entry.state.value, times]))
            return found

    end.send(json.dumps({"keys": asyncio.run(look())}).encode())
