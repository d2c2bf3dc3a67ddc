"""The harness: starts everybody, sees to it that they meet their fates, and replaces who is dead."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, field

from tests.brokers import NatsServer
from tests.chaos import customers
from tests.chaos.mutants import MUTANTS
from tests.chaos.trial import WORKERS, Place
from tests.deaths import service
from tests.deaths.processes import fork, hear, tell
from tests.deaths.trial import LEASE
from tests.postgres import PostgresServer

BETWEEN_FATES = (0.05, 0.35)
"""Seconds between two fates: a worker lives for a second, and is at some ten orders then."""

FATES = {signal.SIGKILL: 0.86, signal.SIGTERM: 0.08, signal.SIGSTOP: 0.06}

LAST_WORDS = 30.0
"""Seconds that a process gets to come to its end when told to."""


@define(eq=False)
class _Worker:
    pid: int
    is_told: bool = False
    wakes_at: float | None = None


@define(eq=False)
class Harness:
    """One trial up to the point at which every command has been answered.

    Args:
        directory: for what is written down.
        kills: how many workers are to be killed.
        restarts: how often the broker, and how often the database, is stopped and started.
        seed: of every choice.
        mutant: a fault of our own making that must be noticed; see `mutants`.
        patience: seconds after which the trial is cut short, which is trouble.
    """

    directory: str
    broker: NatsServer
    postgres: PostgresServer
    kills: int
    restarts: int
    seed: int
    mutant: str | None
    patience: float
    met: Counter[str] = field(factory=Counter)
    troubles: list[str] = field(factory=list)
    answered: int = 0
    seconds: float = 0.0
    _chance: random.Random = field(init=False)
    _workers: dict[int, _Worker] = field(init=False, factory=dict)
    _until: float = field(init=False, default=0.0)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until everything that was wanted has happened and every command is answered."""
        self._chance = random.Random(self.seed)
        self._until = time.monotonic() + self.patience
        results = Path(self.directory) / "service"
        served, at_service = fork(partial(service.serve, seed=self.seed, results=results))
        where = hear(at_service) or {}
        place = Place(
            directory=self.directory, broker=self.broker.address, journal=self.postgres.dsn, **where
        )
        place.enter()
        os.environ["TRANSFER_API_TOKEN"] = place.token
        sent, at_customers = fork(partial(customers.serve, place=place, seed=self.seed))
        try:
            self._run(place, at_customers)
        finally:
            for one in self._workers.values():
                os.kill(one.pid, signal.SIGKILL)
            for pid, end in ((sent, at_customers), (served, at_service)):
                tell(end, stop=True)
                _await_end(pid, self.troubles)

    def _run(self, place: Place, customers: socket.socket) -> None:
        if not self._hears(customers, "ready"):
            return
        began = time.monotonic()
        for _ in range(WORKERS):
            self._start(place)
        self._let_fates_come(place)
        tell(customers, stop=True)
        self.answered = int((self._hears(customers, "answered") or {}).get("answered", 0))
        self.seconds = time.monotonic() - began
        self._hears(customers, "quiet")
        self._stop_in_order()

    def _let_fates_come(self, place: Place) -> None:
        restarts = [self.kills * (at + 1) // (self.restarts + 1) for at in range(self.restarts)]
        while self.met["kill"] < self.kills:
            if time.monotonic() > self._until:
                self.troubles.append(f"it did not come to its end within {self.patience:g} s")
                return
            time.sleep(self._chance.uniform(*BETWEEN_FATES))  # what is tried is what happens at any time
            self._wake()
            self._meet_fate()
            self._replace(place)
            if restarts and self.met["kill"] >= restarts[0]:
                restarts.pop(0)
                self._restart_servers()

    def _meet_fate(self) -> None:
        one = self._chance.choice([one for one in self._workers.values() if not one.is_told] or [None])
        if one is None or one.wakes_at is not None:
            return
        (fate,) = self._chance.choices(list(FATES), weights=list(FATES.values()))
        os.kill(one.pid, fate)
        if fate == signal.SIGKILL:
            self.met["kill"] += 1
        elif fate == signal.SIGTERM:
            one.is_told = True
            self.met["stop"] += 1
        else:
            one.wakes_at = time.monotonic() + self._chance.uniform(1.2, 1.8) * LEASE
            self.met["pause"] += 1

    def _wake(self) -> None:
        for one in self._workers.values():
            if one.wakes_at is not None and one.wakes_at < time.monotonic():
                one.wakes_at = None
                os.kill(one.pid, signal.SIGCONT)

    def _restart_servers(self) -> None:
        self.broker.restart(at_once=self._chance.random() < 0.5)
        self.met["restart of the broker"] += 1
        self.postgres.restart(at_once=True)
        self.met["stop of the database"] += 1

    # --- workers --------------------------------------------------------------------------------

    def _start(self, place: Place) -> None:
        pid, end = fork(partial(_work, place=place, mutant=self.mutant))
        end.close()
        self._workers[pid] = _Worker(pid)

    def _replace(self, place: Place) -> None:
        for pid in self._ended():
            one = self._workers.pop(pid)
            if not one.is_told:
                self._start(place)
        while sum(not one.is_told for one in self._workers.values()) < WORKERS:
            self._start(place)

    def _ended(self) -> list[int]:
        """The workers that have ended; whoever was only told to stop must have done so in order."""
        ended = []
        for pid, one in self._workers.items():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append(pid)
                if not os.WIFSIGNALED(status) and not (one.is_told and os.WEXITSTATUS(status) == 0):
                    said = (Path(self.directory) / "log").read_text(errors="replace").split("Traceback")[-1]
                    self.troubles.append(f"a worker ended with {os.WEXITSTATUS(status)}: {said[-2000:]}")
        return ended

    def _stop_in_order(self) -> None:
        for one in self._workers.values():
            os.kill(one.pid, signal.SIGCONT)
            if not one.is_told:
                one.is_told = True
                os.kill(one.pid, signal.SIGTERM)
        until = time.monotonic() + LAST_WORDS
        while self._workers and time.monotonic() < until:
            for pid in self._ended():
                del self._workers[pid]
            time.sleep(0.01)  # between two looks
        if self._workers:
            self.troubles.append("workers did not come to their end when told to")

    def _hears(self, end: socket.socket, word: str) -> dict[str, Any] | None:
        """The message with ``word`` in it; meanwhile whoever sleeps is woken, and who dies is noticed."""
        while time.monotonic() < self._until:
            self._wake()
            readable, _, _ = select.select([end], [], [], 0.1)
            if readable and ((message := hear(end)) is None or word in message):
                if message is None:
                    self.troubles.append("the customers are gone")
                return message
        self.troubles.append(f"it was never {word}, within {self.patience:g} s")
        return None


def _work(_: socket.socket, *, place: Place, mutant: str | None) -> None:
    """What a worker's process does: the command, as anybody calls it."""
    from transfer_async._cli.app import app  # with all that a forked process finds imported

    if mutant is not None:
        MUTANTS[mutant]()
    log = os.open(Path(place.directory) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for said in (1, 2):
        os.dup2(log, said)
    try:
        app(place.worker_arguments())
    except SystemExit as end:
        if end.code:
            raise


def _await_end(pid: int, troubles: list[str]) -> None:
    until = time.monotonic() + LAST_WORDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                troubles.append(f"a process ended with {status}")
            return
        time.sleep(0.01)  # between two looks
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    troubles.append("a process did not come to its end when told to")
