"""Probe: the command that sends orders under a cap is killed several times, then runs until it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path

from attrs import frozen

from tests.crash.processes import ChangeCount, Runs, as_options
from tests.crash.service import UNREAD, service
from tests.crash.setting import key_of
from tests.crash.verdict import Report
from tests.support.bank import new_order
from transfer_async import SQLiteJournal
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


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial. Compare what the service received with the cap and with the journal's count."""
    report = Report(f"probe, a cap of {CAP} orders, seed {options.seed}")
    rounds: list[_Round] = []
    with service(directory, options, report, journal="", faults=FAULTS) as place:
        chance, until = random.Random(options.seed), time.monotonic() + options.timeout
        while report.counts["kills"] < options.kills and time.monotonic() < until:
            rounds.append(_Round(directory, len(rounds)))
            _kill_and_end(rounds[-1], options, chance, until, report)
    if report.counts["kills"] < options.kills:
        report.trouble(f"only {report.counts['kills']} runs could be killed")
    received = Counter(json.loads(place.path("service").read_text(encoding="utf-8"))["received"])
    counted = {one.poster: _counted(one, place.base_url) for one in rounds}
    for poster, names in counted.items():
        theirs = received[key_of(poster)]
        if len(names) > CAP:
            report.violations.append(("beyond", f"{poster}: {len(names)} orders were counted"))
        if theirs > sum(name not in NOBODYS for name in names):
            report.violations.append(("beyond", f"{poster}: {theirs} received, {sorted(names)} counted"))
    every = [name for names in counted.values() for name in names]
    if received["None"] > sum(name in NOBODYS for name in every):
        report.violations.append(("beyond", f"{received['None']} without a poster were received"))
    if received.total() > len(every):  # the service did not read the bodies of some requests
        report.violations.append(("beyond", f"{received.total()} were received, {len(every)} counted"))
    report.counts += Counter(
        {
            "journals": len(rounds),
            "orders received": received.total(),
            "of them unread": received[UNREAD],
            "orders counted": len(every),
        }
    )
    return report


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


def _kill_and_end(
    one: _Round, options: argparse.Namespace, chance: random.Random, until: float, report: Report
) -> None:
    """Kill runs with one journal, then let one end."""
    one.path("order").write_bytes(new_order(poster_username=one.poster).to_json())
    codes = (0, 1)  # 1: an order that went wrong stopped the run
    runs = Runs(
        arguments=_arguments(one), options=options, report=report, codes=codes, chance=chance, until=until
    )
    wanted = min(report.counts["kills"] + KILLS, options.kills)
    for _ in range(2 * KILLS):  # a run that finds the claim of a dead run ends by itself
        if report.counts["kills"] < wanted:
            # The command writes its profile after each order.
            runs.kill(ChangeCount(one.path("profile"), chance.randint(1, 5)))
    runs.end()


def _counted(one: _Round, base_url: str) -> list[str]:
    """Return the names of the orders that may have been sent according to the journal, with repetitions."""

    async def look() -> list[str]:
        order = new_order(poster_username=one.poster)
        plan = Plan(order=order, apart=order.matcher_amount, limits={})
        async with SQLiteJournal(one.path("journal")) as journal:
            return [order.name for order in await Ledger(journal, scope=base_url).sent(plan)]

    return asyncio.run(look())


def _arguments(one: _Round) -> list[str]:
    files = {name: one.path(name) for name in ("order", "journal", "profile")}
    cap = {"most-orders": CAP, "most-amount": 10**12, "apart": 100}
    levels = ["--level", "1", "--level", "2", "--this-is-not-live", "--yes"]
    return ["probe", *levels, *as_options(files | cap | {"patience": 0.5})]
