"""Tasks: those that need not be, since their work may be done at once, and how they come to an end.

Work is often done before anybody has had to wait: whoever guards it with a timer can see first.
Two timers, a time-out and a lease's, cost a tenth of an order's whole way through the pipeline, and a
hook that only looks into memory needs neither. So its first step is made by hand; only what waits for
something is guarded, and goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine that has made its first step; await it for the rest.

    Args:
        work: the coroutine; whatever it raises in its first step is raised here.
    """

    __slots__ = ("_waits_for", "_work", "done", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.done: bool = False
        self.result: T | None = None
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.done, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        """Hand on what the work waits for, and whatever comes back, until it is done."""
        waits_for, work = self._waits_for, self._work
        while True:
            error: BaseException | None = None
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the work's own, a cancellation most of all
                error = thrown
            try:
                waits_for = work.send(sent) if error is None else work.throw(error)
            except StopIteration as end:
                return cast("T", end.value)


def begun(work: Awaitable[T]) -> Begun[T]:
    """``work``, its first step made, whatever kind of awaitable it is."""
    return Begun(work if isinstance(work, CoroutineType) else _awaited(work))


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def finished(
    under_way: Callable[[], Collection[asyncio.Task[Any]]],
    cut_off: Callable[[], None],
    *,
    patience: float,
    grace: float,
) -> None:
    """Wait for all tasks; those that last longer are cut off, and get ``grace`` to say where they stand.

    Args:
        under_way: the tasks that have not ended yet.
        cut_off: waits for none of them any longer.
        patience: seconds before that.
        grace: seconds after it.
    """
    if tasks := under_way():
        await asyncio.wait(tasks, timeout=patience)
    cut_off()
    if tasks := under_way():
        await asyncio.wait(tasks, timeout=grace)
