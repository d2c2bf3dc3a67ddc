"""One key, its entry in the journal, and all actors: every step that is possible from a state.

The steps are named after the functions in `transfer_async._pipeline` that they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs
import msgspec
from msgspec.structs import replace

from tests.support import journalling as moves
from transfer_async._models.errors import Attempt, Cause, CauseKind, Outcome
from transfer_async._pipeline.create_order import claimed_key
from transfer_async.journal import model, state_machine
from transfer_async.journal.model import (
    ABANDONED,
    AT_WORK,
    SUSPECTED,
    Ending,
    Entry,
    KeyState,
    PendingUndo,
    Rejection,
    TransitionResult,
    undos_on_failure,
)
from transfer_async.journal.transitions import (
    AcquireLease,
    AddPendingUndos,
    Claim,
    Create,
    Expire,
    GoInDoubt,
    MarkSending,
    Move,
    OfAttempt,
    Refute,
    Release,
    RenewLease,
    Resolve,
    Suspect,
    TakeOver,
    is_waiting,
)

# --- time ---------------------------------------------------------------------------------------
# A tick moves all stored times into the past, while the clock stands still at NOW.

NOW = 1_000_000.0
LEASE = WINDOW = 2
TICK = model.LEASE / LEASE
"""The ticks of a lease, and of the time for sending after the mark."""
AFTER_TICK = {"sent": "on_the_way", "on_the_way": "gone"}
"""The name of an unprocessed request after the next tick. After two ticks, it is never processed."""
SETTLE_AFTER = 2
ABANDONED_SETTLE_AFTER = 4
MAX_CLAIM_AGE = 3
OLDEST = 7
"""The age in ticks beyond which no decision depends on it."""

INTENTS = (moves.intent(0), moves.intent(1))
ORDER_IDS = ("tx-0", "tx-1")
ATTEMPTS = ("attempt-0", "attempt-1")
TRIED = (Attempt(number=1, seconds=0.1, outcome=Outcome.UNKNOWN),)
NO_ANSWER = Cause(kind=CauseKind.NO_ANSWER, attempts=TRIED)
PUBLISHES = 1
"""The worker with a queue, which publishes outcomes and replays a recorded refusal."""

BOUND = (KeyState.SENDING, KeyState.IN_DOUBT, KeyState.CREATED)


class Broken(Exception):
    """An invariant does not hold after a step."""


class Actor(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The knowledge of a worker, the recovery or the operator.

    Args:
        pc: the step that comes next.
        intent: the number of the intent that it works on; -1 before a claim.
        epoch: the epoch of its claim.
        receipt: whether it has the hold's receipt.
        inherited: whether an earlier worker may have placed the hold.
        age: ticks since its mark; -1 before it.
        earlier: the pending undos of earlier intents, each an intent's number and the lease.
        todo: the pending undos that it runs now.
        then: the step after those.
        note: what the next step needs beside that.
        disturbed: whether others have changed the key since its last look or write.
    """

    pc: str = "start"
    intent: int = -1
    epoch: int = 0
    receipt: bool = False
    inherited: bool = False
    age: int = -1
    earlier: tuple[tuple[int, float], ...] = ()
    todo: tuple[tuple[int, float], ...] = ()
    then: str = ""
    note: tuple[Any, ...] = ()
    disturbed: bool = False


class State(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The complete state of the model.

    Args:
        entry: the number of the journal's entry in `Book`; -1 for none.
        actors: two workers, the recovery, the operator.
        requests: for each worker's request: "none", one of `AFTER_TICK`, "made", "refused" or "gone".
        holds: for each intent, whether the bank holds its funds.
        excused: for each worker, whether its doubt was refuted after every wait while it was stopped between
            its last check and the write. Nobody can prevent its order; it must be found.
        sent_late: for each worker, whether it sent after its time: it was stopped after its last check.
        refuted: for each worker, whether a refutation ended its attempt.
        late: for each intent, whether its hold was placed after others had ended it.
        unknown: for each intent, whether its outcome was published as unknown and its end not yet.
        crashes: how many more may happen.
    """

    entry: int = -1
    actors: tuple[Actor, ...] = (Actor(), Actor(), Actor("idle"), Actor("idle"))
    requests: tuple[str, ...] = ("none", "none")
    holds: tuple[bool, ...] = (False, False)
    excused: tuple[bool, ...] = (False, False)
    sent_late: tuple[bool, ...] = (False, False)
    refuted: tuple[bool, ...] = (False, False)
    late: tuple[bool, ...] = (False, False)
    unknown: tuple[bool, ...] = (False, False)
    crashes: int = 0


RECOVERY, OPERATOR = 2, 3
Step = tuple[str, State]


def put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def earlier_by(time: float, ticks: int = 1) -> float:
    """Return ``time`` after this number of ticks; 0 means none."""
    return time and max(time - ticks * TICK, NOW - OLDEST * TICK)


def number_of(intent_id: str) -> int:
    return int(intent_id[-1])


def owing(debts: tuple[tuple[int, str | None], ...]) -> tuple[PendingUndo, ...]:
    return tuple(PendingUndo(intent=INTENTS[at], hook="hold", receipt=receipt) for at, receipt in debts)


def debts_of(entry: Entry) -> tuple[tuple[int, str | None], ...]:
    """Return the result of `undos_on_failure` as the actors store it."""
    return tuple((number_of(undo.intent.id), undo.receipt) for undo in undos_on_failure(entry))


def leases_of(entry: Entry) -> tuple[tuple[int, float], ...]:
    return tuple((number_of(undo.intent.id), undo.lease_until) for undo in entry.pending_undos)


# --- the transitions that the actors make -------------------------------------------------------


def refute(attempt: str, debts: Any, *, program: bool) -> Move:
    return replace(
        moves.refute(attempt, pending_undos=owing(debts), by_program=program),
        settle_after=SETTLE_AFTER * TICK,
        abandoned_settle_after=ABANDONED_SETTLE_AFTER * TICK if program else None,
        lease=LEASE * TICK if program else 0.0,
    )


def resolve(attempt: str, order_id: str, *, program: bool) -> Move:
    reply = b"{}" if program else None
    return replace(moves.resolve(attempt, order_id, by_program=program), reply=reply)


def suspect(at: int, intent: int, order_id: str | None) -> Move:
    return replace(
        moves.suspect(order_id, number=intent),
        attempt=ATTEMPTS[at],
        hooks=("hold",),
        receipts={"hold": "r"},
        outcome=Outcome.UNKNOWN if order_id is None else Outcome.CREATED,
        publish=at == PUBLISHES,
    )


def release(intent: int, epoch: int, attempt: str | None, ended: str, debts: Any) -> Move:
    outcome = Outcome.REFUSED if ended == "Refused" else Outcome.NOT_SENT
    ending = Ending(outcome=outcome, error=ended, status=422 if ended == "Refused" else None)
    return moves.release(attempt, epoch=epoch, number=intent, pending_undos=owing(debts), ending=ending)


def claim(at: int) -> Move:
    once = at == PUBLISHES
    return moves.claim(at, hooks=("hold",), max_claim_age=MAX_CLAIM_AGE * TICK, once=once)


def mark(at: int, intent: int, epoch: int) -> Move:
    return replace(moves.mark(ATTEMPTS[at], epoch=epoch, number=intent, hold="r"), window=WINDOW * TICK)


MOVES: dict[str, Any] = {
    "claim": claim,
    "keep": lambda intent, epoch: moves.renew(epoch, number=intent),
    "mark": mark,
    "create": lambda at: replace(moves.create(ATTEMPTS[at], ORDER_IDS[at], b"{}"), publish=at == PUBLISHES),
    "release": release,
    "doubt": lambda at: moves.doubt(ATTEMPTS[at], cause=NO_ANSWER),
    "expire": moves.expire,
    "takeover": lambda intent, epoch: moves.take_over(epoch, number=intent),
    "attend": lambda lease: moves.acquire_lease(lease * TICK),
    # This lease differs from all others, as no two writes of a key have the same time.
    "owe": lambda debts: AddPendingUndos(pending_undos=owing(debts), lease=LEASE * TICK - 1.0),
    "undone": lambda intent, lease: moves.mark_undone("hold", number=intent, lease_until=lease),
    "failed": lambda intent, lease: moves.mark_undone(number=intent, lease_until=lease),
    "refute": refute,
    "resolve": resolve,
    "suspect": suspect,
    "promise": moves.request_notification,
    "notified": moves.mark_notified,
}

COMPARED = ("claim", "keep", "mark", "takeover", "attend", "expire", "doubt")
"""Transitions after which their actor knows the current state of the key."""
BOOKKEEPING = ("undone", "owe", "attend", "notified", "suspect")
"""Transitions that are never rejected because of a change of the key."""
STATE_AFTER = {
    Claim: KeyState.CLAIMED,
    TakeOver: KeyState.CLAIMED,
    RenewLease: KeyState.CLAIMED,
    MarkSending: KeyState.SENDING,
    Expire: KeyState.IN_DOUBT,
    GoInDoubt: KeyState.IN_DOUBT,
    Create: KeyState.CREATED,
    Resolve: KeyState.CREATED,
    Release: KeyState.FREE,
    Refute: KeyState.FREE,
}
"""The state that the actors expect after a transition. Other transitions do not change the state."""


@cache
def move_of(name: str, arguments: tuple[Any, ...], program: bool | None) -> Move:
    more = {} if program is None else {"program": program}
    move: Move = MOVES[name](*arguments, **more)
    return move


# --- the journal --------------------------------------------------------------------------------


class Book:
    """All entries that the key may have, and the decisions of `decide` about them, each computed once.

    Args:
        decide: the state machine's function, or a wrong one.
    """

    def __init__(self, decide: Any = None) -> None:
        self._decide = decide or state_machine.decide
        self.entries: list[Entry] = []
        self._numbers: dict[Any, int] = {}
        self._verdicts: dict[Any, tuple[int, Rejection | None, bool]] = {}
        self._asked_at: dict[Any, State] = {}
        self.state = State()  # the state that is being explored
        self._ticked: dict[int, int] = {}
        self.rows: set[tuple[type, KeyState]] = set()

    def number(self, entry: Entry) -> int:
        """Return the number of ``entry``. Differences that affect no decision are ignored."""
        is_claimed = entry.state is KeyState.CLAIMED
        entry = replace(entry, version=1, claimed_at=entry.claimed_at if is_claimed else NOW)
        owed = tuple((undo.intent.id, undo.receipt, undo.lease_until) for undo in entry.pending_undos)
        key = (
            *(entry.state, entry.intent_id, entry.intent is None, entry.epoch, entry.claimed_at),
            *(entry.lease_until, entry.sent_until, entry.attempt, entry.order_id, entry.reply, entry.ending),
            *(
                owed,
                tuple(entry.receipts),
                entry.notification_requested,
                entry.pending_notifications,
                entry.candidates,
                entry.cause,
            ),
        )
        if key not in self._numbers:
            self._numbers[key] = len(self.entries)
            self.entries.append(entry)
        return self._numbers[key]

    def write(
        self, number: int, name: str, *arguments: Any, program: bool | None = None
    ) -> tuple[int, Rejection | None, bool]:
        """Return the entry's number after a transition, the rejection, and whether a claim found a doubt."""
        key = (number, name, arguments, program)
        if key not in self._verdicts:
            before = None if number < 0 else self.entries[number]
            move = move_of(name, arguments, program)
            verdict: TransitionResult | None = self._decide(before, move, now=NOW)
            assert verdict is not None
            if before is not None:
                self.rows.add((type(move), before.state))
                _check_transition(before, move, verdict)
            self._verdicts[key] = self.number(verdict.entry), verdict.denial, verdict.found_doubt
            self._asked_at[key] = self.state
        return self._verdicts[key]

    def changed_at(self, kind: type[Move]) -> list[State]:
        """Return the first states in which `decide` now handles a ``kind`` transition differently."""
        found: dict[State, None] = {}
        for (number, name, arguments, program), known in list(self._verdicts.items()):
            move = move_of(name, arguments, program)
            if not isinstance(move, kind):
                continue
            verdict = self._decide(None if number < 0 else self.entries[number], move, now=NOW)
            if verdict is None or known != (self.number(verdict.entry), verdict.denial, verdict.found_doubt):
                found[self._asked_at[number, name, arguments, program]] = None
        return list(found)

    def ticked(self, number: int) -> int:
        """Return the number of the entry after one tick."""
        if number < 0:
            return number
        if number not in self._ticked:
            entry = self.entries[number]
            owed = tuple(
                attrs.evolve(undo, lease_until=earlier_by(undo.lease_until)) for undo in entry.pending_undos
            )
            times = {name: earlier_by(getattr(entry, name)) for name in ("lease_until", "sent_until")}
            later = replace(entry, claimed_at=earlier_by(entry.claimed_at), pending_undos=owed, **times)
            self._ticked[number] = self.number(later)
        return self._ticked[number]


def _check_transition(before: Entry, move: Move, verdict: TransitionResult) -> None:
    """Raise if a transition breaks a rule, no matter who made it."""
    rules = (*_rules(before, move, verdict.entry),)
    if verdict.denial is None:
        rules += (*_rules_if_accepted(before, move, verdict.entry),)
    for is_broken, rule in rules:
        if is_broken:
            raise Broken(f"{type(move).__name__}: {rule}")


def _rules(before: Entry, move: Move, after: Entry) -> Iterator[tuple[bool, str]]:
    """Yield rules about all transitions, including rejected ones, and whether this one breaks them."""
    order, order_after = (before.state, before.order_id), (after.state, after.order_id)
    yield before.state is KeyState.CREATED and order_after != order, "an order on record is final"
    is_its_own = getattr(move, "attempt", None) == before.attempt and not before.is_suspected
    if isinstance(move, Create) and is_its_own and before.state in (*BOUND[:2], KeyState.FREE):
        is_kept = order_after == (KeyState.CREATED, move.order_id) and bool(after.reply)
        yield not is_kept, "the sender's order is recorded, whatever others made of its attempt"
    if isinstance(move, Release) and is_its_own and before.state in BOUND[:2]:
        is_kept = (after.state, after.ending) == (KeyState.FREE, move.ending)
        yield not is_kept, "the sender's failure is recorded, whatever others made of its attempt"
    is_person = isinstance(move, Refute) and not move.by_program
    is_freed = _is_superseded(before) and after.state is KeyState.FREE
    yield is_freed and not is_person, "only a person frees a key of which a duplicate is suspected"


def _is_superseded(entry: Entry) -> bool:
    is_superseded = entry.cause is not None and entry.cause.kind is CauseKind.SUPERSEDED
    return is_superseded and entry.state is not KeyState.FREE


def _is_leased(entry: Entry, *, wanted: bool) -> bool:
    """Return whether all undos and the doubt have a valid lease or, if not ``wanted``, none has."""
    leases = [undo.lease_until for undo in entry.pending_undos]
    leases += [entry.lease_until] if entry.state is KeyState.IN_DOUBT else []
    return all((until > NOW) is wanted for until in leases)


def _rules_if_accepted(before: Entry, move: Move, after: Entry) -> Iterator[tuple[bool, str]]:
    """Yield rules about accepted transitions, and whether this one breaks them."""
    kind = type(move)
    to = STATE_AFTER.get(kind, before.state)
    if kind is Suspect and before.state is KeyState.FREE:
        to = KeyState.IN_DOUBT
    yield after.state is not to, f"leads from {before.state.value} to {after.state.value}"
    yield kind is Suspect and not _is_superseded(after), "what was recorded is on record"
    is_end = kind in (Release, Refute, Resolve, Expire, GoInDoubt, TakeOver)
    yield is_end and before.state not in AT_WORK, "an intent ends once"
    if isinstance(move, OfAttempt):
        yield move.attempt != (before.attempt or ""), "what is known of one attempt says nothing of another"
    if kind in (Expire, TakeOver) or (kind is Claim and before.state is KeyState.CLAIMED):
        yield before.lease_until > NOW, "a lease protects its worker until it expires"
    if kind in (Claim, TakeOver) and before.intent_id == after.intent_id:
        is_taken = after.epoch > before.epoch and after.lease_until > NOW
        yield not is_taken, "a claim that was taken over is no longer its former worker's"
    if kind is RenewLease:
        yield after.lease_until <= before.lease_until, "a renewed lease lasts longer"
    if isinstance(move, AcquireLease) and move.lease:
        is_alone = _is_leased(before, wanted=False) and _is_leased(after, wanted=True)
        yield not is_alone, "one worker at a time runs undos and asks about a doubt"
    if isinstance(move, (Release, Refute, AddPendingUndos)) and move.lease:
        own = {undo.intent.id for undo in move.pending_undos}
        leases = [undo.lease_until for undo in after.pending_undos if undo.intent.id in own]
        yield any(until <= NOW for until in leases), "a worker that adds undos runs them under its lease"


# --- steps --------------------------------------------------------------------------------------


class World:
    """The possible steps from a state, by name, with the state after each.

    Args:
        book: the key's entries.
    """

    def __init__(self, book: Book) -> None:
        self.book = book

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the possible steps of all actors.

        Raises:
            Broken: a step breaks an invariant.
        """
        self.book.state = state
        for at in (0, 1):
            yield from self._worker(state, at)
            yield from self._service(state, at)
        yield from self._recovery(state)
        yield from self._operator(state)
        yield "tick", self._tick(state)

    def entry(self, state: State) -> Entry | None:
        return None if state.entry < 0 else self.book.entries[state.entry]

    # --- the clock and the service ----------------------------------------------------------------

    def _tick(self, state: State) -> State:
        def aged(actor: Actor) -> Actor:
            if actor.age < 0 and not actor.earlier and not actor.todo:
                return actor
            return replace(
                actor,
                age=min(actor.age + 1, OLDEST) if actor.age >= 0 else -1,
                earlier=tuple((at, earlier_by(lease)) for at, lease in actor.earlier),
                todo=tuple((at, earlier_by(lease)) for at, lease in actor.todo),
            )

        return replace(
            state,
            entry=self.book.ticked(state.entry),
            actors=tuple(map(aged, state.actors)),
            requests=tuple(AFTER_TICK.get(one, one) for one in state.requests),
        )

    def _service(self, state: State, at: int) -> Iterator[Step]:
        """Let the service process a request that has reached it, even if nobody waits for the response."""
        if state.requests[at] in AFTER_TICK:
            yield f"service creates order {at}", replace(state, requests=put(state.requests, at, "made"))
            yield f"service refuses order {at}", replace(state, requests=put(state.requests, at, "refused"))

    # --- what steps have in common ----------------------------------------------------------------

    def _with(self, state: State, at: int, **changes: Any) -> State:
        return replace(state, actors=put(state.actors, at, replace(state.actors[at], **changes)))

    def _write(
        self, state: State, at: int, name: str, *arguments: Any, program: bool | None = None
    ) -> tuple[State, Entry, Rejection | None, bool]:
        """Make a transition. Other actors notice at their next one that the key has changed."""
        number, denial, found = self.book.write(state.entry, name, *arguments, program=program)
        before, entry = self.entry(state), self.book.entries[number]
        if denial is not None:
            self._check_rejection(state.actors[at], before, name, denial)
        changed = number != state.entry
        actors = list(state.actors)
        for one, actor in enumerate(actors):
            disturbed = actor.disturbed or changed
            if one == at:
                disturbed = actor.disturbed and not (denial is None and name in COMPARED)
            if disturbed != actor.disturbed:
                actors[one] = replace(actor, disturbed=disturbed)
        return replace(state, entry=number, actors=tuple(actors)), entry, denial, found

    def _check_rejection(self, actor: Actor, entry: Entry | None, name: str, denial: Rejection) -> None:
        assert entry is not None
        leases = [entry.lease_until, *(undo.lease_until for undo in entry.pending_undos)]
        is_over = name in ("keep", "mark") and entry.lease_until <= NOW
        reasons = {
            Rejection.LOST: (actor.disturbed or is_over or entry.is_suspected) and name not in BOOKKEEPING,
            Rejection.BUSY: max(leases) > NOW,
            Rejection.TOO_EARLY: entry.sent_until + ABANDONED_SETTLE_AFTER * TICK > NOW,
            Rejection.IN_DOUBT: entry.state in BOUND[:2] or entry.is_suspected,
            Rejection.CREATED: entry.state is KeyState.CREATED,
            Rejection.REFUSED: entry.state is KeyState.FREE,
        }
        if not reasons.get(denial, False):
            raise Broken(f"{name} is rejected as {denial.name} without cause")

    def may_exist(self, state: State, at: int) -> bool:
        """Return whether a worker's order exists, or may still be created by a request."""
        actor, request = state.actors[at], state.requests[at]
        about_to = actor.pc == "last_check" and actor.age < WINDOW
        return request == "made" or request in AFTER_TICK or actor.pc == "send" or about_to

    def binds(self, state: State, at: int) -> bool:
        """Return whether a worker's order requires that its key is bound and its funds are held."""
        if not self.may_exist(state, at):
            return False
        return not state.excused[at] or self._is_found(state, at)

    def _is_found(self, state: State, at: int) -> bool:
        return state.requests[at] == "made" and state.actors[at].pc == "done"

    def _undo(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes.undo`: check whether the undo is still pending, run it, then record it."""
        actor = state.actors[at]
        (intent, lease), *rest = actor.todo
        if actor.pc == "undo":
            entry = self.entry(state)
            assert entry is not None
            if any(number == intent for number, _ in leases_of(entry)):
                for one in (0, 1):
                    is_held_by_another = (
                        entry.order_id == ORDER_IDS[one] and entry.intent_id != INTENTS[intent].id
                    )
                    if is_held_by_another:  # an operator resolved another intent's doubt with this order
                        continue
                    if state.actors[one].intent == intent and self.binds(state, one):
                        raise Broken(f"the funds of order {one} are released, and it exists or may exist")
                if state.crashes:  # a failed undo stays pending
                    failed, *_ = self._write(state, at, "failed", intent, lease)
                    failed = replace(failed, crashes=state.crashes - 1)
                    yield "undo fails", self._with(failed, at, **self._after_undo(actor, tuple(rest)))
                state = replace(state, holds=put(state.holds, intent, False))
                yield "undo", self._with(state, at, pc="mark_undone")
            else:  # nothing was undone; only the lease is recorded as ended
                yield "no undo", self._with(state, at, **self._after_undo(actor, tuple(rest)))
        else:
            state, entry, _, _ = self._write(state, at, "undone", intent, lease)
            if (intent, lease) in leases_of(entry):
                raise Broken("an undo that is done stays pending")
            yield "mark undone", self._with(state, at, **self._after_undo(actor, tuple(rest)))

    _w_undo = _w_mark_undone = _r_undo = _r_mark_undone = _undo

    @staticmethod
    def _after_undo(actor: Actor, rest: tuple[Any, ...]) -> dict[str, Any]:
        return {"pc": "undo", "todo": rest} if rest else {"pc": actor.then, "todo": (), "then": ""}

    def _undoing(self, state: State, at: int, debts: Any, then: str, **changes: Any) -> State:
        """`outcomes.recorded`, then `outcomes.undo`: run those of ``debts`` that are recorded."""
        entry = self.entry(state)
        assert entry is not None
        wanted = {intent for intent, _ in debts}
        todo = tuple((number, lease) for number, lease in leases_of(entry) if number in wanted)
        pc = "undo" if todo else then
        return self._with(state, at, pc=pc, todo=todo, then=then if todo else "", **changes)

    # --- resolve ----------------------------------------------------------------------------------

    def _asking(self, state: State, at: int, entry: Entry) -> State:
        """`outcomes.settle_doubt`: the values that it keeps of the entry in doubt."""
        settled = entry.settled_at(SETTLE_AFTER * TICK, ABANDONED_SETTLE_AFTER * TICK) <= NOW
        note = (entry.attempt or "", settled, debts_of(entry), number_of(entry.intent_id))
        return self._with(state, at, pc="ask", note=note)

    def _ask(self, state: State, at: int, *, unknown: str) -> Iterator[Step]:
        """`outcomes._call_resolve`: the bank's ``resolve`` returns the service's order, or nothing."""
        attempt, settled, debts, intent = state.actors[at].note
        found = [ORDER_IDS[one] for one in (0, 1) if state.requests[one] == "made"]
        yield "resolve does not know", self._with(state, at, pc=unknown, note=(intent,))
        if found:
            yield "resolve knows", self._with(state, at, pc="resolve", note=(attempt, found[0], intent))
        elif settled:
            yield "resolve knows no order", self._with(state, at, pc="refute", note=(attempt, debts, intent))

    def _refuted(self, state: State, at: int, note: Any, *, program: bool) -> tuple[State, Rejection | None]:
        """`outcomes._refuted` and `Operators.refute`: the write, and the senders that it excuses."""
        attempt, debts, *_ = note
        state, _, denial, _ = self._write(state, at, "refute", attempt, debts, program=program)
        if denial is None and attempt in ATTEMPTS:
            of = ATTEMPTS.index(attempt)
            waited = WINDOW + (ABANDONED_SETTLE_AFTER if program else SETTLE_AFTER)
            sender = state.actors[of]
            has_not_reported = sender.pc in ("send", "answer", "settle", "went_in_doubt", "dead")
            is_late = sender.pc == "send" or state.sent_late[of]
            excused = sender.age >= waited and has_not_reported and is_late
            state = replace(
                state,
                refuted=put(state.refuted, of, True),
                excused=put(state.excused, of, state.excused[of] or excused),
            )
        return state, denial

    # --- what is delivered and published ------------------------------------------------------------

    def _deliver_order(self, state: State, at: int) -> State:
        """`create_order` returns, or `replay_created`: the recorded order is delivered."""
        entry = self.entry(state)
        assert entry is not None
        if entry.state is not KeyState.CREATED or entry.order_id not in ORDER_IDS:
            raise Broken("an order is delivered that is not on record")
        if state.requests[ORDER_IDS.index(entry.order_id)] != "made":
            raise Broken("an order is delivered that does not exist")
        return self._with(state, at, pc="done", note=())

    def _deliver_failure(self, state: State, at: int, *, may_exist: bool) -> State:
        """`outcomes.check_key`, then the error is delivered."""
        entry = self.entry(state)
        assert entry is not None
        if not may_exist and entry.state is KeyState.FREE and any(self.binds(state, one) for one in (0, 1)):
            raise Broken("a caller receives order_may_exist=False, and one exists or may exist")
        return self._with(state, at, pc="done", note=())

    def _deliver_doubt(self, state: State, at: int, intent: int) -> State:
        """Deliver the doubt. A worker with a queue first records that its end must be published."""
        if at != PUBLISHES:
            return self._with(state, at, pc="done", note=())
        return self._with(state, at, pc="promise", note=(intent,))

    def _report_suspicion(self, state: State, at: int, entry: Entry) -> None:
        if not state.refuted[at] and entry.order_id in (None, ORDER_IDS[at]):
            raise Broken(f"a duplicate of order {at} is published, but nobody had ended its attempt")

    # --- a worker -----------------------------------------------------------------------------------

    def _worker(self, state: State, at: int) -> Iterator[Step]:
        """`create_order`, step by step. The worker may be stopped between any two steps."""
        actor = state.actors[at]
        if actor.pc in ("done", "dead"):
            return
        for name, after in getattr(self, f"_w_{actor.pc}")(state, at):
            yield f"worker {at}: {name}", after
        if state.crashes and actor.pc != "start":
            state = replace(state, crashes=state.crashes - 1)
            yield f"worker {at} dies", self._with(state, at, pc="dead", todo=(), then="", note=())

    def _w_start(self, state: State, at: int) -> Iterator[Step]:
        """`create_order._claim` and `_claim_denied`."""
        state, entry, denial, _ = self._write(state, at, "claim", at)
        if denial is None:
            claimed = claimed_key(entry)
            earlier = tuple((number_of(undo.intent.id), undo.lease_until) for undo in claimed.earlier)
            yield (
                "claim",
                self._with(
                    state,
                    at,
                    pc="preflight",
                    intent=number_of(entry.intent_id),
                    epoch=entry.epoch,
                    receipt="hold" in entry.receipts,
                    inherited=bool(claimed.inherited),
                    earlier=earlier,
                ),
            )
        elif denial is Rejection.CREATED:
            yield "replay the order", self._deliver_order(state, at)
        elif denial is Rejection.REFUSED:
            yield "replay the refusal", self._with(state, at, pc="check_key", note=(False,))
        elif denial is Rejection.IN_DOUBT:
            yield "find a doubt", self._asking(state, at, entry)
        else:
            yield "find it busy", self._deliver_failure(state, at, may_exist=True)

    def _w_preflight(self, state: State, at: int) -> Iterator[Step]:
        """`create_order._run_hooks`: undo earlier intents, place the hold, and renew the lease."""
        actor = state.actors[at]
        if actor.earlier:
            todo = actor.earlier
            yield (
                "undo earlier",
                self._with(state, at, pc="undo", todo=todo, earlier=(), then="preflight"),
            )
            return
        entry = self.entry(state)
        assert entry is not None
        if entry.lease_until < NOW + LEASE * TICK:
            kept, *_ = self._write(state, at, "keep", actor.intent, actor.epoch)
            yield "renew the lease", kept
        late = entry.intent_id != INTENTS[actor.intent].id or entry.state is KeyState.FREE
        held = replace(
            state,
            holds=put(state.holds, actor.intent, True),
            late=put(state.late, actor.intent, state.late[actor.intent] or late),
        )
        if actor.receipt:
            held = state
        yield "hold the funds", self._with(held, at, pc="mark", receipt=True)

    def _w_mark(self, state: State, at: int) -> Iterator[Step]:
        """`create_order._mark_sending`; or the call is cancelled or too late before it."""
        actor = state.actors[at]
        yield "cancelled", self._with(state, at, pc="definite_failure", note=("Cancelled",))
        marked, _, denial, _ = self._write(state, at, "mark", at, actor.intent, actor.epoch)
        if denial is not None:
            yield "lost its claim", self._with(marked, at, pc="definite_failure", note=("KeyBusy",))
            return
        if self.binds(marked, 1 - at):
            raise Broken("an order may be sent while another of the key exists or may exist")
        yield "mark", self._with(marked, at, pc="last_check", age=0)

    def _w_last_check(self, state: State, at: int) -> Iterator[Step]:
        """`attempt._next_body` and the write guard: the last check of the time before the first byte."""
        if state.actors[at].age < WINDOW:
            yield "last check", self._with(state, at, pc="send")
        yield "too late", self._with(state, at, pc="definite_failure", note=("Expired",))

    def _w_send(self, state: State, at: int) -> Iterator[Step]:
        """The bytes are written, possibly late: the process may have been stopped since the last check."""
        actor = state.actors[at]
        if not state.holds[actor.intent] and not state.excused[at]:
            raise Broken(f"order {at} is sent, and its funds are not held")
        sent = replace(
            state,
            requests=put(state.requests, at, "sent"),
            sent_late=put(state.sent_late, at, actor.age >= WINDOW),
        )
        yield "send", self._with(sent, at, pc="answer")

    def _w_answer(self, state: State, at: int) -> Iterator[Step]:
        """`attempt._order_from`: the response, unless it is lost."""
        request = state.requests[at]
        if request == "made":
            yield "receives the order", self._with(state, at, pc="settle")
        if request == "refused":
            yield "is refused", self._with(state, at, pc="definite_failure", note=("Refused",))
        yield "receives nothing", self._with(state, at, pc="went_in_doubt")

    def _w_settle(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes.settle`."""
        state, entry, denial, _ = self._write(state, at, "create", at)
        if (entry.state, entry.order_id) == (KeyState.CREATED, ORDER_IDS[at]) and entry.ending is None:
            yield "deliver the order", self._deliver_order(state, at)
            return
        self._report_suspicion(state, at, entry)
        pc = "done" if denial is None else "suspected"
        yield "suspect a duplicate", self._with(state, at, pc=pc, note=(ORDER_IDS[at],))

    def _w_suspected(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes._record_suspicion`."""
        actor = state.actors[at]
        state, *_ = self._write(state, at, "suspect", at, actor.intent, *actor.note)
        yield "record the suspicion", self._with(state, at, pc="done", note=())

    def _w_went_in_doubt(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes.went_in_doubt`."""
        actor = state.actors[at]
        state, entry, denial, _ = self._write(state, at, "doubt", at)
        if entry.state is KeyState.CREATED and entry.attempt == ATTEMPTS[at]:
            yield "others knew the order", self._deliver_order(state, at)
        elif denial is None:
            yield "in doubt", self._asking(state, at, entry)
        elif entry.state is KeyState.FREE or entry.intent_id != INTENTS[actor.intent].id:
            self._report_suspicion(state, at, entry)
            yield "superseded", self._with(state, at, pc="suspected", note=(None,))
        else:
            yield "in doubt already", self._deliver_doubt(state, at, actor.intent)

    def _w_definite_failure(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes.definite_failure`: free the key with its pending undos, then run them."""
        actor = state.actors[at]
        debts = ((actor.intent, "r" if actor.receipt else None),) if actor.receipt or actor.inherited else ()
        attempt = ATTEMPTS[at] if actor.age >= 0 else None
        written, entry, denial, _ = self._write(
            state, at, "release", actor.intent, actor.epoch, attempt, actor.note[0], debts
        )
        if denial is None:
            yield "free the key", self._undoing(written, at, debts, "undo_earlier", note=(False,))
        elif debts and (entry.state is KeyState.FREE or entry.intent_id != INTENTS[actor.intent].id):
            yield "others had ended it", self._with(written, at, pc="undo_late", note=(debts,))
        else:
            yield "others have the key", self._deliver_failure(written, at, may_exist=True)

    def _w_undo_late(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes._undo_late`."""
        (debts,) = state.actors[at].note
        state, entry, _, _ = self._write(state, at, "owe", debts)
        if not {intent for intent, _ in debts} <= {number for number, _ in leases_of(entry)}:
            raise Broken("a late undo that was recorded is not pending")
        yield "record a late undo", self._undoing(state, at, debts, "check_key", note=(True,))

    def _w_undo_earlier(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes.undo_earlier`, at the end of a call that ran no hooks."""
        earlier = state.actors[at].earlier
        pc, then = ("undo", "check_key") if earlier else ("check_key", "")
        yield "undo earlier", self._with(state, at, pc=pc, todo=earlier, earlier=(), then=then)

    def _w_check_key(self, state: State, at: int) -> Iterator[Step]:
        yield "deliver the failure", self._deliver_failure(state, at, may_exist=state.actors[at].note[0])

    def _w_ask(self, state: State, at: int) -> Iterator[Step]:
        for name, after in self._ask(state, at, unknown="doubt"):
            is_doubt = after.actors[at].pc == "doubt"
            yield name, self._deliver_doubt(after, at, after.actors[at].note[0]) if is_doubt else after

    def _w_resolve(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes._resolved`."""
        *resolved, intent = state.actors[at].note
        state, entry, denial, _ = self._write(state, at, "resolve", *resolved, program=True)
        if denial is not None and entry.state is not KeyState.CREATED:
            yield "doubt remains", self._deliver_doubt(state, at, intent)
        else:
            yield "deliver the order", self._deliver_order(state, at)

    def _w_refute(self, state: State, at: int) -> Iterator[Step]:
        """`outcomes._refuted`."""
        note = state.actors[at].note
        state, denial = self._refuted(state, at, note, program=True)
        if denial is not None:
            yield "doubt remains", self._deliver_doubt(state, at, note[2])
        else:
            yield "refuted", self._undoing(state, at, note[1], "check_key", note=(False,))

    def _w_promise(self, state: State, at: int) -> Iterator[Step]:
        """`Handler._promised`; unless it is rejected, the outcome is published as unknown."""
        (intent,) = state.actors[at].note
        state, entry, denial, _ = self._write(state, at, "promise", intent)
        if denial is None:
            if entry.state is not KeyState.IN_DOUBT or entry.intent_id != INTENTS[intent].id:
                raise Broken("an outcome is published as unknown after its doubt has ended")
            state = replace(state, unknown=put(state.unknown, intent, True))
        yield "publish unknown", self._with(state, at, pc="done", note=())

    # --- recovery -----------------------------------------------------------------------------------

    def _recovery(self, state: State) -> Iterator[Step]:
        """`Recovery._process` and `Sweeper._tell`. The recovery may die anywhere; the next one starts
        again.
        """
        actor = state.actors[RECOVERY]
        for name, after in getattr(self, f"_r_{actor.pc}")(state, RECOVERY):
            yield f"recovery: {name}", after
        if state.crashes and actor.pc != "idle":
            crashed = replace(state, crashes=state.crashes - 1)
            yield "recovery dies", self._idle(crashed, RECOVERY)

    def _idle(self, state: State, at: int) -> State:
        return replace(state, actors=put(state.actors, at, Actor("idle")))

    def _r_idle(self, state: State, at: int) -> Iterator[Step]:
        entry = self.entry(state)
        if entry is None or not is_waiting(entry, NOW):
            return
        looked = replace(state, actors=put(state.actors, at, Actor("pay", earlier=leases_of(entry))))
        if entry.state is KeyState.CLAIMED:
            known = {"intent": number_of(entry.intent_id), "epoch": entry.epoch}
            yield "finds a claim", self._with(looked, at, pc="undo_abandoned", **known)
        elif entry.state is KeyState.SENDING:
            yield "finds a sender", self._with(looked, at, pc="expire", note=(entry.attempt,))
        elif entry.state is KeyState.IN_DOUBT:
            yield "finds a doubt", self._with(looked, at, pc="attend")
        elif entry.pending_undos:
            yield "finds undos", looked
        for pending in entry.pending_notifications:
            yield "finds an end", self._with(looked, at, pc="tell", note=(pending,))

    def _r_undo_abandoned(self, state: State, at: int) -> Iterator[Step]:
        actor = state.actors[at]
        state, entry, denial, _ = self._write(state, at, "takeover", actor.intent, actor.epoch)
        if denial is not None:
            yield "too late", self._with(state, at, pc="pay")
        else:
            note = (debts_of(entry),)
            yield "take over", self._with(state, at, pc="release", epoch=entry.epoch, note=note)

    def _r_release(self, state: State, at: int) -> Iterator[Step]:
        actor = state.actors[at]
        (debts,) = actor.note
        state, _, denial, _ = self._write(
            state, at, "release", actor.intent, actor.epoch, None, ABANDONED, debts
        )
        if denial is not None:
            yield "too late", self._with(state, at, pc="pay")
        else:
            yield "free the key", self._undoing(state, at, debts, "pay", note=())

    def _r_expire(self, state: State, at: int) -> Iterator[Step]:
        state, _, denial, _ = self._write(state, at, "expire", *state.actors[at].note)
        yield "expire", self._with(state, at, pc="attend" if denial is None else "pay", note=())

    def _r_attend(self, state: State, at: int) -> Iterator[Step]:
        state, entry, denial, _ = self._write(state, at, "attend", LEASE)
        if denial is not None or entry.state is not KeyState.IN_DOUBT or entry.intent is None:
            yield "too late", self._with(state, at, pc="pay")
        else:
            yield "attend", self._asking(state, at, entry)

    def _r_ask(self, state: State, at: int) -> Iterator[Step]:
        yield from self._ask(state, at, unknown="unattend")

    def _r_unattend(self, state: State, at: int) -> Iterator[Step]:
        """`Recovery._ask` and `_run_pending_undos`: release the lease on a doubt that remains."""
        state = self._with(state, at, note=())
        state, *_ = self._write(state, at, "attend", 0)
        earlier = state.actors[at].earlier
        yield "let go", self._with(state, at, pc="pay") if earlier else self._idle(state, at)

    def _r_resolve(self, state: State, at: int) -> Iterator[Step]:
        attempt, order_id, _ = state.actors[at].note
        state, _, denial, _ = self._write(state, at, "resolve", attempt, order_id, program=True)
        yield "resolve", self._with(state, at, pc="pay" if denial is None else "unattend", note=())

    def _r_refute(self, state: State, at: int) -> Iterator[Step]:
        note = state.actors[at].note
        state, denial = self._refuted(state, at, note, program=True)
        if denial is not None:
            yield "too late", self._with(state, at, pc="unattend", note=())
        else:
            yield "refute", self._undoing(state, at, note[1], "pay", note=())

    def _r_pay(self, state: State, at: int) -> Iterator[Step]:
        """`Recovery._run_pending_undos`: the undos that were pending when the recovery read the key."""
        earlier = state.actors[at].earlier
        if not earlier:
            yield "done", self._idle(state, at)
            return
        state, entry, denial, _ = self._write(state, at, "attend", LEASE)
        if denial is not None:
            yield "busy", self._idle(state, at)
            return
        then = "unattend" if entry.state is KeyState.IN_DOUBT else "pay"
        yield "attend", self._undoing(state, at, earlier, then, earlier=())

    def _r_tell(self, state: State, at: int) -> Iterator[Step]:
        """`Handler.untold`: read the entry again, then publish the outcome."""
        (pending,) = state.actors[at].note
        entry = self.entry(state)
        assert entry is not None
        if pending not in entry.pending_notifications:
            yield "published already", self._idle(state, at)
            return
        is_suspected = any(other.error == SUSPECTED for other in entry.pending_notifications)
        may_exist = is_suspected or entry.state is not KeyState.FREE
        if pending.outcome is Outcome.CREATED:
            if state.requests[ORDER_IDS.index(pending.order_id)] != "made":
                raise Broken("an order is published that does not exist")
        elif not may_exist and any(self.binds(state, one) for one in (0, 1)):
            raise Broken("it is published that no order may exist, and one exists or may exist")
        published = replace(state, unknown=put(state.unknown, number_of(pending.intent_id), False))
        yield "publish the end", self._with(published, at, pc="told")

    def _r_told(self, state: State, at: int) -> Iterator[Step]:
        (pending,) = state.actors[at].note
        state, entry, _, _ = self._write(state, at, "notified", pending)
        if pending in entry.pending_notifications:
            raise Broken("an end that was published stays pending")
        yield "record that", self._idle(state, at)

    # --- the operator -------------------------------------------------------------------------------

    def _operator(self, state: State) -> Iterator[Step]:
        """`Operators.resolve` and `Operators.refute`, by a person who checks the service."""
        for name, after in getattr(self, f"_o_{state.actors[OPERATOR].pc}")(state, OPERATOR):
            yield f"operator: {name}", after

    def _o_idle(self, state: State, at: int) -> Iterator[Step]:
        entry = self.entry(state)
        if entry is None:
            return
        looked = replace(state, actors=put(state.actors, at, Actor("decide")))
        if entry.state is KeyState.SENDING:
            yield "looks at a sender", self._with(looked, at, pc="expire", note=(entry.attempt,))
        elif entry.state is KeyState.IN_DOUBT:
            note = (entry.attempt or "", debts_of(entry))
            yield "looks at a doubt", self._with(looked, at, note=note)

    def _o_expire(self, state: State, at: int) -> Iterator[Step]:
        state, entry, denial, _ = self._write(state, at, "expire", *state.actors[at].note)
        note = (entry.attempt or "", debts_of(entry))
        yield "expire", self._idle(state, at) if denial else self._with(state, at, pc="decide", note=note)

    def _o_decide(self, state: State, at: int) -> Iterator[Step]:
        """A person resolves with an existing order, or refutes if the service has none now."""
        attempt, debts = state.actors[at].note
        found = [ORDER_IDS[one] for one in (0, 1) if state.requests[one] == "made"]
        for order_id in found:
            resolved, *_ = self._write(state, at, "resolve", attempt, order_id, program=False)
            yield f"resolve with {order_id}", self._idle(resolved, at)
        if not found:
            refuted, _ = self._refuted(state, at, (attempt, debts), program=False)
            yield "refute", self._idle(refuted, at)

    # --- what holds in every state --------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Check the invariants of a state.

        Raises:
            Broken: one of them does not hold.
        """
        entry = self.entry(state)
        if entry is None:
            return
        made = [at for at in (0, 1) if state.requests[at] == "made"]
        if len(made) > 1 and not any(state.excused):
            raise Broken("two orders of one key exist")
        for at in (0, 1):
            if not self.binds(state, at):
                continue
            if entry.state not in BOUND and not entry.is_suspected:
                raise Broken(f"order {at} exists or may exist, and its key is {entry.state.value}")
            if not state.holds[state.actors[at].intent] and not state.excused[at]:
                raise Broken(f"order {at} exists or may exist, and its funds are not held")
        self._check_holds(state, entry)
        if entry.state in AT_WORK and entry.lease_until <= NOW and not is_waiting(entry, NOW):
            raise Broken("a key that nobody works on is not found by a recovery")
        self._check_notifications(state, entry)

    def _check_holds(self, state: State, entry: Entry) -> None:
        """Check that funds are held only for a key in use, for a pending undo, or by a worker."""
        for intent in (0, 1):
            if not state.holds[intent] or any(number == intent for number, _ in leases_of(entry)):
                continue
            if entry.intent_id == INTENTS[intent].id and entry.state is not KeyState.FREE:
                continue
            at_it = [actor for actor in state.actors[:2] if actor.intent == intent]
            if any(actor.pc not in ("done", "dead") for actor in at_it) or any(state.refuted):
                continue  # after a wrong refutation, the hold may be kept: see `Suspect.apply`
            if not (state.late[intent] and any(actor.pc == "dead" for actor in at_it)):
                raise Broken(f"the funds of intent {intent} are held for ever")

    def _check_notifications(self, state: State, entry: Entry) -> None:
        """Check that an outcome published as unknown is followed by the end of the doubt, if it has ended."""
        for intent in (0, 1):
            is_over = entry.intent_id != INTENTS[intent].id or entry.state is not KeyState.IN_DOUBT
            pending = {one.intent_id for one in entry.pending_notifications}
            if state.unknown[intent] and is_over and INTENTS[intent].id not in pending:
                raise Broken(f"intent {intent} was published as unknown, and its end is not to be published")
