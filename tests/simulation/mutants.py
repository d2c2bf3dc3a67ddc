"""What somebody might write instead: each must be caught, or the simulation sees nothing."""

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import attrs
import msgspec
import pytest
from msgspec.structs import replace

from tests.simulation import world
from tests.simulation.journal import Database
from transfer_async import _client
from transfer_async._http import classify
from transfer_async._models.errors import JournalFailed, Outcome
from transfer_async._pipeline import attempt, batch, create_order, operators, outcomes, recovery
from transfer_async._support.clock import NEVER, is_over
from transfer_async.journal import model, state_machine, transitions
from transfer_async.journal.model import KeyState
from transfer_async.journal.transitions import Claim
from transfer_async.worker import handler

Mutant = Callable[[pytest.MonkeyPatch], None]

# --- sending ------------------------------------------------------------------------------------


def retry_after_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A time-out is taken for a failure."""
    patch.setattr(classify, "RETRYABLE", classify.RETRYABLE | {classify.Classification.UNKNOWN})
    patch.setattr(
        attempt, "_may_retry", lambda _, __, sending, ___: sending.classification in classify.RETRYABLE
    )


def retry_after_503(patch: pytest.MonkeyPatch) -> None:
    """A 503 is taken for a promise that nothing was done."""
    may = attempt._may_retry

    def may_retry(*arguments: Any) -> bool:
        return getattr(arguments[-1], "status", None) == 503 or may(*arguments)

    patch.setattr(attempt, "_may_retry", may_retry)


def lost_answer_is_a_no(patch: pytest.MonkeyPatch) -> None:
    """An exchange without an answer ends as if nothing had been sent."""
    judge = classify.classify_response

    def judged(evidence: Any, policy: Any, table: Any) -> classify.Classification:
        verdict = judge(evidence, policy, table)
        lost = verdict is classify.Classification.UNKNOWN and evidence.status is None
        return classify.Classification.NOT_SENT if lost else verdict

    patch.setattr(classify, "classify_response", judged)


def mark_after_send(patch: pytest.MonkeyPatch) -> None:
    """The mark is written when the answer is there."""
    mark, attempt_once = create_order._mark_sending, create_order.attempt
    marking: ContextVar[Any] = ContextVar("marking")

    async def send_first(context: Any, call: Any, sending: Any) -> Any:
        answer = await attempt_once(context, call, sending)
        await mark(context, *marking.get())
        return answer

    async def not_yet(context: Any, work: Any, claimed: Any, sending: Any) -> None:
        marking.set((work, claimed, sending))
        sending.deadline = context.clock.now() + context.policy.deadline

    patch.setattr(create_order, "_mark_sending", not_yet)
    patch.setattr(create_order, "attempt", send_first)


def deadline_after_the_mark(patch: pytest.MonkeyPatch) -> None:
    """The deadline begins when the mark is written, so a slow journal lets a request leave after it."""
    mark = create_order._mark_sending

    async def marked(context: Any, work: Any, claimed: Any, sending: Any) -> None:
        await mark(context, work, claimed, sending)
        sending.deadline = context.clock.now() + context.policy.deadline

    patch.setattr(create_order, "_mark_sending", marked)


def deadline_lengthens(patch: pytest.MonkeyPatch) -> None:
    """A caller who is patient lets a request leave after the time that its mark gives it."""
    mark = create_order._mark_sending

    async def marked(context: Any, work: Any, claimed: Any, sending: Any) -> None:
        await mark(context, work, claimed, sending)
        sending.deadline = max(sending.deadline, 0.0 if work.deadline == NEVER else work.deadline)

    patch.setattr(create_order, "_mark_sending", marked)


def deadline_passed_is_a_no(patch: pytest.MonkeyPatch) -> None:
    """What the caller waits for no longer ends as never sent, whatever was handed over."""
    answer = attempt._answer

    def answered(context: Any, call: Any, sending: Any, body: Any, evidence: Any) -> Any:
        over = is_over(context.clock, call.work.deadline)
        seen = attrs.evolve(evidence, sent=False) if over else evidence
        return answer(context, call, sending, body, seen)

    patch.setattr(attempt, "_answer", answered)


def deadline_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Hooks run for a caller who waits no longer."""
    patch.setattr(create_order, "too_late", lambda *_: None)


def foreign_order_accepted(patch: pytest.MonkeyPatch) -> None:
    """Whatever order is answered is ours."""
    patch.setattr(classify, "other_order", lambda *_: None)


def id_of_another_key_accepted(patch: pytest.MonkeyPatch) -> None:
    """An order's id is not looked up among the other keys."""
    taken = state_machine.decide

    def decide(entry: Any, move: Any, **rest: Any) -> Any:
        return taken(entry, move, **{**rest, "id_taken": False})

    patch.setattr(state_machine, "decide", decide)


# --- the journal --------------------------------------------------------------------------------


def take_over_what_was_sending(patch: pytest.MonkeyPatch) -> None:
    """A lease that ran out on `SENDING` lets another worker go on."""
    decide = Claim.decide

    def taken(self: Claim, entry: Any, now: float) -> Any:
        if entry is not None and entry.state is KeyState.SENDING and entry.lease_until <= now:
            entry = replace(entry, state=KeyState.CLAIMED)
        return decide(self, entry, now)

    patch.setattr(Claim, "decide", taken)


def free_what_was_sending(patch: pytest.MonkeyPatch) -> None:
    """A lease that ran out on `SENDING` frees the key."""
    patch.setitem(state_machine._TO, (transitions.Expire, KeyState.SENDING), KeyState.FREE)


def no_compare_and_set(patch: pytest.MonkeyPatch) -> None:
    """Neither epoch nor lease is looked at before the mark."""
    patch.setattr(transitions.MarkSending, "denial", transitions.Move.denial)
    patch.setattr(transitions.RenewLease, "denial", transitions.Move.denial)


def any_attempt_will_do(patch: pytest.MonkeyPatch) -> None:
    """A certain no is written whatever attempt or claim it was about."""
    patch.setattr(transitions.Release, "denial", transitions.Move.denial)
    for state in KeyState:
        patch.setitem(state_machine._TO, (transitions.Release, state), KeyState.FREE)


def check_then_insert(patch: pytest.MonkeyPatch) -> None:
    """A claim reads, and writes a moment later what it made of it."""
    commit = Database.commit

    def torn(self: Database, key: str, move: Any) -> Any:
        if not isinstance(move, Claim):
            return commit(self, key, move)
        before = self.entries.get(key)
        verdict = state_machine.decide(before, move, now=self.now())
        if verdict is not None and verdict.denial is None:
            self.world.loop.call_later(0.02, self.store, key, before, move, verdict)
        return verdict

    patch.setattr(Database, "commit", torn)


def receipts_not_kept(patch: pytest.MonkeyPatch) -> None:
    """A claim that is kept does not keep its receipts."""
    patch.setattr(
        transitions.RenewLease, "apply", lambda move, entry, now: replace(entry, lease_until=now + move.lease)
    )


def refute_without_waiting(patch: pytest.MonkeyPatch) -> None:
    """`NO_ORDER` is believed at once."""
    patch.setattr(world, "BELIEVED_AFTER", 0.0)


def abandoned_like_any_other(patch: pytest.MonkeyPatch) -> None:
    """`NO_ORDER` is believed of a sender that is only paused as soon as of one that reported its end."""
    as_it_is = model.Entry.settled_at
    patch.setattr(model.Entry, "settled_at", lambda entry, after, _=None: as_it_is(entry, after))


def late_report_begins_no_wait(patch: pytest.MonkeyPatch) -> None:
    """A sender that reports after a pause is taken to have sent in time."""
    apply = transitions.GoInDoubt.apply
    patch.setattr(
        transitions.GoInDoubt,
        "apply",
        lambda move, entry, now: replace(apply(move, entry, now), sent_until=min(entry.sent_until, now)),
    )


def superseded_sender_leaves_no_trace(patch: pytest.MonkeyPatch) -> None:
    """A sender that goes on beyond every wait, and does not know its outcome, is silent."""
    patch.setattr(outcomes, "_is_superseded", lambda *_: False)


def superseded_sender_is_not_published(patch: pytest.MonkeyPatch) -> None:
    """What it finds is on record, and no worker publishes it."""
    patch.setattr(transitions, "_with_suspicion", lambda entry, *_, **__: entry)


def leases_of_another_clock_believed(patch: pytest.MonkeyPatch) -> None:
    """A clock that was ahead leaves its leases behind, and they are waited for."""
    patch.setattr(state_machine, "BELIEVED", float("inf"))


def requests_of_another_clock_forgotten(patch: pytest.MonkeyPatch) -> None:
    """When a request may have been sent that a clock which was ahead knows of is taken for long ago."""
    as_it_is = state_machine._on_this_clock

    def on_this_clock(entry: Any, now: float) -> Any:
        found = as_it_is(entry, now)
        return found if found.sent_until == entry.sent_until else replace(found, sent_until=-world.YEARS)

    patch.setattr(state_machine, "_on_this_clock", on_this_clock)


def doubt_forgets_the_mark(patch: pytest.MonkeyPatch) -> None:
    """Whoever expires a request counts from the mark, not from the last time it may have left."""
    apply = transitions.MarkSending.apply
    patch.setattr(
        transitions.MarkSending,
        "apply",
        lambda move, entry, now: replace(apply(move, entry, now), sent_until=now),
    )


# --- what is told -------------------------------------------------------------------------------


def told_before_it_is_settled(patch: pytest.MonkeyPatch) -> None:
    """The caller has the order although it could not be recorded."""
    settled_first = outcomes.settle

    async def settled(context: Any, call: Any, claimed: Any, answered: Any) -> Any:
        try:
            return await settled_first(context, call, claimed, answered)
        except JournalFailed:
            return answered.order

    patch.setattr(create_order, "settle", settled)


def unrecorded_doubt_is_a_no(patch: pytest.MonkeyPatch) -> None:
    """A journal that fails on a doubt is said to have failed before anything was sent."""
    went = outcomes.went_in_doubt

    async def went_in_doubt(*arguments: Any, **options: Any) -> Any:
        try:
            return await went(*arguments, **options)
        except JournalFailed as error:
            error.outcome, error.order_may_exist = Outcome.NOT_SENT, False
            raise

    patch.setattr(create_order, "went_in_doubt", went_in_doubt)
    patch.setattr(outcomes, "went_in_doubt", went_in_doubt)


def key_not_read_again_after_the_undos(patch: pytest.MonkeyPatch) -> None:
    """That no order may exist is said as it was when the no was written down."""

    async def check_key(*_: Any) -> None:
        pass

    patch.setattr(_client, "check_key", check_key)


def waiting_result_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A result of many orders says what was true when its call ended."""

    def made(*arguments: Any, **options: Any) -> batch.Batch:
        return batch.Batch(*arguments, **{**options, "check": None})

    patch.setattr(_client, "Batch", made)


# --- the hooks ----------------------------------------------------------------------------------


def undone_on_unknown(patch: pytest.MonkeyPatch) -> None:
    """A doubt is taken for a no."""
    went = outcomes.went_in_doubt

    async def undoing(context: Any, call: Any, claimed: Any, unknown: Any, **options: Any) -> Any:
        debts = outcomes.pending_undos(context, call.work, claimed)
        await outcomes.undo(context, call.work, call.cancellation, debts, is_recorded=False)
        return await went(context, call, claimed, unknown, **options)

    patch.setattr(create_order, "went_in_doubt", undoing)
    patch.setattr(outcomes, "went_in_doubt", undoing)


def undone_before_the_no_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """The hold is released first, and the no written down after."""
    recorded_first = outcomes.definite_failure

    async def hasty(context: Any, call: Any, claimed: Any, no: Any) -> None:
        debts = outcomes.pending_undos(context, call.work, claimed)
        await outcomes.undo(context, call.work, call.cancellation, debts, is_recorded=False)
        await recorded_first(context, call, claimed, no)

    patch.setattr(create_order, "definite_failure", hasty)


def inherited_hooks_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who takes a claim over undoes only what it did itself."""
    as_claimed = create_order.claimed_key

    def claimed_key(entry: Any) -> Any:
        claimed = as_claimed(entry)
        claimed.inherited = ()
        return claimed

    patch.setattr(create_order, "claimed_key", claimed_key)


def late_acts_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who slept while others ended its intent leaves what it did since."""
    patch.setattr(outcomes, "_ended_by_others", lambda *_: False)


def owed_undos_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An undo that fails is recorded as done."""
    for module in (outcomes, outcomes, outcomes, recovery):
        done = module.undo

        async def once(context: Any, work: Any, cancellation: Any, debts: Any, done: Any = done) -> None:
            await done(context, work, cancellation, debts)
            if debts:
                hooks = tuple(one.hook for one in debts)
                paid = transitions.MarkUndone(intent_id=debts[0].intent.id, hooks=hooks, lease_until=0.0)
                with suppress(JournalFailed):
                    await context.journal.write(work.intent.key, paid, certain=Outcome.NOT_SENT)

        patch.setattr(module, "undo", once)


def checked_for_anybody(patch: pytest.MonkeyPatch) -> None:
    """A dead worker's checks serve whatever beneficiary the redelivery names."""
    patch.setattr(transitions, "_words", lambda intent: intent.held)


def hold_beside_the_banks_own(patch: pytest.MonkeyPatch) -> None:
    """A dead worker's claim goes on with a hold of the bank's own, and its hook's hold is let be."""

    def is_served_by(self: Claim, entry: Any) -> bool:
        same = entry.intent.beneficiary == self.intent.beneficiary
        return same and set(entry.hooks) - {"hold", "funds_hold"} <= set(self.hooks)

    patch.setattr(Claim, "_is_served_by", is_served_by)


def hooks_that_are_lacking_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A client goes on with a dead worker's claim whatever hooks that one had."""
    patch.setattr(
        Claim,
        "_is_served_by",
        lambda self, entry: transitions._words(entry.intent) == transitions._words(self.intent),
    )


# --- messages -----------------------------------------------------------------------------------


def doubts_end_not_promised(patch: pytest.MonkeyPatch) -> None:
    """Who is told that it is unknown is forgotten."""

    async def forgotten(_: Any, __: Any, doubt: Any) -> Any:
        return doubt

    patch.setattr(handler.Handler, "_request_notification", forgotten)


def refusal_on_record_is_any_no(patch: pytest.MonkeyPatch) -> None:
    """A key in doubt is freed, and its claim answered, as if the order had been refused."""
    decide = Claim.decide

    def decided(self: Claim, entry: Any, now: float) -> Any:
        if entry is not None and self.once and entry.state is KeyState.IN_DOUBT:
            ending = model.Ending(outcome=Outcome.REFUSED, error="Refused", status=422)
            refused = replace(entry, state=KeyState.FREE, ending=ending)
            return model.TransitionResult(now=now, entry=refused, denial=model.Rejection.REFUSED)
        return decide(self, entry, now)

    patch.setattr(Claim, "decide", decided)


# --- people -------------------------------------------------------------------------------------


def proposer_may_approve(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether it is another person."""
    patch.setattr(transitions, "is_same_person", lambda *_: False)
    patch.setattr(operators, "is_same_person", lambda *_: False)


def stale_proposal_believed(patch: pytest.MonkeyPatch) -> None:
    """What was proposed outlives the moves of its key."""
    as_it_is = state_machine.decide

    def decide(entry: Any, move: Any, **rest: Any) -> Any:
        verdict = as_it_is(entry, move, **rest)
        if verdict is None or entry is None or verdict.entry is entry or entry.proposal is None:
            return verdict
        kept = verdict.entry.proposal or entry.proposal
        return msgspec.structs.replace(verdict, entry=replace(verdict.entry, proposal=kept))

    patch.setattr(state_machine, "decide", decide)


def demand_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """One person's word is enough, whatever the scope demands."""

    for module in (operators, state_machine):
        patch.setattr(module, "demands_four_eyes", lambda _: False)


MUTANTS: dict[str, Mutant] = {
    name: one for name, one in list(globals().items()) if getattr(one, "__module__", None) == __name__
}
"""All of the above, by name."""
