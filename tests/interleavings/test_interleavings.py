"""All interleavings of the actors on one key, up to a depth, with the real state machine.

**What is explored.** Two workers make a call with one key; a recovery runs again and again; an operator
decides about doubts; the service processes requests; and the clock ticks. A worker may be stopped between
any two steps for as long as the exploration lasts. In particular it may be stopped between its last check
and the write, so that its request leaves late. At most one crash, or one undo that fails, happens at any
place. There is no chance, no sleep and no real time: from each state, every possible step is followed,
breadth-first, and each distinct state is visited once.

**What is real, and what is the model's.** The decisions are real: `state_machine.decide`, the transitions,
`claimed_key`, `undos_on_failure`, `is_waiting`. The actors are a small model. Each of their steps names the
function of `transfer_async._pipeline` that it stands for, and makes the same transitions in the same order.
A read and the write after it are separate steps, so others may come between them. The service is the model's
own: it creates or refuses an order within two ticks after the request was sent, also if nobody waits for the
answer any more, and any answer may be lost. The bank's ``resolve`` returns the order that exists at the
moment, says that there is none, or does not know. The operator resolves with an order that exists, or
refutes if there is none just now.

**Time** never passes. A tick moves all stored times into the past instead, so moments that differ only in
the time of day are one state. A lease and the time for sending are two ticks; a refutation is accepted two
ticks after the last possible send, or four for a program if the sender did not report.

**What must hold** is in `World`: `check` in each state, `_check_transition` for each transition, and the
rest where something is sent, undone, delivered or published. In short:

- a mark is not written while another order of the key exists or may exist, and no second order is created;
- a key whose order exists or may exist is bound, its funds are held, and no hold of it is released;
- an order that is delivered or published exists and is on record; "no order may exist" is true when it is
  reported;
- a suspected duplicate is published only if somebody had ended the sender's attempt;
- the sender's definite result is recorded over the doubt of others; an end on record is final;
- a rejection has a cause; a bound key that nobody works on is found by a recovery; no hold is forgotten;
- an outcome that was published as unknown has an end, which is published.

**What nobody can prevent** is excused, and only that: a sender that was stopped beyond every wait may send
after its doubt was refuted. From its report on, all rules apply to its order again. After such a refutation
the funds of its intent may stay held although nothing on record says so; the history does.

**Depth.** Some situations need a dozen steps. So `OPENINGS` names ways into rare ones, and each is explored
as deep as the beginning.

**Mutants.** `mutants` plants wrong rules: each row of the table removed or with each other target, each row
that is lacking, each guard replaced by a weaker one, each transition without its effect, and planted faults.
Each must break an invariant. `UNSEEN` lists those that change nothing that matters, with the reason. If a
mutant makes the same decisions in all visited states, another guard repeats its rule.
"""

from collections import Counter
from functools import cache

import pytest

from tests.interleavings.explore import OPENINGS, Explored, explore, way_to
from tests.interleavings.mutants import NOT_MODELLED, Mutant, of_classes, of_list, of_table
from transfer_async.journal import state_machine

UNSEEN = {
    "Create-created-allowed-to-created": "the same order: only the service's response is added",
    "Expire-in_doubt-allowed-to-in_doubt": "a doubt stays one, and a program waits longer",
    "Expire-without-effect": "the lease had expired; only the cause that people read is lost",
    "OfPerson-guarded-as-OfAttempt": "what a person saw or approves: tests/journal/test_proposal.py",
    "OfPerson-guarded-as-Move": "what a person saw or approves: tests/journal/test_proposal.py",
    "RequestNotification-guarded-as-Move": "needs a second doubt: tests/journal/test_state_machine.py",
}
"""The mutants that the exploration does not detect, with the reasons."""

STARTS = 25
"""The number of states at which a mutant is tried first: those where its decision first differs."""


@cache
def explored(depth: int) -> Explored:
    found = explore(depth=depth)

    assert found.broken is None, "\n".join((found.broken or "", *found.way))
    return found


@pytest.mark.timeout(3600)  # The test takes only CPU time, and a busy machine has little of it.
@pytest.mark.trial(short=6, ci=9, long=11)
def test_no_interleaving_breaks_an_invariant_and_every_modelled_row_is_asked_for(size: int):
    found = explored(size)
    rows = {(row.move, row.source) for row in state_machine.TRANSITIONS}
    modelled = {(kind, state) for kind, state in rows if kind.__name__ not in NOT_MODELLED}
    never = {f"{kind.__name__}-{state.value}" for kind, state in modelled - found.world.book.rows}

    assert found.depth == size
    openings = {way for before, way in found.came.values() if before is None}
    assert openings == set(OPENINGS.values())
    assert {kind.__name__ for kind, _ in rows} >= set(NOT_MODELLED)
    if size >= 7:  # with fewer steps, some do not occur
        assert never == set()


def is_found(mutant: Mutant, right: Explored, depth: int) -> bool | None:
    """Return whether ``mutant`` breaks an invariant; None if all its decisions are the same.

    The search starts at the states where its decision first differs. The paths to them are repeated with the
    wrong rule.
    """
    with mutant.planted():
        ways = []
        if mutant.kind is not None:
            changed = right.world.book.changed_at(mutant.kind)
            if not changed:
                return None
            ways = [way_to(right.came, state) for state in changed[:STARTS]]
        near = explore(depth=min(depth, 5), ways=ways)
        return near.broken is not None or explore(depth=depth).broken is not None


def mutants_of(right: Explored) -> list[Mutant]:
    return [*of_table(frozenset(right.world.book.rows)), *of_classes(), *of_list()]


@pytest.mark.timeout(3600)
@pytest.mark.trial(short=4, ci=7, long=10)
def test_a_wrong_rule_breaks_an_invariant(size: int):
    """With few steps, one wrong rule in twelve is tried."""
    right = explored(size)
    mutants = mutants_of(right)
    tried = [mutant for mutant in mutants[:: 12 if size < 7 else 1] if mutant.name not in UNSEEN]
    verdicts = {mutant.name: is_found(mutant, right, size) for mutant in tried}

    if size < 7:  # too few steps for some
        assert len([name for name, found in verdicts.items() if found]) >= 15
    else:
        assert [name for name, found in verdicts.items() if found is False] == []
        assert Counter(verdicts.values())[True] > 200
        assert set(UNSEEN) <= {mutant.name for mutant in mutants}
    assert explored.__wrapped__(4).broken is None  # the wrong rules are no longer planted
