"""Bulk: the command that creates a file of orders is killed several times, then runs until it ends."""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from pathlib import Path

from tests.crash.bank import Book, lines
from tests.crash.processes import ChangeCount, Runs, as_options
from tests.crash.service import service
from tests.crash.setting import SCOPE, Place
from tests.crash.verdict import Evidence, Faults, Report, of_the_key, of_the_telling
from tests.support.order_files import csv_file, outcomes_in, rows
from transfer_async._cli.servers import fault_shares

DEADLINE, LEASE = 2.0, 3.0
ENDS = (0, 3, 5)
"""The exit codes of a run that ended by itself: all created, some refused, some in doubt."""


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare the service, the bank, the journal and the file of outcomes."""
    report = Report(f"bulk, {options.lines} lines, seed {options.seed}")
    faults, journal = fault_shares(options.fault), str(directory / "journal.db")
    with service(directory, options, report, faults=faults, journal=journal) as place:
        file = csv_file(directory / "orders.csv", options.lines, held="")
        _run_until_done(options, file, place, report)
    path = file.with_name(f"{file.name}.outcomes.jsonl")
    outcomes = outcomes_in(path) if path.exists() else []
    report.counts["lines in the outcome file"] = len(outcomes)
    book = Book(place.path("outcomes"))
    for one in outcomes:
        book.write(one["key"], one["outcome"], one.get("order_id") or "-")
    keys = [row["key"] for row in rows(options.lines)]
    report.compare(place, keys, of_the_key, of_the_telling, _reported_once)
    return report


def _reported_once(one: Evidence) -> Faults:
    if len(one.reported) > 1:
        yield "duplicate", f"{len(one.reported)} lines in the outcome file"


def _run_until_done(options: argparse.Namespace, file: Path, place: Place, report: Report) -> None:
    """Kill as many runs as wanted, then let one end."""
    chance, until = random.Random(options.seed), time.monotonic() + options.timeout
    arguments = _arguments(options, file, place)
    runs = Runs(arguments=arguments, options=options, report=report, codes=ENDS, chance=chance, until=until)
    part = file.with_name(f"{file.name}.outcomes.jsonl.part")
    shares = sorted(chance.uniform(0.02, 0.9) for _ in range(options.kills))  # of the lines
    for _ in range(3 * options.kills):
        if not shares:
            break
        if runs.kill(partial(_has_grown, ChangeCount(part), part, shares[0] * options.lines)):
            shares.pop(0)
        else:  # the run ended first, so kill the next one earlier
            shares[0] *= chance.random()
    if shares:
        report.trouble(f"{len(shares)} runs could not be killed")
    runs.end()


def _has_grown(is_changed: ChangeCount, part: Path, count: float) -> bool:
    """Return whether this run, and not the one before, has written the given number of lines."""
    return is_changed() and sum(1 for _ in lines(part)) >= count


def _arguments(options: argparse.Namespace, file: Path, place: Place) -> list[str]:
    settings = {
        "journal": place.journal,
        "scope": SCOPE,
        "hooks": "tests.crash.bank:well",
        "concurrency": options.concurrency,
        "deadline": DEADLINE,
        "lease": LEASE,
        "settle-after": 0,
    }
    return ["create", str(file), *as_options(settings)]
