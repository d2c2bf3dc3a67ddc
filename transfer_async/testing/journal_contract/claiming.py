"""Claims, and the leases that end them."""

from __future__ import annotations

import asyncio

import pytest

from transfer_async.journal import Denial, Journal, KeyState
from transfer_async.testing.journal_contract.journal_time import LetPass
from transfer_async.testing.journal_contract.trial_moves import (
    LEASE,
    MAX_AGE,
    SCOPE,
    WAYS,
    attend,
    claim,
    create,
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
    resolve,
    suspect,
    take_over,
    told,
)

SETTLING = (keep, take_over, mark, create, free, doubt, expire, resolve, refute)
ASIDE = (paid, owe, attend, suspect, promise, told)


class Claiming:
    """Claims, and the leases that end them."""

    async def test_a_journal_says_whether_it_is_durable(self, journal: Journal) -> None:
        assert isinstance(journal.durable, bool)

    async def test_what_was_never_claimed_is_unknown(self, journal: Journal) -> None:
        assert await journal.read(SCOPE, "k") is None
        assert await journal.history(SCOPE, "k") == ()

    async def test_only_a_claim_makes_an_entry(self, journal: Journal) -> None:
        for make in (*SETTLING, *ASIDE):
            assert await journal.move(SCOPE, "k", make()) is None
            assert await journal.read(SCOPE, "k") is None

    async def test_an_entry_is_read_as_its_last_move_left_it(self, journal: Journal) -> None:
        for state, way in WAYS.items():
            entry = await made(journal, *way, key=state.value)

            assert entry.state is state
            assert await journal.read(SCOPE, state.value) == entry

    async def test_everything_that_an_entry_holds_comes_back_as_it_was(self, journal: Journal) -> None:
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

    async def test_a_created_key_keeps_its_reply_byte_for_byte_and_forgets_the_wish(
        self, journal: Journal
    ) -> None:
        reply = b'{"id": "tx-1", "x": "\xc3\xbc\\u0000"}'
        await made(journal, claim(), mark(), create(reply=reply))
        entry = await journal.read(SCOPE, "k")

        assert entry is not None
        assert (entry.reply, entry.order_id, entry.intent) == (reply, "tx-1", None)

    async def test_a_denied_move_changes_nothing(self, journal: Journal) -> None:
        entry = await made(journal, claim(), mark())
        verdict = await judged(journal, create("another"))

        assert verdict.denial is Denial.LOST
        assert verdict.entry == await journal.read(SCOPE, "k") == entry
        assert len(await journal.history(SCOPE, "k")) == 2

    async def test_of_many_claims_at_once_one_is_granted(self, journal: Journal) -> None:
        verdicts = await asyncio.gather(*(judged(journal, claim(number)) for number in range(50)))

        assert sum(verdict.denial is None for verdict in verdicts) == 1
        assert sum(verdict.denial is Denial.BUSY for verdict in verdicts) == 49

    async def test_of_many_settlements_at_once_one_is_granted(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), doubt())
        wanted = [resolve(order_id=f"tx-{number}") for number in range(10)] + [create(order_id="tx-own")]
        verdicts = await asyncio.gather(*(judged(journal, move) for move in wanted))

        assert sum(verdict.denial is None for verdict in verdicts) == 1
        assert len({verdict.entry.order_id for verdict in verdicts}) == 1

    async def test_keys_and_scopes_do_not_mix(self, journal: Journal) -> None:
        await made(journal, claim())

        assert await journal.read(SCOPE, "K") is None
        assert await journal.read("https://other.example", "k") is None
        assert (await judged(journal, claim(), key="k2")).denial is None

    async def test_any_printable_key_is_kept_as_it_is(self, journal: Journal) -> None:
        for key in ("k" * 200, "Zahlung №8731 – é", "a'b\"c;--", "😀", " "):
            await made(journal, claim(), key=key)

            assert await journal.read(SCOPE, key) is not None

    async def test_a_claim_is_taken_over_after_its_lease_and_not_before(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), keep(check="r-1"))
        pass_time(LEASE - 0.001)
        before = await judged(journal, claim(2))
        pass_time(0.001)
        after = await judged(journal, claim(2))

        assert before.denial is Denial.BUSY
        assert before.lease_left == pytest.approx(0.001, abs=1e-6)
        assert after.denial is None
        assert (after.entry.intent_id, after.entry.epoch) == ("intent-1", 2)
        assert after.entry.intent == intent(1)
        assert after.entry.receipts == {"check": "r-1"}

    async def test_the_worker_that_was_taken_over_can_neither_keep_mark_nor_free(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        pass_time(LEASE)
        await made(journal, claim(2))

        for move in (keep(), mark(), free(None), take_over()):
            assert (await judged(journal, move)).denial is Denial.LOST
        assert (await judged(journal, mark(epoch=2))).denial is None

    async def test_a_worker_that_slept_through_its_lease_can_free_its_claim_but_not_send(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        pass_time(LEASE)

        assert (await judged(journal, mark())).denial is Denial.LOST
        assert (await judged(journal, keep())).denial is Denial.LOST
        assert (await judged(journal, free(None))).denial is None

    async def test_a_lease_is_renewed_by_keeping_it(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim())
        pass_time(LEASE - 1)
        await made(journal, keep())
        pass_time(LEASE - 1)

        assert (await judged(journal, claim(2))).denial is Denial.BUSY

    async def test_a_claim_that_is_too_old_is_owed_in_order_and_a_new_intent_begins(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
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

    async def test_a_claim_of_just_the_greatest_age_is_taken_over(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        pass_time(MAX_AGE)

        assert (await judged(journal, claim(2))).entry.intent_id == "intent-1"

    async def test_a_claim_that_is_kept_alive_is_never_too_old(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        for _ in range(30):
            pass_time(LEASE - 1)
            await made(journal, keep())

        assert (await judged(journal, claim(2))).denial is Denial.BUSY

    async def test_an_expired_request_is_in_doubt_for_whoever_claims_it_and_the_doubt_is_written(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark())
        pass_time(10 * MAX_AGE)
        verdict = await judged(journal, claim(2))
        read = await journal.read(SCOPE, "k")

        assert verdict.denial is Denial.IN_DOUBT
        assert read is not None
        assert (read.state, read.intent_id, read.attempt) == (KeyState.IN_DOUBT, "intent-1", "a")

    async def test_a_request_does_not_expire_before_its_lease(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark())
        pass_time(LEASE - 0.001)
        early = await judged(journal, expire())
        pass_time(0.001)
        other = await judged(journal, expire("b"))
        late = await judged(journal, expire())

        assert (early.denial, other.denial, late.denial) == (Denial.BUSY, Denial.LOST, None)
        assert late.entry.state is KeyState.IN_DOUBT

    async def test_a_take_over_waits_for_the_lease(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim())
        early = await judged(journal, take_over())
        pass_time(LEASE)
        late = await judged(journal, take_over())

        assert (early.denial, late.denial) == (Denial.BUSY, None)
        assert late.entry.epoch == 2
