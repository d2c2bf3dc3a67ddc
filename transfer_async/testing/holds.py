"""The bank's holds, as tests see them: a small ledger, and the question that every ledger can answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.hooks import FundsHold

Standing = Iterable[str] | str | None
"""The references of the holds that stand: of all of them, of the only one, or None."""

Held = Callable[[str], Standing | Awaitable[Standing]]
"""Which holds stand for an ``intent.id``, asked of the bank's own ledger; it may be async.

A hold that was placed twice is there twice: that is what a test must be able to see.
"""


async def standing_holds(held: Held, intent_id: str) -> tuple[str, ...]:
    """The references of the holds that stand for an intent."""
    found = held(intent_id)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        return ()
    return (found,) if isinstance(found, str) else tuple(found)


class Holds:
    """A ledger of holds in memory, for tests of whatever is built on the client; it keeps the hooks' rules.

    Attributes:
        standing: the reference of each hold that stands, by ``intent.id``.
        placed: the intents it was asked to hold for, in order; one that was asked for twice is there twice.
        released: the ids of those it was asked to release, likewise.
    """

    def __init__(self) -> None:
        self.standing: dict[str, str] = {}
        self.placed: list[OrderIntent] = []
        self.released: list[str] = []

    @property
    def hook(self) -> FundsHold:
        """The hold hook of a client: ``hooks=[holds.hook]``."""
        return FundsHold(self.place, self.release)

    async def place(self, intent: OrderIntent) -> str:
        """Hold, once for each intent."""
        self.placed.append(intent)
        return self.standing.setdefault(intent.id, f"hold-{intent.id}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:  # noqa: ARG002 - the intent will do
        """Let it go again, if there is something to let go."""
        self.released.append(intent.id)
        self.standing.pop(intent.id, None)

    def held(self, intent_id: str) -> str | None:
        """The hold that stands for an intent, as `Held` asks."""
        return self.standing.get(intent_id)
