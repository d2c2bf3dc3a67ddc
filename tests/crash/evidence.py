"""What the service, the bank, the journal and those who were told say in the end, for comparison."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from tests.crash.bank import Bank, lines, open_holds
from tests.crash.setting import LEASE, POLICY, SCOPE, Place
from transfer_async import TransferClient
from transfer_async._models.errors import JournalFailed, OutcomeUnknown
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.call import NO_ORDER
from transfer_async.journal import Journal, KeyState, journal_at
from transfer_async.journal.model import Entry, HistoryEvent

IN_THE_END = 60.0
"""Seconds in which every lease must be over and every debt paid; and some for every key."""


@frozen(kw_only=True)
class KeyEvidence:
    """All that is known of one key.

    Args:
        sends: the token and the time of every request that a worker was about to send.
        received: how many requests came to the service.
        orders: the orders that exist.
        told: what was told: how it ended, and the order's id.
        entry: the journal's, when nothing waits any more.
        is_listed: the journal lists it among those in doubt.
        resolved: the journal's, once somebody who knows was asked about every doubt.
        history: the journal's, of all its moves.
        holds: the intents whose holds were open, when nothing waited any more.
        holds_resolved: those that are open in the end.
    """

    key: str
    sends: Sequence[tuple[str, float]]
    received: int
    orders: Sequence[str]
    told: Sequence[tuple[str, str]]
    # Nothing where the journal cannot be read:
    entry: Entry | None = None
    is_listed: bool = False
    resolved: Entry | None = None
    history: Sequence[HistoryEvent] = ()
    holds: frozenset[str] = frozenset()
    holds_resolved: frozenset[str] = frozenset()

    @property
    def ends(self) -> set[str]:
        """How it ended, as was told."""
        return {ended for ended, _ in self.told}

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
class Evidence:
    """What there is of every key, and the keys of orders that nobody asked for."""

    keys: Sequence[KeyEvidence]
    unasked: Sequence[str]

    @property
    def states(self) -> Counter[str]:
        """How many keys ended in which state."""
        return Counter(one.entry.state.value if one.entry else "nowhere" for one in self.keys)

    @property
    def doubts(self) -> list[KeyEvidence]:
        """The keys that are in doubt in the end."""
        return [one for one in self.keys if one.entry and one.entry.state is KeyState.IN_DOUBT]


class _Books:
    """What was written down while there were processes to kill, by key."""

    def __init__(self, place: Place) -> None:
        service = json.loads(place.path("service").read_text(encoding="utf-8"))
        self.received: dict[str, int] = service["received"]
        self.orders: dict[str, list[str]] = {}
        self.sends: dict[str, list[tuple[str, float]]] = {}
        self.told: dict[str, list[tuple[str, str]]] = {}
        for key, order_id in service["orders"]:
            self.orders.setdefault(key, []).append(order_id)
        for key, attempt, at in lines(place.path("sent")):
            self.sends.setdefault(key, []).append((attempt, float(at)))
        for key, ended, order_id in lines(place.path("told")):
            self.told.setdefault(key, []).append((ended, order_id))


def gather(place: Place, keys: Sequence[str]) -> Evidence:
    """Let everything come to rest, then gather what there is of every key."""
    books = _Books(place)
    try:
        found = asyncio.run(_look(place, keys, books))
    except (sqlite3.DatabaseError, JournalFailed):  # it is spoiled, and nothing in it can be read
        traceback.print_exc()
        found = {}
    return Evidence(
        keys=[
            KeyEvidence(
                key=key,
                sends=books.sends.get(key, ()),
                received=books.received.get(key, 0),
                orders=books.orders.get(key, ()),
                told=books.told.get(key, ()),
                **found.get(key, {}),
            )
            for key in keys
        ],
        unasked=sorted(books.orders.keys() - set(keys)),
    )


async def _look(place: Place, keys: Sequence[str], books: _Books) -> dict[str, dict[str, Any]]:
    """What the journal and the bank's book say of every key."""

    async def know(intent: OrderIntent, _: OutcomeUnknown) -> Any:
        return next(iter(books.orders.get(intent.key, ())), NO_ORDER)

    bank, nothing = Bank(place.path("bank")), frozenset[str]()
    async with journal_at(place.journal) as journal:
        entries = await _at_rest(journal, keys, bank)
        listed = {key for key, _ in await journal.in_doubt(SCOPE)}
        holds = open_holds(place.path("bank"))
        resolved = await _at_rest(journal, keys, bank, resolve=know)
        holds_resolved = open_holds(place.path("bank"))
        return {
            key: {
                "entry": entries[key],
                "is_listed": key in listed,
                "resolved": resolved[key],
                "history": await journal.history(SCOPE, key),
                "holds": holds.get(key, nothing),
                "holds_resolved": holds_resolved.get(key, nothing),
            }
            for key in keys
        }


async def _at_rest(
    journal: Journal, keys: Sequence[str], bank: Bank, *, resolve: Any = None
) -> Mapping[str, Entry | None]:
    """Every entry, once `recover` has nothing left to do but doubts; with ``resolve``, not even those."""
    waiting = {KeyState.CLAIMED, KeyState.SENDING, *({KeyState.IN_DOUBT} if resolve else ())}
    settings: dict[str, Any] = {
        "scope": SCOPE,
        "retry": POLICY,
        "lease": LEASE,
        "settle_after": 0.0,
        "abandoned_settle_after": 0.0,
    }
    until = time.monotonic() + IN_THE_END + 0.02 * len(keys)
    client = TransferClient(
        "http://127.0.0.1:9", "t", journal=journal, hooks=bank.hooks, resolve=resolve, **settings
    )
    async with client:
        while True:
            await client.recover()
            entries = {key: await journal.read(SCOPE, key) for key in keys}
            left = (
                entry
                for entry in entries.values()
                if entry and (entry.state in waiting or entry.pending_undos)
            )
            if time.monotonic() > until or not any(left):
                return entries
            await asyncio.sleep(LEASE / 4)  # for the last leases to end, and the last moment to send
