"""Undos that are owed, and who attends to them."""

from __future__ import annotations

from transfer_async.journal import Denial, Journal
from transfer_async.testing.journal_contract.journal_time import LetPass
from transfer_async.testing.journal_contract.trial_moves import (
    LEASE,
    SCOPE,
    attend,
    claim,
    create,
    doubt,
    free,
    judged,
    made,
    mark,
    owe,
    owing,
    paid,
)


class Owing:
    """Undos that are owed, and who attends to them."""

    async def test_what_is_owed_is_recorded_with_the_no_under_a_lease(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        entry = await made(journal, claim(), free(None, owed=owing("hold", "check")))
        waiting = await journal.work(SCOPE, limit=10)
        pass_time(LEASE)
        later = await journal.work(SCOPE, limit=10)

        assert [(one.hook, one.receipt) for one in entry.owed] == [("hold", "r-hold"), ("check", "r-check")]
        assert waiting == []
        assert [key for key, _ in later] == ["k"]

    async def test_what_is_paid_is_owed_no_longer_and_the_rest_is_left_to_others_at_once(
        self, journal: Journal
    ) -> None:
        freed = await made(journal, claim(), free(None, owed=owing("hold", "check")))
        entry = await made(journal, paid("hold", lease_until=freed.owed[0].lease_until))

        assert [(one.hook, one.lease_until) for one in entry.owed] == [("check", 0.0)]
        assert [key for key, _ in await journal.work(SCOPE, limit=10)] == ["k"]

    async def test_paying_for_one_intent_leaves_the_others(self, journal: Journal) -> None:
        await made(journal, claim(), free(None, owed=owing("hold")))
        freed = await made(journal, claim(2), free(None, number=2, owed=owing("hold", number=2)))
        entry = await made(journal, paid("hold", number=2, lease_until=freed.owed[1].lease_until))

        assert [one.intent.id for one in entry.owed] == ["intent-1"]

    async def test_paying_what_has_become_due_anew_meanwhile_pays_nothing(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        freed = await made(journal, claim(), free(None, owed=owing("hold")))
        pass_time(1.0)
        await made(journal, owe("hold"))
        entry = await made(journal, paid("hold", lease_until=freed.owed[0].lease_until))

        assert [one.hook for one in entry.owed] == ["hold"]
        assert entry.owed[0].lease_until > freed.owed[0].lease_until

    async def test_what_is_owed_outlives_the_next_intents_of_the_key(self, journal: Journal) -> None:
        await made(journal, claim(), free(None, owed=owing("hold")))
        entry = await made(journal, claim(2), mark(number=2), create())

        assert [one.intent.id for one in entry.owed] == ["intent-1"]

    async def test_one_worker_at_a_time_attends_to_what_is_owed(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), free(None, owed=owing("hold"), lease=0.0))
        first = await judged(journal, attend())
        second = await judged(journal, attend())
        pass_time(LEASE)
        third = await judged(journal, attend())

        assert (first.denial, second.denial, third.denial) == (None, Denial.BUSY, None)

    async def test_one_worker_at_a_time_attends_to_a_doubt_and_may_let_it_go(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), doubt(), attend())
        second = await judged(journal, attend())
        await made(journal, attend(0.0))
        third = await judged(journal, attend())

        assert (second.denial, third.denial) == (Denial.BUSY, None)
