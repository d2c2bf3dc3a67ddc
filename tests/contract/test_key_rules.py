"""The state machine of a key, tested through the memory journal: what each rule records.

`JournalContract` compares every other journal with the same rules.
"""

import pytest
from msgspec.structs import replace

from tests.support.journalling import (
    MAX_AGE,
    SCOPE,
    WAYS,
    WINDOW,
    acquire_lease,
    add_undos,
    amend,
    claim,
    create,
    created_later,
    demand,
    doubt,
    expire,
    intent,
    judged,
    made,
    mark,
    mark_notified,
    mark_undone,
    propose,
    refute,
    refuted_later,
    release,
    renew,
    request_notification,
    resolve,
    suspect,
    take_back,
    undos,
    waive,
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


async def test_a_claim_is_taken_over_with_its_intent_and_receipts(journal, pass_time):
    await made(journal, claim(), renew(check="r-1"))
    pass_time(LEASE - 0.001)
    before = await judged(journal, claim(2))
    pass_time(0.001)
    after = await judged(journal, claim(2))

    assert before.denial is Rejection.BUSY
    assert before.lease_left == pytest.approx(0.001, abs=1e-6)
    assert after.denial is None
    assert (after.entry.intent_id, after.entry.epoch) == ("intent-1", 2)
    assert after.entry.intent == intent(1)
    assert after.entry.receipts == {"check": "r-1"}


async def test_the_hooks_of_a_claim_that_is_too_old_are_undone_in_order_and_a_new_intent_begins(
    journal, pass_time
):
    await made(journal, claim(), renew(check="r-1"))
    pass_time(MAX_AGE + 1)
    verdict = await judged(journal, claim(2, hooks=("other",)))

    entry = verdict.entry
    assert verdict.denial is None
    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-2", 1, {})
    assert [(undo.intent.id, undo.hook, undo.receipt) for undo in entry.pending_undos] == [
        ("intent-1", "hold", None),
        ("intent-1", "check", "r-1"),
    ]


async def test_a_claim_that_finds_an_expired_request_records_the_doubt(journal, pass_time):
    await made(journal, claim(), mark())
    pass_time(10 * MAX_AGE)
    verdict = await judged(journal, claim(2))
    read = await journal.read(SCOPE, "k")

    assert verdict.denial is Rejection.IN_DOUBT
    assert read is not None
    assert (read.state, read.intent_id, read.attempt) == (KeyState.IN_DOUBT, "intent-1", "a")


async def test_an_undo_that_becomes_due_late_is_pending_once_whatever_the_keys_state(journal):
    await made(journal, claim(), release(None, pending_undos=undos("hold")), claim(2))
    entry = await made(journal, add_undos("hold", "check"))

    assert entry.intent_id == "intent-2"
    assert sorted(undo.hook for undo in entry.pending_undos) == ["check", "hold"]
    assert await journal.read(SCOPE, "k") == entry


async def test_a_refutation_ends_in_a_refusal_with_pending_undos(journal, pass_time):
    await made(journal, claim(), mark())
    pass_time(LEASE)
    await made(journal, expire())
    pass_time(WINDOW + SETTLE_AFTER - LEASE - 0.001)
    early = await judged(journal, refute())
    pass_time(0.001)
    late = await judged(journal, refute(pending_undos=undos("hold")))

    assert early.denial is Rejection.TOO_EARLY
    assert late.denial is None
    assert late.entry.state is KeyState.FREE
    assert late.entry.ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
    assert [undo.hook for undo in late.entry.pending_undos] == ["hold"]


async def test_a_new_intent_begins_with_nothing_of_the_one_before(journal):
    await made(journal, claim(), mark(), release())
    entry = await made(journal, claim(2, fingerprint="another"))

    assert (entry.intent_id, entry.epoch, entry.attempt, entry.receipts) == ("intent-2", 1, None, {})


async def test_undos_are_recorded_with_the_failure_under_a_lease(journal, pass_time):
    entry = await made(journal, claim(), release(None, pending_undos=undos("hold", "check")))
    waiting = await journal.work(SCOPE, limit=10)
    pass_time(LEASE)
    later = await journal.work(SCOPE, limit=10)

    assert [(undo.hook, undo.receipt) for undo in entry.pending_undos] == [
        ("hold", "r-hold"),
        ("check", "r-check"),
    ]
    assert waiting == []
    assert [key for key, _ in later] == ["k"]


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


async def test_pending_undos_outlive_the_next_intents_of_the_key(journal):
    await made(journal, claim(), release(None, pending_undos=undos("hold")))
    entry = await made(journal, claim(2), mark(number=2), create())

    assert [undo.intent.id for undo in entry.pending_undos] == ["intent-1"]


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


async def test_a_suspected_duplicate_is_recorded_and_its_key_is_bound(journal):
    for state, way in WAYS.items():
        await made(journal, *way, key=state.value)
        entry = await made(journal, suspect(), key=state.value)
        is_free = state is KeyState.FREE

        assert await journal.read(SCOPE, state.value) == entry
        assert entry.state is (KeyState.IN_DOUBT if is_free else state)
        assert entry.is_suspected
        assert (await journal.history(SCOPE, state.value))[-1].move == "suspect"


async def test_a_key_with_a_suspected_duplicate_sends_nothing_and_ends_in_doubt(journal):
    await made(journal, claim(), mark(), release(), claim(2), suspect())
    marked = await judged(journal, mark("b", number=2))
    freed = await judged(journal, release(None, number=2, pending_undos=undos("hold", number=2)))
    entry = await journal.read(SCOPE, "k")

    assert marked.denial is freed.denial is Rejection.LOST
    assert entry is not None
    assert (entry.state, entry.candidates, entry.pending_undos) == (KeyState.IN_DOUBT, ("tx-2",), ())
    assert entry.hooks == ("hold",)


async def test_a_free_key_with_a_suspected_duplicate_is_bound_with_its_intent(journal):
    await made(journal, claim(), mark(), release(), claim(2), release(None, number=2), suspect())
    entry = await journal.read(SCOPE, "k")
    _, again = await judged(journal, claim(3)), await journal.read(SCOPE, "k")

    assert entry == again
    assert entry is not None
    assert (entry.state, entry.intent, entry.candidates) == (KeyState.IN_DOUBT, intent(), ("tx-2",))


async def test_a_forgotten_key_with_a_suspected_duplicate_is_recorded_again(journal):
    entry = await made(journal, suspect())

    assert await journal.read(SCOPE, "k") == entry
    assert (entry.state, entry.intent, entry.candidates) == (KeyState.IN_DOUBT, intent(), ("tx-2",))


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


async def test_an_order_that_appears_after_its_refutation_binds_the_key_again(journal, pass_time):
    await made(journal, claim(), mark(), doubt())
    pass_time(SETTLE_AFTER + WINDOW)
    await made(journal, refute())
    entry = await made(journal, create())

    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-1")
    assert entry.ending is not None


async def test_the_end_of_a_published_doubt_is_pending_until_it_is_published(
    journal, journal_time, pass_time
):
    await made(journal, *WAYS[KeyState.IN_DOUBT], request_notification(), resolve())
    ((key, entry),) = await journal.work(SCOPE, limit=10)

    assert (key, entry.pending_notifications) == ("k", (created_later(),))
    pass_time(2 * KEPT)
    assert await journal.prune(SCOPE, before=journal_time.utc()) == 0
    assert (await made(journal, mark_notified())).pending_notifications == ()
    assert await journal.work(SCOPE, limit=10) == []


async def test_the_refutation_of_a_published_doubt_is_pending(journal, pass_time):
    promised = await made(journal, *WAYS[KeyState.IN_DOUBT], request_notification())
    assert promised.notification_requested
    assert await journal.read(SCOPE, "k") == promised

    pass_time(WINDOW + SETTLE_AFTER)
    refuted = await made(journal, refute())
    assert refuted.pending_notifications == (refuted_later(),)
    assert await journal.read(SCOPE, "k") == refuted


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
    assert (await lines(journal))[-2:] == [
        ("propose", "ada", "resolve: seen"),
        ("resolve", "ben", "seen"),
    ]


async def test_a_decision_about_an_older_version_of_the_key_is_rejected(journal):
    seen = (await made(journal, claim(), mark(), doubt())).version
    await made(journal, request_notification())
    stale = [await judged(journal, move) for move in (resolve(seen=seen), propose(seen=seen))]

    assert [verdict.denial for verdict in stale] == [Rejection.MOVED, Rejection.MOVED]
    assert (await judged(journal, resolve(seen=seen + 1))).denial is None


async def test_a_corrected_order_id_is_free_for_another_key(journal):
    await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1"))
    after = await made(journal, amend("tx-1", "tx-2"))
    other = await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1"), key="k2")
    taken = await judged(journal, amend("tx-1", "tx-2"), key="k2")

    assert (after.state, after.order_id, other.order_id) == (KeyState.CREATED, "tx-2", "tx-1")
    assert taken.denial is Rejection.FOREIGN
    assert (await lines(journal))[-1] == ("amend", "operator", "a slip")


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
    ] == [
        ["tx-2"],
        ["tx-3"],
        [],
    ]


async def test_one_person_demands_dual_control_and_two_waive_it(journal):
    first = await made(journal, demand(), key=FOUR_EYES)
    alone = await judged(journal, replace(waive(), proposal="none"), key=FOUR_EYES)
    await made(journal, propose(Decision.WAIVE, attempt=None), key=FOUR_EYES)
    same = await judged(journal, waive(by="Ada"), key=FOUR_EYES)
    waived = await made(journal, waive(), key=FOUR_EYES)
    again = await made(journal, demand(), key=FOUR_EYES)

    assert (first.four_eyes, waived.four_eyes, again.four_eyes) == (True, False, True)
    assert (alone.denial, same.denial) == (Rejection.VOID, Rejection.SAME_PERSON)
    assert [move for move, _, _ in await lines(journal, FOUR_EYES)] == [
        *("demand", "propose", "waive"),
        "demand",
    ]


async def test_dual_control_allows_programs_approvals_and_other_scopes(journal):
    await made(journal, demand(), key=FOUR_EYES)
    await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1", by_program=True))
    await made(journal, claim(), mark(), doubt(), propose(order_id="tx-2"), key="k2")
    approved = await made(journal, resolve(order_id="tx-2", by="ben", proposal="proposal-1"), key="k2")
    for move in (claim(), mark(), doubt()):
        await journal.move("https://other.example", "k", move)
    other = await journal.move("https://other.example", "k", resolve())

    assert approved.state is KeyState.CREATED
    assert other is not None
    assert other.denial is None


async def test_a_second_demand_changes_nothing(journal):
    first = await made(journal, demand(), key=FOUR_EYES)
    await made(journal, propose(Decision.WAIVE, attempt=None), key=FOUR_EYES)
    await judged(journal, demand(), key=FOUR_EYES)
    entry = await read(journal, FOUR_EYES)

    assert (entry.version, entry.proposal is None) == (first.version + 1, False)
