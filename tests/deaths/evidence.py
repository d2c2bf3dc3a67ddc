"""What the service, the bank, the workers and the journal say in the end, gathered for comparison."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tests.deaths.books import Bank, Book, Check, lines
from tests.deaths.trial import LEASE, POLICY, SCOPE, Trial, poster_of
from transfer_async import FundsHold, TransferClient
from transfer_async.context import NO_ORDER
from transfer_async.errors import OutcomeUnknown
from transfer_async.journal import Journal, KeyState, journal_at
from transfer_async.journal.moves import Entry, Step
from transfer_async.models import OrderIntent

IN_THE_END = 60.0
"""Seconds in which every lease must be over and every debt paid; and some for every key."""


@frozen(kw_only=True)
class KeyEvidence:
    """All that is known of one key.

    Args:
        entry: the journal's, when nothing waits any more.
        is_listed: the journal lists it among those in doubt.
        resolved: the journal's, once somebody who knows was asked about every doubt.
        history: the journal's, of all its moves.
        sends: the token and the time of every request that a worker was about to send.
        received: how many requests came to the service.
        orders: the orders that exist.
        told: what was acknowledged: how it ended, and the order's id.
        holds: the intents whose holds were open, when nothing waited any more.
        holds_resolved: those that are open in the end.
    """

    key: str
    entry: Entry | None
    is_listed: bool
    resolved: Entry | None
    history: Sequence[Step]
    sends: Sequence[tuple[str, float]]
    received: int
    orders: Sequence[str]
    told: Sequence[tuple[str, str]]
    holds: frozenset[str]
    holds_resolved: frozenset[str]

    @property
    def marks(self) -> dict[str, float]:
        """The tokens of its marks, and when each was made."""
        return {step.attempt or "": step.at for step in self.history if step.move == "mark"}

    @property
    def story(self) -> str:
        """What became of it, in short."""
        moves = (f"{step.move} {step.intent_id[:3]}.{step.epoch}" for step in self.history)
        return f"{', '.join(moves)}; told {', '.join(ended for ended, _ in self.told)}"


@frozen(kw_only=True)
class _Books:
    """What was written down while there were workers, by key."""

    orders: dict[str, list[str]] = field(factory=dict)
    received: dict[str, int] = field(factory=dict)
    sends: dict[str, list[tuple[str, float]]] = field(factory=dict)
    told: dict[str, list[tuple[str, str]]] = field(factory=dict)


def gather(trial: Trial, keys: Sequence[str]) -> list[KeyEvidence]:
    """Let everything come to rest, then gather what there is of every key."""
    gathering = _Gathering(trial, keys)
    try:
        return asyncio.run(gathering.run())
    except sqlite3.DatabaseError:  # the file is spoiled, and nothing in it can be read
        return gathering.together({}, {}, {}, {}, {}, {})


class _Gathering:
    def __init__(self, trial: Trial, keys: Sequence[str]) -> None:
        self._keys = keys
        self._directory = Path(trial.directory)
        self._books = _read(self._directory)
        self._journal: Journal = journal_at(trial.journal)

    async def run(self) -> list[KeyEvidence]:
        async with self._journal:
            entries = await self._at_rest(resolve=None)
            listed = {key for key, _ in await self._journal.in_doubt(SCOPE)}
            holds = _open_holds(self._directory / "bank")
            resolved = await self._at_rest(resolve=self._know)
            holds_resolved = _open_holds(self._directory / "bank")
            history = {key: await self._journal.history(SCOPE, key) for key in self._keys}
        return self.together(entries, listed, resolved, history, holds, holds_resolved)

    def together(
        self,
        entries: Mapping[str, Entry | None],
        listed: Container[str],
        resolved: Mapping[str, Entry | None],
        history: Mapping[str, Sequence[Step]],
        holds: Mapping[str, frozenset[str]],
        holds_resolved: Mapping[str, frozenset[str]],
    ) -> list[KeyEvidence]:
        """What there is of each key."""
        return [
            KeyEvidence(
                key=key,
                entry=entries.get(key),
                is_listed=key in listed,
                resolved=resolved.get(key),
                history=history.get(key, ()),
                sends=self._books.sends.get(key, ()),
                received=self._books.received.get(poster_of(key), 0),
                orders=self._books.orders.get(poster_of(key), ()),
                told=self._books.told.get(key, ()),
                holds=holds.get(key, frozenset()),
                holds_resolved=holds_resolved.get(key, frozenset()),
            )
            for key in self._keys
        ]

    async def _at_rest(self, resolve: Any) -> dict[str, Entry | None]:
        """Every entry, once `recover` has nothing left to do but doubts."""
        bank = Bank(Book(self._directory / "bank"), None, None)
        hooks = [Check(), FundsHold(bank.place, bank.release)]
        settings: dict[str, Any] = {"scope": SCOPE, "retry": POLICY, "lease": LEASE, "settle_after": 0.0}
        until = time.monotonic() + IN_THE_END + 0.02 * len(self._keys)
        client = TransferClient(
            "http://127.0.0.1:9", "t", journal=self._journal, hooks=hooks, resolve=resolve, **settings
        )
        async with client:
            while True:
                await client.recover()
                entries = {key: await self._journal.read(SCOPE, key) for key in self._keys}
                if time.monotonic() > until or not any(map(_waits, entries.values())):
                    return entries
                await asyncio.sleep(LEASE / 4)  # for the last leases to end

    async def _know(self, intent: OrderIntent, _: OutcomeUnknown) -> Any:
        """The truth about a doubt."""
        return next(iter(self._books.orders.get(poster_of(intent.key), ())), NO_ORDER)


def _waits(entry: Entry | None) -> bool:
    return entry is not None and (entry.state in (KeyState.CLAIMED, KeyState.SENDING) or bool(entry.owed))


def _read(directory: Path) -> _Books:
    service = json.loads((directory / "service").read_text())
    books = _Books(received=service["received"])
    for poster, order_id in service["orders"]:
        books.orders.setdefault(poster, []).append(order_id)
    for key, attempt, at in lines(directory / "sent"):
        books.sends.setdefault(key, []).append((attempt, float(at)))
    for key, ended, order_id in lines(directory / "told"):
        books.told.setdefault(key, []).append((ended, order_id))
    return books


def _open_holds(book: Path) -> dict[str, frozenset[str]]:
    holds: dict[str, set[str]] = {}
    for done, key, intent_id in lines(book):
        of_key = holds.setdefault(key, set())
        if done == "place":
            of_key.add(intent_id)
        else:
            of_key.discard(intent_id)
    return {key: frozenset(open_) for key, open_ in holds.items()}


def states(evidence: Iterable[KeyEvidence]) -> Counter[str]:
    """How many keys ended in which state."""
    return Counter(one.entry.state.value if one.entry else "nowhere" for one in evidence)
