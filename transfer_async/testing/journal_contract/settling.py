"""How what was sent comes to its end: an answer, a doubt, a person's word."""

from __future__ import annotations

from transfer_async._models.errors import Outcome
from transfer_async.journal import Denial, Ending, Journal, KeyState
from transfer_async.testing.journal_contract.journal_time import LetPass
from transfer_async.testing.journal_contract.trial_moves import (
    LEASE,
    MAX_AGE,
    SCOPE,
    SETTLE_AFTER,
    WAYS,
    WINDOW,
    attend,
    claim,
    create,
    doubt,
    expire,
    free,
    judged,
    keep,
    made,
    mark,
    owe,
    owing,
    paid,
    promise,
    refute,
    resolve,
    suspect,
    take_over,
    told,
)

SETTLING = (keep, take_over, mark, create, free, doubt, expire, resolve, refute)
ASIDE = (paid, owe, attend, suspect, promise, told)


class Settling:
    """How what was sent comes to its end: an answer, a doubt, a person's word."""

    async def test_the_sender_of_the_attempt_may_write_its_answer_over_the_doubt_of_others(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        for key, answer, state in (("yes", create, KeyState.CREATED), ("no", free, KeyState.FREE)):
            await made(journal, claim(), mark(), key=key)
            pass_time(LEASE)
            await made(journal, expire(), key=key)

            assert (await judged(journal, answer("b"), key=key)).denial is Denial.LOST
            assert (await judged(journal, answer(), key=key)).entry.state is state

    async def test_created_is_final(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim(), mark(), create())
        pass_time(10 * MAX_AGE)

        for move in (*(make() for make in SETTLING), free(None)):
            assert (await judged(journal, move)).denial is Denial.LOST
        assert (await judged(journal, claim(2))).denial is Denial.CREATED

    async def test_a_different_order_is_a_conflict_in_every_state_but_free(self, journal: Journal) -> None:
        other = claim(2, fingerprint="another")
        denials = {}
        for state, way in WAYS.items():
            await made(journal, *way, key=state.value) if state is not KeyState.CREATED else await made(
                journal, claim(), mark(), create(order_id="tx-9"), key=state.value
            )
            denials[state] = (await judged(journal, other, key=state.value)).denial

        assert denials.pop(KeyState.FREE) is None
        assert set(denials.values()) == {Denial.CONFLICT}

    async def test_an_undo_that_became_due_late_is_owed_once_whatever_the_key_has_become(
        self, journal: Journal
    ) -> None:
        await made(journal, claim(), free(None, owed=owing("hold")), claim(2))
        entry = await made(journal, owe("hold", "check"))

        assert entry.intent_id == "intent-2"
        assert sorted(one.hook for one in entry.owed) == ["check", "hold"]
        assert await journal.read(SCOPE, "k") == entry

    async def test_an_order_id_is_bound_to_one_key_of_a_scope(self, journal: Journal) -> None:
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
        self, journal: Journal, pass_time: LetPass
    ) -> None:
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

    async def test_a_sender_that_confirms_its_doubt_shortens_the_wait(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark())
        pass_time(5.0)
        await made(journal, doubt())
        pass_time(SETTLE_AFTER - 0.001)
        early = await judged(journal, refute())
        pass_time(0.001)
        late = await judged(journal, refute())

        assert (early.denial, late.denial) == (Denial.TOO_EARLY, None)

    async def test_resolving_and_refuting_are_about_one_attempt(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark(), doubt())
        pass_time(SETTLE_AFTER + WINDOW)

        assert (await judged(journal, resolve("b"))).denial is Denial.LOST
        assert (await judged(journal, refute("b"))).denial is Denial.LOST
        assert (await judged(journal, resolve())).denial is None

    async def test_a_key_is_free_for_a_new_intent_after_a_certain_no(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), free())
        entry = await made(journal, claim(2, fingerprint="another"))

        assert (entry.intent_id, entry.epoch, entry.attempt, entry.receipts) == ("intent-2", 1, None, {})

    async def test_an_attempt_of_an_earlier_intent_settles_nothing(self, journal: Journal) -> None:
        await made(journal, claim(), mark("a"), free("a"), claim(2), mark("b", number=2))

        for move in (create("a"), free("a"), doubt("a"), resolve("a")):
            assert (await judged(journal, move)).denial is Denial.LOST
