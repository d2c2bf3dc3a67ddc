"""Broker: the command ``worker`` is killed, stopped and paused, and its servers are restarted.

Three workers receive commands from NATS JetStream, with one journal in PostgreSQL. At the end every command
has an outcome, and no order is duplicated or lost.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.crash.broker import customers
from tests.crash.broker.harness import Harness
from tests.crash.processes import beside
from tests.crash.service import service
from tests.crash.setting import Place
from tests.crash.verdict import Faults, KeyEvidence, Report, gather, of_the_key, of_the_telling, violations
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this trial."""
    parser.add_argument("--restarts", type=int, default=0, help="of the broker, and of the database")


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare the service, the bank, the journal and the reported outcomes."""
    troubles: list[str] = []
    with ExitStack() as stack:
        postgres, nats = stack.enter_context(PostgresServer()), stack.enter_context(NatsServer())
        harness = Harness(options, nats, postgres, troubles)
        with service(directory, seed=options.seed, troubles=troubles) as where:
            place = Place(directory=str(directory), journal=postgres.dsn, broker=nats.address, **where)
            place.enter()
            serve = partial(customers.serve, place=place, seed=options.seed)
            with beside(serve, "the customers", troubles) as serving:
                harness.run(place, serving)
        evidence = gather(place, place.path("keys").read_text(encoding="utf-8").split("\n"))
    rate = harness.answered / harness.seconds if harness.seconds else 0
    broken = violations(evidence, _of_the_command)
    return Report(
        title=f"broker, seed {options.seed}: {harness.seconds:.1f} s, {rate:.0f} commands a second",
        trials=harness.met.total(),
        rows=_rows(harness.met, dead_letters=sum("parked" in one.ends for one in evidence.keys)),
        evidence=evidence,
        violations=[*broken, *(("trouble", why) for why in troubles)],
    )


def _rows(met: Counter[str], *, dead_letters: int) -> list[tuple[str, int]]:
    return [*met.items(), ("dead letters", dead_letters)]


def _of_the_command(one: KeyEvidence) -> Faults:
    """Check the key and its reported outcomes. An unreadable command must be dead-lettered instead."""
    if not one.key.startswith("bad"):
        yield from of_the_key(one)
        yield from of_the_telling(one)
        if "parked" in one.ends:
            yield "unended", "it can be read, and was parked"
        return
    if one.ends != {"parked"}:
        yield "unended", "it cannot be read, and was not parked"
    if one.entry is not None or one.orders:
        yield "duplicate", "it cannot be read, and something was made of it"
