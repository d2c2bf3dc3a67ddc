"""What is done again and again: when, until when, and what a time that fails does to the next."""

import asyncio
from collections.abc import Callable

from transfer_async import Clock
from transfer_async._support.clock import Periodic


class Chore:
    """Something that is done three times, its clock, and what happened."""

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


async def test_the_first_time_comes_after_a_random_share_and_the_others_after_all_of_it():
    chore = Chore()

    await chore.periodic.run()

    assert chore.pauses == [2.5, 10.0, 10.0]


async def test_the_first_time_may_have_a_pause_of_its_own():
    chore = Chore(first=7.0)

    await chore.periodic.run()

    assert chore.pauses == [7.0, 10.0, 10.0]


async def test_it_rests_between_two_times_and_not_while_it_is_at_work():
    chore = Chore()

    await chore.periodic.run()

    assert chore.resting == [False, False, False]


async def test_a_time_that_fails_is_told_and_the_next_one_comes():
    def fails() -> None:
        raise KeyError("k")

    chore = Chore(does=fails)

    await chore.periodic.run()

    assert [type(error) for error in chore.failures] == [KeyError] * 3


async def test_a_cancellation_ends_it():
    chore = Chore(does=lambda: asyncio.current_task().cancel())

    run = asyncio.create_task(chore.periodic.run())
    await asyncio.wait([run])

    assert chore.resting == [False]
    assert run.cancelled()
    assert chore.failures == []
