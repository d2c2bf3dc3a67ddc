"""What the service, the bank, the journal and those who were told say in the end, compared and reported."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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

# --- what is known in the end --------------------------------------------------------------------


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


# --- what must be true ---------------------------------------------------------------------------


TIME_STEP = 0.002
"""Seconds by which the journal's clock may differ from a worker's on the same machine."""

_ENDS = (KeyState.CREATED, KeyState.FREE, KeyState.IN_DOUBT)

Faults = Iterator[tuple[str, str]]
"""Of promises that were broken: what it is called, and how."""


def violations(evidence: Evidence, *checks: Callable[[KeyEvidence], Faults]) -> list[tuple[str, str]]:
    """The kind of every promise that was broken, and for which key and how."""
    found = [
        (kind, f"{one.key}: {why} ({one.story})")
        for one in evidence.keys
        for check in checks
        for kind, why in check(one)
    ]
    found += [("unasked", f"{key}: an order exists that nobody asked for") for key in evidence.unasked]
    owners: dict[str, str] = {}
    for one in evidence.keys:
        if one.entry is not None and one.entry.order_id is not None:
            other = owners.setdefault(one.entry.order_id, one.key)
            if other != one.key:
                found.append(("shared", f"{one.key}: has the order of {other}"))
    return found


def of_the_key(one: KeyEvidence) -> Faults:
    """At most one order, and all agree about it: the journal, the service, the bank and who was told."""
    if len(one.orders) > 1:
        yield "duplicate", f"{len(one.orders)} orders exist"
    if one.entry is None or one.entry.state not in _ENDS or one.entry.pending_undos:
        state = one.entry and (one.entry.state.value, len(one.entry.pending_undos))
        yield "unended", f"the journal leaves it {state}"
    else:
        yield from _against_the_service(one)
        yield from _against_the_bank(one)
    yield from _against_what_was_told(one)


def _against_the_service(one: KeyEvidence) -> Faults:
    assert one.entry is not None
    state, order_id = one.entry.state, one.entry.order_id
    if state is KeyState.CREATED and order_id not in one.orders:
        yield "lost", f"created as {order_id}, which does not exist"
    if state is KeyState.FREE and one.entry.ending is None:
        yield "unended", "free, without a no on record"
    if one.is_listed is not (state is KeyState.IN_DOUBT):
        yield "unended", f"{state.value}, and listed in doubt: {one.is_listed}"
    if state is KeyState.FREE and one.orders:
        yield "lost", "an order exists, and the key is free"
    end = one.resolved and one.resolved.state
    if end is not (KeyState.CREATED if one.orders else KeyState.FREE):
        yield "unresolved", f"{len(one.orders)} orders exist, and it ended {end}"


def _against_the_bank(one: KeyEvidence) -> Faults:
    assert one.entry is not None
    bound = one.entry.state is not KeyState.FREE
    if one.holds != (frozenset({one.entry.intent_id}) if bound else frozenset()):
        yield "hold", f"{one.entry.state.value}, with {len(one.holds)} holds open"
    if len(one.holds_resolved) != min(1, len(one.orders)):
        yield "hold", f"{len(one.orders)} orders and {len(one.holds_resolved)} holds in the end"


def _against_what_was_told(one: KeyEvidence) -> Faults:
    state, order_id = (one.entry.state, one.entry.order_id) if one.entry else (None, None)
    for ended, told_id in one.told:
        if ended == "created" and (state is not KeyState.CREATED or told_id != order_id):
            yield "lost", f"told created as {told_id}; the journal says {state}, {order_id}"
        if ended == "created" and told_id not in one.orders:
            yield "lost", f"told created as {told_id}, which does not exist"
    if not one.told:
        yield "unended", "nobody was ever told"
    # Of two deliveries at the same time one may be refused, and say so last, and the other created.
    elif one.orders and one.ends <= {"refused", "not_sent"}:
        yield "lost", "everybody was told that there is none, and an order exists"


def of_the_marks(one: KeyEvidence) -> Faults:
    """Nothing was sent without its mark; for trials in which all that is sent is written down."""
    if one.received > len(one.sends):
        yield "unmarked", f"{one.received} requests, of which {len(one.sends)} are accounted for"
    for attempt, at in one.sends:
        if one.marks.get(attempt, float("inf")) > at + TIME_STEP:
            yield "unmarked", "a request was sent without its mark"


def of_the_telling(one: KeyEvidence) -> Faults:
    """The end that is on record was told, whatever was told before it."""
    if one.entry is None:
        return
    if one.entry.pending_notifications:
        yield "untold", "how its doubt ended was not told"
    if one.entry.state is KeyState.CREATED and ("created", one.entry.order_id) not in set(one.told):
        yield "untold", "the order was not told"
    if one.entry.state is KeyState.IN_DOUBT and "unknown" not in one.ends:
        yield "untold", "the doubt was not told"
    ending = one.entry.ending
    if one.entry.state is KeyState.FREE and ending is not None and ending.outcome.value not in one.ends:
        yield "untold", f"{ending.error} was not told"


# --- the table -----------------------------------------------------------------------------------


SHOWN = 10
"""How many violations are shown at length."""

KINDS = (
    "duplicate",
    "lost",
    "shared",
    "unasked",
    "hold",
    "unmarked",
    "unended",
    "unresolved",
    "untold",
    "beyond",
    "trouble",
)


@frozen(kw_only=True)
class Report:
    """How a trial went.

    Args:
        title: which trial it was.
        trials: how many faults were made.
        rows: what the trial counted itself.
        evidence: what was gathered in the end.
        violations: everything that must not be.
    """

    title: str
    trials: int
    rows: Sequence[tuple[str, int]]
    evidence: Evidence
    violations: Sequence[tuple[str, str]]

    def lines(self) -> Iterator[str]:
        """The table."""
        yield self.title
        for name, count in self.rows:
            yield _row(name, count)
        yield from self._keys()
        broken = Counter(kind for kind, _ in self.violations)
        for name in KINDS:
            yield _row(name, broken[name])
        yield from (f"  {kind}: {why}" for kind, why in self.violations[:SHOWN])
        if not broken and self.trials:
            share = f"{3 / self.trials:.2%}"
            yield f"none in {self.trials} trials: with 95 % confidence fewer than {share} of them do harm"

    def _keys(self) -> Iterator[str]:
        keys, states, doubts = self.evidence.keys, self.evidence.states, self.evidence.doubts
        told = sum("unknown" in one.ends for one in keys)
        yield _row("keys", len(keys))
        yield _row("requests received", sum(one.received for one in keys))
        yield _row("told more than once", sum(len(one.told) > len(set(one.told)) for one in keys))
        yield _row("created", states["created"])
        yield _row("free after a no", states["free"])
        yield _row("told that it is unknown", told) + f"  {told / max(1, len(keys)):.1%} of the keys"
        existing = sum(bool(one.orders) for one in doubts)
        share = f"{len(doubts) / max(1, len(keys)):.1%}"
        yield _row("in doubt", len(doubts)) + f"  {share} of the keys; the order of {existing} exists"


def _row(name: str, count: int) -> str:
    return f"{name:<32}{count:>7}"
