"""Broker: the command ``worker`` is killed, stopped and paused, and its servers are restarted.

Three workers receive commands from NATS JetStream, with one journal in PostgreSQL. At the end every command
has an outcome, and no order is duplicated or lost.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.crash.broker import customers
from tests.crash.broker.harness import Harness
from tests.crash.processes import beside
from tests.crash.service import service
from tests.crash.verdict import Evidence, Faults, Report, of_the_key, of_the_telling
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer


def run(options: argparse.Namespace, directory: Path) -> Report:
    """Run one trial, and compare the service, the bank, the journal and the reported outcomes."""
    report = Report(f"broker, seed {options.seed}")
    with ExitStack() as stack:
        postgres, nats = stack.enter_context(PostgresServer()), stack.enter_context(NatsServer())
        with service(directory, options, report, journal=postgres.dsn, broker=nats.address) as place:
            serve = partial(customers.serve, place=place, seed=options.seed)
            with beside(serve, "the customers", report.trouble) as serving:
                Harness(options, nats, postgres, place, serving, report).run()
        keys = place.path("keys").read_text(encoding="utf-8").split("\n")
        report.compare(place, keys, _of_the_command)
    return report


def _of_the_command(one: Evidence) -> Faults:
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
