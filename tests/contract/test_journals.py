"""What every journal does, whatever it stores its keys in."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest

from tests.support.bank import Time
from tests.support.cases import each
from tests.support.journalling import (
    LEASE,
    MAX_AGE,
    REPLY,
    SCOPE,
    SETTLE_AFTER,
    WAYS,
    WINDOW,
    attend,
    claim,
    create,
    created_later,
    doubt,
    expire,
    free,
    intent,
    judged,
    keep,
    made,
    mark,
    owe,
    owing,
    paid,
    promise,
    refute,
    refuted_later,
    resolve,
    suspect,
    take_over,
    told,
)
from transfer_async import JournalFailed, Outcome
from transfer_async.journal import KEPT, LONGEST_LEASE, Denial, Ending, Journal, KeyState, Move
from transfer_async.journal.scoped import ScopedJournal

LetPass = Callable[[float], None]


def test_a_journal_says_whether_it_is_durable(journal: Journal):
    assert isinstance(journal.durable, bool)


async def test_what_was_never_claimed_is_unknown(journal: Journal):
    assert await journal.read(SCOPE, "k") is None
    assert await journal.history(SCOPE, "k") == ()


SETTLING = (keep, take_over, mark, create, free, doubt, expire, resolve, refute)
ASIDE = (paid, owe, attend, suspect, promise, told)


@each("move", [make() for make in (*SETTLING, *ASIDE)])
async def test_only_a_claim_makes_an_entry(journal: Journal, move: Move):
    assert await journal.move(SCOPE, "k", move) is None
    assert await journal.read(SCOPE, "k") is None


@each("state", KeyState)
async def test_an_entry_is_read_as_its_last_move_left_it(journal: Journal, state: KeyState):
    entry = await made(journal, *WAYS[state], key=state.value)

    assert entry.state is state
    assert await journal.read(SCOPE, state.value) == entry


async def test_everything_that_an_entry_holds_comes_back_as_it_was(journal: Journal):
    wish = intent(held="H1", send_before=None)
    entry = await made(
        journal,
        claim(intent=wish),
        keep(check="r-1"),
        mark(check="r-1", hold="r-ü"),
        free(owed=owing("hold", "check")),
        claim(2),
        mark("b", number=2),
        doubt("b"),
    )
    read = await journal.read(SCOPE, "k")

    assert read == entry
    assert entry.intent == intent(2)
    assert [one.intent.order for one in entry.owed] == [wish.order, wish.order]
    assert entry.ending is None


async def test_a_created_key_keeps_its_reply_byte_for_byte_and_forgets_the_wish(journal: Journal):
    reply = b'{"id": "tx-1", "x": "\xc3\xbc\\u0000"}'
    await made(journal, claim(), mark(), create(reply=reply))
    entry = await journal.read(SCOPE, "k")

    assert entry is not None
    assert (entry.reply, entry.order_id, entry.intent) == (reply, "tx-1", None)


async def test_a_denied_move_changes_nothing(journal: Journal):
    entry = await made(journal, claim(), mark())
    verdict = await judged(journal, create("another"))

    assert verdict.denial is Denial.LOST
    assert verdict.entry == await journal.read(SCOPE, "k") == entry
    assert len(await journal.history(SCOPE, "k")) == 2


async def test_of_many_claims_at_once_one_is_granted(journal: Journal):
    verdicts = await asyncio.gather(*(judged(journal, claim(number)) for number in range(50)))

    assert sum(verdict.denial is None for verdict in verdicts) == 1
    assert sum(verdict.denial is Denial.BUSY for verdict in verdicts) == 49


async def test_of_many_settlements_at_once_one_is_granted(journal: Journal):
    await made(journal, claim(), mark(), doubt())
    wanted = [resolve(order_id=f"tx-{number}") for number in range(10)] + [create(order_id="tx-own")]
    verdicts = await asyncio.gather(*(judged(journal, move) for move in wanted))

    assert sum(verdict.denial is None for verdict in verdicts) == 1
    assert len({verdict.entry.order_id for verdict in verdicts}) == 1


async def test_a_move_that_has_begun_is_finished_even_if_its_caller_is_cancelled(journal: Journal):
    caller = asyncio.create_task(judged(journal, claim()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    while await journal.read(SCOPE, "k") is None:  # noqa: ASYNC110 - another connection may be faster
        await asyncio.sleep(0)

    assert (await judged(journal, claim(2))).denial is Denial.BUSY


async def test_keys_and_scopes_do_not_mix(journal: Journal):
    await made(journal, claim())

    assert await journal.read(SCOPE, "K") is None
    assert await journal.read("https://other.example", "k") is None
    assert (await judged(journal, claim(), key="k2")).denial is None


@each("key", ["k" * 200, "Zahlung №8731 – é", "a'b\"c;--", "😀", " "])
async def test_any_printable_key_is_kept_as_it_is(journal: Journal, key: str):
    await made(journal, claim(), key=key)

    assert await journal.read(SCOPE, key) is not None


# --- leases -------------------------------------------------------------------------------------


async def test_a_claim_is_taken_over_after_its_lease_and_not_before(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), keep(check="r-1"))
    pass_time(LEASE - 0.001)
    before = await judged(journal, claim(2))
    pass_time(0.001)
    after = await judged(journal, claim(2))

    assert (before.denial, before.lease_left) == (Denial.BUSY, pytest.approx(0.001, abs=1e-6))
    assert after.denial is None
    assert (after.entry.intent_id, after.entry.epoch) == ("intent-1", 2)
    assert after.entry.intent == intent(1)
    assert after.entry.receipts == {"check": "r-1"}


async def test_the_worker_that_was_taken_over_can_neither_keep_mark_nor_free(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim())
    pass_time(LEASE)
    await made(journal, claim(2))

    for move in (keep(), mark(), free(None), take_over()):
        assert (await judged(journal, move)).denial is Denial.LOST
    assert (await judged(journal, mark(epoch=2))).denial is None


async def test_a_worker_that_slept_through_its_lease_can_free_its_claim_but_not_send(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim())
    pass_time(LEASE)

    assert (await judged(journal, mark())).denial is Denial.LOST
    assert (await judged(journal, keep())).denial is Denial.LOST
    assert (await judged(journal, free(None))).denial is None


async def test_a_lease_is_renewed_by_keeping_it(journal: Journal, pass_time: LetPass):
    await made(journal, claim())
    pass_time(LEASE - 1)
    await made(journal, keep())
    pass_time(LEASE - 1)

    assert (await judged(journal, claim(2))).denial is Denial.BUSY


async def test_a_claim_that_is_too_old_is_owed_in_order_and_a_new_intent_begins(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim(), keep(check="r-1"))
    pass_time(MAX_AGE + 1)
    verdict = await judged(journal, claim(2, hooks=("other",)))

    entry = verdict.entry
    assert verdict.denial is None
    assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-2", 1, {})
    assert [(one.intent.id, one.hook, one.receipt) for one in entry.owed] == [
        ("intent-1", "hold", None),
        ("intent-1", "check", "r-1"),
    ]


async def test_a_claim_of_just_the_greatest_age_is_taken_over(journal: Journal, pass_time: LetPass):
    await made(journal, claim())
    pass_time(MAX_AGE)

    assert (await judged(journal, claim(2))).entry.intent_id == "intent-1"


async def test_a_claim_that_is_kept_alive_is_never_too_old(journal: Journal, pass_time: LetPass):
    await made(journal, claim())
    for _ in range(30):
        pass_time(LEASE - 1)
        await made(journal, keep())

    assert (await judged(journal, claim(2))).denial is Denial.BUSY


async def test_an_expired_request_is_in_doubt_for_whoever_claims_it_and_the_doubt_is_written(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim(), mark())
    pass_time(10 * MAX_AGE)
    verdict = await judged(journal, claim(2))
    read = await journal.read(SCOPE, "k")

    assert verdict.denial is Denial.IN_DOUBT
    assert read is not None
    assert (read.state, read.intent_id, read.attempt) == (KeyState.IN_DOUBT, "intent-1", "a")


async def test_a_request_does_not_expire_before_its_lease(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), mark())
    pass_time(LEASE - 0.001)
    early = await judged(journal, expire())
    pass_time(0.001)
    other = await judged(journal, expire("b"))
    late = await judged(journal, expire())

    assert (early.denial, other.denial, late.denial) == (Denial.BUSY, Denial.LOST, None)
    assert late.entry.state is KeyState.IN_DOUBT


async def test_a_take_over_waits_for_the_lease(journal: Journal, pass_time: LetPass):
    await made(journal, claim())
    early = await judged(journal, take_over())
    pass_time(LEASE)
    late = await judged(journal, take_over())

    assert (early.denial, late.denial) == (Denial.BUSY, None)
    assert late.entry.epoch == 2


# --- settling -----------------------------------------------------------------------------------


async def test_the_sender_of_the_attempt_may_write_its_answer_over_the_doubt_of_others(
    journal: Journal, pass_time: LetPass
):
    for key, answer, state in (("yes", create, KeyState.CREATED), ("no", free, KeyState.FREE)):
        await made(journal, claim(), mark(), key=key)
        pass_time(LEASE)
        await made(journal, expire(), key=key)

        assert (await judged(journal, answer("b"), key=key)).denial is Denial.LOST
        assert (await judged(journal, answer(), key=key)).entry.state is state


async def test_created_is_final(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), mark(), create())
    pass_time(10 * MAX_AGE)

    for move in (*(make() for make in SETTLING), free(None)):
        assert (await judged(journal, move)).denial is Denial.LOST
    assert (await judged(journal, claim(2))).denial is Denial.CREATED


async def test_a_different_order_is_a_conflict_in_every_state_but_free(journal: Journal):
    other = claim(2, fingerprint="another")
    denials = {}
    for state, way in WAYS.items():
        await made(journal, *way, key=state.value) if state is not KeyState.CREATED else await made(
            journal, claim(), mark(), create(order_id="tx-9"), key=state.value
        )
        denials[state] = (await judged(journal, other, key=state.value)).denial

    assert denials.pop(KeyState.FREE) is None
    assert set(denials.values()) == {Denial.CONFLICT}


async def test_an_undo_that_became_due_late_is_owed_once_whatever_the_key_has_become(journal: Journal):
    await made(journal, claim(), free(None, owed=owing("hold")), claim(2))
    entry = await made(journal, owe("hold", "check"))

    assert entry.intent_id == "intent-2"
    assert sorted(one.hook for one in entry.owed) == ["check", "hold"]
    assert await journal.read(SCOPE, "k") == entry


async def test_an_order_id_is_bound_to_one_key_of_a_scope(journal: Journal):
    await made(journal, claim(), mark(), create(), key="first")
    await made(journal, claim(), mark(), key="second")
    foreign = await judged(journal, create(), key="second")
    await made(journal, doubt(), key="second")
    resolved = await judged(journal, resolve(), key="second")
    elsewhere = [
        await journal.move("https://other.example", "k", move) for move in (claim(), mark(), create())
    ]

    assert foreign.denial is resolved.denial is Denial.FOREIGN
    assert elsewhere[-1] is not None
    assert elsewhere[-1].denial is None


async def test_a_refutation_waits_for_the_last_possible_send_and_the_time_to_settle(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim(), mark())
    pass_time(LEASE)
    await made(journal, expire())
    pass_time(WINDOW + SETTLE_AFTER - LEASE - 0.001)
    early = await judged(journal, refute())
    pass_time(0.001)
    late = await judged(journal, refute(owed=owing("hold")))

    assert early.denial is Denial.TOO_EARLY
    assert late.denial is None
    assert late.entry.state is KeyState.FREE
    assert late.entry.ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
    assert [one.hook for one in late.entry.owed] == ["hold"]


async def test_a_sender_that_confirms_its_doubt_shortens_the_wait(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), mark())
    pass_time(5.0)
    await made(journal, doubt())
    pass_time(SETTLE_AFTER - 0.001)
    early = await judged(journal, refute())
    pass_time(0.001)
    late = await judged(journal, refute())

    assert (early.denial, late.denial) == (Denial.TOO_EARLY, None)


async def test_resolving_and_refuting_are_about_one_attempt(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), mark(), doubt())
    pass_time(SETTLE_AFTER + WINDOW)

    assert (await judged(journal, resolve("b"))).denial is Denial.LOST
    assert (await judged(journal, refute("b"))).denial is Denial.LOST
    assert (await judged(journal, resolve())).denial is None


async def test_a_key_is_free_for_a_new_intent_after_a_certain_no(journal: Journal):
    await made(journal, claim(), mark(), free())
    entry = await made(journal, claim(2, fingerprint="another"))

    assert (entry.intent_id, entry.epoch, entry.attempt, entry.receipts) == ("intent-2", 1, None, {})


async def test_an_attempt_of_an_earlier_intent_settles_nothing(journal: Journal):
    await made(journal, claim(), mark("a"), free("a"), claim(2), mark("b", number=2))

    for move in (create("a"), free("a"), doubt("a"), resolve("a")):
        assert (await judged(journal, move)).denial is Denial.LOST


# --- what is owed -------------------------------------------------------------------------------


async def test_what_is_owed_is_recorded_with_the_no_under_a_lease(journal: Journal, pass_time: LetPass):
    entry = await made(journal, claim(), free(None, owed=owing("hold", "check")))
    waiting = await journal.work(SCOPE, limit=10)
    pass_time(LEASE)
    later = await journal.work(SCOPE, limit=10)

    assert [(one.hook, one.receipt) for one in entry.owed] == [("hold", "r-hold"), ("check", "r-check")]
    assert waiting == []
    assert [key for key, _ in later] == ["k"]


async def test_what_is_paid_is_owed_no_longer_and_the_rest_is_left_to_others_at_once(journal: Journal):
    freed = await made(journal, claim(), free(None, owed=owing("hold", "check")))
    entry = await made(journal, paid("hold", lease_until=freed.owed[0].lease_until))

    assert [(one.hook, one.lease_until) for one in entry.owed] == [("check", 0.0)]
    assert [key for key, _ in await journal.work(SCOPE, limit=10)] == ["k"]


async def test_paying_for_one_intent_leaves_the_others(journal: Journal):
    await made(journal, claim(), free(None, owed=owing("hold")))
    freed = await made(journal, claim(2), free(None, number=2, owed=owing("hold", number=2)))
    entry = await made(journal, paid("hold", number=2, lease_until=freed.owed[1].lease_until))

    assert [one.intent.id for one in entry.owed] == ["intent-1"]


async def test_paying_what_has_become_due_anew_meanwhile_pays_nothing(journal: Journal, pass_time: LetPass):
    freed = await made(journal, claim(), free(None, owed=owing("hold")))
    pass_time(1.0)
    await made(journal, owe("hold"))
    entry = await made(journal, paid("hold", lease_until=freed.owed[0].lease_until))

    assert [one.hook for one in entry.owed] == ["hold"]
    assert entry.owed[0].lease_until > freed.owed[0].lease_until


async def test_what_is_owed_outlives_the_next_intents_of_the_key(journal: Journal):
    await made(journal, claim(), free(None, owed=owing("hold")))
    entry = await made(journal, claim(2), mark(number=2), create())

    assert [one.intent.id for one in entry.owed] == ["intent-1"]


async def test_one_worker_at_a_time_attends_to_what_is_owed(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), free(None, owed=owing("hold"), lease=0.0))
    first = await judged(journal, attend())
    second = await judged(journal, attend())
    pass_time(LEASE)
    third = await judged(journal, attend())

    assert (first.denial, second.denial, third.denial) == (None, Denial.BUSY, None)


async def test_one_worker_at_a_time_attends_to_a_doubt_and_may_let_it_go(journal: Journal):
    await made(journal, claim(), mark(), doubt(), attend())
    second = await judged(journal, attend())
    await made(journal, attend(0.0))
    third = await judged(journal, attend())

    assert (second.denial, third.denial) == (Denial.BUSY, None)


# --- work, doubts, history, pruning -----------------------------------------------------------------


async def test_what_waits_for_somebody_is_what_nobody_is_at(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), key="claimed")
    await made(journal, claim(), mark(), key="sending")
    await made(journal, claim(), mark(), doubt(), key="doubt")
    await made(journal, claim(), mark(), create(), key="created")
    await made(journal, claim(), mark(), free(), key="free")
    await made(journal, claim(), mark(), free(owed=owing("hold"), lease=0.0), key="owed")
    now = [key for key, _ in await journal.work(SCOPE, limit=10)]
    pass_time(LEASE)
    later = [key for key, _ in await journal.work(SCOPE, limit=10)]
    two = await journal.work(SCOPE, limit=2)
    elsewhere = await journal.work("https://other.example", limit=10)

    assert sorted(now) == ["doubt", "owed"]
    assert sorted(later) == ["claimed", "doubt", "owed", "sending"]
    assert (len(two), elsewhere) == (2, [])


async def test_doubts_are_told_oldest_first(journal: Journal, pass_time: LetPass):
    for key in "cab":
        await made(journal, claim(), mark(), doubt(), key=key)
        pass_time(1.0)
    await made(journal, claim(), key="d")

    assert [key for key, _ in await journal.in_doubt(SCOPE)] == ["c", "a", "b"]
    assert await journal.in_doubt("https://other.example") == []


async def test_every_move_is_a_line_of_the_history(journal: Journal, time: Time, pass_time: LetPass):
    began = time.utc().timestamp()
    await made(journal, claim())
    pass_time(1.5)
    await made(journal, mark(), doubt())
    pass_time(SETTLE_AFTER + WINDOW)
    await made(journal, refute(), claim(2), free(None, number=2), suspect("tx-late"))
    steps = await journal.history(SCOPE, "k")

    assert [(step.move, step.state.value) for step in steps] == [
        ("claim", "claimed"),
        ("mark", "sending"),
        ("doubt", "in_doubt"),
        ("refute", "free"),
        ("claim", "claimed"),
        ("free", "free"),
        ("suspect", "free"),
    ]
    assert [step.at for step in steps[:2]] == [pytest.approx(began), pytest.approx(began + 1.5)]
    assert [step.intent_id for step in steps] == ["intent-1"] * 4 + ["intent-2"] * 3
    assert [step.attempt for step in steps] == [None, "a", "a", "a", None, None, None]
    assert (steps[3].by, steps[3].reason) == ("operator", "sure")
    assert steps[3].ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
    assert (steps[6].order_id, steps[6].by) == ("tx-late", "sender")


async def test_the_doubt_that_a_claim_finds_is_a_line_of_the_history(journal: Journal, pass_time: LetPass):
    await made(journal, claim(), mark())
    pass_time(LEASE)
    await judged(journal, claim(2))
    await judged(journal, claim(3))
    steps = await journal.history(SCOPE, "k")

    assert [(step.move, step.state.value) for step in steps[2:]] == [("claim", "in_doubt")]


async def test_a_suspicion_is_kept_whatever_the_key_has_become(journal: Journal):
    for state, way in WAYS.items():
        entry = await made(journal, *(attrs.evolve(move) for move in way), key=state.value)
        await made(journal, suspect(), key=state.value)

        assert await journal.read(SCOPE, state.value) == entry.but(moves=entry.moves + 1)
        assert (await journal.history(SCOPE, state.value))[-1].move == "suspect"


async def test_pruning_forgets_what_ended_before_and_nothing_in_doubt_owed_or_at_work(
    journal: Journal, time: Time, pass_time: LetPass
):
    await made(journal, claim(), key="claimed")
    await made(journal, claim(), mark(), key="sending")
    await made(journal, claim(), mark(), doubt(), key="doubt")
    await made(journal, claim(), mark(), create(), key="created")
    await made(journal, claim(), free(None), key="free")
    await made(journal, claim(), free(None, owed=owing("hold")), key="owed")
    pass_time(3600.0)
    await made(journal, claim(), free(None), key="later")
    pass_time(KEPT)
    pruned = await journal.prune(SCOPE, before=time.utc() - timedelta(days=1, minutes=30))
    left = [key for key in KEYS if await journal.read(SCOPE, key) is not None]

    assert pruned == 2
    assert left == ["claimed", "sending", "doubt", "owed", "later"]
    assert await journal.history(SCOPE, "created") == ()


KEYS = ("claimed", "sending", "doubt", "created", "free", "owed", "later")


async def test_what_ended_within_a_day_is_kept_whatever_is_asked_and_the_future_is_a_wrong_use(
    journal: Journal, time: Time, pass_time: LetPass
):
    """A date mistyped by a day must not pay a file, or a message, again that has just been paid."""
    await made(journal, claim(), free(None), key="yesterday")
    pass_time(1.0)
    await made(journal, claim(), free(None), key="today")
    pass_time(KEPT - 0.5)
    for ahead in (timedelta(microseconds=1), timedelta(days=1), timedelta(days=3650)):
        with pytest.raises(ValueError, match=r"^before: must not lie ahead: .* would be paid again"):
            await journal.prune(SCOPE, before=time.utc() + ahead)
    with pytest.raises(ValueError, match=r"^before: must be an aware datetime"):
        await journal.prune(SCOPE, before=time.utc().replace(tzinfo=None))
    assert await journal.read(SCOPE, "yesterday") is not None

    assert await journal.prune(SCOPE, before=time.utc()) == 1
    assert await journal.read(SCOPE, "yesterday") is None
    assert await journal.read(SCOPE, "today") is not None


async def test_pruning_one_scope_leaves_the_others(journal: Journal, time: Time, pass_time: LetPass):
    for scope in (SCOPE, "https://other.example"):
        for move in (claim(), free(None)):
            await journal.move(scope, "k", move)
    pass_time(KEPT + 10.0)
    pruned = await journal.prune(SCOPE, before=time.utc())

    assert pruned == 1
    assert await journal.read("https://other.example", "k") is not None


async def test_what_a_clock_left_behind_that_was_years_ahead_comes_to_an_end(
    journal: Journal, pass_time: LetPass
):
    """A machine that started in 2036 and was set right would bind its keys, and their holds, until 2036."""
    years = 10 * 365 * KEPT
    pass_time(years)
    await made(journal, claim(), key="claimed")
    await made(journal, claim(), mark(), key="sending")
    await made(journal, claim(), mark(), doubt(), key="doubt")
    await made(journal, claim(), free(None, owed=owing("hold")), key="owed")
    pass_time(-years)
    waiting = [key for key, _ in await journal.work(SCOPE, limit=10)]
    fresh = await made(journal, claim(2), key="claimed")
    found = await judged(journal, claim(2), key="sending")

    assert waiting == ["claimed", "doubt", "owed", "sending"]
    assert [(one.intent.id, one.hook) for one in fresh.owed] == [("intent-1", "hold"), ("intent-1", "check")]
    assert (found.denial, found.found_doubt, found.entry.state) == (Denial.IN_DOUBT, True, KeyState.IN_DOUBT)
    assert (await judged(journal, attend(), key="owed")).denial is None
    for key in ("sending", "doubt"):
        early = await judged(journal, refute(), key=key)
        assert early.denial is Denial.TOO_EARLY
        assert early.entry.sent_until - early.now == LONGEST_LEASE
        assert (await journal.history(SCOPE, key))[-1].move != "refute"
    pass_time(LONGEST_LEASE + SETTLE_AFTER)
    for key in ("sending", "doubt"):
        assert (await judged(journal, refute(), key=key)).denial is None


async def test_a_worker_whose_clock_is_set_back_under_it_sends_nothing_it_could_not_vouch_for(
    journal: Journal, pass_time: LetPass
):
    pass_time(KEPT)
    await made(journal, claim())
    pass_time(-2 * LONGEST_LEASE)
    verdict = await judged(journal, mark())

    assert (verdict.denial, verdict.lease_left) == (Denial.LOST, 0.0)
    assert (await judged(journal, claim(2))).denial is None


async def test_a_journal_that_knows_other_scopes_only_warns_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    """After a change of the service's address every key would be free, and each old order be paid again."""
    await made(journal, claim(), free(None))
    await made(journal, claim(), key="k2")
    quiet = list(caplog.messages)
    for key in ("k", "k2"):
        await journal.move("https://new.example", key, claim())
    await made(journal, claim(), key="k3")

    assert quiet == []
    assert [f"keys of {SCOPE!r}, and none of 'https://new.example'" in told for told in caplog.messages] == [
        True
    ] * journal.durable
    assert all(f"say scope={SCOPE!r}" in told for told in caplog.messages)


async def test_a_journal_may_be_closed_twice(journal: Journal):
    await made(journal, claim(), mark(), create(reply=REPLY))
    await journal.close()
    await journal.close()


async def test_a_sleeper_of_an_intent_that_is_over_has_no_claim_on_the_next_one(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim())
    pass_time(LEASE)
    await made(journal, take_over(), free(None, epoch=2), claim(2))

    for move in (keep(), mark(), free(None), take_over()):
        assert (await judged(journal, move)).denial is Denial.LOST
    assert (await judged(journal, mark(number=2))).denial is None


async def test_an_answer_to_an_attempt_that_was_refuted_binds_the_key_again(
    journal: Journal, pass_time: LetPass
):
    await made(journal, claim(), mark(), doubt())
    pass_time(SETTLE_AFTER + WINDOW)
    await made(journal, refute())
    entry = await made(journal, create())

    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-1")
    assert entry.ending is not None


# --- how a doubt ended ----------------------------------------------------------------------------


async def test_a_refusal_on_record_answers_a_claim_that_is_made_once(journal: Journal):
    refused = await made(journal, claim(), mark(), free())
    verdict = await judged(journal, claim(2, once=True))

    assert verdict.denial is Denial.REFUSED
    assert verdict.entry == refused
    assert (await judged(journal, claim(2))).denial is None


async def test_the_end_of_a_promised_doubt_waits_until_it_is_told(
    journal: Journal, time: Time, pass_time: LetPass
):
    await made(journal, *WAYS[KeyState.IN_DOUBT], promise(), resolve())
    ((key, entry),) = await journal.work(SCOPE, limit=10)

    assert (key, entry.untold) == ("k", (created_later(),))
    pass_time(2 * KEPT)
    assert await journal.prune(SCOPE, before=time.utc()) == 0
    assert (await made(journal, told())).untold == ()
    assert await journal.work(SCOPE, limit=10) == []


async def test_a_promise_and_what_is_untold_are_kept_as_they_are(journal: Journal, pass_time: LetPass):
    promised = await made(journal, *WAYS[KeyState.IN_DOUBT], promise())
    assert promised.promised
    assert await journal.read(SCOPE, "k") == promised

    pass_time(WINDOW + SETTLE_AFTER)
    refuted = await made(journal, refute())
    assert refuted.untold == (refuted_later(),)
    assert await journal.read(SCOPE, "k") == refuted


# --- loops --------------------------------------------------------------------------------------


def in_another_loop(work: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """What ``work`` gives in a loop, and a thread, of its own."""

    async def done() -> Any:
        return await work()

    return asyncio.to_thread(lambda: asyncio.run(done()))


async def test_what_is_open_in_one_loop_is_refused_in_another_at_once(journal: Journal):
    """Else a call waits for ever for what the other loop would have to do."""
    await made(journal, claim())
    if not journal.durable:
        pytest.skip("what is in memory belongs to no loop")
    for call in (
        lambda: journal.move(SCOPE, "k", mark()),
        lambda: journal.read(SCOPE, "k"),
        lambda: journal.work(SCOPE, limit=1),
        lambda: journal.prune(SCOPE, before=Time().utc()),
        journal.__aenter__,
        journal.close,
    ):
        with pytest.raises(JournalFailed, match="event loop"):
            await in_another_loop(call)

    assert (await journal.read(SCOPE, "k")) is not None


async def test_loops_may_use_it_one_after_the_other(closed_journal: Journal):
    async def used() -> None:
        async with closed_journal:
            await judged(closed_journal, claim())

    await in_another_loop(used)
    await in_another_loop(used)
    async with closed_journal:
        assert await closed_journal.read(SCOPE, "k") is not None


async def test_orders_are_listed_by_their_ids_a_page_at_a_time(journal: Journal, pass_time: LetPass):
    """For those who compare it with the service's books; a journal of one's own need not know how."""
    scoped = ScopedJournal(journal, SCOPE)
    if not hasattr(journal, "orders"):
        with pytest.raises(ValueError, match="OwnJournal cannot list its orders"):
            await scoped.orders(limit=1)
        return
    began = await journal.now()
    for number, key in enumerate(("b", "a", "c")):
        pass_time(1.0)
        await made(journal, claim(), mark(), create(order_id=f"tx-{number}"), key=key)
    await made(journal, claim(), mark(), key="sending")
    await journal.move("another scope", "k", claim())

    first = await scoped.orders(limit=2)

    assert first == [("tx-0", "b", began + 1.0), ("tx-1", "a", began + 2.0)]
    assert await scoped.orders(limit=2, after="tx-1") == [("tx-2", "c", began + 3.0)]
    assert await scoped.orders(limit=2, after="tx-2") == []
