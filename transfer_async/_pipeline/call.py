"""One call of ``create_order``, and the task that carries it.

A call is carried by a task of its own, because its caller may be cancelled while its request is on
the way, and aiohttp binds a request to the task that began it. The caller then hears of it at once,
and the task finishes what remains.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from transfer_async._models.errors import JournalFailed, Outcome, TransferError
from transfer_async._models.responses import Order
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.work import Work, stamped
from transfer_async._support.state import State
from transfer_async._support.tasks import finished

NAME = "transfer_async order"
"""Of each task that carries an order: one for all takes no room in each."""


def _promise() -> asyncio.Future[Order]:
    return asyncio.get_running_loop().create_future()  # a `shield` at half its cost


class Call(State, kw_only=True):
    """What a caller asked for, what is done about it, and who may stop that.

    Args:
        client_made: the client made the key.
        once: a refusal on record is the answer.
        work: with the intent, as the caller made it to begin with.
        cancellation: the caller's, and the client's that closes.
        outcome: what its caller waits for.
    """

    client_made: bool
    once: bool
    work: Work
    cancellation: Cancellation
    outcome: asyncio.Future[Order] = msgspec.field(default_factory=_promise)


def fresh_id() -> str:
    """128 random bits, in hexadecimal: a `uuid4` at a third of its cost."""
    return os.urandom(16).hex()


class InFlight:
    """The calls that a client carries.

    Args:
        run: takes a call the whole way.
    """

    def __init__(self, run: Callable[[Call], Coroutine[Any, Any, Order]]) -> None:
        self._run = run
        self._calls: dict[asyncio.Task[None], Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def carries(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether ``task`` carries one of the calls."""
        return task in self._calls

    async def carry(self, call: Call) -> Order:
        """Run ``call`` in a task of its own, and wait for it.

        Raises:
            asyncio.CancelledError: the caller was cancelled. Before anything was sent it hears of it
                when the hooks are undone and the key is free, from then on at once.
        """
        task = _started(_carried(call, self._run), asyncio.get_running_loop())
        if not task.done():
            self._calls[task] = call
            task.add_done_callback(self._done)
        try:
            return await call.outcome
        except asyncio.CancelledError:
            if not task.done():
                call.cancellation.abandon()
                if not call.cancellation.may_have_been_sent:
                    await asyncio.wait([task])
            raise

    def _done(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        call.cancellation.task = None  # or the two keep each other alive
        if not call.outcome.done():  # the task was cancelled before it had begun
            call.outcome.cancel()

    def cut_off(self) -> None:
        """Wait for none of them any longer."""
        for call in list(self._calls.values()):
            call.cancellation.cut_off()

    async def finish(self, *, patience: float, grace: float) -> None:
        """Wait for all calls; those that last longer are cut off, and get ``grace`` to write that down."""
        await finished(lambda: self._calls, self.cut_off, patience=patience, grace=grace)


async def _carried(call: Call, run: Callable[[Call], Coroutine[Any, Any, Order]]) -> None:
    """Run ``call``, and tell whoever still waits; the journal and the observers have heard in any case."""
    call.cancellation.task = asyncio.current_task()
    try:
        order = await run(call)
    except asyncio.CancelledError:
        if call.cancellation.sent and not call.outcome.done():  # it was not the caller who was cancelled
            call.outcome.set_exception(_cut_short(call.work))
        call.outcome.cancel()
    except BaseException as error:
        if not call.outcome.done():
            call.outcome.set_exception(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
    else:
        if not call.outcome.done():
            call.outcome.set_result(order)


def _cut_short(work: Work) -> TransferError:
    """What a caller hears if others cancelled the task, a hook's own timer say, amid the journal's work.

    Heard as a cancellation it would mean that nothing was sent; and a task group asks no further.
    """
    why = "the task that carried the call was cancelled from elsewhere: ask the journal what became of it"
    return stamped(JournalFailed(why, outcome=Outcome.UNKNOWN), work, order_may_exist=True)


if sys.version_info >= (3, 12):

    def _started(carried: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(carried, loop=loop, name=NAME, eager_start=True)  # a turn of the loop less

else:

    def _started(carried: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return loop.create_task(carried, name=NAME)
