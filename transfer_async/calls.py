"""One call of ``create_order`` and the task that carries it: who may stop it, and when.

A call is carried by a task of its own, because its caller may be cancelled while its request is on
the way, and aiohttp binds a request to the task that began it. The caller then hears of it at once,
and the task finishes what remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field
from multidict import CIMultiDict

from transfer_async.answers import Verdict
from transfer_async.clock import Clock
from transfer_async.errors import Attempt, TransferError
from transfer_async.guards import GuardedBody
from transfer_async.journal.moves import Owed
from transfer_async.models import Order, OrderIntent


@define(eq=False, kw_only=True)
class Call:
    """What one call knows of itself.

    Args:
        intent: with the intent's id, once the key is claimed.
        client_made: the client made the key.
        clock: the client's.
        epoch: of the claim.
        receipts: what hooks handed back, in this call and before a take-over.
        inherited: the hooks that a worker that is gone may have entered for this intent.
        entered: the hooks whose ``before`` was entered, and that did not vouch to have done nothing.
        stale: undos that are owed for earlier intents of the key.
        attempt_token: of the mark; all HTTP attempts of the call are one attempt to the journal.
        deadline: on the client's clock; from just before the mark.
        last_no: the certain no that the last HTTP attempt ended in.
        judgement: what was certain of the last exchange.
        undone: how many hooks were undone.
        owed: how many undos failed, and are owed.
        sent: an exchange that handed its body over has ended.
        last_body: the body of the last exchange.
        on_the_way: the body of the exchange that is under way right now.
        abandoned: nobody waits any more, or the client closes.
        cut: the client closes and will wait no longer.
    """

    intent: OrderIntent
    client_made: bool
    clock: Clock = field(repr=False)
    began: float = field(init=False)
    epoch: int = 0
    receipts: dict[str, str | None] = field(factory=dict, repr=False)
    inherited: tuple[str, ...] = ()
    entered: list[str] = field(factory=list)
    stale: tuple[Owed, ...] = ()
    attempt_token: str | None = None
    attempts: list[Attempt] = field(factory=list)
    attempts_begun: int = 0
    deadline: float = float("inf")
    body: bytes = field(default=b"", repr=False)
    headers: CIMultiDict[str] | None = field(default=None, repr=False)
    renew_token: bool = False
    token_renewed: bool = False
    last_no: TransferError | None = None
    judgement: Verdict | None = None
    undone: int = 0
    owed: int = 0
    sent: bool = False
    last_body: GuardedBody | None = field(default=None, repr=False)
    on_the_way: GuardedBody | None = field(default=None, repr=False)
    abandoned: bool = False
    cut: bool = False
    task: asyncio.Task[Order] | None = field(default=None, repr=False)
    _stoppable: bool = False

    def __attrs_post_init__(self) -> None:
        self.began = self.clock.now()

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A stretch in which nothing is lost if the call stops: a hook, a pause, somebody's answer.

        Raises:
            asyncio.CancelledError: the call was, or now is, abandoned.
        """
        if self.abandoned:
            raise asyncio.CancelledError
        self._stoppable = True
        try:
            yield
        finally:
            self._stoppable = False

    @property
    def may_have_been_sent(self) -> bool:
        """Whether any body was handed over; until then a caller that is cancelled waits for the undoing."""
        return self.sent or (self.on_the_way is not None and self.on_the_way.handed_over)

    def abandon(self) -> None:
        """Nobody waits any more: begin nothing new, and stop where nothing is lost by it."""
        self.abandoned = True
        waiting = self.on_the_way is not None and not self.on_the_way.handed_over
        if self.on_the_way is not None and waiting:
            self.on_the_way.spent = True  # for a connection: it will not be sent on the one it gets
        if self.task is not None and (self._stoppable or waiting):
            self._stoppable = False
            self.task.cancel()

    def cut_off(self) -> None:
        """The client closes: even a request on the way is given up, and goes into doubt."""
        self.cut = True
        handed_over = self.on_the_way is not None and self.on_the_way.handed_over
        self.abandon()
        if handed_over and self.task is not None:
            self.task.cancel()

    def swallow_cancellation(self) -> None:
        """The cancellation that came has been understood; what remains to be done is done undisturbed.

        Raises:
            asyncio.CancelledError: the call has no task of its own (`recover`), and it was the caller's.
        """
        if self.task is not None:
            if self.task.cancelling():
                self.task.uncancel()
        elif (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError


class InFlight:
    """The calls that a client carries."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Task[Order], Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def carries(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether ``task`` carries one of the calls."""
        return task in self._calls

    async def carry(self, call: Call, run: Callable[[Call], Coroutine[Any, Any, Order]]) -> Order:
        """Run ``call`` in a task of its own, and wait for it.

        Raises:
            asyncio.CancelledError: the caller was cancelled. Before anything was sent it hears of it
                when the hooks are undone and the key is free, from then on at once.
        """
        task = call.task = asyncio.get_running_loop().create_task(run(call))
        self._calls[task] = call
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                call.abandon()
                if not call.may_have_been_sent:
                    await asyncio.wait([task])
            raise

    def _done(self, task: asyncio.Task[Order]) -> None:
        call = self._calls.pop(task)
        call.task = None  # or the two keep each other alive
        if not task.cancelled() and call.abandoned:
            task.exception()  # nobody is left to hear of it; the journal and the observers have

    def cut_off(self) -> None:
        """Wait for none of them any longer."""
        for call in list(self._calls.values()):
            call.cut_off()

    async def finish(self, *, patience: float, grace: float) -> None:
        """Wait for all calls; those that last longer are cut off, and get ``grace`` to write that down."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=patience)
        self.cut_off()
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace)


def stamped(error: TransferError, call: Call, *, order_may_exist: bool) -> TransferError:
    """``error`` with what the call knows on it."""
    error.key = call.intent.key
    error.attempts = tuple(call.attempts)
    error.receipts = dict(call.receipts)
    if call.intent.held is not None:
        error.receipts.setdefault("held", call.intent.held)  # the one on record comes first
    error.order_may_exist = order_may_exist
    return error
