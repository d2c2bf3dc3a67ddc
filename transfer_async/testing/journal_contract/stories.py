"""Stories: many moves of many workers, drawn from a seed, beside a journal in memory that cannot be wrong."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import attrs
import pytest
from msgspec.structs import asdict, replace

from transfer_async.journal import Entry, Journal, MemoryJournal, Move, Step, Verdict
from transfer_async.testing.journal_contract import trial_moves as moves
from transfer_async.testing.journal_contract.journal_time import JournalTime

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
            move = _drawn(self._chance, self._chance.choice(self._orders))
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
        moves.free(attempt, number=number, owed=owed),
        moves.free(None, number=number, owed=owed),
        moves.doubt(attempt),
        moves.expire(attempt),
        moves.resolve(attempt, order_id),
        moves.refute(attempt, owed=owed),
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
    return {**shown, "owed": [attrs.evolve(one, lease_until=0.0) for one in entry.owed]}


def _plain(verdict: Verdict | None) -> object:
    if verdict is None:
        return None
    left = pytest.approx(verdict.lease_left, abs=1e-3)
    return verdict.denial, verdict.found_doubt, _shown(verdict.entry), left


def _told(steps: tuple[Step, ...]) -> list[Step]:
    return [replace(step, at=0.0) for step in steps]
