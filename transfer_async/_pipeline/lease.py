"""Keeping a claim's lease alive while its hooks run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from transfer_async._models.errors import JournalFailed, TransferError
from transfer_async._support.log import log


class LeaseKeeper:
    """Renews every so often while its block runs; costs a timer where the block is quick.

    Args:
        renew: renews once; a `JournalFailed` is waited out, any other error ends the renewing.
            The block goes on in any case: the mark will tell.
        every: seconds.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]], *, every: float) -> None:
        self._renew = renew
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._start)
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew_again_and_again())

    async def _renew_again_and_again(self) -> None:
        while True:
            try:
                await self._renew()
            except TransferError as error:
                log.warning("a claim's lease could not be renewed (%s)", type(error).__name__)
                if not isinstance(error, JournalFailed):
                    return
            await asyncio.sleep(self._every)
