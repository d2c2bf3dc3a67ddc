"""A sandbox with a thread and an event loop of its own: it answers whatever loop a test is in, or in none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from transfer_async.sandbox import Sandbox

T = TypeVar("T")


class RunningSandbox(Sandbox):
    """A `Sandbox` that runs beside the test, in a thread: ``with RunningSandbox() as sandbox:``.

    A test may be sync, or async on a loop of any scope, or bring several loops: the sandbox has its own.
    What is awaited of a sandbox (``received``, ``match_now`` and the others) is awaited as ever;
    a sync test says ``sandbox.wait(sandbox.received(1))``.

    Look at ``requests`` and ``orders`` between calls, not while one is on its way: another thread
    writes them.

    Args:
        settings: as `Sandbox` takes them.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Future[None] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)

    def __enter__(self) -> Self:
        """Listen, from when this returns.

        Raises:
            OSError: the address is not to be had.
        """
        self._thread.start()
        self._listening.result()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None  # noqa: S101 - it was entered
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._listening.set_exception(error)  # told where it is waited for

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self:
            self._listening.set_result(None)
            await self._ended.wait()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``await work`` would give; for whoever has no loop.

        Args:
            work: a call of one of the methods that are awaited.

        Raises:
            RuntimeError: the sandbox is not running.
        """
        return asyncio.run_coroutine_threadsafe(work, self._own_loop(work)).result()

    async def match_now(self) -> list[str]:
        """See `Sandbox.match_now`."""
        return await self._there(super().match_now())

    async def received(self, count: int = 1) -> None:
        """See `Sandbox.received`."""
        await self._there(super().received(count))

    async def finished(self, count: int = 1) -> None:
        """See `Sandbox.finished`."""
        await self._there(super().finished(count))

    async def stalled(self, count: int = 1) -> None:
        """See `Sandbox.stalled`."""
        await self._there(super().stalled(count))

    async def created(self, count: int = 1) -> None:
        """See `Sandbox.created`."""
        await self._there(super().created(count))

    async def matched(self, order_id: str) -> None:
        """See `Sandbox.matched`."""
        await self._there(super().matched(order_id))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._own_loop(work)
        if loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _own_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError("the sandbox is not running: use it as `with RunningSandbox() as sandbox:`")
        return self._loop
