"""Bulk: the command that creates a file of orders, killed again and again, and run until it is done."""

from __future__ import annotations

import argparse
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.crash.bank import Book
from tests.crash.processes import Child, as_options, await_end, command, fork, last_words, listen
from tests.crash.service import service
from tests.crash.setting import SCOPE, Place
from tests.crash.verdict import Faults, KeyEvidence, Report, gather, of_the_key, of_the_telling, violations
from tests.support.order_files import csv_file, rows, told
from transfer_async._cli.servers import fault_shares

DEADLINE, LEASE = 2.0, 3.0
ENDS = (0, 3, 5)
"""The exit codes of a run that came to its end: all created, some refused, some in doubt."""

LOOK_EVERY = 0.01
"""Seconds between two looks at how far a run has come that is to be killed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What only this trial is asked for."""
    parser.add_argument("--lines", type=int, default=2000, help="orders in the file")
    parser.add_argument("--concurrency", type=int, default=16, help="orders in flight")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME=SHARE[:SETTINGS]", help="of the service"
    )


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare what everybody says in the end."""
    troubles: list[str] = []
    faults = fault_shares(options.fault)
    with service(directory, seed=options.seed, troubles=troubles, faults=faults) as where:
        place = Place(directory=str(directory), journal=str(directory / "journal.db"), **where)
        place.enter()
        file = _File(options.lines, csv_file(directory / "orders.csv", options.lines, held=""))
        runs = _Runs(options, file, place, troubles)
        began = time.monotonic()
        runs.run()
        seconds = time.monotonic() - began
    outcomes = told(file.outcomes) if file.outcomes.exists() else []
    book = Book(place.path("told"))
    for one in outcomes:
        book.write(one["key"], one["outcome"], one.get("order_id") or "-")
    evidence = gather(place, [row["key"] for row in rows(options.lines)])
    checks = (of_the_key, of_the_telling, _told_once)
    return Report(
        title=f"bulk, {options.lines} lines, seed {options.seed}: {seconds:.1f} s",
        trials=runs.killed,
        rows=[("kills", runs.killed), ("lines in the outcome file", len(outcomes))],
        evidence=evidence,
        violations=[*violations(evidence, *checks), *(("trouble", why) for why in troubles)],
    )


def _told_once(one: KeyEvidence) -> Faults:
    if len(one.told) > 1:
        yield "duplicate", f"{len(one.told)} lines in the outcome file"


# --- the runs -------------------------------------------------------------------------------------------


@frozen
class _File:
    """The file, and what the command writes beside it."""

    lines: int
    path: Path

    @property
    def outcomes(self) -> Path:
        """What became of every line, when it is done."""
        return self.path.with_name(f"{self.path.name}.outcomes.jsonl")

    @property
    def part(self) -> Path:
        """What became of some lines, while it runs."""
        return self.path.with_name(f"{self.path.name}.outcomes.jsonl.part")


class _Runs:
    """One run after the other, until one is not killed.

    Args:
        options: what is to happen.
        file: the orders.
        place: where everything is.
        troubles: where to say what went wrong.
    """

    def __init__(self, options: argparse.Namespace, file: _File, place: Place, troubles: list[str]) -> None:
        self.killed = 0
        self._options = options
        self._file = file
        self._begin = partial(command, words=_words(options, file, place), fault=options.planted)
        self._chance = random.Random(options.seed)
        self._troubles = troubles
        self._until = time.monotonic() + options.patience

    def run(self) -> None:
        """Kill it so often, then let it come to its end."""
        moments = sorted(self._chance.uniform(0.02, 0.9) for _ in range(self._options.kills))
        for _ in range(3 * self._options.kills):
            # One that was faster than its killer is killed earlier the next time.
            if moments and self._is_killed(at=moments[0]):
                moments.pop(0)
            elif moments:
                moments[0] *= self._chance.random()
        if moments:
            self._troubles.append(f"{len(moments)} runs could not be killed")
        last = fork(self._begin)
        if not await_end(last, self._until - time.monotonic()):
            self._troubles.append(f"it did not come to its end within {self._options.patience:g} s")
        elif last.code not in ENDS:
            self._troubles.append(f"the last run ended with {last.code}: {last_words()}")

    def _is_killed(self, *, at: float) -> bool:
        """Begin a run, and kill it when such a share of the lines has an outcome, if it lives as long."""
        child = fork(self._begin)
        self._wait(child, at * self._file.lines)
        if child.code is None:
            time.sleep(self._chance.uniform(0, 0.05))  # what is tried is what happens at any time
        child.kill()
        self.killed += child.code == -signal.SIGKILL
        return child.code == -signal.SIGKILL

    def _wait(self, child: Child, lines: float) -> None:
        """Return when so many lines have an outcome, or it has ended, or patience has."""
        seen = _changed(self._file.part)  # what an earlier run has left
        while child.code is None and time.monotonic() < self._until:
            if (now := _changed(self._file.part)) != seen:
                seen = now
                if now and self._file.part.read_bytes().count(b"\n") >= lines:
                    return
            list(listen([child], LOOK_EVERY))


def _words(options: argparse.Namespace, file: _File, place: Place) -> list[str]:
    """What the command is called with."""
    settings: dict[str, Any] = {
        "journal": place.journal,
        "scope": SCOPE,
        "hooks": "tests.crash.bank:well",
        "concurrency": options.concurrency,
        "deadline": DEADLINE,
        "lease": LEASE,
        "settle-after": 0,
    }
    return ["create", str(file.path), *as_options(settings)]


def _changed(path: Path) -> tuple[int, int] | None:
    """When a file was changed, and what size it has."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
