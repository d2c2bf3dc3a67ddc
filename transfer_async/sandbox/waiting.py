"""Waiting for something to become true, by event, never by time."""

import asyncio
from collections.abc import Callable


class Waiting:
    """Waiters, each for a condition of its own, looked at whenever something has changed."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._closed = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true.

        Raises:
            RuntimeError: the sandbox closed before it was.
        """
        if condition():
            return
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        await future

    def changed(self) -> None:
        """Wake those whose condition has become true."""
        still = []
        for condition, future in self._waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiters = still

    def close(self) -> None:
        """Fail everyone who still waits."""
        self._closed = True
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(RuntimeError("the sandbox closed before it happened"))
        self._waiters = []
