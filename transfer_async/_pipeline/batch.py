"""Creates many orders concurrently, with a limit on the number of orders in flight."""

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
from transfer_async._support.util import must_propagate, retrieve_exception

Create = Callable[[OrderRequest], Awaitable[Order]]
Check = Callable[..., Awaitable[None]]
Requests = Iterable[OrderRequest] | AsyncIterable[OrderRequest]


@frozen(kw_only=True)
class OrderResult:
    """The result of one request: an order or an error."""

    request: OrderRequest
    order: Order | None = None
    error: Exception | None = None


_INPUT_ENDED: Final = object()
_END: Final = object()


class Batch:
    """Create the orders of all ``requests`` concurrently.

    A single task reads the whole input, so the input may use timeouts, task groups and context variables. If
    the caller stops early, an async generator is closed by the task that reads it, before `results` returns.

    Args:
        create: an async function that creates one order.
        requests: the input, which may be endless. A request is read only when fewer than ``concurrency``
            orders are in flight. Results are delivered even while the next item of an async input is not
            ready. A sync input must not block.
        concurrency: the maximum number of orders in flight, including those whose results have not been
            delivered yet.
        check: an async function that sets ``order_may_exist`` on an error just before the error is delivered.
    """

    def __init__(
        self, create: Create, requests: Requests, *, concurrency: int, check: Check | None = None
    ) -> None:
        self._create, self._check = create, check
        self._slots = asyncio.Semaphore(concurrency)
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
        """Yield the result of each request as soon as it is available.

        If the caller leaves the loop early, the orders in flight still run to completion. After a
        cancellation, the hooks of unsent orders are undone, and the client finishes the orders that were
        already sent.

        Raises:
            Exception: reading ``requests`` failed; its error is raised after all earlier results.
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
                    # Do not read the key: for a bank's own class, that may raise an error.
                    client_made = type(result.request) is OrderRequest and result.request.key is None
                    await self._check(result.error, client_made=client_made)
                yield result
                self._taken -= 1
                self._slots.release()
                if isinstance(result.error, ClientClosed):
                    # All further requests would fail, and the input may be endless.
                    self._stop(feeder)
            if not (self._stopped and feeder.cancelled()):
                feeder.result()  # This raises the error of the input.
        except asyncio.CancelledError:
            self._cancel_running()
            raise
        finally:
            self._stop(feeder)
            await self._wind_up(feeder)

    async def _feed(self) -> None:
        """Start the requests in order, keeping at most ``concurrency`` orders in flight."""
        try:
            await self._slots.acquire()
            while (request := await self._next()) is not _END and not self._stopped:
                self._start(request)
                await self._slots.acquire()
        finally:
            self._input_closing = True
            # Close the generator in this task, because its timeouts and task groups belong to this task.
            if isinstance(self._input, AsyncGenerator):
                await self._input.aclose()

    def _stop(self, feeder: asyncio.Task[None]) -> None:
        self._stopped = True
        if not self._input_closing:  # A second cancellation could interrupt the input's cleanup.
            feeder.cancel()

    def _start(self, request: Any) -> None:
        self._taken += 1
        task = asyncio.get_running_loop().create_task(self._create_one(request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda done: self._done.put_nowait((request, done)))

    async def _create_one(self, request: Any) -> Order:
        # The caller may have meant a key that already has an order, so `order_may_exist` is true.
        if not issubclass(type(request), OrderRequest):
            raise InvalidOrder([("request", "is not an OrderRequest")], order_may_exist=True)
        return await self._create(request if type(request) is OrderRequest else _plain(request))

    def _cancel_running(self) -> None:
        for task in self._running:
            task.cancel()

    async def _wind_up(self, feeder: asyncio.Task[None]) -> None:
        try:
            await _wait_for(feeder, *self._running)
        except asyncio.CancelledError:
            self._cancel_running()
            feeder.cancel()
            await _wait_for(feeder, *self._running)
            raise


def _plain(request: OrderRequest) -> OrderRequest:
    """Convert an instance of a bank's own `OrderRequest` subclass to a plain `OrderRequest`.

    Raises:
        InvalidOrder: the instance's fields cannot be read.
    """
    try:
        return OrderRequest(*(getattr(request, field.name) for field in fields(OrderRequest)))
    except BaseException as error:
        if must_propagate(error):
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


async def _wait_for(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        retrieve_exception(task)


def _result(request: Any, task: asyncio.Task[Order]) -> OrderResult:
    if task.cancelled():  # For example, other code cancelled all tasks of the event loop.
        unknown = OutcomeUnknown("the call was cancelled by other code", key=getattr(request, "key", None))
        return OrderResult(request=request, error=unknown)
    error = task.exception()
    if error is None:
        return OrderResult(request=request, order=task.result())
    if isinstance(error, Exception):
        return OrderResult(request=request, error=error)
    raise error
