"""The table and the guarantees of the state machine. `test_transitions` covers every transition."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support import journalling as j
from tests.support.cases import each
from transfer_async import journal
from transfer_async._models.errors import Outcome
from transfer_async._models.requests import PersonName
from transfer_async.journal import model, state_machine
from transfer_async.journal.model import Entry, KeyState, Rejection, TransitionResult
from transfer_async.journal.transitions import Claim, Move, history_step
from transfer_async.testing.journal_contract.journal_scenarios import random_move

NOW = 1000.0
KINDS = {
    one
    for one in (getattr(journal, name) for name in journal.__all__)
    if isinstance(one, type) and issubclass(one, Move) and one is not Move
}


def gone(*way: Move) -> Entry:
    """Return the entry after these transitions, all at the same time."""
    entry: Entry | None = None
    for move in way:
        verdict = state_machine.decide(entry, move, now=NOW)
        assert verdict is not None
        assert verdict.denial is None, move
        entry = verdict.entry
    assert entry is not None
    return entry


def entry_in(state: KeyState) -> Entry:
    return gone(*j.WAYS[state])


def judged(entry: Entry, move: Move, *, now: float = NOW, id_taken: bool = False) -> TransitionResult:
    verdict = state_machine.decide(entry, move, now=now, id_taken=id_taken)
    assert verdict is not None
    return verdict


# --- the table ----------------------------------------------------------------------------------


def test_the_table_has_every_transition_and_no_pair_twice():
    pairs = [(row.move, row.source) for row in state_machine.TRANSITIONS]

    assert {move for move, _ in pairs} == KINDS
    assert len(set(pairs)) == len(pairs)
    assert not any(move.__subclasses__() for move in KINDS), "`type(move) is` would not match a subclass"


STORED = (
    *("claim", "keep", "takeover", "mark", "create", "free", "doubt", "expire", "resolve", "refute"),
    *("paid", "owe", "attend", "suspect", "layaside", "promise", "told"),
    *("propose", "withdraw", "amend", "takeback", "look", "demand", "waive"),
    *("note", "watch", "unwatch"),
)


def test_stored_transition_names_do_not_change():
    names = [kind.name for kind in KINDS]

    assert sorted(names) == sorted(STORED)
    assert history_step(entry_in(KeyState.IN_DOUBT), j.doubt(), now=NOW).move == "doubt"


def test_every_row_has_its_reason():
    assert all(len(row.reason) > 10 for row in state_machine.TRANSITIONS)


BEN = PersonName("Ben", "Okri")
SAID: dict[str, Any] = {"beneficiary": BEN, "held": "H1"}


@each(
    ("words", "hooks"),
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
    words: dict[str, Any], hooks: tuple[str, ...]
):
    first = judged(entry_in(KeyState.FREE), j.claim(intent=j.intent(1, **SAID))).entry
    first = judged(first, j.renew(check="match")).entry
    again = j.claim(2, intent=j.intent(2, **SAID | words), hooks=hooks)
    entry = judged(first, again, now=NOW + j.LEASE).entry

    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-2", 1, {})
    assert (entry.intent, entry.held, entry.hooks) == (again.intent, again.intent.held, hooks)
    assert entry.pending_undos == model.undos_on_failure(first)
    assert [(one.hook, one.receipt) for one in entry.pending_undos] == [("hold", None), ("check", "match")]


def test_a_call_with_the_same_details_continues_a_dead_workers_claim():
    first = judged(entry_in(KeyState.FREE), j.claim(intent=j.intent(1, **SAID))).entry
    first = judged(first, j.renew(check="match")).entry
    again = j.claim(2, intent=j.intent(2, **SAID), hooks=("hold", "check", "new"))
    entry = judged(first, again, now=NOW + j.LEASE).entry

    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-1", 2, {"check": "match"})
    assert (entry.hooks, entry.pending_undos) == (("hold", "check", "new"), ())


def test_an_entry_without_an_intent_needs_no_undos():
    assert model.undos_on_failure(entry_in(KeyState.CREATED)) == ()


# --- random transitions -------------------------------------------------------------------------


ORDER_IDS = st.sampled_from(["tx-1", "tx-2"])
PROPOSALS = [f"proposal-{number}" for number in (1, 2)]
OF_PEOPLE: list[Move] = [
    j.look(),
    *(j.withdraw(number) for number in (1, 2)),
    *(
        j.propose(decision, order_id, attempt, number=number)
        for decision in journal.Decision
        for order_id in (None, "tx-1", "tx-2")
        for attempt in "ab"
        for number in (1, 2)
    ),
    *(
        move
        for by in ("ada", "Ada ", "ben")
        for proposal in PROPOSALS
        for move in (
            j.resolve("a", "tx-1", by=by, proposal=proposal),
            j.resolve("a", "tx-2", by=by, proposal=proposal),
            j.refute("a", by=by, proposal=proposal),
            j.amend("tx-1", "tx-2", by=by, proposal=proposal),
        )
    ),
]
"""Transitions by operators, which the contract tests' random runs lack."""
MADE: st.SearchStrategy[Move] = st.one_of(
    st.builds(random_move, st.randoms(use_true_random=False), ORDER_IDS), st.sampled_from(OF_PEOPLE)
)
PAUSES = st.sampled_from([0.0, 0.0, 0.0, 1.0, j.LEASE, j.SETTLE_AFTER, j.MAX_AGE + 1])
DOUBT = j.WAYS[KeyState.IN_DOUBT]
OPENINGS: list[tuple[Move, ...]] = [(), DOUBT, (*DOUBT, j.propose()), (*DOUBT, j.resolve())]
STEPS = st.builds(
    lambda opening, steps: [*((0.0, move) for move in opening), *steps],
    st.sampled_from(OPENINGS),
    st.lists(st.tuples(PAUSES, MADE), max_size=25),
)
Walk = list[tuple[Entry | None, Move, float, TransitionResult]]


def walk(steps: list[tuple[float, Move]]) -> Walk:
    now, entry, walked = NOW, None, []
    for pause, move in steps:
        now += pause
        verdict = state_machine.decide(entry, move, now=now)
        if verdict is not None:
            walked.append((entry, move, now, verdict))
            entry = verdict.entry
    return walked


def a_created_key_keeps_its_order_for_ever_unless_a_person_gave_it_and_it_is_corrected(walked: Walk):
    for before, move, _, verdict in walked:
        after = verdict.entry
        if before is None or before.state is not KeyState.CREATED:
            continue
        if (after.state, after.order_id, after.reply) != (before.state, before.order_id, before.reply):
            assert isinstance(move, (journal.Amend, journal.TakeBack))
            assert before.reply is None
            assert (move.attempt, move.wrong) == (before.attempt, before.order_id)


def what_was_proposed_is_void_after_any_move_but_a_look(walked: Walk):
    for before, move, _, verdict in walked:
        if before is not None and verdict.denial is None and verdict.entry.proposal is not None:
            unmoved = not move.is_a_change and verdict.entry.proposal == before.proposal
            assert unmoved or isinstance(move, journal.Propose)
            assert verdict.entry.version == before.version + (not unmoved)


def nobody_approves_but_another_person_and_only_what_was_proposed(walked: Walk):
    for before, move, _, verdict in walked:
        approved: Any = move
        approves = getattr(move, "proposal", None) and not isinstance(move, journal.Withdraw)
        if verdict.denial is None and approves:
            assert before is not None
            assert before.proposal is not None
            assert approved.proposal == before.proposal.id
            assert approved.decision is before.proposal.decision
            assert getattr(approved, "order_id", None) == before.proposal.order_id
            assert approved.by.strip().casefold() != before.proposal.by.strip().casefold()


def a_denied_move_changes_nothing_but_the_doubt_that_a_claim_finds(walked: Walk):
    for before, move, _, verdict in walked:
        if verdict.denial is None or verdict.entry == before:
            continue
        assert before is not None
        if before.is_suspected:
            assert (verdict.found_doubt, verdict.entry.state) == (True, KeyState.IN_DOUBT)
            assert verdict.entry.is_suspected
            continue
        assert isinstance(move, Claim)
        assert before.state is KeyState.SENDING
        found = {"state": KeyState.IN_DOUBT, "cause": model.ABANDONED_CAUSE, "version": before.version + 1}
        assert verdict.entry == replace(before, **found)


KEPT_BY_EVERY_WALK = (
    a_created_key_keeps_its_order_for_ever_unless_a_person_gave_it_and_it_is_corrected,
    what_was_proposed_is_void_after_any_move_but_a_look,
    nobody_approves_but_another_person_and_only_what_was_proposed,
    a_denied_move_changes_nothing_but_the_doubt_that_a_claim_finds,
)
"""Guarantees that `tests.interleavings` does not check: operators' decisions, and rejected transitions."""


@given(STEPS)
def test_random_transitions_keep_every_guarantee(steps: list[tuple[float, Move]]):
    walked = walk(steps)
    for check in KEPT_BY_EVERY_WALK:
        check(walked)


# --- a no that is an answer -----------------------------------------------------------------------


def ended_in(error: str, status: int | None, outcome: Outcome = Outcome.REFUSED) -> Entry:
    ending = model.Ending(outcome=outcome, error=error, status=status)
    return replace(entry_in(KeyState.FREE), ending=ending)


@each(
    ("error", "status", "outcome", "is_answer"),
    [
        ("Refused", 422, Outcome.REFUSED, True),
        ("Refused", 403, Outcome.REFUSED, True),
        ("Refuted", None, Outcome.REFUSED, True),
        ("Unauthorized", 401, Outcome.REFUSED, False),
        ("Unauthorized", 400, Outcome.REFUSED, False),
        ("RateLimited", 429, Outcome.REFUSED, False),
        ("Refused", 425, Outcome.REFUSED, False),
        ("Refused", 404, Outcome.REFUSED, False),
        ("Refused", 405, Outcome.REFUSED, False),
        ("Refused", 503, Outcome.REFUSED, False),
        ("ConnectionFailed", None, Outcome.NOT_SENT, False),
    ],
)
def test_a_final_refusal_of_the_same_order_rejects_a_claim_with_once(
    error: str, status: int | None, outcome: Outcome, is_answer: bool
):
    entry = ended_in(error, status, outcome)
    verdict = judged(entry, j.claim(2, once=True))

    assert verdict.denial is (Rejection.REFUSED if is_answer else None)
    assert (verdict.entry is entry) is is_answer
    assert judged(entry, j.claim(2)).denial is None


def test_intents_do_not_share_receipts():
    one, other = (state_machine.decide(None, j.claim(number), now=NOW) for number in (1, 2))

    assert one is not None
    assert other is not None
    assert one.entry.receipts == other.entry.receipts == {}
    assert one.entry.receipts is not other.entry.receipts


def test_pending_undos_are_busy_as_long_as_one_of_them_is_leased():
    free, held = j.undos("hold", "check")
    entry = replace(entry_in(KeyState.FREE), pending_undos=(free, attrs.evolve(held, lease_until=NOW + 60.0)))

    assert judged(entry, j.acquire_lease()).denial is Rejection.BUSY


# --- former names -------------------------------------------------------------------------------


def test_fields_of_an_entry_can_be_read_by_their_former_names():
    entry = replace(entry_in(KeyState.FREE), pending_undos=j.undos("hold"), version=7)

    assert (entry.owed, entry.moves) == (entry.pending_undos, 7)  # type: ignore[attr-defined] # hidden from them
    assert not hasattr(entry, "unknown")
