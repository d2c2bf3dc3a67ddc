"""Faults of our own making: each is one that somebody might write, and a trial must notice it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from transfer_async.handling import Handler
from transfer_async.journal import KeyState, states
from transfer_async.journal.moves import Claim, Entry, Verdict
from transfer_async.worker import Worker


def acknowledge_first() -> None:
    """A worker that acknowledges a message before it has carried it out."""
    see_through = Worker._see_through

    async def hasty(self: Worker, delivery: Any) -> None:
        await delivery.ack()
        await see_through(self, delivery)

    Worker._see_through = hasty  # type: ignore[method-assign] # a mutant


def never_tell() -> None:
    """A sweeper that forgets whoever was told that it is unknown."""

    async def nothing(self: Handler) -> AsyncIterator[Any]:
        for outcome in ():
            yield outcome

    Handler.untold = nothing  # type: ignore[method-assign] # a mutant


def send_again() -> None:
    """A journal that takes a dead worker's request for one that was never sent."""
    claim = states._claim

    def trusting(entry: Entry | None, move: Claim, now: float) -> Verdict:
        if (
            entry is not None
            and entry.state in (KeyState.SENDING, KeyState.IN_DOUBT)
            and now >= entry.lease_until
        ):
            return Verdict(now=now, entry=states._new_intent(move, now, before=entry))
        return claim(entry, move, now)

    states._claim = trusting  # a mutant


MUTANTS: dict[str, Callable[[], None]] = {
    "acknowledge-first": acknowledge_first,
    "never-tell": never_tell,
    "send-again": send_again,
}
"""What changes a worker's process, by name."""
