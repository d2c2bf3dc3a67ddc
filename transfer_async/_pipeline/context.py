"""What one client's calls share: its parts, and the few things they all do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from transfer_async._http.access import Access
from transfer_async._http.rate import Pace
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, Observers
from transfer_async._models.responses import Order
from transfer_async._pipeline.hooks import PreflightHook, is_hold
from transfer_async._pipeline.resolution import Resolver
from transfer_async._pipeline.work import Work
from transfer_async.journal.entries import Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.scoped import ScopedJournal


class Context(Access, frozen=True, kw_only=True):
    """The parts of one client."""

    journal: ScopedJournal
    hooks: tuple[PreflightHook, ...]
    observers: Observers
    resolve: Resolver | None
    settle_after: float
    lease: float
    max_claim_age: float
    pace: Pace | None
    undoable: tuple[str, ...] = ()
    """The hooks that have something to undo, last first; this and the next two are made of the hooks."""

    undoable_but_hold: tuple[str, ...] = ()
    """The same, where the bank has placed the hold itself."""

    places_hold: bool = False
    """Whether one of the hooks is the hold."""

    unrecorded: dict[str, Callable[[], Awaitable[object]]] = msgspec.field(default_factory=dict)
    """By key, what makes up for a write of an answer that failed: this process alone knows of it."""

    def __post_init__(self) -> None:
        holds = {hook.name for hook in self.hooks if is_hold(hook)}
        undoable = tuple(
            hook.name for hook in reversed(self.hooks) if not getattr(hook, "nothing_to_undo", False)
        )
        force_setattr(self, "places_hold", bool(holds))
        force_setattr(self, "undoable", undoable)
        force_setattr(self, "undoable_but_hold", tuple(name for name in undoable if name not in holds))

    def write(
        self, key: str, move: Move, *, certain: Outcome, order: Order | None = None
    ) -> Awaitable[Verdict]:
        """Make a move in the journal: see `ScopedJournal.write`."""
        return self.journal.write(key, move, certain=certain, order=order)

    def tell(self, kind: type[Event], work: Work, **fields: Any) -> None:
        """Tell the observers of something that happened in ``work``; free where there are none."""
        if self.observers.all:
            self.observers.tell(
                kind(
                    key=work.intent.key,
                    intent_id=work.intent.id,
                    attempt=work.attempts_begun,
                    seconds=self.clock.now() - work.began,
                    **fields,
                )
            )
