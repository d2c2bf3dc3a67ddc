"""The harness: it starts workers, kills, stops or pauses them, and replaces dead ones."""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections import Counter
from functools import partial
from typing import Any

from attrs import define

from tests.crash.processes import LAST_WORDS, Child, as_options, command, fork, last_words, listen
from tests.crash.setting import LEASE, SCOPE, Place
from tests.support.brokers import NatsServer
from tests.support.postgres import PostgresServer

BETWEEN_FATES = (0, 8)
"""The minimum and maximum number of outcomes between two faults, so that kills hit orders at any speed."""

FATES = {signal.SIGKILL: 0.86, signal.SIGTERM: 0.08, signal.SIGSTOP: 0.06}

SETTLE_AFTER = 5.0
"""Seconds after which a doubt may be refuted. By then, the longest stall of the service has ended."""

ACK_WAIT = 1.5
SWEEP_EVERY = 1.0
AT_ONCE = 4
WORKERS = 3


def words_of(place: Place) -> list[str]:
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
    is_told: bool = False
    wakes_at: float | None = None


class Harness:
    """Runs one trial until every command has an outcome.

    Args:
        options: the options of the trial.
        broker: the broker, which is killed or stopped, and started again.
        postgres: the server of the journal, which is stopped immediately, and started again.
        troubles: receives the errors of the trial.
    """

    def __init__(
        self, options: argparse.Namespace, broker: NatsServer, postgres: PostgresServer, troubles: list[str]
    ) -> None:
        self.options = options
        self.broker = broker
        self.postgres = postgres
        self.troubles = troubles
        self.met: Counter[str] = Counter(kills=0)
        self.answered = 0
        self.seconds = 0.0
        self._chance = random.Random(options.seed)
        self._workers: dict[Child, _Worker] = {}
        self._until = time.monotonic() + options.patience

    # --- the run --------------------------------------------------------------------------------

    def run(self, place: Place, customers: Child) -> None:
        """Run until all requested faults have happened and every command has an outcome."""
        try:
            self._run(place, customers)
        finally:
            for child in self._workers:
                child.kill()

    def _run(self, place: Place, customers: Child) -> None:
        if not self._hears(customers, "ready"):
            return
        began = time.monotonic()
        self._replace(place)
        self._let_fates_come(place, customers)
        customers.tell(stop=True)
        self.answered = int((self._hears(customers, "answered") or {}).get("answered", 0))
        self.seconds = time.monotonic() - began
        self._hears(customers, "quiet")
        self._stop_in_order()

    def _let_fates_come(self, place: Place, customers: Child) -> None:
        wanted, times = self.options.kills, self.options.restarts
        restarts = [wanted * (at + 1) // (times + 1) for at in range(times)]
        while self.met["kills"] < wanted:
            if time.monotonic() > self._until:
                self.troubles.append(f"it did not come to its end within {self.options.patience:g} s")
                return
            self._await_outcomes(customers)
            # A pause or a wake-up can follow at any time.
            time.sleep(self._chance.uniform(0, 0.1))
            self._wake()
            self._meet_fate()
            self._bury()
            self._replace(place)
            if restarts and self.met["kills"] >= restarts[0]:
                restarts.pop(0)
                self._restart_servers()

    def _await_outcomes(self, customers: Child) -> None:
        """Return after some more outcomes, or when the broker is about to redeliver."""
        left, until = self._chance.randint(*BETWEEN_FATES), time.monotonic() + ACK_WAIT
        while left > 0 and time.monotonic() < until:
            left -= len(list(listen([customers], until - time.monotonic())))

    def _meet_fate(self) -> None:
        one = self._chance.choice([one for one in self._workers.values() if not one.is_told] or [None])
        if one is None or one.wakes_at is not None:
            return
        (fate,) = self._chance.choices(list(FATES), weights=list(FATES.values()))
        one.child.send(fate)
        if fate == signal.SIGKILL:
            self.met["kills"] += 1
        elif fate == signal.SIGTERM:
            one.is_told = True
            self.met["stops"] += 1
        else:
            one.wakes_at = time.monotonic() + self._chance.uniform(1.2, 1.8) * LEASE
            self.met["pauses"] += 1

    def _wake(self) -> None:
        for one in self._workers.values():
            if one.wakes_at is not None and one.wakes_at < time.monotonic():
                one.wakes_at = None
                one.child.send(signal.SIGCONT)

    def _restart_servers(self) -> None:
        self.broker.restart(at_once=self._chance.random() < 0.5)
        self.met["restarts of the broker"] += 1
        self.postgres.restart(at_once=True)
        self.met["stops of the database"] += 1

    # --- workers --------------------------------------------------------------------------------

    def _replace(self, place: Place) -> None:
        while sum(not one.is_told for one in self._workers.values()) < WORKERS:
            child = fork(partial(command, words=words_of(place), fault=self.options.planted))
            self._workers[child] = _Worker(child)

    def _bury(self, seconds: float = 0.0) -> None:
        """Forget the workers that end in time. Those that were told to stop must exit with code 0."""
        for child, _ in listen(self._workers, seconds):
            one = self._workers.pop(child)
            if child.code is not None and child.code >= 0 and not (one.is_told and child.code == 0):
                self.troubles.append(f"a worker ended with {child.code}: {last_words()}")

    def _stop_in_order(self) -> None:
        for one in self._workers.values():
            one.child.send(signal.SIGCONT)
            if not one.is_told:
                one.is_told = True
                one.child.send(signal.SIGTERM)
        until = time.monotonic() + LAST_WORDS
        while self._workers and time.monotonic() < until:
            self._bury(until - time.monotonic())
        if self._workers:
            self.troubles.append("workers did not come to their end when told to")

    def _hears(self, customers: Child, word: str) -> dict[str, Any] | None:
        """Return the customers' message that contains ``word``. Resume paused workers while waiting."""
        while customers.code is None and time.monotonic() < self._until:
            self._wake()
            for _, message in listen([customers], 0.1):
                if message is not None and word in message:
                    return message
        self.troubles.append(f"it was never {word}, within {self.options.patience:g} s")
        return None
