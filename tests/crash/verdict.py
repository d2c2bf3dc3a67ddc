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

from attrs import define, field, frozen

from tests.crash.bank import Bank, lines, open_holds
from tests.crash.setting import LEASE, POLICY, SCOPE, Place
from tests.support.promises import Faults, KeyEvidence, broken_promises
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
class Evidence(KeyEvidence):
    """The evidence about one key after a trial.

    Args:
        sends: the attempt and the time of every request that a worker was about to send.
        received: the number of requests that the service received.
        is_listed: whether the journal lists the key among those in doubt.
        resolved: the journal's entry, when all doubts have been resolved.
        history: the journal's history of the key.
        holds_resolved: the number of open holds, when all doubts have been resolved.
    """

    sends: Sequence[tuple[str, float]]
    received: int
    # These fields are empty if the journal cannot be read:
    entry: Entry | None = None
    is_listed: bool = False
    resolved: Entry | None = None
    history: Sequence[HistoryEvent] = ()
    open_effects: frozenset[tuple[str, str]] = frozenset()
    holds_resolved: int = 0

    @property
    def ends(self) -> set[str]:
        """The reported outcomes."""
        return {ended for ended, _ in self.reported}

    @property
    def story(self) -> str:
        """A summary of the key's history and its reported outcomes."""
        moves = (f"{step.move} {step.intent_id[:3]}.{step.epoch}" for step in self.history)
        return f"{', '.join(moves)}; reported {', '.join(ended for ended, _ in self.reported)}"


class _Books:
    """The files that were written during the trial, by key."""

    def __init__(self, place: Place) -> None:
        service = json.loads(place.path("service").read_text(encoding="utf-8"))
        self.received: dict[str, int] = service["received"]
        self.orders: dict[str, list[str]] = {}
        self.sends: dict[str, list[tuple[str, float]]] = {}
        self.outcomes: dict[str, list[tuple[str, str]]] = {}
        for key, order_id in service["orders"]:
            self.orders.setdefault(key, []).append(order_id)
        for key, attempt, at in lines(place.path("sent")):
            self.sends.setdefault(key, []).append((attempt, float(at)))
        for key, ended, order_id in lines(place.path("outcomes")):
            self.outcomes.setdefault(key, []).append((ended, order_id))


async def _look(place: Place, keys: Sequence[str], books: _Books) -> dict[str, dict[str, Any]]:
    """Run recoveries until only doubts are left. Read every key in the journal and in the bank's book."""

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
                "open_effects": frozenset(("hold", intent_id) for intent_id in holds.get(key, nothing)),
                "holds_resolved": len(holds_resolved.get(key, nothing)),
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


def of_the_key(one: Evidence) -> Faults:
    """Check the key in the end, the answers that were given about it, and that its doubt can be resolved."""
    yield from broken_promises(one)
    is_in_doubt = one.entry is not None and one.entry.state is KeyState.IN_DOUBT
    if one.is_listed is not is_in_doubt:
        yield "unended", f"in doubt: {is_in_doubt}, and listed in doubt: {one.is_listed}"
    end = one.resolved and one.resolved.state
    if end is not (KeyState.CREATED if one.orders else KeyState.FREE):
        yield "unresolved", f"{len(one.orders)} orders exist, and it ended {end}"
    if one.holds_resolved != min(1, len(one.orders)):
        yield "hold", f"{len(one.orders)} orders and {one.holds_resolved} holds in the end"
    if not one.reported:
        yield "unended", "no outcome was reported"
    # With two concurrent deliveries, one may be created, and the other refused but reported last.
    elif one.orders and one.ends <= {"refused", "not_sent"}:
        yield "lost", "only failures were reported, and an order exists"


def of_the_marks(one: Evidence) -> Faults:
    """Check that every request follows a mark, in trials that record every request."""
    marks = {step.attempt: step.at for step in one.history if step.move == "mark"}
    if one.received > len(one.sends):
        yield "unmarked", f"{one.received} requests, but only {len(one.sends)} are accounted for"
    for attempt, at in one.sends:
        if marks.get(attempt, float("inf")) > at + TIME_STEP:
            yield "unmarked", "a request was sent without its mark"


def of_the_telling(one: Evidence) -> Faults:
    """Check that the recorded outcome was reported."""
    if one.entry is None:
        return
    if one.entry.pending_notifications:
        yield "unreported", "the outcome of its doubt was not reported"
    if one.entry.state is KeyState.CREATED and ("created", one.entry.order_id) not in set(one.reported):
        yield "unreported", "the order was not reported"
    if one.entry.state is KeyState.IN_DOUBT and "unknown" not in one.ends:
        yield "unreported", "the doubt was not reported"
    ending = one.entry.ending
    if one.entry.state is KeyState.FREE and ending is not None and ending.outcome.value not in one.ends:
        yield "unreported", f"{ending.error} was not reported"


# --- the table -----------------------------------------------------------------------------------


SHOWN = 10
"""The maximum number of violations that are described."""

TRIED = ("kills", "stops", "pauses", "restarts of the broker", "stops of the database")


@define
class Report:
    """The result of a trial.

    Args:
        title: the name and the settings of the trial.
        counts: the rows of its table.
        violations: the kind and the description of each broken promise.
    """

    title: str
    counts: Counter[str] = field(factory=Counter)
    violations: list[tuple[str, str]] = field(factory=list)

    def trouble(self, why: str) -> None:
        """Note an error of the trial itself."""
        self.violations.append(("trouble", why))

    def compare(self, place: Place, keys: Sequence[str], *checks: Callable[[Evidence], Faults]) -> None:
        """Run recoveries until only doubts are left, then check and count every key."""
        books = _Books(place)
        try:
            found = asyncio.run(_look(place, keys, books))
        except (sqlite3.DatabaseError, JournalFailed):  # the journal is corrupt
            traceback.print_exc()
            found = {}
        owners: dict[str, str] = {}
        for key in keys:
            one = Evidence(
                key=key,
                sends=books.sends.get(key, ()),
                received=books.received.get(key, 0),
                orders=books.orders.get(key, ()),
                reported=books.outcomes.get(key, ()),
                **found.get(key, {}),
            )
            self._count(one)
            faults = [fault for check in checks for fault in check(one)]
            order_id = one.entry and one.entry.order_id
            if order_id is not None and owners.setdefault(order_id, key) != key:
                faults.append(("shared", f"has the order of {owners[order_id]}"))
            self.violations += [(kind, f"{key}: {why} ({one.story})") for kind, why in faults]
        for key in sorted(books.orders.keys() - set(keys)):
            self.violations.append(("unasked", f"{key}: an order exists that was never requested"))

    def _count(self, one: Evidence) -> None:
        state = one.entry.state if one.entry else None
        self.counts["keys"] += 1
        self.counts["requests received"] += one.received
        self.counts["reported more than once"] += len(one.reported) > len(set(one.reported))
        self.counts["created"] += state is KeyState.CREATED
        self.counts["free after a no"] += state is KeyState.FREE
        self.counts["reported as unknown"] += "unknown" in one.ends
        self.counts["in doubt"] += state is KeyState.IN_DOUBT
        self.counts["in doubt, and the order exists"] += state is KeyState.IN_DOUBT and bool(one.orders)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
        yield self.title
        for name, count in (self.counts + Counter(kind for kind, _ in self.violations)).items():
            yield f"{name:<40}{count:>7}"
        yield from (f"  {kind}: {why}" for kind, why in self.violations[:SHOWN])
        if not self.violations and (trials := sum(self.counts[name] for name in TRIED)):
            share = f"{min(1.0, 3 / trials):.2%}"
            yield f"none in {trials} trials: with 95 % confidence, at most {share} of them do harm"
