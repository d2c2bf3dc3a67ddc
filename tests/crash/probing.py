"""Probe: the command that sends orders under a cap is killed several times, then runs until it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from functools import partial
from pathlib import Path

from attrs import frozen

from tests.crash.processes import await_end, command, fork, kill_when, last_words
from tests.crash.service import UNREAD, service
from tests.crash.setting import Place
from tests.crash.verdict import Evidence, Report
from tests.support.bank import new_order
from transfer_async import SQLiteJournal
from transfer_async._cli import (
    app,  # noqa: F401 - forked processes find it imported, as the next
    probe_run,  # noqa: F401
)
from transfer_async._cli.probe_orders import Ledger, Plan
from transfer_async.sandbox import (
    CloseAfterProcessing,
    Fault,
    ResetAfterProcessing,
    Status,
    StatusAfterProcessing,
)

CAP = 13
KILLS = 8
"""The number of kills for each journal."""

FAULTS: dict[Fault, float] = {
    CloseAfterProcessing(): 0.1,
    ResetAfterProcessing(): 0.05,
    Status(429): 0.2,
    StatusAfterProcessing(503): 0.1,
}
"""The faults of the service: doubts, and refusals that free the key."""

NOBODYS = frozenset({"not-json", "empty-object", "no-users", "without-poster_username"})
"""Orders that do not name their round."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no options."""
    assert parser


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial. Compare what the service received with the cap and with the journal's count."""
    troubles: list[str] = []
    with service(directory, seed=options.seed, troubles=troubles, faults=FAULTS) as where:
        place = Place(directory=str(directory), journal="", **where)
        place.enter()
        trial = _Trial(options, directory, place, troubles)
        trial.run()
    violations = [("trouble", why) for why in troubles]
    received = json.loads((directory / "service").read_text(encoding="utf-8"))["received"]
    counted = [_counted(one, place.base_url) for one in trial.rounds]
    for one, names in zip(trial.rounds, counted, strict=True):
        theirs = received.get(one.poster.partition("@")[0], 0)
        if len(names) > CAP:
            violations.append(("beyond", f"{one.poster}: {len(names)} orders were counted"))
        if theirs > sum(name not in NOBODYS for name in names):
            violations.append(("beyond", f"{one.poster}: {theirs} were received, {sorted(names)} counted"))
    if received.get("None", 0) > sum(name in NOBODYS for names in counted for name in names):
        violations.append(("beyond", f"{received['None']} without a poster were received"))
    in_all, counted_in_all = sum(received.values()), sum(map(len, counted))
    if in_all > counted_in_all:  # the service did not read the bodies of some requests
        violations.append(("beyond", f"{in_all} were received, {counted_in_all} counted"))
    rows = [("kills", trial.killed), ("journals", len(trial.rounds))]
    rows += [("orders received", in_all), ("of them unread", received.get(UNREAD, 0))]
    rows += [("orders counted", counted_in_all)]
    return Report(
        title=f"probe, a cap of {CAP} orders, seed {options.seed}",
        trials=trial.killed,
        rows=rows,
        evidence=Evidence(keys=(), unasked=()),
        violations=violations,
    )


@frozen
class _Round:
    """One journal and its orders. The poster's name identifies the round."""

    directory: Path
    number: int

    @property
    def poster(self) -> str:
        return f"probe-{self.number}@kills.example"

    def path(self, kind: str) -> Path:
        return self.directory / f"round-{self.number}.{kind}"


class _Trial:
    """Rounds, until enough runs have been killed."""

    def __init__(
        self, options: argparse.Namespace, directory: Path, place: Place, troubles: list[str]
    ) -> None:
        self.killed = 0
        self.rounds: list[_Round] = []
        self._options, self._directory, self._place, self._troubles = options, directory, place, troubles
        self._chance = random.Random(options.seed)
        self._until = time.monotonic() + options.patience

    def run(self) -> None:
        while self.killed < self._options.kills and time.monotonic() < self._until:
            self._round(_Round(self._directory, len(self.rounds)))
        if self.killed < self._options.kills:
            self._troubles.append(f"only {self.killed} runs could be killed")

    def _round(self, one: _Round) -> None:
        self.rounds.append(one)
        one.path("order").write_bytes(new_order(poster_username=one.poster).to_json())
        begin = partial(command, words=_words(one), fault=self._options.planted)
        until = self.killed + min(KILLS, self._options.kills - self.killed)
        for _ in range(2 * KILLS):  # a run that finds the claim of a dead run ends by itself
            if self.killed < until:
                is_due = _ChangeCount(one.path("profile"), self._chance.randint(1, 5))
                self.killed += kill_when(fork(begin), is_due, until=self._until, chance=self._chance)
        last = fork(begin)
        if not await_end(last, self._until - time.monotonic()):
            self._troubles.append("a run did not come to its end")
        elif last.code not in (0, 1):  # exit code 1: an order that went wrong stopped the run
            self._troubles.append(f"a run ended with {last.code}: {last_words()}")


class _ChangeCount:
    """Whether a file has changed a given number of times. The command writes its profile after each order."""

    def __init__(self, path: Path, changes: int) -> None:
        self._path, self._left = path, changes
        self._seen = self._changed_at()

    def __call__(self) -> bool:
        if (now := self._changed_at()) != self._seen:
            self._seen, self._left = now, self._left - 1
        return self._left <= 0

    def _changed_at(self) -> int | None:
        return self._path.stat().st_mtime_ns if self._path.exists() else None


def _counted(one: _Round, base_url: str) -> list[str]:
    """Return the names of the orders that may have been sent according to the journal, with repetitions."""

    async def look() -> list[str]:
        order = new_order(poster_username=one.poster)
        plan = Plan(order=order, apart=order.matcher_amount, limits={})
        async with SQLiteJournal(one.path("journal")) as journal:
            return [order.name for order in await Ledger(journal, scope=base_url).sent(plan)]

    return asyncio.run(look())


def _words(one: _Round) -> list[str]:
    options = {"order": "order", "journal": "journal", "profile": "profile"}
    files = [word for name, kind in options.items() for word in (f"--{name}", str(one.path(kind)))]
    levels = ["--level", "1", "--level", "2", "--this-is-not-live", "--yes"]
    cap = ["--most-orders", str(CAP), "--most-amount", "1000000000000", "--apart", "100"]
    return ["probe", *levels, *files, *cap, "--patience", "0.5"]
