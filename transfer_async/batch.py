"""Many orders at once, bounded: as many in flight as asked for, and no request taken before there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from attrs import frozen

from transfer_async.errors import ClientClosed, InvalidOrder
from transfer_async.models import Order, OrderRequest

Create = Callable[[OrderRequest], Awaitable[Order]]
Requests = Iterable[OrderRequest] | AsyncIterable[OrderRequest]


@frozen(kw_only=True)
class OrderResult:
    """What became of one request: its order, or the error that says what is certain."""

    request: OrderRequest
    order: Order | None = None
    error: Exception | None = None


class _Pulled:
    """Says that the next request has been pulled, or could not be."""


_PULLED: Final = _Pulled()
_END: Final = object()


class Batch:
    """One run over ``requests``.

    Args:
        create: creates one order.
        requests: may be endless; the next one is taken only when a place is free.
        concurrency: how many orders are in flight, or done and not yet handed out, at most.
    """

    def __init__(self, create: Create, requests: Requests, *, concurrency: int) -> None:
        self._create = create
        self._room = concurrency
        self._room_taken = 0
        self._running: set[asyncio.Task[None]] = set()
        self._done: asyncio.Queue[OrderResult | _Pulled] = asyncio.Queue()
        self._pulling: asyncio.Task[Any] | None = None
        self._exhausted = False
        self._trouble: Exception | None = None
        self._async = requests.__aiter__() if isinstance(requests, AsyncIterable) else None
        self._sync: Iterator[Any] = iter(()) if isinstance(requests, AsyncIterable) else iter(requests)

    async def results(self) -> AsyncGenerator[OrderResult, None]:
        """Each result as its order is done. Whatever ends this, nothing is left half-done behind it.

        Leaving the loop early lets what is in flight come to its end; cancellation undoes what has
        not been sent yet, and leaves what is on the way to the client.

        Raises:
            Exception: whatever ``requests`` raised, once all results before it are handed out.
        """
        try:
            self._fill()
            while self._room_taken or self._pulling is not None:
                done = await self._done.get()
                if isinstance(done, _Pulled):
                    self._take_pulled()
                else:
                    yield done
                    self._room_taken -= 1
                    self._stop_if_closed(done)
                self._fill()
            if self._trouble is not None:
                raise self._trouble
        except asyncio.CancelledError:
            for task in self._running:
                task.cancel()
            raise
        finally:
            await self._wind_up()

    def _fill(self) -> None:
        """Start as many requests as there is room for; of an async input, ask for the next one."""
        while not self._exhausted and self._pulling is None and self._room_taken < self._room:
            if self._async is not None:
                self._pulling = asyncio.ensure_future(self._async.__anext__())
                self._pulling.add_done_callback(lambda _: self._done.put_nowait(_PULLED))
            else:
                self._take_next()

    def _take_next(self) -> None:
        try:
            request: Any = next(self._sync, _END)
        except Exception as trouble:  # noqa: BLE001 - raised again when all before it is done
            self._exhausted, self._trouble = True, trouble
            return
        if request is _END:
            self._exhausted = True
        else:
            self._start(request)

    def _take_pulled(self) -> None:
        pulled, self._pulling = self._pulling, None
        if pulled is None:
            return
        try:
            self._start(pulled.result())
        except StopAsyncIteration:
            self._exhausted = True
        except (Exception, asyncio.CancelledError) as trouble:  # noqa: BLE001 - as above
            self._exhausted = True
            self._trouble = trouble if isinstance(trouble, Exception) else None

    def _start(self, request: OrderRequest) -> None:
        self._room_taken += 1
        task = asyncio.get_running_loop().create_task(self._one(request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, request: OrderRequest) -> None:
        try:
            if not isinstance(request, OrderRequest):
                raise InvalidOrder([("request", "is not an OrderRequest")])  # noqa: TRY301 - told like any other
            result = OrderResult(request=request, order=await self._create(request))
        except Exception as error:  # noqa: BLE001 - one failure never stops the others
            result = OrderResult(request=request, error=error)
        self._done.put_nowait(result)

    def _stop_if_closed(self, result: OrderResult) -> None:
        # Without this an endless input would be answered with endless refusals.
        if isinstance(result.error, ClientClosed):
            self._exhausted = True

    async def _wind_up(self) -> None:
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.wait([self._pulling])
        if self._running:
            await asyncio.wait(self._running)
