"""Claims, and the leases that end them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from transfer_async._models.errors import Attempt, Cause, CauseKind, Outcome
from transfer_async._models.requests import PersonName
from transfer_async.journal import Ending, Journal, KeyState, Move, PendingUndo, Rejection, TransitionResult
from transfer_async.journal.model import LEASE
from transfer_async.testing.journal_contract.four_eyes import decided_while_demanded
from transfer_async.testing.journal_contract.support import (
    MAX_AGE,
    SCOPE,
    WAYS,
    LetPass,
    attend,
    claim,
    create,
    doubt,
    expire,
    followed,
    free,
    intent,
    judged,
    keep,
    made,
    mark,
    of_key,
    owe,
    paid,
    promise,
    propose,
    refute,
    resolve,
    suspect,
    take_over,
    told,
)

SETTLING = (keep, take_over, mark, create, free, doubt, expire, resolve, refute)
ASIDE = (paid, owe, attend, suspect, promise, told)

TWINS = (
    *(f"{'w' * (length - 1)}{last}" for length in (32, 64, 128, 200) for last in "12"),
    *("Müller", "MÜLLER", "Muller", "Mller", "Mu ller", "Straße", "Strasse", "№ 1", "No 1", "😀", "😁"),
    *(
        "7",
        "07",
        "7.0",
        "7e0",
        "٧",
        "a_b",
        "axb",
        "a%b",
        "a/b",
        "a:b",
        "a|b",
        "a\\b",
        "a'b",
        'a"b',
        "a b",
        "ab",
    ),
)
"""Keys that a store may take for one: it cuts, folds, strips, counts or matches them."""

LONG = "r-ü№ " * 200
SEND_BEFORE = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
WISH = intent(
    held=f"held {LONG}",
    beneficiary=PersonName(first="Bẹ́n", last="Okri-№", middle="O"),
    send_before=SEND_BEFORE,
)
ATTEMPT = Attempt(
    number=1,
    seconds=0.25,
    outcome=Outcome.UNKNOWN,
    status=200,
    error="E",
    request_id="r-1",
    began=SEND_BEFORE,
)
CAUSE = Cause(
    kind=CauseKind.UNREADABLE_ANSWER,
    status=200,
    error="ClientPayloadError",
    candidate="tx-7",
    attempts=(ATTEMPT,),
)
DEBTS = tuple(PendingUndo(intent=WISH, hook=f"hook-{number}", receipt=LONG) for number in range(20))
ENDING = Ending(
    outcome=Outcome.REFUSED,
    error="Refused",
    status=422,
    refused=True,
    in_vain=True,
    fields=("matcher_amount", "exchange_rate"),
)
HOOKS = tuple(debt.hook for debt in DEBTS)
DOUBTED = (
    claim(intent=WISH, client_made=True, hooks=HOOKS),
    keep(check=LONG),
    mark(check=LONG, hold="r-ü"),
    *(doubt(candidate=f"tx-{number}", cause=CAUSE) for number in range(7, 27)),
    promise(),
)
FULL: dict[str, tuple[Move, ...]] = {
    "in doubt": (*DOUBTED, propose(said=LONG)),
    "resolved": (*DOUBTED, resolve(order_id="tx-7")),
    "owed": (
        claim(intent=WISH),
        free(None, pending_undos=DEBTS),
        claim(2),
        mark("b", number=2),
        suspect(number=3, reason=LONG),
    ),
    "ended": (claim(), mark(), free(ending=ENDING)),
    "long": (claim(), *(suspect(f"tx-{number}", reason=LONG) for number in range(60))),
}
"""Ways on which every field of an entry is filled, and each with as much as may be there."""


class Claiming:
    """Claims, and the leases that end them."""

    async def test_a_journal_says_whether_it_is_durable(self, journal: Journal) -> None:
        assert isinstance(journal.durable, bool)

    async def test_what_was_never_claimed_is_unknown(self, journal: Journal) -> None:
        assert await journal.read(SCOPE, "k") is None
        assert await journal.history(SCOPE, "k") == ()

    async def test_only_a_claim_and_a_suspicion_make_an_entry(self, journal: Journal) -> None:
        for make in (*SETTLING, *(make for make in ASIDE if make is not suspect)):
            assert await journal.move(SCOPE, "k", make()) is None
            assert await journal.read(SCOPE, "k") is None

    async def test_an_entry_is_read_as_its_last_move_left_it(self, journal: Journal) -> None:
        for state, way in WAYS.items():
            entry = await made(journal, *way, key=state.value)

            assert entry.state is state
            assert await journal.read(SCOPE, state.value) == entry

    async def test_everything_that_an_entry_holds_comes_back_as_it_was(self, journal: Journal) -> None:
        for key, moves in FULL.items():
            await followed(journal, *moves, key=key)

    async def test_a_created_key_keeps_its_reply_byte_for_byte_and_forgets_the_wish(
        self, journal: Journal
    ) -> None:
        reply = b'{"id": "tx-1", "x": "\xc3\xbc\\u0000%s"}' % (b"0123456789abcdef" * 65_536)
        await made(journal, claim(), mark(), create(reply=reply))
        entry = await journal.read(SCOPE, "k")

        assert entry is not None
        assert (entry.reply, entry.order_id, entry.intent) == (reply, "tx-1", None)

    async def test_a_denied_move_changes_nothing(self, journal: Journal) -> None:
        entry = await made(journal, claim(), mark())
        verdict = await judged(journal, create("another"))

        assert verdict.denial is Rejection.LOST
        assert verdict.entry == await journal.read(SCOPE, "k") == entry
        assert len(await journal.history(SCOPE, "k")) == 2

    async def test_of_many_claims_at_once_one_is_granted(self, journal: Journal) -> None:
        verdicts = await asyncio.gather(*(judged(journal, claim(number)) for number in range(50)))

        assert sum(verdict.denial is None for verdict in verdicts) == 1
        assert sum(verdict.denial is Rejection.BUSY for verdict in verdicts) == 49

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

    async def test_keys_and_order_ids_that_are_almost_alike_are_not_taken_for_one(
        self, journal: Journal
    ) -> None:
        """Else of two wages one is taken for the other, which has its order: it is never paid."""

        async def use(number: int, key: str) -> list[Rejection | None]:
            order = create(order_id=f"tx-{key}")
            moves = (claim(number), mark(number=number), order)
            return [(await judged(journal, move, key=key)).denial for move in moves]

        denials = await asyncio.gather(*(use(number, key) for number, key in enumerate(TWINS)))
        entries = [await journal.read(SCOPE, key) for key in TWINS]

        assert {key: found for key, found in zip(TWINS, denials, strict=True) if any(found)} == {}
        assert [(entry.intent_id, entry.order_id) for entry in entries if entry is not None] == [
            (f"intent-{number}", f"tx-{key}") for number, key in enumerate(TWINS)
        ]

    async def test_scopes_that_are_almost_alike_are_not_taken_for_one(self, journal: Journal) -> None:
        long = f"https://{'s' * 240}.example"
        places = [(f"{long}/1", "k"), (f"{long}/2", "k")]
        for sign in "/:|# ":
            places += [(SCOPE, f"a{sign}b"), (f"{SCOPE}{sign}a", "b")]
        verdicts = [await journal.move(scope, key, of_key(claim(), key)) for scope, key in places]

        assert [place for place, one in zip(places, verdicts, strict=True) if one is None or one.denial] == []

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

        assert before.denial is Rejection.BUSY
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
            assert (await judged(journal, move)).denial is Rejection.LOST
        assert (await judged(journal, mark(epoch=2))).denial is None

    async def test_a_worker_that_slept_through_its_lease_can_free_its_claim_but_not_send(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim())
        pass_time(LEASE)

        assert (await judged(journal, mark())).denial is Rejection.LOST
        assert (await judged(journal, keep())).denial is Rejection.LOST
        assert (await judged(journal, free(None))).denial is None

    async def test_a_lease_is_renewed_by_keeping_it(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim())
        pass_time(LEASE - 1)
        await made(journal, keep())
        pass_time(LEASE - 1)

        assert (await judged(journal, claim(2))).denial is Rejection.BUSY

    async def test_a_claim_that_is_too_old_is_owed_in_order_and_a_new_intent_begins(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), keep(check="r-1"))
        pass_time(MAX_AGE + 1)
        verdict = await judged(journal, claim(2, hooks=("other",)))

        entry = verdict.entry
        assert verdict.denial is None
        assert (entry.intent_id, entry.epoch, entry.receipts) == ("intent-2", 1, {})
        assert [(undo.intent.id, undo.hook, undo.receipt) for undo in entry.pending_undos] == [
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

        assert (await judged(journal, claim(2))).denial is Rejection.BUSY

    async def test_an_expired_request_is_in_doubt_for_whoever_claims_it_and_the_doubt_is_written(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark())
        pass_time(10 * MAX_AGE)
        verdict = await judged(journal, claim(2))
        read = await journal.read(SCOPE, "k")

        assert verdict.denial is Rejection.IN_DOUBT
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

        assert (early.denial, other.denial, late.denial) == (Rejection.BUSY, Rejection.LOST, None)
        assert late.entry.state is KeyState.IN_DOUBT

    async def test_a_take_over_waits_for_the_lease(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim())
        early = await judged(journal, take_over())
        pass_time(LEASE)
        late = await judged(journal, take_over())

        assert (early.denial, late.denial) == (Rejection.BUSY, None)
        assert late.entry.epoch == 2


# --- cancelling --------------------------------------------------------------------------------------
# Callers that are cancelled: what they have begun is done all the same, and done whole.


PATIENCE = 30.0
"""Seconds after which what should have happened long ago is a failure."""

TICKS = (*range(1, 17), 24, 32, 64, 128, 256, 512, 1024)
"""Turns of the loop after which a caller is cancelled: each at first, then fewer, for a store may be slow."""


class Cancelling:
    """Callers that are cancelled: what they have begun is done all the same, and done whole."""

    async def test_a_move_that_has_begun_is_finished_even_if_its_caller_is_cancelled(
        self, journal: Journal
    ) -> None:
        await _is_cancelled_after(1, asyncio.create_task(journal.move(SCOPE, "k", claim())))

        await _has_happened(journal, "k", [claim()], KeyState.CLAIMED)
        assert (await judged(journal, claim(2))).denial is Rejection.BUSY

    @pytest.mark.parametrize(
        "state",
        [KeyState.CLAIMED, KeyState.SENDING, KeyState.CREATED, KeyState.FREE],
        ids=lambda state: state.value,
    )
    async def test_a_move_that_waits_behind_another_is_finished_whenever_its_caller_is_cancelled(
        self, journal: Journal, state: KeyState
    ) -> None:
        """Else a worker that is stopped forgets the order that was just created, or why it was not."""
        for ticks in TICKS:
            key = f"k{ticks}"
            *before, last = moves = _way_to(state, order_id=f"tx-{ticks}")
            for move in before:
                await judged(journal, move, key=key)
            other = asyncio.create_task(judged(journal, claim(), key=f"other-{ticks}"))
            caller = asyncio.create_task(journal.move(SCOPE, key, of_key(last, key)))
            was_done = await _is_cancelled_after(ticks, caller)
            await other

            await _has_happened(journal, key, moves, state)
            if was_done:
                return


def _way_to(state: KeyState, *, order_id: str) -> list[Move]:
    ends: dict[KeyState, list[Move]] = {
        KeyState.CLAIMED: [],
        KeyState.SENDING: [mark()],
        KeyState.CREATED: [mark(), create(order_id=order_id)],
        KeyState.FREE: [mark(), free()],
    }
    return [claim(), *ends[state]]


async def _is_cancelled_after(ticks: int, caller: asyncio.Task[object]) -> bool:
    """Cancel it once it has had so many turns of the loop; whether it was done before."""
    for _ in range(ticks):
        await asyncio.sleep(0)
    was_done = not caller.cancel()
    await asyncio.wait([caller])
    return was_done


async def _has_happened(journal: Journal, key: str, moves: list[Move], state: KeyState) -> None:
    """Return once the key stands there, with each of its moves in the history, and no other."""
    wanted, found = (state, [move.name for move in moves]), None
    try:
        async with asyncio.timeout(PATIENCE):  # another connection may be faster than its own
            while found != wanted:
                await asyncio.sleep(0)  # there is nothing to be told by
                entry = await journal.read(SCOPE, key)
                steps = await journal.history(SCOPE, key)
                found = (entry and entry.state, [step.move for step in steps])
    except TimeoutError:
        raise AssertionError(f"a move was begun, and is not finished: {found}, and not {wanted}") from None


# --- sharing -----------------------------------------------------------------------------------------
# Two journals on one store, as two workers have them: neither believes what it alone knows.


HEAD_STARTS = range(9)
"""Turns of the loop by which one of the two is ahead: one may still be looking while the other writes."""


class Sharing:
    """Two journals on one store, as two workers have them: neither believes what it alone knows."""

    async def test_what_one_wrote_the_other_reads_at_once(self, journal: Journal, beside: Journal) -> None:
        """Else it is not on the disk yet, or never gets there, and dies with its process."""
        for state, way in WAYS.items():
            assert await beside.read(SCOPE, state.value) is None
            entry = await made(journal, *way, key=state.value)

            assert await beside.read(SCOPE, state.value) == entry
            steps = await beside.history(SCOPE, state.value)
            assert [step.move for step in steps] == [move.name for move in way]
        waiting = [key for key, _ in await beside.work(SCOPE, limit=9)]
        doubts = [key for key, _ in await beside.in_doubt(SCOPE)]
        assert (waiting, doubts, await beside.count_in_doubt(SCOPE)) == (["in_doubt"], ["in_doubt"], 1)

    async def test_what_one_began_the_other_ends(self, journal: Journal, beside: Journal) -> None:
        await made(journal, claim())
        await made(beside, mark())
        await made(journal, doubt())
        entry = await made(beside, create())

        assert await journal.read(SCOPE, "k") == await beside.read(SCOPE, "k") == entry
        assert (await judged(journal, claim(2))).denial is Rejection.CREATED

    @pytest.mark.parametrize("ahead", HEAD_STARTS)
    async def test_what_one_demands_the_other_obeys_from_the_moment_it_returns(
        self, journal: Journal, beside: Journal, ahead: int
    ) -> None:
        """One person releases a hold on their own, though the bank has demanded two."""
        await decided_while_demanded(journal, beside, ahead)

    async def test_what_one_knew_of_a_key_is_nothing_once_the_other_has_moved_it(
        self, journal: Journal, beside: Journal
    ) -> None:
        await made(journal, claim())
        entry = await made(beside, free(None), claim(2))

        for move in (mark(), free(None)):
            assert (await judged(journal, move)).denial is Rejection.LOST
        assert await journal.read(SCOPE, "k") == await beside.read(SCOPE, "k") == entry

    async def test_of_two_that_claim_a_key_one_gets_it(self, journal: Journal, beside: Journal) -> None:
        for key, one, other, ahead in _races(journal, beside):
            verdicts = await _both(
                judged(one, claim(1), key=key), judged(other, claim(2), key=key), ahead=ahead
            )

            await _is_won(verdicts, Rejection.BUSY, key, (journal, beside))

    async def test_of_two_that_mark_a_key_one_sends(self, journal: Journal, beside: Journal) -> None:
        for key, one, other, ahead in _races(journal, beside):
            await made(one, claim(), key=key)
            verdicts = await _both(
                judged(one, mark("a"), key=key), judged(other, mark("b"), key=key), ahead=ahead
            )

            await _is_won(verdicts, Rejection.LOST, key, (journal, beside))

    async def test_of_two_keys_that_two_bind_to_an_order_one_gets_it(
        self, journal: Journal, beside: Journal
    ) -> None:
        for key, one, other, ahead in _races(journal, beside):
            keys, move = (f"{key}-1", f"{key}-2"), create(order_id=f"tx-{key}")
            for item in keys:
                await made(one, claim(), mark(), key=item)
            verdicts = await _both(
                judged(one, move, key=keys[0]), judged(other, move, key=keys[1]), ahead=ahead
            )
            entries = [await beside.read(SCOPE, item) for item in keys]

            assert {verdict.denial for verdict in verdicts} == {None, Rejection.FOREIGN}
            assert {entry and entry.order_id for entry in entries} == {None, f"tx-{key}"}


def _races(journal: Journal, beside: Journal) -> Iterator[tuple[str, Journal, Journal, int]]:
    """For each race a key, who is ahead in it, the other, and by how much."""
    for ahead in HEAD_STARTS:
        yield f"first-{ahead}", journal, beside, ahead
        yield f"second-{ahead}", beside, journal, ahead


async def _both(
    one: Coroutine[Any, Any, TransitionResult], other: Coroutine[Any, Any, TransitionResult], *, ahead: int
) -> tuple[TransitionResult, TransitionResult]:
    first = asyncio.create_task(one)
    for _ in range(ahead):
        await asyncio.sleep(0)
    return await asyncio.gather(first, other)


async def _is_won(
    verdicts: Sequence[TransitionResult], denial: Rejection, key: str, journals: tuple[Journal, Journal]
) -> None:
    """One was granted, and is what both read; the other was denied."""
    assert {verdict.denial for verdict in verdicts} == {None, denial}
    (entry,) = (verdict.entry for verdict in verdicts if verdict.denial is None)
    for journal in journals:
        assert await journal.read(SCOPE, key) == entry
