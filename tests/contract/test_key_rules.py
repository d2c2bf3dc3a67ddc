"""What single transitions record, seen through the memory journal.

`JournalContract` compares every journal with the rules, and `tests.interleavings` explores the rules.
"""

import pytest
from msgspec.structs import replace

from tests.support.journalling import (
    SCOPE,
    WINDOW,
    acquire_lease,
    add_undos,
    amend,
    claim,
    demand,
    doubt,
    judged,
    made,
    mark,
    mark_notified,
    mark_undone,
    propose,
    refute,
    release,
    request_notification,
    resolve,
    suspect,
    take_back,
    undos,
)
from transfer_async import CauseKind, MemoryJournal, Outcome
from transfer_async.journal import FOUR_EYES, KEPT, LONGEST_LEASE, Decision, Ending, KeyState, Rejection
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.journal_contract import JournalTime


@pytest.fixture
def journal_time():
    return JournalTime()


@pytest.fixture
def pass_time(journal_time):
    return journal_time.pass_


@pytest.fixture
async def journal(journal_time):
    async with MemoryJournal(clock=journal_time.clock) as journal:
        yield journal


async def read(journal, key="k"):
    entry = await journal.read(SCOPE, key)
    assert entry is not None
    return entry


async def lines(journal, key="k"):
    return [(step.move, step.by, step.reason) for step in await journal.history(SCOPE, key)]


async def proposed(journal):
    return await made(journal, claim(), mark(), doubt(), propose())


async def test_an_undo_that_is_done_is_removed_and_the_others_are_due_at_once(journal):
    freed = await made(journal, claim(), release(None, pending_undos=undos("hold", "check")))
    entry = await made(journal, mark_undone("hold", lease_until=freed.pending_undos[0].lease_until))

    assert [(undo.hook, undo.lease_until) for undo in entry.pending_undos] == [("check", 0.0)]
    assert [key for key, _ in await journal.work(SCOPE, limit=10)] == ["k"]


async def test_an_undo_of_one_intent_leaves_those_of_others(journal):
    await made(journal, claim(), release(None, pending_undos=undos("hold")))
    freed = await made(journal, claim(2), release(None, number=2, pending_undos=undos("hold", number=2)))
    entry = await made(journal, mark_undone("hold", number=2, lease_until=freed.pending_undos[1].lease_until))

    assert [undo.intent.id for undo in entry.pending_undos] == ["intent-1"]


async def test_an_undo_that_became_due_again_meanwhile_stays_pending(journal, pass_time):
    freed = await made(journal, claim(), release(None, pending_undos=undos("hold")))
    pass_time(1.0)
    await made(journal, add_undos("hold"))
    entry = await made(journal, mark_undone("hold", lease_until=freed.pending_undos[0].lease_until))

    assert [undo.hook for undo in entry.pending_undos] == ["hold"]
    assert entry.pending_undos[0].lease_until > freed.pending_undos[0].lease_until


async def test_every_transition_is_recorded_in_the_history(journal, journal_time, pass_time):
    began = journal_time.utc().timestamp()
    await made(journal, claim())
    pass_time(1.5)
    await made(journal, mark(), doubt())
    pass_time(SETTLE_AFTER + WINDOW)
    await made(journal, refute(), claim(2), release(None, number=2), suspect("tx-late"))
    steps = await journal.history(SCOPE, "k")

    assert [(step.move, step.state.value) for step in steps] == [
        ("claim", "claimed"),
        ("mark", "sending"),
        ("doubt", "in_doubt"),
        ("refute", "free"),
        ("claim", "claimed"),
        ("free", "free"),
        ("suspect", "in_doubt"),
    ]
    assert [step.at for step in steps[:2]] == [pytest.approx(began), pytest.approx(began + 1.5)]
    assert [step.intent_id for step in steps] == ["intent-1"] * 4 + ["intent-2"] * 2 + ["intent-1"]
    assert [step.attempt for step in steps] == [None, "a", "a", "a", None, None, "a"]
    assert (steps[3].by, steps[3].reason) == ("operator", "sure")
    assert steps[3].ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
    assert (steps[6].order_id, steps[6].by) == ("tx-late", "sender")


async def test_the_doubt_that_a_claim_finds_is_one_entry_in_the_history(journal, pass_time):
    await made(journal, claim(), mark())
    pass_time(LEASE)
    await judged(journal, claim(2))
    await judged(journal, claim(3))
    steps = await journal.history(SCOPE, "k")

    assert [(step.move, step.state.value) for step in steps[2:]] == [("claim", "in_doubt")]


async def test_leases_of_a_clock_that_was_years_ahead_end(journal, pass_time):
    """A machine that started in 2036 and was set right would bind its keys and holds until 2036."""
    years = 10 * 365 * KEPT
    pass_time(years)
    await made(journal, claim(), key="claimed")
    await made(journal, claim(), mark(), key="sending")
    await made(journal, claim(), mark(), doubt(), key="doubt")
    await made(journal, claim(), release(None, pending_undos=undos("hold")), key="owed")
    pass_time(-years)
    waiting = [key for key, _ in await journal.work(SCOPE, limit=10)]
    fresh = await made(journal, claim(2), key="claimed")
    found = await judged(journal, claim(2), key="sending")

    assert waiting == ["claimed", "doubt", "owed", "sending"]
    assert [(undo.intent.id, undo.hook) for undo in fresh.pending_undos] == [
        ("intent-1", "hold"),
        ("intent-1", "check"),
    ]
    assert (found.denial, found.found_doubt, found.entry.state) == (
        Rejection.IN_DOUBT,
        True,
        KeyState.IN_DOUBT,
    )
    assert (await judged(journal, acquire_lease(), key="owed")).denial is None
    for key in ("sending", "doubt"):
        early = await judged(journal, refute(), key=key)
        assert early.denial is Rejection.TOO_EARLY
        assert early.entry.sent_until - early.now == LONGEST_LEASE
        assert (await journal.history(SCOPE, key))[-1].move != "refute"
    pass_time(LONGEST_LEASE + SETTLE_AFTER)
    for key in ("sending", "doubt"):
        assert (await judged(journal, refute(), key=key)).denial is None


async def test_a_proposal_is_recorded_and_made_when_another_person_approves_it(journal):
    entry = await proposed(journal)
    kept = await read(journal)
    after = await made(journal, resolve(by="ben", proposal="proposal-1"))

    assert kept == entry
    assert kept.proposal is not None
    assert (kept.proposal.by, kept.proposal.decision, kept.proposal.order_id) == (
        "ada",
        Decision.RESOLVE,
        "tx-1",
    )
    assert (after.state, after.order_id, after.proposal) == (KeyState.CREATED, "tx-1", None)
    assert (await lines(journal))[-2:] == [("propose", "ada", "resolve: seen"), ("resolve", "ben", "seen")]


async def test_a_decision_about_an_older_version_of_the_key_is_rejected(journal):
    seen = (await made(journal, claim(), mark(), doubt())).version
    await made(journal, request_notification())
    stale = [await judged(journal, move) for move in (resolve(seen=seen), propose(seen=seen))]

    assert [verdict.denial for verdict in stale] == [Rejection.MOVED, Rejection.MOVED]
    assert (await judged(journal, resolve(seen=seen + 1))).denial is None


async def test_a_withdrawn_order_id_leaves_the_doubt_as_it_was(journal, pass_time):
    before = await made(journal, claim(), mark(hold="r"), doubt())
    await made(journal, resolve())
    after = await made(journal, take_back())
    kept = await read(journal)
    pass_time(SETTLE_AFTER)
    freed = await made(journal, refute())
    last = (await journal.history(SCOPE, "k"))[-2]

    assert (after.state, after.order_id) == (KeyState.IN_DOUBT, None)
    assert kept.cause is not None
    assert kept.cause.kind is CauseKind.TAKEN_BACK
    assert kept == replace(before, cause=kept.cause, version=before.version + 2)
    assert [key for key, _ in await journal.in_doubt(SCOPE)] == []
    assert (last.move, last.order_id, freed.state) == ("takeback", "tx-1", KeyState.FREE)


async def test_a_corrected_order_is_published_too(journal):
    await made(journal, claim(), mark(), doubt(), request_notification(), resolve())
    unheard = await made(journal, amend("tx-1", "tx-2"))
    await made(journal, mark_notified(unheard.pending_notifications[0]))
    heard = await made(journal, amend("tx-2", "tx-3"))
    doubted = await made(journal, take_back("tx-3"))

    assert [
        [pending.order_id for pending in entry.pending_notifications] for entry in (unheard, heard, doubted)
    ] == [["tx-2"], ["tx-3"], []]


async def test_dual_control_of_one_scope_does_not_bind_another(journal):
    await made(journal, demand(), key=FOUR_EYES)
    for move in (claim(), mark(), doubt()):
        await journal.move("https://other.example", "k", move)
    other = await journal.move("https://other.example", "k", resolve())

    assert other is not None
    assert other.denial is None
