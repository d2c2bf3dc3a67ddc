"""The harness: it starts workers, kills, stops or pauses them, and replaces dead ones."""

from __future__ import annotations

import argparse
import random
import signal
import time
from functools import partial
from typing import Any

from attrs import define

from tests.crash.processes import LAST_WORDS, Child, as_options, command, fork, last_words, listen
from tests.crash.setting import LEASE, SCOPE, Place
from tests.crash.verdict import Report
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer

BETWEEN_FATES = (0, 8)
"""The minimum and maximum number of outcomes between two faults, so that kills hit orders at any speed."""

FATES = {
    signal.SIGKILL: (0.86, "kills"),
    signal.SIGTERM: (0.08, "stops"),
    signal.SIGSTOP: (0.06, "pauses"),
}
"""The signals that a worker gets, each with its share and its name in the table."""

SETTLE_AFTER = 5.0
"""Seconds after which a doubt may be refuted. By then, the longest stall of the service has ended."""

ACK_WAIT = 1.5
SWEEP_EVERY = 1.0
AT_ONCE = 4
WORKERS = 3


def arguments_of(place: Place) -> list[str]:
    """Return the command line of a worker."""
    options: dict[str, Any] = {
        "broker": place.broker,
        "journal": place.journal,
        "scope": SCOPE,
        "hooks": "tests.crash.bank:unwell",
        "concurrency": AT_ONCE,
        "lease": LEASE,
        "settle-after": SETTLE_AFTER,
        "abandoned-settle-after": SETTLE_AFTER,
        "ack-wait": ACK_WAIT,
        "sweep-every": SWEEP_EVERY,
        "max-deliveries": 1000,
    }
    return ["worker", *as_options(options)]


@define(eq=False)
class _Worker:
    child: Child
    is_stopping: bool = False
    wakes_at: float | None = None


class Harness:
    """Runs one trial until every command has an outcome.

    Args:
        options: the options of the trial.
        broker: the broker, which is killed or stopped, and started again.
        postgres: the server of the journal, which is stopped immediately, and started again.
        place: the addresses and files of the trial.
        customers: the process that sends the commands and reads the outcomes.
        report: receives the counts and errors of the trial.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        broker: NatsServer,
        postgres: PostgresServer,
        place: Place,
        customers: Child,
        report: Report,
    ) -> None:
        self.options, self.broker, self.postgres = options, broker, postgres
        self.place, self.customers, self.report = place, customers, report
        self._chance = random.Random(options.seed)
        self._workers: dict[Child, _Worker] = {}
        self._until = time.monotonic() + options.timeout

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until all requested faults have happened and every command has an outcome."""
        try:
            self._await("ready")
            self._replace()
            self._let_fates_come()
            self.customers.tell(stop=True)
            self._await("answered")
            self._await("quiet")
            self._stop_in_order()
        finally:
            for child in self._workers:
                child.kill()

    def _let_fates_come(self) -> None:
        wanted, times = self.options.kills, self.options.restarts
        restarts = [wanted * (at + 1) // (times + 1) for at in range(times)]
        while self.report.counts["kills"] < wanted:
            if time.monotonic() > self._until:
                self.report.trouble(f"it did not end within {self.options.timeout:g} s")
                return
            self._await_outcomes()
            # A pause or a wake-up can follow at any time.
            time.sleep(self._chance.uniform(0, 0.1))
            self._wake()
            self._meet_fate()
            self._bury()
            self._replace()
            if restarts and self.report.counts["kills"] >= restarts[0]:
                restarts.pop(0)
                self._restart_servers()

    def _await_outcomes(self) -> None:
        """Return after some more outcomes, or when the broker is about to redeliver."""
        left, until = self._chance.randint(*BETWEEN_FATES), time.monotonic() + ACK_WAIT
        while left > 0 and time.monotonic() < until:
            left -= len(list(listen([self.customers], until - time.monotonic())))

    def _meet_fate(self) -> None:
        one = self._chance.choice([one for one in self._workers.values() if not one.is_stopping] or [None])
        if one is None or one.wakes_at is not None:
            return
        (fate,) = self._chance.choices(list(FATES), weights=[share for share, _ in FATES.values()])
        one.child.send(fate)
        self.report.counts[FATES[fate][1]] += 1
        one.is_stopping = fate == signal.SIGTERM
        if fate == signal.SIGSTOP:
            one.wakes_at = time.monotonic() + self._chance.uniform(1.2, 1.8) * LEASE

    def _wake(self) -> None:
        for one in self._workers.values():
            if one.wakes_at is not None and one.wakes_at < time.monotonic():
                one.wakes_at = None
                one.child.send(signal.SIGCONT)

    def _restart_servers(self) -> None:
        self.broker.restart(at_once=self._chance.random() < 0.5)
        self.report.counts["restarts of the broker"] += 1
        self.postgres.restart(at_once=True)
        self.report.counts["stops of the database"] += 1

    # --- workers --------------------------------------------------------------------------------

    def _replace(self) -> None:
        while sum(not one.is_stopping for one in self._workers.values()) < WORKERS:
            child = fork(partial(command, arguments=arguments_of(self.place), fault=self.options.planted))
            self._workers[child] = _Worker(child)

    def _bury(self, seconds: float = 0.0) -> None:
        """Forget the workers that end in time. Those that were asked to stop must exit with code 0."""
        for child, _ in listen(self._workers, seconds):
            one = self._workers.pop(child)
            if child.code is not None and child.code >= 0 and not (one.is_stopping and child.code == 0):
                self.report.trouble(f"a worker ended with {child.code}: {last_words()}")

    def _stop_in_order(self) -> None:
        for one in self._workers.values():
            one.child.send(signal.SIGCONT)
            if not one.is_stopping:
                one.is_stopping = True
                one.child.send(signal.SIGTERM)
        until = time.monotonic() + LAST_WORDS
        while self._workers and time.monotonic() < until:
            self._bury(until - time.monotonic())
        if self._workers:
            self.report.trouble("workers did not end when asked to")

    def _await(self, word: str) -> None:
        """Wait until the customers send a message that contains ``word``. Resume paused workers meanwhile."""
        while self.customers.code is None and time.monotonic() < self._until:
            self._wake()
            for _, message in listen([self.customers], 0.1):
                if message is not None and word in message:
                    return
        self.report.trouble(f"it was never {word}, within {self.options.timeout:g} s")
