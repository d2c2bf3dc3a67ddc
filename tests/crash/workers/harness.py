"""The harness: it forks workers, delivers commands, and kills or pauses the workers at chosen points."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections import Counter
from functools import partial
from typing import Any

from attrs import define, field

from tests.crash.processes import LAST_WORDS, Child, fork, listen
from tests.crash.setting import LEASE, Place, Point
from tests.crash.verdict import Report
from tests.crash.workers import worker
from tests.support.postgres import PostgresServer

SHARES = {"good": 0.8, "unknown": 0.15, "poor": 0.05}
"""The kinds of orders. Most are valid; some have an unknown beneficiary, some a customer without funds."""

ANY_CALL = (Point.RECOVERING, Point.COMMITTING, Point.ANYWHERE)
POINTS = {
    "good": tuple(point for point in Point if point is not Point.UNDONE),
    "unknown": (Point.UNDONE, Point.SETTLED, *ANY_CALL),
    "poor": (Point.BEFORE_CLAIM, Point.CLAIMED, *ANY_CALL),
}
"""The points that a call of each kind passes."""

FATES = {signal.SIGKILL: "kills", signal.SIGSTOP: "pauses"}
FATED = 0.3
"""The share of deliveries with which a worker is to be killed or paused."""

TOO_LONG = 3 * LEASE
"""Seconds after which a paused worker is resumed in any case, because it may hold the journal's lock."""

WORKERS = 3
AT_ONCE = 4
"""The number of workers, and the maximum number of concurrent commands of each."""

ENDS_PER_STOP = 10
"""The number of commands that end between two stops of the database."""

MANY = 10
"""The number of errors that ends a trial."""


@define(eq=False)
class Worker:
    """One worker.

    Args:
        child: its process.
        out: the keys of its deliveries, by number.
        doomed: the signal that it gets at a random time, and the time.
        recovers_to: the signal that is planned for its next recovery.
        pauses_with: the number of the delivery that is to pause it.
        paused_at: the time at which it was paused.
        missed: it is resumed when one of these keys has been taken over or has ended.
        is_killed: whether its end is expected.
    """

    child: Child
    out: dict[int, str] = field(factory=dict)
    doomed: tuple[int, float] | None = None
    recovers_to: int | None = None
    pauses_with: int | None = None
    paused_at: float | None = None
    missed: set[str] = field(factory=set)
    is_killed: bool = False


class Harness:
    """Runs one trial until every command has ended.

    Args:
        options: the options of the trial.
        place: the addresses and files of the trial.
        postgres: the server of the journal, if the journal is in PostgreSQL.
        report: receives the counts and errors of the trial.
    """

    def __init__(
        self, options: argparse.Namespace, place: Place, postgres: PostgresServer | None, report: Report
    ) -> None:
        self.options, self.place, self.postgres, self.report = options, place, postgres, report
        self.keys: list[str] = []
        self._chance = random.Random(options.seed)
        self._wanted = {signal.SIGKILL: options.kills, signal.SIGSTOP: options.pauses}
        self._met: Counter[tuple[int, Point]] = Counter()
        self._workers: dict[Child, Worker] = {}
        self._visitor: Child | None = None
        self._due: dict[str, float] = {}  # when keys are delivered again
        self._deliveries = 0
        self._ended = 0
        self._next_stop = ENDS_PER_STOP

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until all requested faults have happened and every command has ended."""
        try:
            self._run()
        finally:
            for child in (*self._workers, *filter(None, [self._visitor])):
                child.kill()
        self.report.counts += Counter(
            {f"  {FATES[sent]}: {point}": n for (sent, point), n in self._met.items()}
        )

    def _run(self) -> None:
        until = time.monotonic() + self.options.timeout
        while not self._is_done() and len(self.report.violations) < MANY:
            if time.monotonic() > until:
                self.report.trouble(f"it did not end within {self.options.timeout:g} s")
                break
            self._turn()
        for one in list(self._workers.values()):
            self._wake(one)
            one.child.tell(stop=True)
        until = time.monotonic() + LAST_WORDS
        while self._workers and time.monotonic() < until:
            self._listen(stopping=True)
            self._time_comes(time.monotonic())
        if self._workers:
            self.report.trouble("workers did not end when asked to")

    def _is_done(self) -> bool:
        is_idle = not any(one.out or one.paused_at for one in self._workers.values())
        return not self._goes_on and is_idle and not self._due

    @property
    def _goes_on(self) -> bool:
        return bool(self._left()) or self.report.counts["stops of the database"] < self.options.stops

    def _left(self) -> list[signal.Signals]:
        """Return the signals that have not been sent often enough."""
        return [sent for sent, wanted in self._wanted.items() if self.report.counts[FATES[sent]] < wanted]

    def _turn(self) -> None:
        while len(self._workers) < WORKERS:
            child = fork(
                partial(worker.work, place=self.place, fault=self.options.planted, seed=self._seed())
            )
            self._workers[child] = Worker(child)
        if self._visitor is None:
            self._visitor = fork(partial(worker.visit, place=self.place, seed=self._seed()))
        self._hand_out(time.monotonic())
        self._listen(stopping=False)
        self._time_comes(time.monotonic())
        stops = self.report.counts["stops of the database"]
        if self.postgres is not None and stops < self.options.stops and self._ended >= self._next_stop:
            self.postgres.restart(at_once=True)
            self.report.counts["stops of the database"] += 1
            self._next_stop = self._ended + ENDS_PER_STOP

    def _seed(self) -> int:
        return self._chance.getrandbits(32)

    # --- deliveries -----------------------------------------------------------------------------

    def _hand_out(self, now: float) -> None:
        for one in sorted(self._workers.values(), key=lambda worker: len(worker.out)):
            while len(one.out) < AT_ONCE and one.paused_at is None and not one.is_killed:
                key = self._next_key(now)
                if key is None:
                    return
                self._deliver(one, key, now)

    def _next_key(self, now: float) -> str | None:
        """Return a key that is due or, until enough faults have happened, a new key."""
        for key, due in self._due.items():
            if due <= now:
                del self._due[key]
                return key
        if not self._goes_on:
            return None
        (kind,) = self._chance.choices(list(SHARES), list(SHARES.values()))
        self.keys.append(f"{kind}-{len(self.keys)}")
        return self.keys[-1]

    def _deliver(self, one: Worker, key: str, now: float) -> None:
        point, sent = self._fate(one, key)
        if point is Point.ANYWHERE:
            one.doomed = (sent, now + self._chance.uniform(0, 0.1))
            point = None
        elif point is Point.RECOVERING:
            one.recovers_to = sent
            one.child.tell(recovery=sent)
            point = None
        self._deliveries += 1
        one.out[self._deliveries] = key
        if point is not None and sent == signal.SIGSTOP:
            one.pauses_with = self._deliveries
        one.child.tell(delivery=self._deliveries, key=key, point=point, signal=sent)

    def _fate(self, one: Worker, key: str) -> tuple[Point | None, int]:
        """Choose where a delivery kills or pauses its worker: where that has happened least often."""
        others = self._workers.values()
        # The others must be running, to take over the keys of the paused one.
        is_one_paused = any(other.paused_at or other.pauses_with or other.doomed for other in others)
        left = [sent for sent in self._left() if sent == signal.SIGKILL or not is_one_paused]
        if not left or self._chance.random() > FATED:
            return None, 0
        sent = self._chance.choice(left)
        points = set(POINTS[key.partition("-")[0]])
        points -= {Point.ANYWHERE} if one.doomed else set()
        points -= {Point.RECOVERING} if one.recovers_to else set()
        return min(sorted(points), key=lambda point: (self._met[sent, point], self._chance.random())), sent

    # --- what the workers say -------------------------------------------------------------------

    def _listen(self, *, stopping: bool) -> None:
        for child, message in listen([*self._workers, *filter(None, [self._visitor])], 0.01):
            if child is self._visitor:
                self._visitor = None
                self.report.counts["visitors that died"] += 1
            elif message is None:
                self._bury(self._workers.pop(child), stopping=stopping)
            else:
                self._understand(self._workers[child], message)

    def _understand(self, one: Worker, message: dict[str, Any]) -> None:
        if "broken" in message:
            self.report.trouble(f"a worker broke: {message['broken']}")
        elif "taken_over" in message:
            self._do_without(one, message["taken_over"])
        elif "met" in message:
            key = one.out.get(message["delivery"])
            one.recovers_to = None if key is None else one.recovers_to
            one.pauses_with = None
            self._meet(one, Point(message["met"]), message["signal"], [key] if key else [*one.out.values()])
        else:
            key = one.out.pop(message["delivery"])
            one.pauses_with = None if one.pauses_with == message["delivery"] else one.pauses_with
            self.report.counts["calls that lost the journal"] += "journal_failed" in message
            if "again" in message:
                self._deliver_again(key, message["again"])
            else:
                self._ended += 1
                self._do_without(one, key)

    def _bury(self, one: Worker, *, stopping: bool) -> None:
        if not (one.is_killed or (stopping and one.child.code == 0)):
            self.report.trouble(f"a worker ended by itself: {one.child.code}")
        for key in one.out.values():
            # Some return at once and find a live lease; others return after a recovery.
            self._deliver_again(key, self._chance.choice((0.0, 0.0, 2 * LEASE)))

    def _deliver_again(self, key: str, seconds: float) -> None:
        self._due.setdefault(key, time.monotonic() + seconds)

    # --- what is done to the workers ------------------------------------------------------------

    def _time_comes(self, now: float) -> None:
        for one in self._workers.values():
            if one.doomed is not None and now >= one.doomed[1] and one.paused_at is None:
                sent, one.doomed = one.doomed[0], None
                one.child.send(sent)
                self._meet(one, Point.ANYWHERE, sent, [*one.out.values()])
            if one.paused_at is not None and now - one.paused_at > TOO_LONG:
                self.report.counts["  not waited for"] += 1
                self._wake(one)

    def _meet(self, one: Worker, point: Point, sent: int, keys: list[str]) -> None:
        """Count a worker that was killed or paused. A paused one waits until ``keys`` are taken over."""
        if one.is_killed:  # the worker was killed at a random time, which has been counted
            return
        self._met[sent, point] += 1
        self.report.counts[FATES[signal.Signals(sent)]] += 1
        if sent == signal.SIGKILL:
            one.is_killed = True
            return
        # The process is stopped or dead.
        os.waitid(os.P_PID, one.child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        one.paused_at, one.missed = time.monotonic(), set(keys)
        for key in one.out.values():
            self._deliver_again(key, 0.0)
        if not keys:
            self._wake(one)

    def _do_without(self, doer: Worker, key: str) -> None:
        """Resume the workers that were paused with a key that has been taken over or has ended."""
        for one in self._workers.values():
            if one is not doer and key in one.missed:
                self._wake(one)

    def _wake(self, one: Worker) -> None:
        if one.paused_at is not None:
            one.paused_at, one.missed = None, set()
            one.child.send(signal.SIGCONT)
