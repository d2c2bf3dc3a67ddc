"""An observer of the complete story, which sees every record, order and result, and checks the invariants."""

from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from attrs import define

from tests.simulation import invariants
from tests.simulation.journal import ATTEMPT, EPOCH
from tests.simulation.loop import PROCESS, this_call
from tests.simulation.service import ABANDONED_AFTER, Made
from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import Expired, OutcomeUnknown
from transfer_async._models.events import DuplicateSuspected, Event, RateLimitWaited
from transfer_async._models.requests import NewOrder, OrderIntent, PersonName
from transfer_async._models.responses import Order
from transfer_async.journal import transitions
from transfer_async.journal.model import Entry, KeyState, TransitionResult
from transfer_async.journal.operator_transitions import Propose
from transfer_async.journal.transitions import Claim, Move

if TYPE_CHECKING:
    from tests.simulation.world import World


@define(eq=False, kw_only=True)
class Record:
    """One call and its result: an order, an error, or nothing."""

    key: str | None
    wish: NewOrder
    beneficiary: PersonName | None = None
    held: str | None = None
    deadline: float = float("inf")
    intent_id: str | None = None
    order: Order | None = None
    error: Any = None
    read_at: float = float("inf")
    orders_seen: int = 0


RECORD: ContextVar[Record | None] = ContextVar("RECORD", default=None)
"""The call of the current task, with its caller's arguments."""


class Witness:
    """Checks the invariants at each transition, request, hook and result."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.records: list[Record] = []
        self.outcomes: list[OrderOutcome] = []
        self.broken: list[str] = []
        self.over: set[str] = set()
        self.kept: dict[tuple[str, str], str | None] = {}
        self.undone: set[tuple[str, str]] = set()
        self.changes: Counter[str] = Counter()
        self.proposed: dict[tuple[str, str], int] = {}
        self.beyond: dict[str, tuple[Any, float]] = {}
        self.suspected: set[str] = set()
        self.by_messages: set[str] = set()
        self._kept_when_claimed: dict[tuple[str, int], set[str]] = {}

    def check(self, found: str | None) -> None:
        """Record a broken invariant, unless a sender that was paused beyond every wait has continued."""
        if found is not None and not self.beyond:
            self.detected(found)

    def detected(self, found: str | None) -> None:
        if found is not None:
            self.world.note(f"BROKEN: {found}")
            self.broken.append(found)

    # --- the journal ----------------------------------------------------------------------------

    def moved(self, key: str, before: Entry | None, move: Move, verdict: TransitionResult) -> None:
        world, entry = self.world, verdict.entry
        denied = verdict.denial.name if verdict.denial else "made"
        world.note(f"{type(move).__name__} of {key}: {denied}, {entry.state.value}, {entry.intent_id}")
        if entry.state is KeyState.IN_DOUBT and before is not None and before.state is not entry.state:
            world.saw("doubt")
        self._decided(key, before, move, verdict)
        if verdict.denial is not None:
            return
        self.check(invariants.what_is_owed_has_its_receipt(world, entry))
        if isinstance(move, Claim):
            self._claimed(before, entry)
        elif isinstance(move, (transitions.RenewLease, transitions.MarkSending)):
            for hook, receipt in move.receipts.items():
                self.kept.setdefault((move.intent_id, hook), receipt)
        elif isinstance(move, (transitions.Release, transitions.Refute)):
            self.over.add(entry.intent_id)
        elif isinstance(move, transitions.MarkUndone) and move.hooks:
            world.saw("paid")
        if isinstance(
            move, (transitions.TakeOver, transitions.Resolve, transitions.Refute, transitions.AddPendingUndos)
        ):
            world.saw(move.name)

    def _decided(self, key: str, before: Entry | None, move: Move, verdict: TransitionResult) -> None:
        if verdict.denial is None and isinstance(move, transitions.Suspect):
            self.suspected.add(move.intent.id)
        elif (
            verdict.denial is None and isinstance(move, transitions.Create) and before.state is KeyState.FREE
        ):
            self.suspected.add(before.intent_id)
        if verdict.denial is None:
            self.check(invariants.nobody_decides_alone(self.world, key, before, move))
        if move.is_a_change and (verdict.denial is None or verdict.found_doubt):
            self.changes[key] += 1
        if isinstance(move, Propose) and verdict.denial is None:
            self.world.saw("proposed")
            self.proposed[key, move.id] = self.changes[key]

    def _claimed(self, before: Entry | None, entry: Entry) -> None:
        if before is not None and before.state is KeyState.CLAIMED:
            if before.intent_id == entry.intent_id:
                self.world.saw("claim taken over")
            else:
                self.world.saw("stale claim ended")
                self.over.add(before.intent_id)
        kept = {hook for intent_id, hook in self.kept if intent_id == entry.intent_id}
        self._kept_when_claimed[entry.intent_id, entry.epoch] = kept

    # --- the bank -------------------------------------------------------------------------------

    def asked(self, hook: str, intent: OrderIntent) -> None:
        kept = self._kept_when_claimed.get((intent.id, EPOCH.get()), set())
        self.check(invariants.no_receipt_is_asked_for_twice(hook, intent, kept))
        self.check(invariants.nothing_is_done_after_the_callers_deadline(self.world, RECORD.get(), hook))

    def undoing(self, hook: str, intent: OrderIntent) -> None:
        self.check(invariants.nothing_is_undone_before_the_no_is_on_record(self.world, hook, intent))

    def taken_back(self, hook: str, intent: OrderIntent, receipt: str | None) -> None:
        if receipt is not None:
            self.undone.add((intent.id, hook))

    # --- the service ----------------------------------------------------------------------------

    def looked(self, intent: OrderIntent) -> None:
        self.check(invariants.nothing_is_sent_too_late(self.world, intent, ATTEMPT.get()))
        self.check(invariants.nothing_is_done_after_the_callers_deadline(self.world, RECORD.get(), "sent"))

    def continued(self, intent: OrderIntent, paused: float) -> None:
        """Note that a process continues after a pause between its last check and the write."""
        if paused >= ABANDONED_AFTER and intent.id in self.over:
            self.world.saw("paused beyond every wait")
            self.beyond[intent.id] = (PROCESS.get(), self.world.loop.time())
            if this_call().is_published:
                self.by_messages.add(intent.id)

    def sending(self, intent: OrderIntent) -> None:
        self.world.note(f"the first byte of {intent.id} leaves")
        self.check(invariants.nothing_is_sent_without_its_mark(self.world, intent, ATTEMPT.get()))
        self.check(invariants.nothing_is_sent_without_a_hold(self.world, intent))
        self.check(invariants.nothing_is_sent_that_was_checked_for_others(self.world, intent, RECORD.get()))
        self.check(invariants.nothing_is_held_beside_that_is_not_on_record(self.world, intent))

    def exists(self, made: Made) -> None:
        self.check(invariants.a_key_has_one_order(self.world, made))
        self.check(invariants.no_order_comes_after_a_certain_no(self.world, made))

    # --- the callers ----------------------------------------------------------------------------

    def call_ended(self, record: Record) -> None:
        outcome = record.order.id if record.order is not None else repr(record.error)
        self.world.note(f"the caller of {record.key} ({record.intent_id}) receives {outcome}")
        if self.world.loop.time() >= record.deadline and isinstance(record.error, (Expired, OutcomeUnknown)):
            self.world.saw(f"{type(record.error).__name__} at a deadline")
        for invariant in invariants.RESULT_INVARIANTS:
            self.check(invariant(self.world, record))

    def reads_key(self) -> None:
        """Note that a call reads its key. From then on, the call cannot know about later orders."""
        if (record := RECORD.get()) is not None:
            record.read_at, record.orders_seen = self.world.loop.time(), len(self.world.service.orders)

    def publishing(self, record: Record, outcome: OrderOutcome) -> None:
        """Note that a worker is about to publish an outcome."""
        self.check(invariants.no_order_of_its_key_exists_when_none_may(self.world, record, outcome))

    def published(self, outcome: OrderOutcome) -> None:
        """Note that an outcome was published."""
        self.world.note(f"published: {outcome}")
        self.outcomes.append(outcome)

    def event(self, record: Record, event: Event) -> None:
        """Receive an event that contains the call's intent."""
        record.intent_id = event.intent_id or record.intent_id
        if isinstance(event, RateLimitWaited):
            self.world.saw("RateLimitWaited")
        if isinstance(event, DuplicateSuspected):
            self.check(invariants.no_duplicate_is_suspected(event))
        self.world.note(f"{type(event).__name__} {event.key} {event.intent_id}")
