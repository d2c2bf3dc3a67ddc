"""What people propose, approve, amend and demand is kept as the state machine says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from transfer_async import CauseKind
from transfer_async.journal import (
    FOUR_EYES,
    KEPT,
    Amend,
    Decision,
    Entry,
    Journal,
    KeyState,
    Move,
    Rejection,
    TakeBack,
)
from transfer_async.journal.model import SETTLE_AFTER
from transfer_async.testing.journal_contract.support import (
    SCOPE,
    JournalTime,
    LetPass,
    amend,
    claim,
    create,
    demand,
    doubt,
    judged,
    look,
    made,
    mark,
    promise,
    propose,
    refute,
    resolve,
    suspect,
    take_back,
    told,
    waive,
    withdraw,
)

S = KeyState


async def proposed(journal: Journal, decision: Decision = Decision.RESOLVE, key: str = "k") -> Entry:
    return await made(journal, claim(), mark(), doubt(), propose(decision), key=key)


async def read(journal: Journal, key: str = "k") -> Entry:
    entry = await journal.read(SCOPE, key)
    assert entry is not None
    return entry


async def lines(journal: Journal, key: str = "k") -> list[tuple[str, str | None, str | None]]:
    return [(step.move, step.by, step.reason) for step in await journal.history(SCOPE, key)]


async def decided_while_demanded(deciding: Journal, demanding: Journal, ahead: int) -> None:
    """Try a decision of one person while another person demands four eyes, for the first time and again.

    Args:
        deciding: the journal of who decides.
        demanding: the journal of who demands.
        ahead: turns of the loop by which the decision begins before the demand.
    """
    for waived in (False, True):
        key = f"k-{waived}"
        await made(deciding, claim(), mark(), doubt(), key=key)
        if waived:
            await made(demanding, propose(Decision.WAIVE, attempt=None), waive(), key=FOUR_EYES)
        decision = asyncio.ensure_future(judged(deciding, resolve(order_id=f"tx-{waived}"), key=key))
        for _ in range(ahead):
            await asyncio.sleep(0)
        await made(demanding, demand(), key=FOUR_EYES)
        then = await read(demanding, key)
        verdict, after = await decision, await read(demanding, key)

        assert after == then, "a decision of one person was written after the demand had returned"
        assert (verdict.denial, after.state) in ((None, S.CREATED), (Rejection.ALONE, S.IN_DOUBT))


class FourEyes:
    """What people propose, approve, amend and demand is kept as the state machine says."""

    async def test_a_proposal_is_kept_and_what_another_person_approves_is_done(
        self, journal: Journal
    ) -> None:
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
        assert (after.state, after.order_id, after.proposal) == (S.CREATED, "tx-1", None)
        assert (await lines(journal))[-2:] == [
            ("propose", "ada", "resolve: seen"),
            ("resolve", "ben", "seen"),
        ]

    @pytest.mark.parametrize("by", ["ada", " Ada", "ADA ", "\uff41da"])
    async def test_nobody_approves_what_they_proposed_however_they_write_their_name(
        self, journal: Journal, by: str
    ) -> None:
        entry = await proposed(journal)
        verdict = await judged(journal, resolve(by=by, proposal="proposal-1"))

        assert (verdict.denial, await read(journal)) == (Rejection.SAME_PERSON, entry)

    @pytest.mark.parametrize(
        "move", [doubt(), promise(), suspect(), propose(number=2)], ids=lambda item: item.name
    )
    async def test_any_move_of_the_key_makes_a_proposal_void(self, journal: Journal, move: Move) -> None:
        await proposed(journal)
        await made(journal, move)
        verdict = await judged(journal, resolve(by="ben", proposal="proposal-1"))

        assert (verdict.denial, verdict.entry.state) == (Rejection.VOID, S.IN_DOUBT)

    async def test_who_looks_leaves_it_as_it_is(self, journal: Journal) -> None:
        entry = await proposed(journal)
        await made(journal, look())

        assert await read(journal) == entry
        assert (await lines(journal))[-1] == ("look", "ada", "a call")
        assert (await judged(journal, resolve(by="ben", proposal="proposal-1"))).denial is None

    @pytest.mark.parametrize(
        "approval",
        [
            resolve(order_id="tx-9", by="ben", proposal="proposal-1"),
            resolve(by="ben", proposal="proposal-2"),
            refute(by="ben", proposal="proposal-1"),
        ],
        ids=["another order", "another proposal", "another decision"],
    )
    async def test_nothing_is_approved_but_what_was_proposed(
        self, journal: Journal, pass_time: LetPass, approval: Move
    ) -> None:
        await proposed(journal)
        pass_time(SETTLE_AFTER)

        assert (await judged(journal, approval)).denial is Rejection.VOID

    async def test_a_refutation_is_neither_proposed_nor_approved_too_early(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """What is seen before a request has settled is no knowledge, however late it is approved."""
        await made(journal, claim(), mark(), doubt())
        early = await judged(journal, propose(Decision.REFUTE))
        pass_time(SETTLE_AFTER)
        await made(journal, propose(Decision.REFUTE))
        after = await made(journal, refute(by="ben", proposal="proposal-1"))

        assert (early.denial, after.state) == (Rejection.TOO_EARLY, S.FREE)

    async def test_of_two_who_approve_at_once_one_does(self, journal: Journal) -> None:
        await proposed(journal)
        verdicts = await asyncio.gather(
            *(judged(journal, resolve(by=by, proposal="proposal-1")) for by in ("ben", "cleo"))
        )

        assert sorted(verdict.denial is None for verdict in verdicts) == [False, True]
        assert [move for move, _, _ in await lines(journal)].count("resolve") == 1

    async def test_an_approval_and_a_move_at_once_leave_one_of_them_void(self, journal: Journal) -> None:
        """The sender's own answer may come in the same moment as the approval of another."""
        for number in range(6):
            key = f"k{number}"
            await made(journal, claim(), mark(), doubt(), propose(order_id=f"tx-{number}"), key=key)
            approval = resolve(order_id=f"tx-{number}", by="ben", proposal="proposal-1")
            own = create(order_id=f"tx-own-{number}")
            both = (approval, own) if number % 2 else (own, approval)
            verdicts = await asyncio.gather(*(judged(journal, move, key=key) for move in both))

            assert sorted(verdict.denial is None for verdict in verdicts) == [False, True]

    async def test_what_is_withdrawn_is_approved_by_nobody(self, journal: Journal) -> None:
        await proposed(journal)
        await made(journal, withdraw())

        assert (await read(journal)).proposal is None
        assert (await judged(journal, resolve(by="ben", proposal="proposal-1"))).denial is Rejection.VOID
        assert (await judged(journal, withdraw())).denial is Rejection.VOID

    async def test_what_was_seen_otherwise_is_not_decided(self, journal: Journal) -> None:
        seen = (await made(journal, claim(), mark(), doubt())).version
        await made(journal, promise())
        stale = [await judged(journal, move) for move in (resolve(seen=seen), propose(seen=seen))]

        assert [verdict.denial for verdict in stale] == [Rejection.MOVED, Rejection.MOVED]
        assert (await judged(journal, resolve(seen=seen + 1))).denial is None

    async def test_only_what_can_become_of_the_key_is_proposed(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), create())
        amending = await judged(journal, propose(Decision.AMEND, "tx-2"))
        resolving = await judged(journal, propose(Decision.RESOLVE))
        await made(journal, claim(), mark(), doubt(), key="k2")
        foreign = await judged(journal, propose(Decision.RESOLVE, "tx-1"), key="k2")
        waiving = await judged(journal, propose(Decision.WAIVE), key="k2")

        assert [item.denial for item in (amending, resolving, foreign, waiving)] == [
            Rejection.ANSWERED,
            Rejection.LOST,
            Rejection.FOREIGN,
            Rejection.LOST,
        ]

    async def test_a_wrong_id_is_corrected_and_is_free_for_the_key_whose_it_is(
        self, journal: Journal
    ) -> None:
        await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1"))
        after = await made(journal, amend("tx-1", "tx-2"))
        other = await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1"), key="k2")
        taken = await judged(journal, amend("tx-1", "tx-2"), key="k2")

        assert (after.state, after.order_id, other.order_id) == (S.CREATED, "tx-2", "tx-1")
        assert taken.denial is Rejection.FOREIGN
        assert (await lines(journal))[-1] == ("amend", "operator", "a slip")

    async def test_a_wrong_id_is_taken_back_and_the_key_in_doubt_is_whole_again(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        before = await made(journal, claim(), mark(hold="r"), doubt())
        await made(journal, resolve())
        after = await made(journal, take_back())
        kept = await read(journal)
        pass_time(SETTLE_AFTER)
        freed = await made(journal, refute())
        last = (await journal.history(SCOPE, "k"))[-2]

        assert (after.state, after.order_id) == (S.IN_DOUBT, None)
        assert kept.cause is not None
        assert kept.cause.kind is CauseKind.TAKEN_BACK
        assert kept == replace(before, cause=kept.cause, version=before.version + 2)
        assert [key for key, _ in await journal.in_doubt(SCOPE)] == []
        assert (last.move, last.order_id, freed.state) == ("takeback", "tx-1", S.FREE)

    async def test_what_the_service_itself_answered_is_never_amended(self, journal: Journal) -> None:
        entry = await made(journal, claim(), mark(), create())
        denials = [(await judged(journal, move)).denial for move in (amend(), take_back())]

        assert denials == [Rejection.ANSWERED, Rejection.ANSWERED]
        assert await read(journal) == entry

    async def test_whoever_was_told_of_the_wrong_order_is_told_of_the_right_one(
        self, journal: Journal
    ) -> None:
        await made(journal, claim(), mark(), doubt(), promise(), resolve())
        unheard = await made(journal, amend("tx-1", "tx-2"))
        await made(journal, told(unheard.pending_notifications[0]))
        heard = await made(journal, amend("tx-2", "tx-3"))
        doubted = await made(journal, take_back("tx-3"))

        assert [
            [pending.order_id for pending in entry.pending_notifications]
            for entry in (unheard, heard, doubted)
        ] == [
            ["tx-2"],
            ["tx-3"],
            [],
        ]

    async def test_an_amendment_that_is_proposed_waits_for_somebody_and_is_not_forgotten(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark(), doubt(), resolve())
        before = [key for key, _ in await journal.work(SCOPE, limit=9)]
        await made(journal, propose(Decision.AMEND, "tx-2"))
        waiting = [key for key, _ in await journal.work(SCOPE, limit=9)]
        pass_time(KEPT + 10.0)
        pruned = await journal.prune(SCOPE, before=journal_time.utc())
        after = await made(journal, amend("tx-1", "tx-2", by="ben", proposal="proposal-1"))

        assert (before, waiting, pruned) == ([], ["k"], 0)
        assert (after.order_id, [key for key, _ in await journal.work(SCOPE, limit=9)]) == ("tx-2", [])

    async def test_one_person_demands_four_eyes_and_two_waive_them(self, journal: Journal) -> None:
        first = await made(journal, demand(), key=FOUR_EYES)
        alone = await judged(journal, msgspec.structs.replace(waive(), proposal="none"), key=FOUR_EYES)
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

    @pytest.mark.parametrize(
        "decision", [resolve(), refute(), amend(), take_back()], ids=lambda item: item.name
    )
    async def test_from_the_demand_on_no_person_decides_alone(
        self, journal: Journal, pass_time: LetPass, decision: Move
    ) -> None:
        """The rule is read in the transaction that writes the decision, whoever looked at it before."""
        way = (claim(), mark(), doubt())
        entry = await made(journal, *way, *((resolve(),) if isinstance(decision, (Amend, TakeBack)) else ()))
        pass_time(SETTLE_AFTER)
        await made(journal, demand(), key=FOUR_EYES)
        alone = await judged(journal, decision)

        assert (alone.denial, alone.entry, await read(journal)) == (Rejection.ALONE, entry, entry)
        await made(journal, propose(Decision.WAIVE, attempt=None), waive(), key=FOUR_EYES)
        assert (await judged(journal, decision)).denial is None

    async def test_a_demand_denies_neither_programs_nor_approvals_nor_other_scopes(
        self, journal: Journal
    ) -> None:
        await made(journal, demand(), key=FOUR_EYES)
        await made(journal, claim(), mark(), doubt(), resolve(order_id="tx-1", by_program=True))
        await made(journal, claim(), mark(), doubt(), propose(order_id="tx-2"), key="k2")
        approved = await made(journal, resolve(order_id="tx-2", by="ben", proposal="proposal-1"), key="k2")
        for move in (claim(), mark(), doubt()):
            await journal.move("https://other.example", "k", move)
        other = await journal.move("https://other.example", "k", resolve())

        assert approved.state is S.CREATED
        assert other is not None
        assert other.denial is None

    @pytest.mark.parametrize("ahead", range(9))
    async def test_once_a_demand_has_returned_no_decision_of_one_person_is_written(
        self, journal: Journal, ahead: int
    ) -> None:
        await decided_while_demanded(journal, journal, ahead)

    async def test_a_demand_that_stands_is_not_written_anew(self, journal: Journal) -> None:
        first = await made(journal, demand(), key=FOUR_EYES)
        await made(journal, propose(Decision.WAIVE, attempt=None), key=FOUR_EYES)
        await judged(journal, demand(), key=FOUR_EYES)
        entry = await read(journal, FOUR_EYES)

        assert (entry.version, entry.proposal is None) == (first.version + 1, False)

    async def test_the_demand_is_no_key_that_waits_nor_one_that_is_forgotten(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        await made(journal, demand(), key=FOUR_EYES)
        pass_time(10 * KEPT)
        assert await journal.prune(SCOPE, before=journal_time.utc()) == 0
        await made(journal, propose(Decision.WAIVE, attempt=None), key=FOUR_EYES)
        pass_time(10 * KEPT)

        assert await journal.work(SCOPE, limit=9) == []
        assert await journal.in_doubt(SCOPE) == []
        assert await journal.prune(SCOPE, before=journal_time.utc()) == 0
        assert (await read(journal, FOUR_EYES)).four_eyes is True

    async def test_an_orders_key_demands_nothing(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), create())

        assert (await judged(journal, demand())).denial is Rejection.LOST
        assert (await judged(journal, waive())).denial is Rejection.LOST
