"""The runs of ``recover`` that a client has under way: those asked for, and those it makes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context as Variables
from typing import Any

from transfer_async._models.errors import ClientClosed
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.recovery import Recovery, RecoveryReport
from transfer_async._support.log import log
from transfer_async._support.periodic import Periodic
from transfer_async._support.tasks import finished


class Recoveries:
    """Runs of ``recover``, each in a task of its own, so that closing can wait for it.

    Args:
        context: the client's parts.
        every: seconds between two runs that nobody asks for; None for no such runs.
    """

    def __init__(self, context: Context, *, every: float | None) -> None:
        self._context = context
        self._unasked: Periodic | None = None
        if every is not None:
            self._unasked = Periodic(
                lambda: Recovery(context, stop=lambda: self._ending).run(),
                every=every,
                until=lambda: self._ending,
                failed=_told_failed,
                clock=context.clock,
            )
        self._asked: set[asyncio.Task[RecoveryReport]] = set()
        self._background: asyncio.Task[None] | None = None
        self._ending = False
        self._cut = False

    def begin(self) -> None:
        """Begin the runs that nobody asks for, if they are wanted and not begun yet."""
        if self._unasked is not None and self._background is None and not self._ending:
            loop = asyncio.get_running_loop()
            # In a context of its own: it has nothing to do with whoever happened to call first.
            self._background = loop.create_task(self._unasked.run(), context=Variables())
            self._background.add_done_callback(_heard)

    @property
    def begun(self) -> bool:
        """Whether runs that nobody asks for were begun, and go on."""
        return self._background is not None and not self._background.done()

    def carries(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether ``task`` carries one of the runs."""
        return task is not None and (task in self._asked or task is self._background)

    async def run(self) -> RecoveryReport:
        """Run once, for somebody who waits for it.

        Raises:
            JournalFailed: the journal could not be read or written.
            ClientClosed: the client was closed, and would not wait for the end.
        """
        task = self._started(Recovery(self._context).run())
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._cut and caller is not None and not caller.cancelling():
                raise ClientClosed("the client was closed before the recovery came to its end") from None
            raise

    def _started(self, run: Coroutine[Any, Any, RecoveryReport]) -> asyncio.Task[RecoveryReport]:
        task = asyncio.get_running_loop().create_task(run)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    async def finish(self, *, patience: float, grace: float) -> None:
        """Wait for the runs under way; those that last longer are cut off, and get ``grace`` to end.

        The runs that nobody asked for end with the key that they are at.
        """
        self._ending = True
        if self._background is not None and self._unasked is not None and self._unasked.resting:
            self._background.cancel()
        await finished(self._under_way, self.cut_off, patience=patience, grace=grace)

    def cut_off(self) -> None:
        """Wait for none of them any longer; what is being undone stays owed."""
        self._ending = self._cut = True
        for task in self._under_way():
            task.cancel()

    def abandon(self) -> None:
        """End the runs that nobody asked for, as far as their loop still runs."""
        self._ending = True
        if self._background is not None and not self._background.get_loop().is_closed():
            self._background.cancel()

    def _under_way(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = [*self._asked]
        if self._background is not None and not self._background.done():
            tasks.append(self._background)
        return tasks


def _told_failed(error: Exception) -> None:
    log.warning("a recovery in the background failed (%s)", type(error).__name__)


def _heard(task: asyncio.Task[None]) -> None:
    """Nobody waits for it: what ended it is not to be complained of when it is collected."""
    if not task.cancelled():
        task.exception()
