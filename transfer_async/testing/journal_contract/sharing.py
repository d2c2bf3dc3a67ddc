"""Two journals on one store, as two workers have them: neither believes what it alone knows."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from transfer_async.journal import Denial, Journal, Verdict
from transfer_async.testing.journal_contract.trial_moves import (
    SCOPE,
    WAYS,
    claim,
    create,
    doubt,
    free,
    judged,
    made,
    mark,
)

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
        assert (await judged(journal, claim(2))).denial is Denial.CREATED

    async def test_what_one_knew_of_a_key_is_nothing_once_the_other_has_moved_it(
        self, journal: Journal, beside: Journal
    ) -> None:
        await made(journal, claim())
        entry = await made(beside, free(None), claim(2))

        for move in (mark(), free(None)):
            assert (await judged(journal, move)).denial is Denial.LOST
        assert await journal.read(SCOPE, "k") == await beside.read(SCOPE, "k") == entry

    async def test_of_two_that_claim_a_key_one_gets_it(self, journal: Journal, beside: Journal) -> None:
        for key, one, other, ahead in _races(journal, beside):
            verdicts = await _both(
                judged(one, claim(1), key=key), judged(other, claim(2), key=key), ahead=ahead
            )

            await _is_won(verdicts, Denial.BUSY, key, (journal, beside))

    async def test_of_two_that_mark_a_key_one_sends(self, journal: Journal, beside: Journal) -> None:
        for key, one, other, ahead in _races(journal, beside):
            await made(one, claim(), key=key)
            verdicts = await _both(
                judged(one, mark("a"), key=key), judged(other, mark("b"), key=key), ahead=ahead
            )

            await _is_won(verdicts, Denial.LOST, key, (journal, beside))

    async def test_of_two_keys_that_two_bind_to_an_order_one_gets_it(
        self, journal: Journal, beside: Journal
    ) -> None:
        for key, one, other, ahead in _races(journal, beside):
            keys, move = (f"{key}-1", f"{key}-2"), create(order_id=f"tx-{key}")
            for each in keys:
                await made(one, claim(), mark(), key=each)
            verdicts = await _both(
                judged(one, move, key=keys[0]), judged(other, move, key=keys[1]), ahead=ahead
            )
            entries = [await beside.read(SCOPE, each) for each in keys]

            assert {verdict.denial for verdict in verdicts} == {None, Denial.FOREIGN}
            assert {entry and entry.order_id for entry in entries} == {None, f"tx-{key}"}


def _races(journal: Journal, beside: Journal) -> Iterator[tuple[str, Journal, Journal, int]]:
    """For each race a key, who is ahead in it, the other, and by how much."""
    for ahead in HEAD_STARTS:
        yield f"first-{ahead}", journal, beside, ahead
        yield f"second-{ahead}", beside, journal, ahead


async def _both(
    one: Coroutine[Any, Any, Verdict], other: Coroutine[Any, Any, Verdict], *, ahead: int
) -> tuple[Verdict, Verdict]:
    first = asyncio.create_task(one)
    for _ in range(ahead):
        await asyncio.sleep(0)
    return await asyncio.gather(first, other)


async def _is_won(
    verdicts: Sequence[Verdict], denial: Denial, key: str, journals: tuple[Journal, Journal]
) -> None:
    """One was granted, and is what both read; the other was denied."""
    assert {verdict.denial for verdict in verdicts} == {None, denial}
    (entry,) = (verdict.entry for verdict in verdicts if verdict.denial is None)
    for journal in journals:
        assert await journal.read(SCOPE, key) == entry
