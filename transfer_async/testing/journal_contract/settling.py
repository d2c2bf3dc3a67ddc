"""How what was sent comes to its end: an answer, a doubt, a person's word."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import attrs
import pytest
from msgspec.structs import asdict, replace

from transfer_async._models.errors import Outcome
from transfer_async.journal import (
    Ending,
    Entry,
    HistoryEvent,
    Journal,
    KeyState,
    MemoryJournal,
    Move,
    Rejection,
    TransitionResult,
)
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.journal_contract import support as moves
from transfer_async.testing.journal_contract.support import (
    MAX_AGE,
    SCOPE,
    WAYS,
    WINDOW,
    JournalTime,
    LetPass,
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

            assert (await judged(journal, answer("b"), key=key)).denial is Rejection.LOST
            assert (await judged(journal, answer(), key=key)).entry.state is state

    async def test_created_is_final(self, journal: Journal, pass_time: LetPass) -> None:
        await made(journal, claim(), mark(), create())
        pass_time(10 * MAX_AGE)

        for move in (*(make() for make in SETTLING), free(None)):
            assert (await judged(journal, move)).denial is Rejection.LOST
        assert (await judged(journal, claim(2))).denial is Rejection.CREATED

    async def test_a_different_order_is_a_conflict_in_every_state_but_free(self, journal: Journal) -> None:
        other = claim(2, fingerprint="another")
        denials = {}
        for state, way in WAYS.items():
            await made(journal, *way, key=state.value) if state is not KeyState.CREATED else await made(
                journal, claim(), mark(), create(order_id="tx-9"), key=state.value
            )
            denials[state] = (await judged(journal, other, key=state.value)).denial

        assert denials.pop(KeyState.FREE) is None
        assert set(denials.values()) == {Rejection.CONFLICT}

    async def test_an_undo_that_became_due_late_is_owed_once_whatever_the_key_has_become(
        self, journal: Journal
    ) -> None:
        await made(journal, claim(), free(None, pending_undos=owing("hold")), claim(2))
        entry = await made(journal, owe("hold", "check"))

        assert entry.intent_id == "intent-2"
        assert sorted(undo.hook for undo in entry.pending_undos) == ["check", "hold"]
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

        assert foreign.denial is resolved.denial is Rejection.FOREIGN
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
        late = await judged(journal, refute(pending_undos=owing("hold")))

        assert early.denial is Rejection.TOO_EARLY
        assert late.denial is None
        assert late.entry.state is KeyState.FREE
        assert late.entry.ending == Ending(outcome=Outcome.REFUSED, error="Refuted")
        assert [undo.hook for undo in late.entry.pending_undos] == ["hold"]

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

        assert (early.denial, late.denial) == (Rejection.TOO_EARLY, None)

    async def test_resolving_and_refuting_are_about_one_attempt(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), mark(), doubt())
        pass_time(SETTLE_AFTER + WINDOW)

        assert (await judged(journal, resolve("b"))).denial is Rejection.LOST
        assert (await judged(journal, refute("b"))).denial is Rejection.LOST
        assert (await judged(journal, resolve())).denial is None

    async def test_a_key_is_free_for_a_new_intent_after_a_certain_no(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), free())
        entry = await made(journal, claim(2, fingerprint="another"))

        assert (entry.intent_id, entry.epoch, entry.attempt, entry.receipts) == ("intent-2", 1, None, {})

    async def test_an_attempt_of_an_earlier_intent_settles_nothing(self, journal: Journal) -> None:
        await made(journal, claim(), mark("a"), free("a"), claim(2), mark("b", number=2))

        for move in (create("a"), free("a"), doubt("a"), resolve("a")):
            assert (await judged(journal, move)).denial is Rejection.LOST


# --- owing -------------------------------------------------------------------------------------------
# Undos that are owed, and who attends to them.


class Owing:
    """Undos that are owed, and who attends to them."""

    async def test_what_is_owed_is_recorded_with_the_no_under_a_lease(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        entry = await made(journal, claim(), free(None, pending_undos=owing("hold", "check")))
        waiting = await journal.work(SCOPE, limit=10)
        pass_time(LEASE)
        later = await journal.work(SCOPE, limit=10)

        assert [(undo.hook, undo.receipt) for undo in entry.pending_undos] == [
            ("hold", "r-hold"),
            ("check", "r-check"),
        ]
        assert waiting == []
        assert [key for key, _ in later] == ["k"]

    async def test_what_is_paid_is_owed_no_longer_and_the_rest_is_left_to_others_at_once(
        self, journal: Journal
    ) -> None:
        freed = await made(journal, claim(), free(None, pending_undos=owing("hold", "check")))
        entry = await made(journal, paid("hold", lease_until=freed.pending_undos[0].lease_until))

        assert [(undo.hook, undo.lease_until) for undo in entry.pending_undos] == [("check", 0.0)]
        assert [key for key, _ in await journal.work(SCOPE, limit=10)] == ["k"]

    async def test_paying_for_one_intent_leaves_the_others(self, journal: Journal) -> None:
        await made(journal, claim(), free(None, pending_undos=owing("hold")))
        freed = await made(journal, claim(2), free(None, number=2, pending_undos=owing("hold", number=2)))
        entry = await made(journal, paid("hold", number=2, lease_until=freed.pending_undos[1].lease_until))

        assert [undo.intent.id for undo in entry.pending_undos] == ["intent-1"]

    async def test_paying_what_has_become_due_anew_meanwhile_pays_nothing(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        freed = await made(journal, claim(), free(None, pending_undos=owing("hold")))
        pass_time(1.0)
        await made(journal, owe("hold"))
        entry = await made(journal, paid("hold", lease_until=freed.pending_undos[0].lease_until))

        assert [undo.hook for undo in entry.pending_undos] == ["hold"]
        assert entry.pending_undos[0].lease_until > freed.pending_undos[0].lease_until

    async def test_what_is_owed_outlives_the_next_intents_of_the_key(self, journal: Journal) -> None:
        await made(journal, claim(), free(None, pending_undos=owing("hold")))
        entry = await made(journal, claim(2), mark(number=2), create())

        assert [undo.intent.id for undo in entry.pending_undos] == ["intent-1"]

    async def test_one_worker_at_a_time_attends_to_what_is_owed(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        await made(journal, claim(), free(None, pending_undos=owing("hold"), lease=0.0))
        first = await judged(journal, attend())
        second = await judged(journal, attend())
        pass_time(LEASE)
        third = await judged(journal, attend())

        assert (first.denial, second.denial, third.denial) == (None, Rejection.BUSY, None)

    async def test_one_worker_at_a_time_attends_to_a_doubt_and_may_let_it_go(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), doubt(), attend())
        second = await judged(journal, attend())
        await made(journal, attend(0.0))
        third = await judged(journal, attend())

        assert (second.denial, third.denial) == (Rejection.BUSY, None)


# --- stories -----------------------------------------------------------------------------------------
# Stories: many moves of many workers, drawn from a seed, beside a journal in memory that cannot be wrong.


KEYS = 3
"""Of one story, in each scope."""

SCOPES = (moves.SCOPE, "https://other.example")
MOVES = 60
"""Of one story."""

ALL = 10_000
"""More keys than there are."""

PAUSES = (0.0, 0.0, 0.0, 1.0, 59.0, 61.0, 400.0, 1000.0)
"""Seconds between two moves: within a lease, beyond it, beyond settling and a claim's age; no day in all."""


class Stories:
    """What many workers do ends as the model says, and is there when the journal is opened again."""

    stories: int

    async def test_stories_end_as_the_model_says(
        self, new_journal: Journal, journal_time: JournalTime
    ) -> None:
        """A failure names its seed, and what was done."""
        model = MemoryJournal(clock=journal_time.clock, keep=1e12)
        for seed in range(self.stories):
            story = _Story(seed, model, journal_time)
            try:
                async with new_journal as journal:
                    await story.play(journal)
                async with new_journal as journal:  # what is closed, and opened again, is as it was
                    await story.agree(journal)
            except AssertionError as error:
                error.add_note("\n".join(story.done[-15:]))
                raise

    async def test_of_many_workers_at_once_each_order_id_has_one_key(self, journal: Journal) -> None:
        for number in range(2):
            keys = [f"k{number}-{worker}" for worker in range(4)]
            for key in keys:
                await moves.made(journal, moves.claim(), moves.mark(), key=key)
            create = moves.create(order_id=f"tx-{number}")
            verdicts = await asyncio.gather(*(moves.judged(journal, create, key=key) for key in keys))

            assert sum(verdict.denial is None for verdict in verdicts) == 1


class _Story:
    """One story.

    Attributes:
        done: what was done, in words.
    """

    def __init__(self, seed: int, model: MemoryJournal, time: JournalTime) -> None:
        self.done = [f"seed {seed}"]
        self._model, self._time, self._chance = model, time, Random(seed)  # noqa: S311 - a replay is wanted
        self._keys = [f"{seed}-{number}" for number in range(KEYS)]
        self._orders = [f"tx-{seed}-{number}" for number in range(4)]

    async def play(self, journal: Journal) -> None:
        """Make every move in both journals, and look at both after each."""
        for _ in range(MOVES):
            self._time.pass_(self._chance.choice(PAUSES))
            scope, key = self._chance.choice(SCOPES), self._chance.choice(self._keys)
            move = moves.of_key(_drawn(self._chance, self._chance.choice(self._orders)), key)
            self.done.append(f"{move.name} of {key!r}: {move}")
            expected = _plain(await self._model.move(scope, key, move))

            assert _plain(await journal.move(scope, key, move)) == expected
            assert _shown(await journal.read(scope, key)) == _shown(await self._model.read(scope, key))
        await self.agree(journal)

    async def agree(self, journal: Journal) -> None:
        """All that can be asked of both is answered alike."""
        model = self._model
        for scope in SCOPES:
            for key in self._keys:
                assert _shown(await journal.read(scope, key)) == _shown(await model.read(scope, key))
                assert _told(await journal.history(scope, key)) == _told(await model.history(scope, key))
            assert _keys(await journal.work(scope, limit=ALL)) == _keys(await model.work(scope, limit=ALL))
            assert _keys(await journal.in_doubt(scope)) == _keys(await model.in_doubt(scope))
            assert await journal.count_in_doubt(scope) == await model.count_in_doubt(scope)


def _keys(found: list[tuple[str, Entry]]) -> list[str]:
    return sorted(key for key, _ in found)


def _drawn(chance: Random, order_id: str) -> Move:
    number, attempt = chance.randint(1, 3), chance.choice("ab")
    owed = moves.owing(*chance.sample(["hold", "check"], chance.randint(0, 2)), number=number)
    drawn: list[Move] = [
        moves.claim(number),
        moves.claim(number, once=True),
        moves.keep(number=number, check="r-1"),
        moves.mark(attempt, number=number, hold="r-ü"),
        moves.mark(attempt, number=number, epoch=2),
        moves.create(attempt, order_id),
        moves.free(attempt, number=number, pending_undos=owed),
        moves.free(None, number=number, pending_undos=owed),
        moves.doubt(attempt),
        moves.expire(attempt),
        moves.resolve(attempt, order_id),
        moves.refute(attempt, pending_undos=owed),
        moves.take_over(number=number),
        moves.attend(),
        moves.paid("hold", number=number),
        moves.owe("hold", number=number),
        moves.suspect(order_id),
        moves.promise(number),
    ]
    return chance.choice(drawn)


# The model keeps a time of its own: what is left of a span is compared, not when it ends.
_TIMES = ("claimed_at", "lease_until", "sent_until")


def _shown(entry: Entry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    shown = {name: value for name, value in asdict(entry).items() if name not in _TIMES}
    return {**shown, "pending_undos": [attrs.evolve(undo, lease_until=0.0) for undo in entry.pending_undos]}


def _plain(verdict: TransitionResult | None) -> object:
    if verdict is None:
        return None
    left = pytest.approx(verdict.lease_left, abs=1e-3)
    return verdict.denial, verdict.found_doubt, _shown(verdict.entry), left


def _told(steps: tuple[HistoryEvent, ...]) -> list[HistoryEvent]:
    return [replace(step, at=0.0) for step in steps]
