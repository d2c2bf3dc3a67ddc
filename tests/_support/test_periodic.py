"""Periodic work: its intervals, its end, and what follows a failed run."""

import asyncio
from collections.abc import Callable

import pytest

from transfer_async import Clock
from transfer_async._support.clock import Periodic


class Chore:
    """Periodic work that runs three times, with its clock and a record of events."""

    def __init__(self, *, first: float | None = None, does: Callable[[], None] = lambda: None) -> None:
        self.pauses: list[float] = []
        self.resting: list[bool] = []
        self.failures: list[Exception] = []
        self._does = does
        self.periodic = Periodic(
            self._do,
            every=10.0,
            until=lambda: len(self.resting) == 3,
            failed=self.failures.append,
            clock=Clock(sleep=self._sleep, chance=lambda: 0.25),
            first=first,
        )

    async def _sleep(self, seconds: float) -> None:
        assert self.periodic.resting
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def _do(self) -> None:
        self.resting.append(self.periodic.resting)
        self._does()


@pytest.mark.parametrize(("first", "pause"), [(None, 2.5), (7.0, 7.0)])
async def test_the_first_run_follows_its_own_pause_or_a_random_part_of_the_interval(
    first: float | None, pause: float
):
    chore = Chore(first=first)
    await chore.periodic.run()

    assert (chore.pauses, chore.resting) == ([pause, 10.0, 10.0], [False, False, False])


async def test_a_failed_run_is_reported_and_the_next_one_follows():
    chore = Chore(does=[].pop)
    await chore.periodic.run()

    assert [type(error) for error in chore.failures] == [IndexError] * 3


async def test_a_cancellation_ends_the_periodic_work():
    chore = Chore(does=lambda: asyncio.current_task().cancel())
    run = asyncio.create_task(chore.periodic.run())
    await asyncio.wait([run])

    assert (run.cancelled(), chore.resting, chore.failures) == (True, [False], [])
