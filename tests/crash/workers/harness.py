"""The harness: it forks workers, delivers commands, and kills or pauses the workers at planned points."""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from attrs import define, field

from tests.crash.processes import LAST_WORDS, Child, fork, listen
from tests.crash.setting import LEASE, Place, Point
from tests.crash.workers import visitor, worker
from tests.support.postgres import PostgresServer

# --- commands ------------------------------------------------------------------------------------


_SHARES = {"good": 0.8, "unknown": 0.15, "poor": 0.05}


@define
class Commands:
    """The keys that are due for delivery.

    Args:
        chance: draws the kinds of new keys.
    """

    chance: random.Random
    keys: list[str] = field(factory=list)
    ended: int = 0
    _due: list[tuple[float, int, str]] = field(factory=list)
    _waiting: set[str] = field(factory=set)
    _numbers: itertools.count[int] = field(factory=itertools.count)

    def take(self, now: float, *, new: bool) -> str | None:
        """Return a key that is due. If there is none and ``new`` is true, return a new key."""
        if self._due and self._due[0][0] <= now:
            key = heapq.heappop(self._due)[2]
            self._waiting.discard(key)
            return key
        if not new:
            return None
        kind = self.chance.choices(list(_SHARES), list(_SHARES.values()))[0]
        self.keys.append(f"{kind}-{len(self.keys)}")
        return self.keys[-1]

    def put_back(self, key: str, *, due: float) -> None:
        """Deliver a key once more at the given time."""
        if key not in self._waiting:
            self._waiting.add(key)
            heapq.heappush(self._due, (due, next(self._numbers), key))

    @property
    def are_waiting(self) -> bool:
        """Whether any key is still to be delivered."""
        return bool(self._due)


# --- fates ---------------------------------------------------------------------------------------


KINDS = {
    "good": tuple(point for point in Point if point not in (Point.UNDONE, Point.RECOVERING)),
    "unknown": (Point.UNDONE, Point.SETTLED, Point.COMMITTING, Point.ANYWHERE),
    "poor": (Point.BEFORE_CLAIM, Point.CLAIMED, Point.COMMITTING, Point.ANYWHERE),
}
"""The kinds of orders, each with the points that its call passes. Most orders are valid; some have an
unknown beneficiary, some a customer without funds."""


@define
class Fates:
    """The kills or pauses of a trial.

    Args:
        signal: the signal that is sent to a worker.
        wanted: how many are to happen.
        chance: chooses between equal points.
        points: the points at which they may happen.
        at_once: the maximum number that is planned at the same time.
        met: how many have happened, by point.
    """

    signal: signal.Signals
    wanted: int
    chance: random.Random
    points: tuple[Point, ...] = tuple(Point)
    at_once: int = 3
    met: Counter[Point] = field(factory=Counter)
    planned: Counter[Point] = field(factory=Counter)

    @property
    def done(self) -> bool:
        """Whether all kills or pauses have happened."""
        return self.met.total() >= self.wanted

    def plan(self, kind: str) -> Point | None:
        """Plan a kill or pause for a command of this kind. Return its point, or None."""
        return self._plan(tuple(point for point in KINDS[kind] if point in self.points))

    def plan_recovery(self) -> Point | None:
        """Plan a kill or pause for a run of `recover`, unless one is already planned."""
        return self._plan((Point.RECOVERING,)) if not self.planned[Point.RECOVERING] else None

    def _plan(self, points: tuple[Point, ...]) -> Point | None:
        # A kill or pause in a recovery may take long to happen and must not delay the others.
        elsewhere = self.planned.total() - self.planned[Point.RECOVERING]
        limit = self.at_once + (points == (Point.RECOVERING,))
        if not points or elsewhere >= limit or self.met.total() + elsewhere >= self.wanted:
            return None
        count = {point: self.met[point] + self.planned[point] for point in self.points}
        least = min(points, key=lambda point: (count[point], self.chance.random()))
        if count[least] > min(count.values()) + 2:
            return None  # other points had fewer fates, and need a command that passes them
        self.planned[least] += 1
        return least

    def forget(self, point: Point) -> None:
        """Cancel a planned kill or pause, because its command did not reach the point."""
        self.planned[point] -= 1

    def come(self, point: Point) -> None:
        """Count a planned kill or pause that has happened."""
        self.planned[point] -= 1
        self.met[point] += 1


# --- workers -------------------------------------------------------------------------------------


@define(eq=False)
class Worker:
    """One worker.

    Args:
        child: its process.
        out: its deliveries: the key and the planned fate, by number.
        doomed: the time of its fate at a random time, and the kind of fate.
        paused_at: the time at which it was paused.
        missed: it is resumed when one of these keys has been taken over or has ended.
        recovery: the kind of fate that is planned for its next recovery.
        is_killed: whether its end is expected.
    """

    child: Child
    out: dict[int, tuple[str, Fates | None, Point | None]] = field(factory=dict)
    doomed: tuple[float, Fates] | None = None
    paused_at: float | None = None
    missed: set[str] = field(factory=set)
    recovery: Fates | None = None
    is_killed: bool = False

    @property
    def keys(self) -> list[str]:
        """The keys of its deliveries."""
        return [key for key, _, _ in self.out.values()]

    def doom(self, fates: Fates, at: float) -> None:
        """Plan a kill or pause at the given time, unless one is already planned."""
        if self.doomed is None:
            self.doomed = (at, fates)
        else:
            fates.forget(Point.ANYWHERE)

    def forget_fates(self) -> None:
        """Cancel all planned kills and pauses of the worker, because it is dead."""
        if self.doomed is not None:
            self.doomed[1].forget(Point.ANYWHERE)
        if self.recovery is not None:
            self.recovery.forget(Point.RECOVERING)
        for _, fates, point in self.out.values():
            if fates is not None and point is not None:
                fates.forget(point)


# --- the harness ---------------------------------------------------------------------------------


TOO_LONG = 3 * LEASE
"""Seconds after which a paused worker is resumed in any case, because it may hold the journal's lock."""

WORKERS = 3
AT_ONCE = 4
"""The number of workers, and the maximum number of concurrent commands of each."""

ENDS_PER_STOP = 10
"""The number of commands that end between two stops of the database."""

MANY = 10
"""The number of errors that ends a trial."""


class Harness:
    """Runs one trial until every command has ended.

    Args:
        options: the options of the trial.
        postgres: the server of the journal, if the journal is in PostgreSQL.
    """

    def __init__(self, options: argparse.Namespace, postgres: PostgresServer | None) -> None:
        self.options = options
        self.postgres = postgres
        self.chance = random.Random(options.seed)
        self.commands = Commands(self.chance)
        self.kills = Fates(signal.SIGKILL, options.kills, self.chance)
        self.pauses = Fates(signal.SIGSTOP, options.pauses, self.chance, at_once=1)
        self.stops = 0
        self.outwaited = 0  # workers that were resumed before their keys had been taken over
        self.journal_failed = 0
        self.visitors = 0  # workers that died
        self.troubles: list[str] = []
        self._workers: dict[Child, Worker] = {}
        self._deliveries = 0
        self._next_stop = ENDS_PER_STOP
        self._visitor: Child | None = None

    # --- the run --------------------------------------------------------------------------------

    def run(self, place: Place) -> None:
        """Run until all requested faults have happened and every command has ended."""
        try:
            self._run(place)
        finally:
            for child in (*self._workers, *filter(None, [self._visitor])):
                child.kill()

    def _run(self, place: Place) -> None:
        until = time.monotonic() + self.options.patience
        while not self._is_done() and len(self.troubles) < MANY:
            if time.monotonic() > until:
                self.troubles.append(f"it did not come to its end within {self.options.patience:g} s")
                break
            self._turn(place)
        for one in list(self._workers.values()):
            self._wake(one)
            one.child.tell(stop=True)
        until = time.monotonic() + LAST_WORDS
        while self._workers and time.monotonic() < until:
            self._listen(replace=False)
        if self._workers:
            self.troubles.append("workers did not come to their end when told to")

    def _is_done(self) -> bool:
        idle = not any(one.out or one.paused_at for one in self._workers.values())
        return not self._goes_on and idle and not self.commands.are_waiting

    @property
    def _goes_on(self) -> bool:
        return not (self.kills.done and self.pauses.done and self.stops >= self.options.stops)

    def _turn(self, place: Place) -> None:
        while len(self._workers) < WORKERS:
            self._hire(place)
        self._invite(place)
        now = time.monotonic()
        self._hand_out(now)
        self._listen(replace=True)
        self._time_comes(time.monotonic())
        if self.stops < self.options.stops and self.commands.ended >= self._next_stop:
            self._stop_the_database()

    # --- workers --------------------------------------------------------------------------------

    def _hire(self, place: Place) -> None:
        seed = self.chance.getrandbits(32)
        child = fork(partial(worker.work, place=place, fault=self.options.planted, seed=seed))
        self._workers[child] = Worker(child)

    def _invite(self, place: Place) -> None:
        """Start a visitor, unless one is already running."""
        if self._visitor is None:
            seed = self.chance.getrandbits(32)
            self._visitor = fork(partial(visitor.visit, place=place, seed=seed))

    def _hand_out(self, now: float) -> None:
        for one in sorted(self._workers.values(), key=lambda worker: len(worker.out)):
            if one.paused_at is not None or one.is_killed:
                continue
            while len(one.out) < AT_ONCE:
                key = self.commands.take(now, new=self._goes_on)
                if key is None:
                    return
                self._deliver(one, key, now)
            self._plan_recovery(one)

    def _deliver(self, one: Worker, key: str, now: float) -> None:
        kind, fates, point = key.partition("-")[0], None, None
        for candidate in self._fates():
            if point is None and (point := candidate.plan(kind)) is not None:
                fates = candidate
        if point is Point.ANYWHERE and fates is not None:
            one.doom(fates, now + self.chance.uniform(0, 0.1))
            fates = point = None
        self._deliveries += 1
        one.out[self._deliveries] = (key, fates, point)
        number = fates.signal if fates is not None else 0
        one.child.tell(delivery=self._deliveries, key=key, point=point, signal=number)

    def _fates(self) -> Iterator[Fates]:
        everybody_is_up = not any(one.paused_at for one in self._workers.values())
        yield from self.chance.sample([self.kills, self.pauses], 2) if everybody_is_up else [self.kills]

    def _plan_recovery(self, one: Worker) -> None:
        for fates in self._fates():
            if one.recovery is None and fates.plan_recovery() is not None:
                one.recovery = fates
                one.child.tell(recovery=fates.signal)

    # --- what they say --------------------------------------------------------------------------

    def _listen(self, *, replace: bool) -> None:
        for child, message in listen([*self._workers, *filter(None, [self._visitor])], 0.01):
            if child is self._visitor:
                self._visitor, self.visitors = None, self.visitors + 1
            elif message is None:
                self._bury(self._workers.pop(child), expected=not replace)
            else:
                self._understand(self._workers[child], message)

    def _understand(self, one: Worker, message: dict[str, Any]) -> None:
        if "broken" in message:
            self.troubles.append(f"a worker broke: {message['broken']}")
        elif "taken_over" in message:
            self._do_without(one, message["taken_over"])
        elif "met" in message:
            self._met(one, Point(message["met"]), message)
        else:
            self._ended(one, message)

    def _met(self, one: Worker, point: Point, message: dict[str, Any]) -> None:
        fates = self.kills if message["signal"] == signal.SIGKILL else self.pauses
        if one.is_killed:  # the worker was also killed at a random time, which has been counted
            fates.forget(point)
        else:
            fates.come(point)
        keys = one.keys
        if point is Point.RECOVERING:
            one.recovery = None
        else:
            key, _, _ = one.out[message["delivery"]]
            one.out[message["delivery"]] = (key, None, None)
            keys = [key]
        if fates is self.kills:
            one.is_killed = True
        else:
            self._pause(one, keys)

    def _ended(self, one: Worker, message: dict[str, Any]) -> None:
        key, fates, point = one.out.pop(message["delivery"])
        if fates is not None and point is not None:
            fates.forget(point)
        self.journal_failed += "journal_failed" in message
        if "again" in message:
            self.commands.put_back(key, due=time.monotonic() + message["again"])
            return
        self.commands.ended += 1
        self._do_without(one, key)

    def _bury(self, one: Worker, *, expected: bool) -> None:
        if not (one.is_killed or (expected and one.child.code == 0)):
            self.troubles.append(f"a worker ended by itself: {one.child.code}")
        one.forget_fates()
        for key in one.keys:
            # Some return at once and find a live lease; others return after a recovery.
            self.commands.put_back(key, due=time.monotonic() + self.chance.choice((0.0, 0.0, 2 * LEASE)))

    # --- what is done to them -------------------------------------------------------------------

    def _time_comes(self, now: float) -> None:
        for one in self._workers.values():
            if one.doomed is not None and now >= one.doomed[0] and one.paused_at is None:
                fates, one.doomed = one.doomed[1], None
                one.child.send(fates.signal)
                fates.come(Point.ANYWHERE)
                if fates is self.kills:
                    one.is_killed = True
                else:
                    self._pause(one, one.keys)
            if one.paused_at is not None and now - one.paused_at > TOO_LONG:
                self.outwaited += 1
                self._wake(one)

    def _pause(self, one: Worker, keys: list[str]) -> None:
        """Redeliver the keys of a paused worker. It is resumed when one of ``keys`` was taken over."""
        # The process is stopped or dead.
        os.waitid(os.P_PID, one.child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        one.paused_at, one.missed = time.monotonic(), set(keys)
        for key in one.keys:
            self.commands.put_back(key, due=time.monotonic())
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

    def _stop_the_database(self) -> None:
        if self.postgres is None:
            raise ValueError("there is no server to stop")
        self.postgres.restart(at_once=True)
        self.stops += 1
        self._next_stop = self.commands.ended + ENDS_PER_STOP
