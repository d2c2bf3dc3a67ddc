"""Scenarios for a journal, and the model that checks each step of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from random import Random

import pytest
from attrs import frozen
from msgspec.structs import replace

from transfer_async._models.errors import Attempt, Cause, CauseKind, Outcome
from transfer_async._models.requests import PersonName
from transfer_async.journal import (
    FOUR_EYES,
    KEPT,
    LONGEST_LEASE,
    Decision,
    Ending,
    Entry,
    HistoryEvent,
    Journal,
    KeyState,
    MarkUndone,
    Move,
    PendingUndo,
    Rejection,
    decide,
    history_step,
    is_told,
    is_waiting,
)
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.journal_contract.journal_moves import (
    MAX_AGE,
    RECORDED_LEASE,
    SCOPE,
    WAYS,
    WINDOW,
    LetPass,
    acquire_lease,
    add_undos,
    amend,
    claim,
    create,
    demand,
    doubt,
    expire,
    intent,
    look,
    mark,
    mark_notified,
    mark_undone,
    note,
    of_key,
    propose,
    refute,
    release,
    renew,
    request_notification,
    resolve,
    suspect,
    take_back,
    take_over,
    undos,
    unwatch,
    waive,
    watch,
    withdraw,
)

ANY_NUMBER = 10_000
"""A limit of lists that no test reaches."""

R = Rejection


@frozen
class Step:
    """One transition of a scenario.

    Args:
        move: the transition.
        denial: the expected rejection; None if the transition must succeed.
        key: the key to which the transition applies.
    """

    move: Move
    denial: Rejection | None = None
    key: str = "k"


Scenario = tuple["float | Move | Step | Scenario", ...]
"""Transitions, and the seconds between them. A plain `Move` is a step on the key ``k`` that must succeed."""


class Model:
    """Applies each transition both with `decide` and in the journal, and compares the results.

    Args:
        journal: the journal under test.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._entries: dict[tuple[str, str], Entry] = {}
        self._history: dict[tuple[str, str], list[HistoryEvent]] = {}

    async def play(self, scenario: Scenario, pass_time: LetPass, *, scope: str) -> None:
        """Apply every step of a scenario in the given scope."""
        for item in scenario:
            if isinstance(item, tuple):
                await self.play(item, pass_time, scope=scope)
            elif isinstance(item, float):
                pass_time(item)
            else:
                step = item if isinstance(item, Step) else Step(item)
                assert await self.apply(step.move, scope=scope, key=step.key) is step.denial, step

    async def apply(self, move: Move, *, scope: str = SCOPE, key: str = "k") -> Rejection | None:
        """Apply one transition, check its result and the key's entry, and return the rejection or None."""
        place, move = (scope, key), of_key(move, key)
        before = self._entries.get(place)
        if isinstance(move, MarkUndone) and move.lease_until == RECORDED_LEASE:
            pending = before.pending_undos if before is not None else ()
            leases = (undo.lease_until for undo in pending if undo.intent.id == move.intent_id)
            move = replace(move, lease_until=next(leases, 0.0))
        result = await self._journal.move(scope, key, move)
        expected = decide(
            before,
            move,
            now=await self._journal.now() if result is None else result.now,
            id_taken=any(
                move.order_bound is not None and entry.order_id == move.order_bound
                for other, entry in self._entries.items()
                if other[0] == scope and other != place
            ),
            four_eyes=self._entries.get((scope, FOUR_EYES)) if move.is_by_one_person else None,
        )
        assert result == expected
        assert await self._journal.read(scope, key) == (None if expected is None else expected.entry)
        if expected is None:
            return None
        self._entries[place] = expected.entry
        if expected.entry is not before and is_told(move, expected):
            self._history.setdefault(place, []).append(history_step(expected.entry, move, now=expected.now))
        return expected.denial

    async def compare(self) -> None:
        """Compare all entries, histories and lists of the journal with the model's."""
        for (scope, key), expected in self._entries.items():
            found = await self._journal.read(scope, key)
            assert found == expected
            assert _since(found) == _since(expected)
            steps, wanted = await self._journal.history(scope, key), self._history.get((scope, key), [])
            assert [replace(step, at=0.0) for step in steps] == [replace(step, at=0.0) for step in wanted]
            assert _elapsed(steps) == pytest.approx(_elapsed(wanted), abs=1e-3)
        for scope in {scope for scope, _ in self._entries}:
            await self._compare_lists(scope)

    async def _compare_lists(self, scope: str) -> None:
        now = await self._journal.now()
        entries = {key: entry for (at, key), entry in self._entries.items() if at == scope}
        doubts = sorted(key for key, entry in entries.items() if entry.state is KeyState.IN_DOUBT)
        assert _keys(await self._journal.in_doubt(scope)) == doubts
        assert await self._journal.count_in_doubt(scope) == len(doubts)
        waiting = sorted(key for key, entry in entries.items() if is_waiting(entry, now))
        assert _keys(await self._journal.work(scope, limit=ANY_NUMBER)) == waiting


def _since(entry: Entry) -> list[float | None]:
    return [undo.since for undo in entry.pending_undos] + [
        pending.since for pending in entry.pending_notifications
    ]


def _elapsed(steps: Sequence[HistoryEvent]) -> list[float]:
    """Return the seconds from the first step to each step."""
    return [step.at - steps[0].at for step in steps]


def _keys(found: Iterable[tuple[str, Entry]]) -> list[str]:
    return sorted(key for key, _ in found)


def random_move(chance: Random, order_id: str) -> Move:
    """Return a random transition, which the journal will often reject."""
    number, attempt = chance.randint(1, 3), chance.choice("ab")
    owed = undos(*chance.sample(["hold", "check"], chance.randint(0, 2)), number=number)
    drawn: list[Move] = [
        claim(number),
        claim(number, once=True),
        renew(number=number, check="r-1"),
        mark(attempt, number=number, hold="r-ü"),
        mark(attempt, number=number, epoch=2),
        create(attempt, order_id),
        release(attempt, number=number, pending_undos=owed),
        release(None, number=number, pending_undos=owed),
        doubt(attempt),
        expire(attempt),
        resolve(attempt, order_id),
        refute(attempt, pending_undos=owed),
        take_over(number=number),
        acquire_lease(),
        mark_undone("hold", number=number, lease_until=RECORDED_LEASE),
        add_undos("hold", number=number),
        suspect(order_id),
        request_notification(number),
        propose(order_id=order_id, attempt=attempt, number=number),
        resolve(attempt, order_id, by="ben", proposal=f"proposal-{number}"),
        amend(order_id, f"{order_id}-2", attempt),
        take_back(order_id, attempt),
    ]
    return chance.choice(drawn)


# --- scenarios ---------------------------------------------------------------------------------------


LONG = "r-ü№ " * 200
SEND_BEFORE = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
INTENT = intent(
    held=f"held {LONG}",
    beneficiary=PersonName(first="Bẹ́n", last="Okri-№", middle="O"),
    send_before=SEND_BEFORE,
)
ATTEMPT = Attempt(
    number=1,
    seconds=0.25,
    outcome=Outcome.UNKNOWN,
    status=200,
    error="E",
    request_id="r-1",
    began=SEND_BEFORE,
)
CAUSE = Cause(
    kind=CauseKind.UNREADABLE_ANSWER,
    status=200,
    error="ClientPayloadError",
    candidate="tx-7",
    attempts=(ATTEMPT,),
)
UNDOS = tuple(PendingUndo(intent=INTENT, hook=f"hook-{number}", receipt=LONG) for number in range(20))
ENDING = Ending(
    outcome=Outcome.REFUSED,
    error="Refused",
    status=422,
    refused=True,
    in_vain=True,
    fields=("matcher_amount", "exchange_rate"),
)
DOUBTED = (
    claim(intent=INTENT, client_made=True, hooks=tuple(undo.hook for undo in UNDOS)),
    renew(check=LONG),
    mark(check=LONG, hold="r-ü"),
    *(doubt(candidate=f"tx-{number}", cause=CAUSE) for number in range(7, 27)),
    request_notification(),
)
FULL: dict[str, Scenario] = {
    "every field of an order in doubt is stored": (*DOUBTED, watch(), propose(said=LONG)),
    "every field of a resolved order is stored": (*DOUBTED, resolve(order_id="tx-7")),
    "every field of pending undos is stored": (
        claim(intent=INTENT),
        release(None, pending_undos=UNDOS),
        claim(2),
        mark("b", number=2),
        suspect(number=3, reason=LONG),
    ),
    "every field of a refusal is stored": (claim(), mark(), release(ending=ENDING)),
    "a long history": (claim(), *(suspect(f"tx-{number}", reason=LONG) for number in range(60))),
}
"""Scenarios that fill every field of an entry with the maximum content."""

CLAIMED, SENDING, IN_DOUBT, CREATED = (
    WAYS[state] for state in (KeyState.CLAIMED, KeyState.SENDING, KeyState.IN_DOUBT, KeyState.CREATED)
)
RESOLVED: Scenario = (IN_DOUBT, resolve())
PROPOSED: Scenario = (IN_DOUBT, propose())
DEMANDED = Step(demand(), key=FOUR_EYES)
WAIVED = (Step(propose(Decision.WAIVE, attempt=None), key=FOUR_EYES), Step(waive(), key=FOUR_EYES))
APPROVAL = resolve(by="ben", proposal="proposal-1")
SHORTLY = 0.001  # seconds


def _lost(*wanted: Move) -> tuple[Step, ...]:
    return tuple(Step(move, R.LOST) for move in wanted)


LEASES: dict[str, Scenario] = {
    "a claim can be taken over after its lease expires, not before": (
        (claim(), renew(check="r-1"), LEASE - SHORTLY),
        (Step(claim(2), R.BUSY), SHORTLY, claim(2), mark(epoch=2)),
    ),
    "a worker whose claim was taken over can no longer change the key": (
        (claim(), LEASE, claim(2)),
        _lost(renew(), mark(), release(None), take_over()),
        mark(epoch=2),
    ),
    "a worker whose lease ran out can release its claim but not send": (
        (claim(), LEASE),
        _lost(mark(), renew()),
        release(None),
    ),
    "a lease is renewed": (claim(), LEASE - 1, renew(), LEASE - 1, Step(claim(2), R.BUSY)),
    "a claim that reaches the maximum age can be taken over": (claim(), MAX_AGE, claim(2), mark(epoch=2)),
    "a claim that is too old is undone and a new intent begins": (
        (claim(), renew(check="r-1"), MAX_AGE + 1, claim(2, hooks=("other",))),
        _lost(mark(epoch=2)),
        mark(number=2),
    ),
    "a claim that is renewed is never too old": (
        claim(),
        (LEASE - 1, renew()) * 30,
        Step(claim(2), R.BUSY),
    ),
    "a claim puts an expired request in doubt": (
        (claim(), mark(), 10 * MAX_AGE, Step(claim(2), R.IN_DOUBT), Step(claim(3), R.IN_DOUBT)),
    ),
    "a request does not expire before its lease": (
        (claim(), mark(), LEASE - SHORTLY, Step(expire(), R.BUSY), SHORTLY, _lost(expire("b"))),
        (expire(), resolve()),
    ),
    "a take-over is refused until the lease ends": (
        (claim(), Step(take_over(), R.BUSY), LEASE, take_over()),
        mark(epoch=2),
    ),
    "a worker of an earlier intent has no claim on the next intent": (
        (claim(), LEASE, take_over(), release(None, epoch=2), claim(2)),
        _lost(renew(), mark(), release(None), take_over()),
        mark(number=2),
    ),
    "a worker whose clock was set back cannot send": (
        (KEPT, claim(), -2 * LONGEST_LEASE),
        _lost(mark()),
        claim(2),
    ),
    "leases expire even if the clock was once years ahead": (
        (3650 * KEPT, claim(), Step(claim(), key="sending"), Step(mark(), key="sending")),
        (-3650 * KEPT, claim(2), Step(claim(2), R.IN_DOUBT, key="sending")),
        (Step(refute(), R.TOO_EARLY, key="sending"), LONGEST_LEASE + SETTLE_AFTER),
        Step(refute(), key="sending"),
    ),
}

SETTLING: dict[str, Scenario] = {
    "an order that the sender reports replaces a recorded doubt": (
        (claim(), mark(), LEASE, expire()),
        _lost(create("b")),
        create(),
    ),
    "a refusal that the sender reports replaces a recorded doubt": (
        (claim(), mark(), LEASE, expire()),
        _lost(release("b")),
        release(),
    ),
    "created is final": (
        (CREATED, 10 * MAX_AGE),
        _lost(renew(), take_over(), mark(), create(), release(), release(None)),
        _lost(doubt(), expire(), resolve(), refute()),
        Step(claim(2), R.CREATED),
    ),
    **{
        f"a claim for another order is rejected while the key is {state.value}": (
            way,
            Step(claim(2, fingerprint="another"), None if state is KeyState.FREE else R.CONFLICT),
        )
        for state, way in WAYS.items()
    },
    "a refutation waits until the request can no longer take effect": (
        (claim(), mark(), LEASE, expire(), WINDOW + SETTLE_AFTER - LEASE - SHORTLY),
        (Step(refute(), R.TOO_EARLY), SHORTLY, refute(pending_undos=undos("hold"))),
    ),
    "a sender's report shortens the wait before a refutation": (
        (claim(), mark(), 5.0, doubt(), SETTLE_AFTER - SHORTLY),
        (Step(refute(), R.TOO_EARLY), SHORTLY, refute()),
    ),
    "a decision applies to one attempt only": (
        (IN_DOUBT, SETTLE_AFTER + WINDOW),
        _lost(resolve("b"), refute("b")),
        resolve(),
    ),
    "an attempt made for an earlier intent cannot settle a later one": (
        (claim(), mark(), release(), claim(2, fingerprint="another"), mark("b", number=2)),
        _lost(create(), release(), doubt(), resolve()),
    ),
    "an order that appears after its refutation binds the key again": (
        (IN_DOUBT, SETTLE_AFTER + WINDOW, refute(), create()),
    ),
    "a claim with `once` returns the recorded refusal": (
        (claim(), mark(), release(), Step(claim(2, once=True), R.REFUSED), claim(2)),
    ),
    **{
        f"a duplicate can be suspected for a key that is {state.value}": (way, suspect())
        for state, way in WAYS.items()
    },
    "a suspected duplicate puts a key without an entry in doubt": (suspect(), Step(claim(), R.IN_DOUBT)),
    "no order is sent for a key with a suspected duplicate": (
        (claim(), mark(), release(), claim(2), suspect()),
        _lost(mark("b", number=2), release(None, number=2, pending_undos=undos("hold", number=2))),
    ),
}

PENDING: dict[str, Scenario] = {
    "an undo can become pending while a lease is held": (
        claim(),
        release(None, pending_undos=undos("hold", "check")),
        LEASE,
    ),
    "an undo that is done is no longer pending": (
        (
            claim(),
            release(None, pending_undos=undos("hold", "check"), lease=0.0),
            mark_undone("hold", lease_until=RECORDED_LEASE),
        ),
    ),
    "an undo of one intent does not affect the undos of other intents": (
        (claim(), release(None, pending_undos=undos("hold"), lease=0.0)),
        (claim(2), release(None, number=2, pending_undos=undos("hold", number=2), lease=0.0)),
        mark_undone("hold", number=2, lease_until=RECORDED_LEASE),
    ),
    "an undo that became due again in the meantime stays pending": (
        (
            claim(),
            release(None, pending_undos=undos("hold"), lease=0.0),
            1.0,
            add_undos("hold"),
            mark_undone("hold"),
        ),
    ),
    "an undo that becomes due late is recorded as pending only once": (
        (claim(), release(None, pending_undos=undos("hold")), claim(2), add_undos("hold", "check")),
    ),
    "pending undos stay pending after later intents": (
        (claim(), release(None, pending_undos=undos("hold")), claim(2), mark(number=2), create()),
    ),
    "one worker at a time carries out the pending undos": (
        (claim(), release(None, pending_undos=undos("hold"), lease=0.0), acquire_lease()),
        (Step(acquire_lease(), R.BUSY), LEASE, acquire_lease()),
    ),
    "one worker at a time resolves an order in doubt, and may release its lease": (
        (IN_DOUBT, acquire_lease(), Step(acquire_lease(), R.BUSY), acquire_lease(0.0), acquire_lease()),
    ),
    "a notification is pending after an order published as unknown is resolved": (
        (IN_DOUBT, request_notification(), resolve(), 1.0, mark_notified()),
    ),
    "a notification is pending after an order published as unknown is refuted": (
        IN_DOUBT,
        request_notification(),
        SETTLE_AFTER + WINDOW,
        refute(),
    ),
}

DECISIONS: dict[str, Scenario] = {
    "another person approves a proposal": (PROPOSED, APPROVAL),
    **{
        f"a proposer cannot approve their own proposal under the name {by!r}": (
            PROPOSED,
            Step(resolve(by=by, proposal="proposal-1"), R.SAME_PERSON),
        )
        for by in ("ada", " Ada", "ADA ", "\uff41da")
    },
    **{
        f"a proposal is void after {move.name}": (PROPOSED, move, Step(APPROVAL, R.VOID))
        for move in (doubt(), request_notification(), suspect(), propose(number=2))
    },
    "a proposal stays valid if the key is viewed or watched, or gets a note": (
        (PROPOSED, look(), note(), watch(), unwatch(), watch(), APPROVAL),
    ),
    "only the proposed decision can be approved": (
        (PROPOSED, SETTLE_AFTER),
        Step(resolve(order_id="tx-9", by="ben", proposal="proposal-1"), R.VOID),
        Step(resolve(by="ben", proposal="proposal-2"), R.VOID),
        Step(refute(by="ben", proposal="proposal-1"), R.VOID),
    ),
    "a refutation cannot be proposed while the request may take effect": (
        (IN_DOUBT, Step(propose(Decision.REFUTE), R.TOO_EARLY), SETTLE_AFTER),
        (propose(Decision.REFUTE), refute(by="ben", proposal="proposal-1")),
    ),
    "a proposal that was withdrawn is void": (
        (PROPOSED, withdraw(), Step(APPROVAL, R.VOID), Step(withdraw(), R.VOID)),
    ),
    "only a decision that the key's state allows can be proposed": (
        (CREATED, Step(propose(Decision.AMEND, "tx-2"), R.ANSWERED)),
        _lost(propose(Decision.RESOLVE)),
        *(Step(move, key="k2") for move in (claim(), mark(), doubt())),
        Step(propose(Decision.RESOLVE, "tx-1"), R.FOREIGN, key="k2"),
        Step(propose(Decision.WAIVE), R.LOST, key="k2"),
    ),
    "a corrected order id is free for another key": (
        (RESOLVED, amend()),
        *(Step(move, key="k2") for move in (claim(), mark(), doubt(), resolve())),
        Step(amend(), R.FOREIGN, key="k2"),
    ),
    "withdrawing the recorded order id puts the key in doubt again": (
        (claim(), mark(hold="r"), doubt(), resolve(), take_back(), SETTLE_AFTER, refute()),
    ),
    "an order that the service returned cannot be amended": (
        (CREATED, Step(amend(), R.ANSWERED), Step(take_back(), R.ANSWERED)),
    ),
    "a corrected order id is published too": (
        (IN_DOUBT, request_notification(), resolve(), amend(), amend("tx-2", "tx-3"), take_back("tx-3")),
    ),
    "a proposed correction waits for another person's approval": (
        (RESOLVED, propose(Decision.AMEND, "tx-2"), KEPT),
        amend(by="ben", proposal="proposal-1"),
    ),
    "one person can demand dual control, but waiving it takes two": (
        (DEMANDED, Step(waive(), R.VOID, key=FOUR_EYES), WAIVED[0]),
        (Step(waive(by="Ada"), R.SAME_PERSON, key=FOUR_EYES), WAIVED[1], DEMANDED),
    ),
    **{
        f"under dual control, nobody can {decision.name} alone": (
            (way, SETTLE_AFTER, DEMANDED, Step(decision, R.ALONE), WAIVED, decision)
        )
        for way, decisions in ((IN_DOUBT, (resolve(), refute())), (RESOLVED, (amend(), take_back())))
        for decision in decisions
    },
    "under dual control, programs and approvers can still decide": (
        (DEMANDED, IN_DOUBT, resolve(by_program=True)),
        *(Step(move, key="k2") for move in (claim(), mark(), doubt(), propose(order_id="tx-2"))),
        Step(resolve(order_id="tx-2", by="ben", proposal="proposal-1"), key="k2"),
    ),
    "demanding dual control a second time changes nothing": (DEMANDED, WAIVED[0], DEMANDED, WAIVED[1]),
    "dual control cannot be demanded or waived for a single order's key": (CREATED, _lost(demand(), waive())),
}

SCENARIOS: dict[str, Scenario] = {**FULL, **LEASES, **SETTLING, **PENDING, **DECISIONS}
"""The scenarios by title."""
