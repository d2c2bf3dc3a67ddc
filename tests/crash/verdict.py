"""The comparison of the service, the bank, the journal and the reported outcomes after a trial."""

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
"""The seconds until all leases have ended and all undos have run, and additional seconds for each key."""


@frozen(kw_only=True)
class KeyEvidence:
    """The evidence about one key.

    Args:
        sends: the attempt and the time of every request that a worker was about to send.
        received: the number of requests that the service received.
        orders: the orders that exist.
        told: the reported outcomes, each with the order's id.
        entry: the journal's entry, when only doubts are left.
        is_listed: whether the journal lists the key among those in doubt.
        resolved: the journal's entry, when all doubts have been resolved.
        history: the journal's history of the key.
        holds: the intents whose holds are open, when only doubts are left.
        holds_resolved: the intents whose holds are open, when all doubts have been resolved.
    """

    key: str
    sends: Sequence[tuple[str, float]]
    received: int
    orders: Sequence[str]
    told: Sequence[tuple[str, str]]
    # These fields are empty if the journal cannot be read:
    entry: Entry | None = None
    is_listed: bool = False
    resolved: Entry | None = None
    history: Sequence[HistoryEvent] = ()
    holds: frozenset[str] = frozenset()
    holds_resolved: frozenset[str] = frozenset()

    @property
    def ends(self) -> set[str]:
        """The reported outcomes."""
        return {ended for ended, _ in self.told}

    @property
    def marks(self) -> dict[str, float]:
        """The time of each attempt's mark."""
        return {step.attempt or "": step.at for step in self.history if step.move == "mark"}

    @property
    def story(self) -> str:
        """A summary of the key's history and its reported outcomes."""
        moves = (f"{step.move} {step.intent_id[:3]}.{step.epoch}" for step in self.history)
        return f"{', '.join(moves)}; told {', '.join(ended for ended, _ in self.told)}"


@frozen(kw_only=True)
class Evidence:
    """The evidence about all keys, and the keys of orders that were never requested."""

    keys: Sequence[KeyEvidence]
    unasked: Sequence[str]

    @property
    def states(self) -> Counter[str]:
        """The number of keys in each state."""
        return Counter(one.entry.state.value if one.entry else "nowhere" for one in self.keys)

    @property
    def doubts(self) -> list[KeyEvidence]:
        """The keys that are in doubt at the end."""
        return [one for one in self.keys if one.entry and one.entry.state is KeyState.IN_DOUBT]


class _Books:
    """The files that were written during the trial, by key."""

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
    """Run recoveries until only doubts are left, then collect the evidence about every key."""
    books = _Books(place)
    try:
        found = asyncio.run(_look(place, keys, books))
    except (sqlite3.DatabaseError, JournalFailed):  # the journal is corrupt
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
    """Read every key in the journal and in the bank's book."""

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
    """Return each entry when `recover` has nothing left to do but doubts or, with ``resolve``, nothing."""
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
            await asyncio.sleep(LEASE / 4)  # until the last leases end


# --- what must be true ---------------------------------------------------------------------------


TIME_STEP = 0.002
"""The maximum difference in seconds between the clocks of the journal and of a worker on the same machine."""

_ENDS = (KeyState.CREATED, KeyState.FREE, KeyState.IN_DOUBT)

Faults = Iterator[tuple[str, str]]
"""The kind and the description of each broken promise."""


def violations(evidence: Evidence, *checks: Callable[[KeyEvidence], Faults]) -> list[tuple[str, str]]:
    """Return the kind and the description of every broken promise."""
    found = [
        (kind, f"{one.key}: {why} ({one.story})")
        for one in evidence.keys
        for check in checks
        for kind, why in check(one)
    ]
    found += [("unasked", f"{key}: an order exists that was never requested") for key in evidence.unasked]
    owners: dict[str, str] = {}
    for one in evidence.keys:
        if one.entry is not None and one.entry.order_id is not None:
            other = owners.setdefault(one.entry.order_id, one.key)
            if other != one.key:
                found.append(("shared", f"{one.key}: has the order of {other}"))
    return found


def of_the_key(one: KeyEvidence) -> Faults:
    """Check that at most one order exists, and that the journal, the service and the bank agree on it."""
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
        yield "unended", "no outcome was reported"
    # With two concurrent deliveries, one may be created, and the other refused but reported last.
    elif one.orders and one.ends <= {"refused", "not_sent"}:
        yield "lost", "only failures were reported, and an order exists"


def of_the_marks(one: KeyEvidence) -> Faults:
    """Check that every request follows a mark, in trials that record every request."""
    if one.received > len(one.sends):
        yield "unmarked", f"{one.received} requests, of which {len(one.sends)} are accounted for"
    for attempt, at in one.sends:
        if one.marks.get(attempt, float("inf")) > at + TIME_STEP:
            yield "unmarked", "a request was sent without its mark"


def of_the_telling(one: KeyEvidence) -> Faults:
    """Check that the recorded outcome was reported."""
    if one.entry is None:
        return
    if one.entry.pending_notifications:
        yield "untold", "the outcome of its doubt was not reported"
    if one.entry.state is KeyState.CREATED and ("created", one.entry.order_id) not in set(one.told):
        yield "untold", "the order was not reported"
    if one.entry.state is KeyState.IN_DOUBT and "unknown" not in one.ends:
        yield "untold", "the doubt was not reported"
    ending = one.entry.ending
    if one.entry.state is KeyState.FREE and ending is not None and ending.outcome.value not in one.ends:
        yield "untold", f"{ending.error} was not reported"


# --- the table -----------------------------------------------------------------------------------


SHOWN = 10
"""The maximum number of violations that are described."""

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
    """The result of a trial.

    Args:
        title: the name and the settings of the trial.
        trials: the number of kills and other faults.
        rows: the trial's own counts.
        evidence: the evidence about all keys.
        violations: the broken promises.
    """

    title: str
    trials: int
    rows: Sequence[tuple[str, int]]
    evidence: Evidence
    violations: Sequence[tuple[str, str]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
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
