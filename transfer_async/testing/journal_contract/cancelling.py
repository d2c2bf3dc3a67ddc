"""Callers that are cancelled: what they have begun is done all the same, and done whole."""

from __future__ import annotations

import asyncio

import pytest

from transfer_async.journal import Denial, Journal, KeyState, Move
from transfer_async.testing.journal_contract.trial_moves import (
    SCOPE,
    claim,
    create,
    free,
    judged,
    mark,
)

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
        assert (await judged(journal, claim(2))).denial is Denial.BUSY

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
            caller = asyncio.create_task(journal.move(SCOPE, key, last))
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
