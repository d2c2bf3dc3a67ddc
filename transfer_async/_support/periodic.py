"""What is done again and again beside everything else: one loop, whatever is done in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from transfer_async._support.clock import Clock


class Periodic:
    """Does something again and again; a time that fails is told, and does not keep the next one away.

    Args:
        do: what is done.
        every: seconds from the end of one time to the beginning of the next.
        until: whether it is to end; asked before each time.
        failed: is told what a time raised.
        clock: of the waiting, and of the chance.
        first: seconds before the first time. By default a random share of ``every``: many processes are
            started at once, and would march in step.

    Attributes:
        resting: between two times, so that nothing is lost if `run` is cancelled.
    """

    def __init__(
        self,
        do: Callable[[], Awaitable[object]],
        *,
        every: float,
        until: Callable[[], bool],
        failed: Callable[[Exception], object],
        clock: Clock,
        first: float | None = None,
    ) -> None:
        self._do, self._every, self._first = do, every, first
        self._until, self._failed, self._clock = until, failed, clock
        self.resting: bool = False

    async def run(self) -> None:
        """Go on until the end."""
        pause = self._every * self._clock.chance() if self._first is None else self._first
        while not self._until():
            self.resting = True
            await self._clock.sleep(pause)
            self.resting = False
            try:
                await self._do()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next time may go well
                self._failed(error)
            pause = self._every
