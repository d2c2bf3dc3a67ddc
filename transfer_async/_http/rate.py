"""How many orders a second a client sends at most, and the queue of those that wait for their turn.

aiolimiter, the well-kept library for this, cannot say how long a wait will be, so that nobody can be refused
early; whoever comes may overtake those that wait; and its time is the loop's. Hence a queue of our own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from attrs import field, frozen

from transfer_async._models.base import ByValue
from transfer_async._support.clock import Clock
from transfer_async._support.validators import count, is_positive, positive


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value


@frozen(eq=False, repr=False)
class Rate(ByValue):
    """How often a client asks the service to create an order, each attempt counted.

    Any stretch of ``w`` seconds has at most ``burst + per_second * w`` requests. It is one client's alone:
    divide it among clients, processes and machines.

    Args:
        per_second: orders a second, on average; 0.2 is one in five seconds.
        burst: how many may follow one another at once, after a time with none.
    """

    per_second: float = field(
        converter=_as_float, validator=positive("must be more than 0 orders a second, and finite")
    )
    burst: int = field(default=1, validator=count(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        try:
            seconds = self.burst / self.per_second
        except OverflowError:
            seconds = float("inf")
        if not is_positive(seconds):  # or no sum of such times would mean anything
            raise ValueError("per_second and burst: burst / per_second must be a finite number of seconds")


class Turnstile:
    """Lets one after the other through, no faster than a rate: whoever came first goes first.

    Args:
        rate: how fast.
        clock: the time, and the waiting.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._interval = 1.0 / rate.per_second
        self._slack = (rate.burst - 1) * self._interval
        self._due = float("-inf")  # when the next would come, if all had come evenly
        # Whoever leaves does so in O(1), at either end or within.
        self._line: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def ahead(self) -> float:
        """Seconds that whoever comes now has to wait, if nobody leaves the line."""
        return max(0.0, self._due - self._slack + len(self._line) * self._interval - self._clock.now())

    async def turn(self, *, within: float | None = None) -> float:
        """Wait until it is one's turn, which is taken; whoever is cancelled gives the place back.

        Args:
            within: seconds that may be waited.

        Returns:
            The seconds that it took.

        Raises:
            TimeoutError: it takes longer, which is said at once, unless the line grew slower since.
        """
        began, ahead = self._clock.now(), self.ahead
        if not self._line and ahead == 0.0:
            self.count()
            return 0.0
        if within is not None and ahead >= within:
            raise TimeoutError
        async with asyncio.timeout(within):
            await self._wait_in_line()
        return self._clock.now() - began

    def count(self) -> None:
        """Take a turn without waiting for it: those in line wait the longer."""
        self._due = max(self._due, self._clock.now()) + self._interval

    def uncount(self) -> None:
        """Give a turn back that was taken, and not used."""
        self._due -= self._interval

    async def _wait_in_line(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[place] = None
        try:
            if self._first is not place:
                await place  # one timer for all of them: it is the first one's
            while (wait := self._due - self._slack - self._clock.now()) > 0.0:
                await self._clock.sleep(wait)
            self.count()
        finally:
            was_first = self._first is place
            del self._line[place]
            if was_first and self._line and not self._first.done():
                self._first.set_result(None)

    @property
    def _first(self) -> asyncio.Future[None]:
        return next(iter(self._line))


class Pace:
    """A client's rate: two turnstiles, for hooks stand between them, and take their time.

    The entrance is before the hold: that is where orders wait, with nobody's funds held. Hooks that were
    slow may be done many at once, so the exit, before the request, is passed at the same rate, mostly
    without a wait.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.entrance = Turnstile(rate, clock)
        self.exit = Turnstile(rate, clock)
