"""The in-memory journal, whose records are lost when the process ends."""

from __future__ import annotations

import heapq
import math
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from threading import Lock
from typing import Self

import msgspec

from transfer_async._models.errors import JournalFailed
from transfer_async._support.clock import Clock, Duration, seconds
from transfer_async._support.util import check_count
from transfer_async.journal import state_machine
from transfer_async.journal.model import FOUR_EYES, REFUTED, Entry, HistoryEvent, KeyState, TransitionResult
from transfer_async.journal.operator_transitions import WITHOUT_CHANGE, Propose, latest
from transfer_async.journal.protocol import KEPT, AuditLine, forgettable
from transfer_async.journal.transitions import (
    Claim,
    Create,
    Move,
    Refute,
    Resolve,
    history_step,
    is_ended,
    is_told,
    is_waiting,
)

HISTORY = 100
"""The maximum number of history lines per key. Lines without a decision are dropped first."""

_Place = tuple[str, str]  # scope and key


class MemoryJournal:
    """A journal in memory that stores at most ``max_keys`` keys.

    A key in the claimed, sending or in-doubt state, or with a pending undo, is never deleted. A key that the
    client generated is deleted as soon as no work is left for it. The key is kept if an order may exist and
    the caller may have seen the key in an error. Any other key for which no work is left is kept for
    ``keep``, or until newer keys need the space. Several threads may share one journal, each with its own
    event loop. After a fork, the child process cannot write to its copy of a used journal, because the copy
    lacks the parent's later writes.

    Args:
        max_keys: the maximum number of keys in all states.
        keep: how long to keep a key for which no work is left, in seconds or as a ``timedelta``.
        clock: the clock for leases. A client that creates its own journal passes its clock to the journal.
    """

    durable = False

    def __init__(self, *, max_keys: int = 100_000, keep: Duration = KEPT, clock: Clock | None = None) -> None:
        check_count("max_keys", max_keys)
        self._max_keys = max_keys
        self._keep = seconds(keep)
        self._clock = clock or Clock()
        self._lock = Lock()
        self._process: int | None = None  # the process that wrote first
        self._entries: dict[_Place, Entry] = {}
        self._steps: dict[_Place, list[HistoryEvent]] = {}  # their times come from the clock
        self._ended: OrderedDict[_Place, float] = OrderedDict()  # ended keys, oldest first
        self._ids: OrderedDict[_Place, str] = OrderedDict()  # scope and order id -> key
        # the history lines that name a person, numbered
        self._by_people: deque[tuple[int, _Place, HistoryEvent]] = deque(maxlen=max_keys)

    async def __aenter__(self) -> Self:
        """Return the journal, which does not need to be opened."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: the journal does not need to be closed."""

    async def close(self) -> None:
        """Do nothing: the contents are kept as long as the object exists."""

    async def now(self) -> float:
        """See `Journal.now`."""
        return self._clock.now()

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """See `Journal.move`."""
        process = os.getpid()
        if self._process != process:
            if self._process is not None:  # Checked first: another thread may have held the lock at the fork.
                raise JournalFailed("the journal was used before a fork: create a journal in each process")
            self._process = process
        place = (scope, key)
        with self._lock:  # No other thread may write between the read and the write.
            now = self._clock.now()
            before = self._entries.get(place)
            if before is None and isinstance(move, Claim):
                self._make_room(now)
            order_id = move.order_bound
            is_taken = order_id is not None and self._ids.get((scope, order_id), key) != key
            rule = self._entries.get((scope, FOUR_EYES))
            verdict = state_machine.decide(before, move, now=now, id_taken=is_taken, four_eyes=rule)
            if verdict is not None and verdict.entry is not before:
                self._store(place, before, verdict, move, now)
        return verdict

    def _store(
        self, place: _Place, before: Entry | None, verdict: TransitionResult, move: Move, now: float
    ) -> None:
        entry = verdict.entry
        if before is not None and before.order_id not in (None, entry.order_id):
            self._ids.pop((place[0], before.order_id), None)
        if entry.order_id is not None and entry.state is KeyState.CREATED:
            self._ids[place[0], entry.order_id] = place[1]
            if len(self._ids) > self._max_keys:
                self._ids.popitem(last=False)
        ended = is_ended(entry)
        if ended and place not in self._ended and not _may_be_used_again(before, entry, move):
            self._forget(place)
            return
        self._entries[place] = entry
        if is_told(move, verdict):
            if (steps := self._steps.get(place)) is None:
                steps = self._steps[place] = []
            # Create the line now: storing the entry and the transition instead would take four times as much
            # space.
            step = history_step(entry, move, now=now)
            steps.append(step)
            if step.by is not None:
                last = self._by_people[-1][0] if self._by_people else 0
                self._by_people.append((last + 1, place, step))
            if len(steps) > HISTORY:
                steps[:] = latest(steps, HISTORY)
        if ended:
            self._ended.setdefault(place, now)
        else:
            self._ended.pop(place, None)

    def _forget(self, place: _Place) -> None:
        self._entries.pop(place, None)
        self._steps.pop(place, None)
        self._ended.pop(place, None)

    def _make_room(self, now: float) -> None:
        if self._ended:
            for place in self._older_than(now - self._keep):
                self._forget(place)
        if len(self._entries) >= self._max_keys:
            if not self._ended:
                raise JournalFailed(
                    f"the journal holds {self._max_keys} keys, and none of them may be deleted: "
                    "resolve orders in doubt, run recover(), or raise max_keys"
                )
            self._forget(next(iter(self._ended)))

    def _older_than(self, time: float) -> list[_Place]:
        old = []
        for place, ended in self._ended.items():
            if ended > time:
                break
            old.append(place)
        return old

    async def read(self, scope: str, key: str) -> Entry | None:
        """See `Journal.read`."""
        return self._entries.get((scope, key))

    def _of(self, scope: str) -> Iterator[tuple[str, Entry]]:
        with self._lock:
            entries = list(self._entries.items())
        return ((key, entry) for (at, key), entry in entries if at == scope)

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return self._page(self._of(scope), limit, after)

    async def unfinished(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal`."""
        return self._page(self._of(scope), limit, after, now=math.inf)

    async def pending_undos(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal`."""
        return self._page((found for found in self._of(scope) if found[1].pending_undos), limit, after)

    def _page(
        self, found: Iterable[tuple[str, Entry]], limit: int, after: str, *, now: float | None = None
    ) -> list[tuple[str, Entry]]:
        now = self._clock.now() if now is None else now
        waiting = (item for item in found if item[0] > after and is_waiting(item[1], now))
        return heapq.nsmallest(limit, waiting, key=lambda item: item[0])

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        """See `Journal.in_doubt`."""
        doubts = [(key, entry) for key, entry in self._of(scope) if entry.state is KeyState.IN_DOUBT]
        return sorted(doubts, key=lambda doubt: doubt[1].sent_until)

    async def count_in_doubt(self, scope: str) -> int:
        """See `Journal.count_in_doubt`."""
        return sum(entry.state is KeyState.IN_DOUBT for _, entry in self._of(scope))

    async def scopes(self) -> list[str]:
        """See `Journal`."""
        with self._lock:
            return sorted({scope for scope, key in self._entries if key != FOUR_EYES})

    async def orders(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        """See `Journal`."""
        known = [
            (entry.order_id, key, self._ended.get((scope, key)))
            for key, entry in self._of(scope)
            if entry.order_id is not None and entry.order_id > after
        ]
        return heapq.nsmallest(limit, known)

    async def refuted(self, scope: str, *, after: str = "") -> tuple[list[str], str]:  # noqa: ARG002 - there is only one page
        """See `Journal`."""
        return self._with_move(scope, Refute.name), ""

    async def resolved(self, scope: str, *, after: str = "") -> tuple[list[str], str]:  # noqa: ARG002 - as above
        """See `Journal`."""
        return self._with_move(scope, Resolve.name), ""

    def _with_move(self, scope: str, move: str) -> list[str]:
        with self._lock:
            histories = [(key, list(steps)) for (at, key), steps in self._steps.items() if at == scope]
        return [key for key, steps in histories if any(step.move == move for step in steps)]

    async def history(self, scope: str, key: str) -> tuple[HistoryEvent, ...]:
        """See `Journal.history`."""
        since_1970 = self._clock.utc().timestamp() - self._clock.now()
        with self._lock:
            steps = list(self._steps.get((scope, key), ()))
        return tuple(msgspec.structs.replace(step, at=since_1970 + step.at) for step in steps)

    async def audit(
        self,
        scope: str,
        *,
        limit: int,
        after: str = "",
        by: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> tuple[list[AuditLine], str]:
        """See `Journal`. Searches only the last ``max_keys`` lines that name a person, across all scopes."""
        since_1970 = self._clock.utc().timestamp() - self._clock.now()
        begin, end = -math.inf if since is None else since, math.inf if until is None else until
        found: list[AuditLine] = []
        with self._lock:
            for number, place, step in reversed(self._by_people):
                line = msgspec.structs.replace(step, at=since_1970 + step.at)
                if after and number >= int(after):
                    continue
                if place[0] != scope or by not in (None, step.by) or not begin <= line.at < end:
                    continue
                earlier = self._until(place, step)
                if not earlier:  # the key has been deleted since
                    continue
                changes = [item for item in earlier[:-1] if item.move not in WITHOUT_CHANGE]
                proposal = changes[-1] if changes and changes[-1].move == Propose.name else None
                if proposal is not None:
                    proposal = msgspec.structs.replace(proposal, at=since_1970 + proposal.at)
                found.append((place[1], line, proposal))
                if len(found) == limit:
                    return found, str(number)
        return found, ""

    def _until(self, place: _Place, step: HistoryEvent) -> list[HistoryEvent]:
        """Return a key's history up to ``step``, or nothing if the history no longer contains ``step``."""
        steps = self._steps.get(place, [])
        at = next((number for number, item in enumerate(steps) if item is step), -1)
        return steps[: at + 1]

    async def prune(self, scope: str, *, before: datetime) -> int:
        """See `Journal.prune`."""
        utc = self._clock.utc().timestamp()
        age = utc - forgettable(before, now=utc)
        with self._lock:
            limit = self._clock.now() - age
            ended = [place for place in self._older_than(limit) if self._ended[place] < limit]
            old = [place for place in ended if place[0] == scope]
            for place in old:
                self._forget(place)
        return len(old)


def _may_be_used_again(before: Entry | None, entry: Entry, move: Move) -> bool:
    """Return whether a caller or a slow sender may still use the key after ``move`` has ended work on it.

    If the client generated the key, the caller learns the key only from an error. If an order may exist after
    that error, the key must be kept, because the caller could pay again with a deleted key.
    """
    if not entry.client_made or entry.cause is not None:  # An entry that was ever in doubt has a cause.
        return True
    if before is not None and before.state is KeyState.IN_DOUBT:
        return True
    if entry.epoch > 1 or (entry.ending is not None and entry.ending.error == REFUTED):
        return True  # The sender may be unaware that its intent was ended elsewhere.
    return isinstance(move, Create) and move.retried
