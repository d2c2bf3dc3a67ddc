"""Virtual time: an event loop without sockets or threads, and the processes that run and die in it."""

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

from attrs import define, field

OUTSIDE = Context()
"""The context of the service, the database and the story, which the death of a worker does not affect."""

STEPS = 200_000  # more steps than any story needs, so that an endless story is stopped


class Handle:
    """A scheduled callback with the methods that asyncio needs."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, when: float):
        self.callback, self.args, self.context, self._when = callback, args, context, when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


@define(eq=False)
class Process:
    """A worker's process, and the step or event at which it crashes or freezes."""

    name: str
    fates: dict[int | str, Callable[["Process"], None]]
    steps: int = 0
    dead: bool = False
    frozen: bool = False
    client: Any = None
    troubled_at: float = -1.0
    thawed_at: float = -1.0
    parked: list[Handle] = field(factory=list, repr=False)

    def on_the_way_to(self, what: str) -> None:
        """Pass a point at which the process may crash or freeze before others see its work."""
        if (fate := self.fates.pop(what, None)) is not None:
            fate(self)

    def lets(self, handle: Handle) -> bool:
        """Return whether a step may run now. A frozen process runs it later."""
        if self.dead:
            return False
        if not self.frozen and (fate := self.fates.pop(self.steps, None)) is not None:
            self.steps += 1
            fate(self)
            return self.lets(handle)
        if self.frozen:
            self.parked.append(handle)
            return False
        self.steps += 1
        return True


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def this_call() -> Any:
    """The call of the current task."""
    process = PROCESS.get()
    return None if process is None else process.client._calls._calls[asyncio.current_task()]


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop that runs what is due, then advances its time to the next timer, until idle."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.running = False

    # --- what asyncio asks for ------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore errors. Tasks of dead processes never end, and the invariants detect all other failures."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context, self._now)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    # --- time -----------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run until nothing is left to do. Return False if that does not happen."""
        asyncio._set_running_loop(self)
        self.running, hooks = True, sys.get_asyncgen_hooks()
        # An async generator of a dead process must not continue when it is garbage-collected.
        sys.set_asyncgen_hooks(finalizer=lambda _: None)
        try:
            for _ in range(STEPS):
                if not self._ready and not self._jump():
                    return True
                handle = self._ready.popleft()
                process = handle.context.get(PROCESS)
                if not handle._cancelled and (process is None or process.lets(handle)):
                    handle.context.run(handle.callback, *handle.args)
            return False
        finally:
            self.running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)

    def _jump(self) -> bool:
        """Advance the time to the next timer. Return whether there is one."""
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if not handle._cancelled:
                self._now = max(self._now, when)
                self._ready.append(handle)
                return True
        return False

    def pass_(self, seconds: float) -> None:
        """Advance the time without running anything."""
        self._now += seconds

    def again(self, handles: list[Handle]) -> None:
        """Schedule the parked callbacks in their order."""
        self._ready.extend(handles)

    def bury(self) -> None:
        """Close the coroutines of dead processes now, not during another story."""
        asyncio._set_running_loop(self)  # a coroutine that is closed may ask for the running loop
        for task in self._tasks:
            if not task.done():
                coro = task.get_coro()
                with suppress(BaseException):
                    coro.close()
        asyncio._set_running_loop(None)
        self._ready.clear()
        self._timers.clear()
        self._tasks.clear()
