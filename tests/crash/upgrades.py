"""Upgrades of a journal of version 1, killed at any statement or at random times. Sometimes two run at once.

After each kill the whole journal must be of version 1 or of this version, with every key and every line of
the history unchanged. It is upgraded again until an upgrade succeeds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from tests.crash.processes import Child, await_end, fork, listen
from tests.crash.verdict import Report
from tests.journal.released.stores import FileStore, Store, TableStore
from tests.mutation.in_process import plant_for_good
from tests.support.postgres import PostgresServer
from transfer_async.journal.postgres_sql import Session
from transfer_async.journal.rows import ENTRY_TABLE, VERSION

LONGEST = 0.01
"""The maximum number of seconds after which an upgrade is killed at random."""

STATEMENTS = {"sqlite": 7, "postgres": 19}
"""One more than an upgrade's number of statements. In PostgreSQL, each counts before and after it."""

GAVE_UP = "gave up"

TIMEOUT = 30.0
"""The timeout of an upgrade, in seconds."""


@frozen
class Fate:
    """When an upgrade is killed: before a statement of its transaction, or some time after its start."""

    statement: int | None
    seconds: float

    @classmethod
    def drawn(cls, chance: random.Random, statements: int) -> Fate:
        """Draw the moment at which an upgrade is killed."""
        at_random = chance.random() < 0.3
        return cls(None if at_random else chance.randrange(statements), chance.uniform(0.0, LONGEST))


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial."""
    chance = random.Random(options.seed)
    report = Report(f"upgrades on {options.journal}, seed {options.seed}")
    end = time.monotonic() + options.timeout
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer()) if options.journal == "postgres" else None
        while report.counts["kills"] < options.kills and not report.violations and time.monotonic() < end:
            number = report.counts["journals"]
            store: Store = (
                FileStore(directory / f"{number}.db")
                if postgres is None
                else TableStore(postgres.dsn, schema=f"s{number}")
            )
            _upgraded_in_the_end(store, chance, report, options.planted)
            report.counts["journals"] += 1
    return report


def _upgraded_in_the_end(store: Store, chance: random.Random, report: Report, fault: str | None) -> None:
    """Kill upgrades of a journal until one succeeds. Check after each that the journal is complete."""
    before = store.content()
    statements = STATEMENTS["sqlite" if isinstance(store, FileStore) else "postgres"]
    after = evolve(before, version=VERSION, entry_tables=(ENTRY_TABLE,))
    while True:
        fates = [Fate.drawn(chance, statements) for _ in range(chance.choice((1, 1, 1, 2)))]
        children = [fork(partial(_upgrade, store=store, fate=fate, fault=fault)) for fate in fates]
        ends = [_end_of(child, fate) for child, fate in zip(children, fates, strict=True)]
        report.counts.update(ends)
        if GAVE_UP in ends and len(ends) == 1:  # each of two upgrades may find that the other is running
            report.trouble(f"nobody was in the way of one that gave up, with {fates}")
        found = store.content()
        if found not in (before, after):
            tables = ", ".join(found.entry_tables)
            report.violations.append(("halves", f"version {found.version} with {tables} after {fates}"))
        if found != before:
            return
        report.counts["whole as version 1 after a kill"] += 1


def _end_of(child: Child, fate: Fate) -> str:
    """Wait until a process ends, or kill it. Return how it ended."""
    if fate.statement is None:
        for _ in listen([child], TIMEOUT):  # the upgrade has begun its transaction, or ended without one
            time.sleep(fate.seconds)
            child.kill()
    elif not await_end(child, TIMEOUT):
        return "hangs"
    return {-signal.SIGKILL: "kills", 0: "came to their end"}.get(child.code or 0, GAVE_UP)


# --- the process that is killed ---------------------------------------------------------------------------


def _upgrade(end: socket.socket, *, store: Store, fate: Fate, fault: str | None) -> None:
    plant_for_good(fault)
    _watch(_Watch(end, fate))
    journal = store.journal()
    asyncio.run(journal.upgrade())


class _Watch:
    """Counts the statements of the transaction and kills the process at the chosen one."""

    def __init__(self, end: socket.socket, fate: Fate) -> None:
        self._end, self._left, self._has_begun = end, fate.statement, False

    def __call__(self, sql: str) -> None:
        if not self._has_begun and sql.startswith("BEGIN"):
            self._has_begun = True
            self._end.send(b"{}")
        if self._has_begun and self._left is not None:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


def _watch(see: Callable[[str], None]) -> None:
    """Call ``see`` with every statement before it is executed and, in PostgreSQL, also after it."""
    connect = sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.set_trace_callback(see)
        return db

    sqlite3.connect = watched  # type: ignore[assignment] # this process is for nothing else
    for name in ("execute", "fetch"):
        setattr(Session, name, _seen(getattr(Session, name), see))


def _seen(ask: Any, see: Callable[[str], None]) -> Any:
    async def asked(session: Session, sql: str, *values: object) -> Any:
        see(sql)
        answer = await ask(session, sql, *values)
        see(f"-- after {sql}")
        return answer

    return asked
