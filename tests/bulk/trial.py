"""The trial: the command is killed while it creates a file's orders, and run again until it is done."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from attrs import define, field

from benchmarks.load_sandbox import Running, sandbox
from tests.bulk import bank
from tests.bulk.files import csv_file, poster_of, told
from transfer_async import FundsHold, SQLiteJournal, TransferClient
from transfer_async.journal.moves import KeyState
from transfer_async.retry import RetryPolicy

ROOT = Path(__file__).parents[2]
DEADLINE, LEASE = 2.0, 3.0
LOOK_EVERY = 0.01
"""Seconds between two looks at how far a run has come that is to be killed."""


@define(kw_only=True)
class Run:
    """One run of the command."""

    code: int
    seconds: float
    rss: int
    last_words: str


@define(kw_only=True)
class Trial:
    """One trial.

    Args:
        directory: for everything.
        lines: how many orders the file has.
        kills: how many runs are killed.
        concurrency: how many orders are in flight.
        faults: of the sandbox, as its command takes them.
        seed: of the moments of the kills.
    """

    directory: Path
    lines: int
    kills: int
    concurrency: int = 16
    faults: tuple[str, ...] = ()
    seed: int = 0
    runs: list[Run] = field(factory=list)
    violations: list[str] = field(factory=list)
    outcomes: Counter[str] = field(factory=Counter)
    doubts_left: int = 0

    @property
    def file(self) -> Path:
        return self.directory / "orders.csv"

    @property
    def outcome_file(self) -> Path:
        return self.directory / "orders.csv.outcomes.jsonl"

    # --- the runs -------------------------------------------------------------------------------

    def run(self) -> None:
        """Kill it so often, let it come to its end, and compare what everybody says."""
        csv_file(self.file, self.lines, held="")
        chance = random.Random(self.seed)
        moments = sorted(chance.uniform(0.02, 0.9) for _ in range(self.kills))
        with sandbox(faults=self.faults) as service:
            while moments and len(self.runs) < 3 * self.kills:
                self.runs.append(self._run(service, killed_at=moments[0], after=chance.uniform(0, 0.05)))
                # One that was faster than its killer is killed earlier the next time.
                moments[0] *= chance.random()
                moments = moments[self.runs[-1].code == -signal.SIGKILL :]
            if moments:
                self.violations.append(f"{len(moments)} runs could not be killed")
            self.runs.append(self._run(service))
            asyncio.run(self._compare(service))

    def _run(self, service: Running, *, killed_at: float | None = None, after: float = 0.0) -> Run:
        began = time.monotonic()
        with (self.directory / "words").open("w+") as words:
            process = subprocess.Popen(
                self._command(), cwd=ROOT, env=self._environment(service), stdout=words, stderr=words
            )
            if killed_at is not None:
                self._wait_until(process, killed_at)
                time.sleep(after)
                os.kill(process.pid, signal.SIGKILL)  # not Popen's own: it would take the exit code
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            words.seek(0)
            return Run(
                code=process.returncode,
                seconds=time.monotonic() - began,
                rss=usage.ru_maxrss * 1024,
                last_words=words.read()[-1000:],
            )

    def _command(self) -> list[str]:
        options = {
            "--journal": self.directory / "journal.db",
            "--hooks": "tests.bulk.bank:make",
            "--concurrency": self.concurrency,
            "--deadline": DEADLINE,
            "--lease": LEASE,
            "--settle-after": 0,
        }
        told = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-m", "transfer_async", "create", str(self.file), *told]

    def _environment(self, service: Running) -> dict[str, str]:
        there = {"TRANSFER_BASE_URL": service.base_url, "TRANSFER_API_TOKEN": service.token}
        return dict(os.environ) | there | {bank.BOOK: str(self.directory / "book")}

    def _wait_until(self, process: subprocess.Popen, share: float) -> None:
        """Return when so many of the lines have an outcome, or it has ended."""
        part = self.directory / "orders.csv.outcomes.jsonl.part"
        seen = _changed(part)  # what an earlier run has left
        while not _has_ended(process.pid):
            if (now := _changed(part)) != seen:
                seen = now
                if part.read_bytes().count(b"\n") >= share * self.lines:
                    return
            time.sleep(LOOK_EVERY)

    # --- what everybody says --------------------------------------------------------------------

    async def _compare(self, service: Running) -> None:
        if self.runs[-1].code not in (3, 5):
            self.violations.append(f"the last run did not end as it should: {self.runs[-1]}")
            return
        lines = {one["key"]: one for one in told(self.outcome_file)}
        self.outcomes = Counter(one["outcome"] for one in lines.values())
        if len(told(self.outcome_file)) != self.lines or len(lines) != self.lines:
            self.violations.append(f"{len(lines)} keys in the outcome file, not {self.lines}")
        there: dict[str, list[str]] = {}
        for one in bank.orders_there(service.base_url, service.token):
            there.setdefault(one["poster_username"], []).append(one["id"])
        self.violations += _orders_differ(lines, there)
        async with SQLiteJournal(self.directory / "journal.db") as journal:
            await self._recover(service, journal)
            self.violations += await _journal_differs(lines, journal, service.base_url)
            self.doubts_left = await journal.count_in_doubt(service.base_url)
        self.violations += _holds_differ(lines, bank.open_holds(self.directory / "book"))

    async def _recover(self, service: Running, journal: SQLiteJournal) -> None:
        """Pay what is owed, as an operator would."""
        ledger = bank.Ledger(str(self.directory / "book"))
        client = TransferClient(
            service.base_url,
            service.token,
            journal=journal,
            hooks=[FundsHold(ledger.place, ledger.release)],
            retry=RetryPolicy(deadline=DEADLINE),
            lease=LEASE,
        )
        async with client:
            await client.recover()


def _changed(path: Path) -> tuple[int, int] | None:
    """When a file was changed, and what size it has."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _orders_differ(lines: dict[str, dict], there: dict[str, list[str]]) -> Iterator[str]:
    for key, line in lines.items():
        ids = there.pop(poster_of(key), [])
        if len(ids) > 1:
            yield f"{key}: {len(ids)} orders"
        elif line["outcome"] == "created" and [line["order_id"]] != ids:
            yield f"{key}: said to be created, and is not there"
        elif line["outcome"] in ("refused", "not_sent") and ids:
            yield f"{key}: said to be {line['outcome']}, and is there"
    yield from (f"{poster}: there is an order that nobody asked for" for poster in there)


_STATES = {"created": KeyState.CREATED, "refused": KeyState.FREE, "unknown": KeyState.IN_DOUBT}


async def _journal_differs(lines: dict[str, dict], journal: SQLiteJournal, scope: str) -> list[str]:
    found, keys = [], iter(lines)
    while some := list(islice(keys, 500)):
        entries = await asyncio.gather(*(journal.read(scope, key) for key in some))
        for key, entry in zip(some, entries, strict=True):
            state = None if entry is None else entry.state
            if state is not _STATES.get(lines[key]["outcome"]):
                found.append(f"{key}: {lines[key]['outcome']}, and {state} in the journal")
    return found


def _holds_differ(lines: dict[str, dict], holds: Counter[str]) -> Iterator[str]:
    for key, line in lines.items():
        wanted = 1 if line["outcome"] in ("created", "unknown") else 0
        if holds.pop(key, 0) != wanted:
            yield f"{key}: {line['outcome']}, and not {wanted} hold"
