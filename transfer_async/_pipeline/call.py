"""One call of ``create_order`` and the task that carries it: who may stop it, and when.

A call is carried by a task of its own, because its caller may be cancelled while its request is on
the way, and aiohttp binds a request to the task that began it. The caller then hears of it at once,
and the task finishes what remains.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from attrs import define, field
from multidict import CIMultiDict

from transfer_async._http.classify import Judgement
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.causes import bare
from transfer_async._models.errors import Attempt, TransferError
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._support.clock import Clock
from transfer_async._support.tasks import finished
from transfer_async.journal.entries import Owed


@define(eq=False, kw_only=True)
class Call:
    """What one call knows of itself.

    Args:
        intent: with the intent's id, once the key is claimed.
        client_made: the client made the key.
        once: a refusal on record is the answer.
        clock: the client's.
        epoch: of the claim.
        receipts: what hooks handed back, in this call and before a take-over.
        inherited: the hooks that a worker that is gone may have entered for this intent.
        entered: the hooks whose ``before`` was entered, and that did not vouch to have done nothing.
        stale: undos that are owed for earlier intents of the key, until this call has tried them.
        attempt_token: of the mark; all HTTP attempts of the call are one attempt to the journal.
        deadline: on the client's clock; from just before the mark.
        last_no: the certain no that the last HTTP attempt ended in.
        judgement: what was certain of the last exchange.
        undone: how many hooks were undone.
        owed: how many undos failed, and are owed.
        sent: an exchange that handed its body over has ended.
        told_unrecorded: its order's id was told, for the journal could not be.
        last_body: the last body that was handed over.
        on_the_way: the body of the exchange that is under way right now.
        abandoned: nobody waits any more, or the client closes.
        cut: the client closes and will wait no longer.
        is_stoppable: it is in a stretch of `stoppable`.
    """

    intent: OrderIntent
    client_made: bool
    once: bool = False
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
    judgement: Judgement | None = None
    undone: int = 0
    owed: int = 0
    sent: bool = False
    told_unrecorded: bool = False
    last_body: GuardedBody | None = field(default=None, repr=False)
    on_the_way: GuardedBody | None = field(default=None, repr=False)
    abandoned: bool = False
    cut: bool = False
    task: asyncio.Task[Any] | None = field(default=None, repr=False)
    is_stoppable: bool = False

    def __attrs_post_init__(self) -> None:
        self.began = self.clock.now()

    def stoppable(self) -> Stoppable:
        """A stretch in which nothing is lost if the call stops: a hook, a pause, somebody's answer."""
        return Stoppable(self)

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
        if self.task is not None and (self.is_stoppable or waiting):
            self.is_stoppable = False
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


class Stoppable:
    """See `Call.stoppable`.

    Raises:
        asyncio.CancelledError: on entering, if the call was abandoned before.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        if self._call.abandoned:
            raise asyncio.CancelledError
        self._call.is_stoppable = True

    def __exit__(self, *exc: object) -> None:
        self._call.is_stoppable = False


def fresh_id() -> str:
    """128 random bits, in hexadecimal: a `uuid4` at a third of its cost."""
    return os.urandom(16).hex()


class InFlight:
    """The calls that a client carries."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Task[None], Call] = {}

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
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Order] = loop.create_future()  # a `shield` at half its cost
        task = _started(_carried(call, run, outcome), loop)
        if not task.done():
            self._calls[task] = call
            task.add_done_callback(partial(self._done, outcome))
        try:
            return await outcome
        except asyncio.CancelledError:
            if not task.done():
                call.abandon()
                if not call.may_have_been_sent:
                    await asyncio.wait([task])
            raise

    def _done(self, outcome: asyncio.Future[Order], task: asyncio.Task[None]) -> None:
        self._calls.pop(task).task = None  # or the two keep each other alive
        if not outcome.done():  # the task was cancelled before it had begun
            outcome.cancel()

    def cut_off(self) -> None:
        """Wait for none of them any longer."""
        for call in list(self._calls.values()):
            call.cut_off()

    async def finish(self, *, patience: float, grace: float) -> None:
        """Wait for all calls; those that last longer are cut off, and get ``grace`` to write that down."""
        await finished(lambda: self._calls, self.cut_off, patience=patience, grace=grace)


async def _carried(
    call: Call, run: Callable[[Call], Coroutine[Any, Any, Order]], outcome: asyncio.Future[Order]
) -> None:
    """Run ``call``, and tell whoever still waits; the journal and the observers have heard in any case."""
    call.task = asyncio.current_task()
    try:
        order = await run(call)
    except asyncio.CancelledError:
        outcome.cancel()
    except BaseException as error:
        if not outcome.done():
            outcome.set_exception(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
    else:
        if not outcome.done():
            outcome.set_result(order)


if sys.version_info >= (3, 12):

    def _started(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop, eager_start=True)  # a turn of the loop less

else:

    def _started(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return loop.create_task(work)


def stamped(error: TransferError, call: Call, *, order_may_exist: bool) -> TransferError:
    """``error`` with what the call knows on it, and nothing in its chain that must not be shown."""
    bare(error)
    error.key = call.intent.key
    error.attempts = tuple(call.attempts)
    error.receipts = dict(call.receipts)
    if call.intent.held is not None:
        error.receipts.setdefault("held", call.intent.held)  # the one on record comes first
    error.order_may_exist = order_may_exist
    return error
