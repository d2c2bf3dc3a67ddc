"""The table and the guarantees of the state machine. `test_transitions` covers every transition."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.journal.test_transitions import LATER, MOVES, SITUATIONS, START, after
from tests.support import journalling as j
from tests.support.cases import each
from transfer_async import journal
from transfer_async._models.errors import Outcome
from transfer_async._models.requests import PersonName
from transfer_async.journal import model, state_machine
from transfer_async.journal.model import Ending, Entry, KeyState, Rejection, TransitionResult
from transfer_async.journal.transitions import Move

KINDS = {
    one
    for one in (getattr(journal, name) for name in journal.__all__)
    if isinstance(one, type) and issubclass(one, Move) and one is not Move
}
FREE = after(*j.WAYS[KeyState.FREE])


def judged(entry: Entry | None, move: Move, *, now: float = START) -> TransitionResult:
    verdict = state_machine.decide(entry, move, now=now)
    assert verdict is not None
    return verdict


# --- the table ----------------------------------------------------------------------------------


def test_the_table_has_every_transition_and_no_pair_twice():
    pairs = [(row.move, row.source) for row in state_machine.TRANSITIONS]

    assert {move for move, _ in pairs} == KINDS
    assert len(set(pairs)) == len(pairs)
    assert not any(move.__subclasses__() for move in KINDS), "`type(move) is` would not match a subclass"


def test_stored_transition_names_do_not_change():
    assert sorted(kind.name for kind in KINDS) == sorted([
        *("claim", "keep", "takeover", "mark", "create", "free", "doubt", "expire", "resolve", "refute"),
        *("paid", "owe", "attend", "suspect", "layaside", "promise", "told"),
        *("propose", "withdraw", "amend", "takeback", "look", "demand", "waive"),
        *("note", "watch", "unwatch"),
    ])  # fmt: skip


# --- a claim after a dead worker ------------------------------------------------------------------


DETAILS: dict[str, Any] = {"beneficiary": PersonName("Ben", "Okri"), "held": "H1"}
DEAD = after(j.claim(intent=j.intent(1, **DETAILS)), j.renew(check="match"))


@each(
    ("changes", "hooks"),
    [
        ({"beneficiary": PersonName("Mallory", "Okri")}, ("hold", "check")),
        ({"beneficiary": None}, ("hold", "check")),
        ({"held": "H2"}, ("hold", "check")),
        ({"held": None}, ("hold", "check")),
        ({}, ("check",)),
        ({}, ("hold", "new")),
    ],
)
def test_a_call_with_other_details_makes_the_old_undos_pending_and_begins_a_new_intent(
    changes: dict[str, Any], hooks: tuple[str, ...]
):
    claim = j.claim(2, intent=j.intent(2, **DETAILS | changes), hooks=hooks)
    entry = judged(DEAD, claim, now=START + j.LEASE).entry

    assert (entry.intent, entry.held, entry.hooks) == (claim.intent, claim.intent.held, hooks)
    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-2", 1, {})
    assert [(one.hook, one.receipt) for one in entry.pending_undos] == [("hold", None), ("check", "match")]


def test_a_call_with_the_same_details_continues_a_dead_workers_claim():
    claim = j.claim(2, intent=j.intent(2, **DETAILS), hooks=("hold", "check", "new"))
    entry = judged(DEAD, claim, now=START + j.LEASE).entry

    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-1", 2, {"check": "match"})
    assert (entry.hooks, entry.pending_undos) == (("hold", "check", "new"), ())


def test_an_entry_without_an_intent_needs_no_undos():
    assert model.undos_on_failure(after(*j.WAYS[KeyState.CREATED])) == ()


def test_intents_do_not_share_receipts():
    one, other = (judged(None, j.claim(number)).entry.receipts for number in (1, 2))

    assert one == other == {}
    assert one is not other


def test_pending_undos_are_busy_as_long_as_one_of_them_is_leased():
    free, held = j.undos("hold", "check")
    entry = replace(FREE, pending_undos=(free, attrs.evolve(held, lease_until=START + 60.0)))

    assert judged(entry, j.acquire_lease()).denial is Rejection.BUSY


# --- a refusal that is an answer ------------------------------------------------------------------


@each(
    ("error", "status", "is_final"),
    [
        ("Refused", 422, True),
        ("Refused", 403, True),
        ("Refuted", None, True),
        ("Unauthorized", 401, False),
        ("Unauthorized", 400, False),
        ("RateLimited", 429, False),
        ("Refused", 425, False),
        ("Refused", 404, False),
        ("Refused", 405, False),
        ("Refused", 503, False),
    ],
)
def test_a_claim_with_once_is_rejected_if_the_refusal_was_about_the_order(
    error: str, status: int | None, is_final: bool
):
    refused = replace(FREE, ending=Ending(outcome=Outcome.REFUSED, error=error, status=status))

    assert judged(refused, j.claim(2, once=True)).denial is (Rejection.REFUSED if is_final else None)


# --- random transitions -------------------------------------------------------------------------


def a_created_key_keeps_its_order_unless_a_person_gave_and_corrects_it(
    before: Entry, move: Move, after: Entry
):
    if (after.state, after.order_id, after.reply) != (before.state, before.order_id, before.reply):
        assert isinstance(move, (journal.Amend, journal.TakeBack))
        assert before.reply is None
        assert (move.attempt, move.wrong) == (before.attempt, before.order_id)


def a_proposal_is_void_after_every_change(before: Entry, move: Move, after: Entry):
    is_unchanged = not move.is_a_change and after.proposal == before.proposal

    assert is_unchanged or isinstance(move, journal.Propose)
    assert after.version == before.version + (not is_unchanged)


def only_another_person_approves_and_only_the_proposed_decision(before: Entry, move: Any):
    assert before.proposal is not None
    assert move.proposal == before.proposal.id
    assert move.decision is before.proposal.decision
    assert getattr(move, "order_id", None) == before.proposal.order_id
    assert move.by.strip().casefold() != before.proposal.by.strip().casefold()


def a_rejection_changes_nothing_but_the_doubt_that_a_claim_finds(
    before: Entry, move: Move, verdict: TransitionResult
):
    if before.is_suspected:
        assert (verdict.found_doubt, verdict.entry.state) == (True, KeyState.IN_DOUBT)
        assert verdict.entry.is_suspected
    else:
        assert isinstance(move, journal.Claim)
        assert before.state is KeyState.SENDING
        found = {"state": KeyState.IN_DOUBT, "cause": model.ABANDONED_CAUSE, "version": before.version + 1}
        assert verdict.entry == replace(before, **found)


BEGINNINGS = [
    entry for name, entry in SITUATIONS.items() if "far ahead" not in name and "latest times" not in name
]
"""The situations whose times `decide` does not correct."""
STEPS = st.tuples(st.sampled_from((0.0, 0.0, *LATER)), st.sampled_from([*MOVES.values()]))


@given(st.sampled_from(BEGINNINGS), st.lists(STEPS, max_size=25))
def test_random_transitions_keep_every_guarantee(before: Entry | None, steps: list[tuple[float, Move]]):
    """The guarantees that `tests.interleavings` does not check: decisions of people, and rejections."""
    now = START
    for pause, move in steps:
        now += pause
        verdict = state_machine.decide(before, move, now=now)
        if verdict is None:
            continue
        if before is not None and verdict.denial is not None:
            if verdict.entry != before:
                a_rejection_changes_nothing_but_the_doubt_that_a_claim_finds(before, move, verdict)
        elif before is not None:
            if before.state is KeyState.CREATED:
                a_created_key_keeps_its_order_unless_a_person_gave_and_corrects_it(
                    before, move, verdict.entry
                )
            if verdict.entry.proposal is not None and verdict.entry is not before:
                a_proposal_is_void_after_every_change(before, move, verdict.entry)
            if getattr(move, "proposal", None) and not isinstance(move, journal.Withdraw):
                only_another_person_approves_and_only_the_proposed_decision(before, move)
        before = verdict.entry


# --- former names -------------------------------------------------------------------------------


def test_fields_of_an_entry_can_be_read_by_their_former_names():
    entry = replace(FREE, pending_undos=j.undos("hold"), version=7)

    assert (entry.owed, entry.moves) == (entry.pending_undos, 7)  # type: ignore[attr-defined] # hidden from them
    assert not hasattr(entry, "unknown")
