"""Many orders at once, bounded: as many in flight as asked for, and no request taken before there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from attrs import fields, frozen

from transfer_async._models.errors import (
    ClientClosed,
    InvalidOrder,
    OutcomeUnknown,
    TransferError,
    name_of,
    sanitize_exception,
)
from transfer_async._models.requests import OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import Check
from transfer_async._support.util import passes, retrieve_exception

Create = Callable[[OrderRequest], Awaitable[Order]]
Requests = Iterable[OrderRequest] | AsyncIterable[OrderRequest]


@frozen(kw_only=True)
class OrderResult:
    """What became of one request: its order, or the error that says what is certain."""

    request: OrderRequest
    order: Order | None = None
    error: Exception | None = None


_INPUT_ENDED: Final = object()
_END: Final = object()


class Batch:
    """One run over ``requests``.

    The input is read by one task from its beginning to its end, so that it may hold open what belongs
    to a task: a timeout, a task group, a context variable. The same task closes it, if it is an async
    generator that the run ends before its end: whatever it holds open is let go before `results` is over.

    Args:
        create: creates one order.
        requests: may be endless; the next one is taken only when a place is free. An async one may take
            its time: results are handed out meanwhile. One that is not async must not block.
        concurrency: how many orders are in flight, or done and not yet handed out, at most.
        check: see `transfer_async._pipeline.call.Check`; for results, which wait for whoever takes them.
    """

    def __init__(
        self, create: Create, requests: Requests, *, concurrency: int, check: Check | None = None
    ) -> None:
        self._create, self._check = create, check
        self._places = asyncio.Semaphore(concurrency)
        self._taken = 0
        self._running: set[asyncio.Task[Order]] = set()
        self._done: asyncio.Queue[Any] = asyncio.Queue()
        self._stopped = self._input_closing = False
        self._input: Any
        self._next: Callable[[], Awaitable[Any]]
        if isinstance(requests, AsyncIterable):
            self._input = aiter(requests)
            self._next = partial(_next_of_async, self._input)
        else:
            self._input = iter(requests)
            self._next = partial(_next_of_sync, self._input)

    async def results(self) -> AsyncGenerator[OrderResult, None]:
        """Each result as its order is done. Whatever ends this, nothing is left half-done behind it.

        Leaving the loop early lets what is in flight come to its end; cancellation, then or before,
        undoes what has not been sent yet, and leaves what is on the way to the client.

        Raises:
            Exception: whatever ``requests`` raised, once all results before it are handed out.
        """
        feeder = asyncio.get_running_loop().create_task(self._feed())
        feeder.add_done_callback(lambda _: self._done.put_nowait(_INPUT_ENDED))
        try:
            while self._taken or not feeder.done():
                done = await self._done.get()
                if done is _INPUT_ENDED:
                    continue
                result = _result(*done)
                if self._check is not None and isinstance(result.error, TransferError):
                    await self._check(result.error, client_made=_is_client_made(result.request))
                yield result
                self._taken -= 1
                self._places.release()
                if isinstance(result.error, ClientClosed):
                    # Or an endless input would be answered with endless refusals, or waited for in vain.
                    self._stop(feeder)
            if not (self._stopped and feeder.cancelled()):
                feeder.result()  # raises what the input raised
        except asyncio.CancelledError:
            self._cancel_running()
            raise
        finally:
            self._stop(feeder)
            await self._wind_up(feeder)

    async def _feed(self) -> None:
        """Start one request after the other, each as soon as there is a place for it."""
        try:
            await self._places.acquire()
            while (request := await self._next()) is not _END and not self._stopped:
                self._start(request)
                await self._places.acquire()
        finally:
            self._input_closing = True
            if isinstance(self._input, AsyncGenerator):  # nobody else could: its time-outs are this task's
                await self._input.aclose()

    def _stop(self, feeder: asyncio.Task[None]) -> None:
        self._stopped = True
        if not self._input_closing:  # once is enough: what the input lets go of takes the time it takes
            feeder.cancel()

    def _start(self, request: Any) -> None:
        self._taken += 1
        task = asyncio.get_running_loop().create_task(self._one(request))
        self._running.add(task)
        task.add_done_callback(partial(self._ended, request))

    async def _one(self, request: Any) -> Order:
        # Whatever it is, it may have been meant for a key that has an order.
        if not issubclass(type(request), OrderRequest):
            raise InvalidOrder([("request", "is not an OrderRequest")], order_may_exist=True)
        return await self._create(request if type(request) is OrderRequest else _plain(request))

    def _ended(self, request: Any, task: asyncio.Task[Order]) -> None:
        self._running.discard(task)
        self._done.put_nowait((request, task))

    def _cancel_running(self) -> None:
        for task in self._running:
            task.cancel()

    async def _wind_up(self, feeder: asyncio.Task[None]) -> None:
        try:
            await _ended(feeder, *self._running)
        except asyncio.CancelledError:
            self._cancel_running()
            feeder.cancel()
            await _ended(feeder, *self._running)
            raise


def _plain(request: OrderRequest) -> OrderRequest:
    """A bank's own kind of request as one of ours.

    Raises:
        InvalidOrder: it raised something as it was read.
    """
    try:
        return OrderRequest(*(getattr(request, field.name) for field in fields(OrderRequest)))
    except BaseException as error:
        if passes(error):
            raise
        failed = sanitize_exception(error)
    why = f"cannot be read ({name_of(failed)})"
    raise InvalidOrder([("request", why)], order_may_exist=True) from failed


async def _next_of_async(requests: Any) -> Any:
    try:
        return await anext(requests)
    except StopAsyncIteration:
        return _END


async def _next_of_sync(requests: Any) -> Any:
    return next(requests, _END)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        retrieve_exception(task)


def _is_client_made(request: Any) -> bool:
    return type(request) is OrderRequest and request.key is None  # a class of the bank may raise here


def _result(request: Any, task: asyncio.Task[Order]) -> OrderResult:
    if task.cancelled():  # by somebody who cancels every task there is
        unknown = OutcomeUnknown("the call was cancelled from elsewhere", key=getattr(request, "key", None))
        return OrderResult(request=request, error=unknown)
    error = task.exception()
    if error is None:
        return OrderResult(request=request, order=task.result())
    if isinstance(error, Exception):
        return OrderResult(request=request, error=error)
    raise error
