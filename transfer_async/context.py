"""What one client's calls share: its parts, and the few things they all do with them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import field, frozen

from transfer_async import recording
from transfer_async.auth import TokenSource
from transfer_async.calls import Call
from transfer_async.clock import Clock
from transfer_async.errors import Outcome, OutcomeUnknown
from transfer_async.events import Event, Observers
from transfer_async.journal.base import Journal
from transfer_async.journal.moves import Move, Verdict
from transfer_async.models import Order, OrderIntent
from transfer_async.preflight import PreflightHook, is_hold
from transfer_async.retry import RetryPolicy, TokenBucket
from transfer_async.transport import Timeouts, Transport

log: logging.Logger = logging.getLogger("transfer_async")


class _NoOrder:
    """The type of `NO_ORDER`."""

    def __repr__(self) -> str:
        return "NO_ORDER"

    def __reduce__(self) -> str:
        return "NO_ORDER"  # there is one


NO_ORDER: Final = _NoOrder()
"""What ``resolve`` returns when it is certain that no order exists *and none can appear any more*."""

Resolution = Order | str | _NoOrder | None
"""What ``resolve`` may return: the order, its id, `NO_ORDER`, or None where it does not know."""

Resolve = Callable[[OrderIntent, OutcomeUnknown], Awaitable[Resolution]]
"""The bank's own means to learn what became of an intent in doubt."""


@frozen(kw_only=True)
class Context:
    """The parts of one client."""

    scope: str
    journal: Journal
    hooks: tuple[PreflightHook, ...]
    transport: Transport
    tokens: TokenSource
    policy: RetryPolicy
    bucket: TokenBucket
    timeouts: Timeouts
    clock: Clock
    observers: Observers
    resolve: Resolve | None
    settle_after: float
    lease: float
    max_claim_age: float
    undoable: tuple[str, ...] = field(init=False)
    """The hooks that have something to undo, last first."""
    undoable_but_hold: tuple[str, ...] = field(init=False)
    """The same, where the bank has placed the hold itself."""

    unrecorded: dict[str, Callable[[], Awaitable[object]]] = field(factory=dict)
    """By key, what makes up for a write of an answer that failed: this process alone knows of it."""

    places_hold: bool = field(init=False)
    """Whether one of the hooks is the hold."""

    @places_hold.default
    def _places_hold(self) -> bool:
        return any(map(is_hold, self.hooks))

    @undoable.default
    def _undoable(self) -> tuple[str, ...]:
        return tuple(
            hook.name for hook in reversed(self.hooks) if not getattr(hook, "nothing_to_undo", False)
        )

    @undoable_but_hold.default
    def _undoable_but_hold(self) -> tuple[str, ...]:
        holds = {hook.name for hook in self.hooks if is_hold(hook)}
        return tuple(name for name in self.undoable if name not in holds)

    def write(
        self, key: str, move: Move, *, certain: Outcome, order: Order | None = None
    ) -> Awaitable[Verdict]:
        """Make a move in the journal, as `recording.write` does.

        Raises:
            JournalFailed: the journal raised, or lost the key.
        """
        return recording.write(self.journal, self.scope, key, move, certain=certain, order=order)

    def tell(self, kind: type[Event], call: Call, **fields: Any) -> None:
        """Tell the observers of something that happened to ``call``; free where there are none."""
        if self.observers.all:
            self.observers.tell(
                kind(
                    key=call.intent.key,
                    intent_id=call.intent.id,
                    attempt=call.attempts_begun,
                    seconds=self.clock.now() - call.began,
                    **fields,
                )
            )
