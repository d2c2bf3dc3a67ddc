"""What waits, what is told, what is forgotten, and what a clock may do to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from transfer_async._models.errors import Outcome
from transfer_async.journal import KEPT, LONGEST_LEASE, Ending, Journal, KeyState, Move, Rejection
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.journal_contract.support import (
    REPLY,
    SCOPE,
    WAYS,
    WINDOW,
    JournalTime,
    LetPass,
    attend,
    claim,
    create,
    created_later,
    doubt,
    free,
    intent,
    judged,
    keep,
    made,
    mark,
    of_key,
    owe,
    owing,
    promise,
    refute,
    refuted_later,
    resolve,
    suspect,
    take_back,
    take_over,
    told,
)

KEYS = ("claimed", "sending", "doubt", "created", "free", "owed", "later")


class Keeping:
    """What waits, what is told, what is forgotten, and what a clock may do to it."""

    async def test_what_waits_for_somebody_is_what_nobody_is_at(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), key="claimed")
        await made(journal, claim(), mark(), key="sending")
        await made(journal, claim(), mark(), doubt(), key="doubt")
        await made(journal, claim(), mark(), create(), key="created")
        await made(journal, claim(), mark(), free(), key="free")
        await made(journal, claim(), mark(), free(pending_undos=owing("hold"), lease=0.0), key="owed")
        now = [key for key, _ in await journal.work(SCOPE, limit=10)]
        pass_time(LEASE)
        later = [key for key, _ in await journal.work(SCOPE, limit=10)]
        two = await journal.work(SCOPE, limit=2)
        elsewhere = await journal.work("https://other.example", limit=10)

        assert sorted(now) == ["doubt", "owed"]
        assert sorted(later) == ["claimed", "doubt", "owed", "sending"]
        assert (len(two), elsewhere) == (2, [])

    async def test_what_waits_is_had_a_page_at_a_time_each_key_once(self, journal: Journal) -> None:
        for key in "cabed":
            await made(journal, claim(), mark(), doubt(), key=key)
        found: list[str] = []
        while page := await journal.work(SCOPE, limit=2, after=found[-1] if found else ""):
            found += [key for key, _ in page]
            assert len(page) <= 2
            assert len(found) <= 5, "a page begins where the last one did"

        assert sorted(found) == ["a", "b", "c", "d", "e"]

    async def test_all_that_waits_is_found_among_much_that_does_not_and_while_others_are_at_it(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """`recover` takes page after page, and ends at an empty one: what is left out waits for ever."""
        waiting = [f"k{number:03}" for number in range(110)]
        idle = [*(f"a{number:03}" for number in range(30)), "k050-", "z"]
        ends = {
            key: claim(lease=10.0 - number / 20) for number, key in enumerate(waiting)
        }  # the last one first
        ends |= {f"{key}-": claim() for key in idle}
        await asyncio.gather(*(made(journal, move, key=key) for key, move in ends.items()))
        for key in idle:
            await journal.move("https://other.example", key, of_key(claim(lease=0.0), key))
        pass_time(10.0)
        at_once = await journal.work(SCOPE, limit=1000)
        for key, entry in at_once[::20]:
            assert await journal.read(SCOPE, key) == entry, "what a worker has in hand is not all there is"
        found: list[str] = []
        while page := await journal.work(SCOPE, limit=25, after=found[-1] if found else ""):
            found += [key for key, _ in page]
            assert len(found) <= len(waiting), "a page has what another one had"
            for key, _ in page:
                await made(journal, take_over(), key=key)

        assert sorted(found) == sorted(key for key, _ in at_once) == waiting
        await asyncio.gather(*(made(journal, mark(epoch=2), doubt(), key=key) for key in waiting))
        doubts = await journal.in_doubt(SCOPE)
        assert sorted(key for key, _ in doubts) == waiting
        assert await journal.count_in_doubt(SCOPE) == len(waiting)
        assert [entry for _, entry in doubts[::20]] == [
            await journal.read(SCOPE, key) for key, _ in doubts[::20]
        ]

    async def test_doubts_are_told_oldest_first(self, journal: Journal, pass_time: LetPass) -> None:
        for key in "cab":
            await made(journal, claim(), mark(), doubt(), key=key)
            pass_time(1.0)
        await made(journal, claim(), key="d")

        assert [key for key, _ in await journal.in_doubt(SCOPE)] == ["c", "a", "b"]
        assert await journal.in_doubt("https://other.example") == []
        assert await journal.count_in_doubt(SCOPE) == 3
        assert await journal.count_in_doubt("https://other.example") == 0

    async def test_every_move_is_a_line_of_the_history(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        began = journal_time.utc().timestamp()
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
            ("suspect", "in_doubt"),
        ]
        assert [step.at for step in steps[:2]] == [pytest.approx(began), pytest.approx(began + 1.5)]
        assert [step.intent_id for step in steps] == ["intent-1"] * 4 + ["intent-2"] * 2 + ["intent-1"]
        assert [step.attempt for step in steps] == [None, "a", "a", "a", None, None, "a"]
        assert (steps[3].by, steps[3].reason) == ("operator", "sure")
        assert steps[3].ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
        assert (steps[6].order_id, steps[6].by) == ("tx-late", "sender")

    async def test_the_doubt_that_a_claim_finds_is_a_line_of_the_history(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark())
        pass_time(LEASE)
        await judged(journal, claim(2))
        await judged(journal, claim(3))
        steps = await journal.history(SCOPE, "k")

        assert [(step.move, step.state.value) for step in steps[2:]] == [("claim", "in_doubt")]

    async def test_a_suspicion_is_kept_and_its_key_is_not_freed_any_more(self, journal: Journal) -> None:
        for state, way in WAYS.items():
            await made(journal, *way, key=state.value)
            entry = await made(journal, suspect(), key=state.value)
            is_free = state is KeyState.FREE

            assert await journal.read(SCOPE, state.value) == entry
            assert entry.state is (KeyState.IN_DOUBT if is_free else state)
            assert entry.is_suspected
            assert (await journal.history(SCOPE, state.value))[-1].move == "suspect"

    async def test_a_key_under_which_another_order_may_exist_sends_nothing_and_ends_in_doubt(
        self, journal: Journal
    ) -> None:
        await made(journal, claim(), mark(), free(), claim(2), suspect())
        marked = await judged(journal, mark("b", number=2))
        freed = await judged(journal, free(None, number=2, pending_undos=owing("hold", number=2)))
        entry = await journal.read(SCOPE, "k")

        assert marked.denial is freed.denial is Rejection.LOST
        assert entry is not None
        assert (entry.state, entry.candidates, entry.pending_undos) == (KeyState.IN_DOUBT, ("tx-2",), ())
        assert entry.hooks == ("hold",)

    async def test_a_free_key_whose_order_may_exist_is_bound_with_its_intent(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), free(), claim(2), free(None, number=2), suspect())
        entry = await journal.read(SCOPE, "k")
        _, again = await judged(journal, claim(3)), await journal.read(SCOPE, "k")

        assert entry == again
        assert entry is not None
        assert (entry.state, entry.intent, entry.candidates) == (KeyState.IN_DOUBT, intent(), ("tx-2",))

    async def test_a_forgotten_key_whose_order_may_exist_is_on_record_again(self, journal: Journal) -> None:
        entry = await made(journal, suspect())

        assert await journal.read(SCOPE, "k") == entry
        assert (entry.state, entry.intent, entry.candidates) == (KeyState.IN_DOUBT, intent(), ("tx-2",))

    async def test_orders_are_listed_by_their_ids_a_page_at_a_time(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """For those who compare it with the service's books; a journal need not know how."""
        orders = getattr(journal, "orders", None)
        if orders is None:
            pytest.skip("a journal without orders(): it cannot be compared with the service's books")
        began = await journal.now()
        for number, key in enumerate("bac"):
            pass_time(1.0)
            await made(journal, claim(), mark(), create(order_id=f"tx-{number}"), key=key)
        await made(journal, owe("hold"), key="c")
        await made(journal, claim(), mark(), key="sending")
        await made(journal, claim(), mark(), free(), key="free")
        await journal.move("https://other.example", "k", claim())
        first = await orders(SCOPE, limit=2)

        assert first == [("tx-0", "b", began + 1.0), ("tx-1", "a", began + 2.0)]
        assert await orders(SCOPE, limit=2, after="tx-1") == [("tx-2", "c", None)]
        assert await orders(SCOPE, limit=2, after="tx-2") == []
        assert await orders("https://other.example", limit=2) == []

    async def test_pruning_forgets_what_ended_before_and_nothing_in_doubt_owed_or_at_work(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), key="claimed")
        await made(journal, claim(), mark(), key="sending")
        await made(journal, claim(), mark(), doubt(), key="doubt")
        await made(journal, claim(), mark(), create(), key="created")
        await made(journal, claim(), free(None), key="free")
        await made(journal, claim(), free(None, pending_undos=owing("hold")), key="owed")
        pass_time(3600.0)
        await made(journal, claim(), free(None), key="later")
        pass_time(KEPT)
        pruned = await journal.prune(SCOPE, before=journal_time.utc() - timedelta(days=1, minutes=30))
        left = [key for key in KEYS if await journal.read(SCOPE, key) is not None]

        assert pruned == 2
        assert left == ["claimed", "sending", "doubt", "owed", "later"]
        assert await journal.history(SCOPE, "created") == ()

    async def test_a_key_is_kept_by_its_last_end_and_as_long_as_it_is_at_work_again(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        """A key that is forgotten while its order is on the way, or has just been created, is paid again."""
        again: dict[str, tuple[Move, ...]] = {
            "claimed": (claim(2),),
            "sending": (claim(2), mark(number=2)),
            "doubt": (claim(2), mark(number=2), doubt()),
            "owed": (owe("hold"),),
            "freed": (claim(2), free(None, number=2)),
            "created": (claim(2), mark(number=2), create(order_id="tx-2")),
        }
        for key in again:
            await made(journal, claim(), free(None), key=key)
        await made(journal, *WAYS[KeyState.IN_DOUBT], key="resolved")
        pass_time(2 * KEPT)
        for key, moves in again.items():
            await made(journal, *moves, key=key)
        await made(journal, resolve(), key="resolved")
        pass_time(KEPT - 1.0)
        early = await journal.prune(SCOPE, before=journal_time.utc())
        pass_time(2.0)
        late = await journal.prune(SCOPE, before=journal_time.utc())
        left = [key for key in (*again, "resolved") if await journal.read(SCOPE, key) is not None]

        assert (early, late) == (0, 3)
        assert left == ["claimed", "sending", "doubt", "owed"]

    async def test_keys_that_were_ever_refuted_or_resolved_are_listed_whatever_became_of_them(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """For those who compare it with the service's books: what was refuted may exist all the same."""
        lists = {name: getattr(journal, name, None) for name in ("refuted", "resolved")}
        wanted = {
            "refuted": {"free", "claimed again", "created after all", *"abc"},
            "resolved": {*"xyz", "taken back"},
        }
        for key in (*wanted["refuted"], *wanted["resolved"], "in doubt"):
            await made(journal, *WAYS[KeyState.IN_DOUBT], key=key)
        for move in WAYS[KeyState.IN_DOUBT]:
            await journal.move("https://other.example", "k", move)
        pass_time(SETTLE_AFTER + WINDOW)
        await journal.move("https://other.example", "k", refute())
        for key in wanted["refuted"]:
            await made(journal, refute(), key=key)
        for key in wanted["resolved"]:
            await made(journal, resolve(order_id=f"tx-{key}"), key=key)
        await made(journal, *WAYS[KeyState.CREATED], key="created")
        await made(journal, claim(2), key="claimed again")
        await made(journal, claim(2), mark("b", number=2), create("b", "tx-b"), key="created after all")
        await made(journal, take_back("tx-taken back"), key="taken back")

        for name, listed in lists.items():
            if listed is not None:
                found, after = await listed(SCOPE)
                while after:
                    some, after = await listed(SCOPE, after=after)
                    found = [*found, *some]
                    assert len(found) < 99, "it never ends"
                assert set(found) == wanted[name]

    async def test_what_ended_within_a_day_is_kept_whatever_is_asked_and_the_future_is_a_wrong_use(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        """A date mistyped by a day must not pay a file, or a message, again that has just been paid."""
        await made(journal, claim(), free(None), key="yesterday")
        pass_time(1.0)
        await made(journal, claim(), free(None), key="today")
        pass_time(KEPT - 0.5)
        for ahead in (timedelta(microseconds=1), timedelta(days=1), timedelta(days=3650)):
            with pytest.raises(ValueError, match=r"^before: must not lie ahead: .* would be paid again"):
                await journal.prune(SCOPE, before=journal_time.utc() + ahead)
        with pytest.raises(ValueError, match=r"^before: must be an aware datetime"):
            await journal.prune(SCOPE, before=journal_time.utc().replace(tzinfo=None))
        assert await journal.read(SCOPE, "yesterday") is not None

        assert await journal.prune(SCOPE, before=journal_time.utc()) == 1
        assert await journal.read(SCOPE, "yesterday") is None
        assert await journal.read(SCOPE, "today") is not None

    async def test_pruning_one_scope_leaves_the_others(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        for scope in (SCOPE, "https://other.example"):
            for move in (claim(), free(None)):
                await journal.move(scope, "k", move)
        pass_time(KEPT + 10.0)
        pruned = await journal.prune(SCOPE, before=journal_time.utc())

        assert pruned == 1
        assert await journal.read("https://other.example", "k") is not None

    async def test_what_a_clock_left_behind_that_was_years_ahead_comes_to_an_end(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """A machine that started in 2036 and was set right would bind its keys and holds until 2036."""
        years = 10 * 365 * KEPT
        pass_time(years)
        await made(journal, claim(), key="claimed")
        await made(journal, claim(), mark(), key="sending")
        await made(journal, claim(), mark(), doubt(), key="doubt")
        await made(journal, claim(), free(None, pending_undos=owing("hold")), key="owed")
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
        assert (await judged(journal, attend(), key="owed")).denial is None
        for key in ("sending", "doubt"):
            early = await judged(journal, refute(), key=key)
            assert early.denial is Rejection.TOO_EARLY
            assert early.entry.sent_until - early.now == LONGEST_LEASE
            assert (await journal.history(SCOPE, key))[-1].move != "refute"
        pass_time(LONGEST_LEASE + SETTLE_AFTER)
        for key in ("sending", "doubt"):
            assert (await judged(journal, refute(), key=key)).denial is None

    async def test_a_worker_whose_clock_is_set_back_under_it_sends_nothing_it_could_not_vouch_for(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        pass_time(KEPT)
        await made(journal, claim())
        pass_time(-2 * LONGEST_LEASE)
        verdict = await judged(journal, mark())

        assert (verdict.denial, verdict.lease_left) == (Rejection.LOST, 0.0)
        assert (await judged(journal, claim(2))).denial is None

    async def test_a_journal_may_be_closed_twice(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), create(reply=REPLY))
        await journal.close()
        await journal.close()

    async def test_a_sleeper_of_an_intent_that_is_over_has_no_claim_on_the_next_one(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        pass_time(LEASE)
        await made(journal, take_over(), free(None, epoch=2), claim(2))

        for move in (keep(), mark(), free(None), take_over()):
            assert (await judged(journal, move)).denial is Rejection.LOST
        assert (await judged(journal, mark(number=2))).denial is None

    async def test_an_answer_to_an_attempt_that_was_refuted_binds_the_key_again(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark(), doubt())
        pass_time(SETTLE_AFTER + WINDOW)
        await made(journal, refute())
        entry = await made(journal, create())

        assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-1")
        assert entry.ending is not None

    async def test_a_refusal_on_record_answers_a_claim_that_is_made_once(self, journal: Journal) -> None:
        refused = await made(journal, claim(), mark(), free())
        verdict = await judged(journal, claim(2, once=True))

        assert verdict.denial is Rejection.REFUSED
        assert verdict.entry == refused
        assert (await judged(journal, claim(2))).denial is None

    async def test_the_end_of_a_promised_doubt_waits_until_it_is_told(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        await made(journal, *WAYS[KeyState.IN_DOUBT], promise(), resolve())
        ((key, entry),) = await journal.work(SCOPE, limit=10)

        assert (key, entry.pending_notifications) == ("k", (created_later(),))
        pass_time(2 * KEPT)
        assert await journal.prune(SCOPE, before=journal_time.utc()) == 0
        assert (await made(journal, told())).pending_notifications == ()
        assert await journal.work(SCOPE, limit=10) == []

    async def test_a_promise_and_what_is_untold_are_kept_as_they_are(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        promised = await made(journal, *WAYS[KeyState.IN_DOUBT], promise())
        assert promised.notification_requested
        assert await journal.read(SCOPE, "k") == promised

        pass_time(WINDOW + SETTLE_AFTER)
        refuted = await made(journal, refute())
        assert refuted.pending_notifications == (refuted_later(),)
        assert await journal.read(SCOPE, "k") == refuted
