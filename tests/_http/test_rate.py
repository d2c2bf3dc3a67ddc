"""The line before a client's requests: never faster than the rate, nobody overtaken, nobody forgotten."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from attrs import define, field

from tests.simulation.loop import VirtualLoop
from tests.support.cases import each
from transfer_async import Clock, Rate
from transfer_async._http.retry import RateLimitQueue


def stretch_over(rate: Rate, times: list[float]) -> float:
    """By how many requests the worst stretch of time is over what the rate allows; 0.0 if none is.

    A stretch from request i to request j has j - i + 1 of them: the worst is found in one pass.
    """
    worst, least = 0.0, float("inf")
    for number, when in enumerate(sorted(times)):
        least = min(least, number - rate.per_second * when)
        worst = max(worst, number - rate.per_second * when - least + 1 - rate.burst)
    return worst


@define
class Line:
    """A rate limiter in virtual time, and when each waiter passed it."""

    rate: Rate
    loop: VirtualLoop = field(factory=VirtualLoop)
    came: list[int] = field(factory=list)
    passed: list[tuple[int, float]] = field(factory=list)
    refused: list[tuple[int, float]] = field(factory=list)
    waited: dict[int, float] = field(factory=dict)
    oversleeps: Callable[[], float] = lambda: 0.0
    limiter: RateLimitQueue = field(init=False)
    tasks: list[asyncio.Task[None]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds + self.oversleeps())

        self.limiter = RateLimitQueue(self.rate, Clock(now=self.loop.time, sleep=sleep))

    async def _come(self, number: int, within: float | None) -> None:
        self.came.append(number)
        try:
            self.waited[number] = await self.limiter.wait(within=within)
        except TimeoutError:
            self.refused.append((number, self.loop.time()))
        else:
            self.passed.append((number, self.loop.time()))

    def come(self, *, at: float = 0.0, within: float | None = None, leave_after: float | None = None) -> int:
        number = len(self.tasks)
        task = self.loop.create_task(self._after(at, number, within))
        self.tasks.append(task)
        if leave_after is not None:
            self.loop.call_later(at + leave_after, task.cancel)
        return number

    async def _after(self, seconds: float, number: int, within: float | None) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self._come(number, within)

    def run(self) -> "Line":
        assert self.loop.run()
        assert all(task.done() for task in self.tasks)
        return self

    @property
    def times(self) -> list[float]:
        return [round(when - 1000.0, 9) for _, when in self.passed]


def line(per_second: float, burst: int = 1) -> Line:
    return Line(Rate(per_second, burst=burst))


# --- one after the other ------------------------------------------------------------------------


def test_a_burst_passes_at_once_and_the_others_evenly_in_the_order_in_which_they_came():
    queue = line(2.0, burst=3)
    for _ in range(6):
        queue.come()

    assert queue.run().times == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]
    assert [number for number, _ in queue.passed] == [0, 1, 2, 3, 4, 5]
    assert queue.waited == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5, 4: 1.0, 5: 1.5}


def test_whoever_comes_after_a_time_with_none_has_the_whole_burst_and_no_more():
    queue = line(1.0, burst=2)
    for at in (0.0, 0.0, 50.0, 50.0, 50.0, 50.0):
        queue.come(at=at)

    assert queue.run().times == [0.0, 0.0, 50.0, 50.0, 51.0, 52.0]


def test_who_leaves_gives_the_place_back_wherever_it_is():
    queue = line(1.0)
    for leave_after in (None, 0.5, None, 0.6, None):  # the first in line among them
        queue.come(leave_after=leave_after)

    assert queue.run().times == [0.0, 1.0, 2.0]
    assert [number for number, _ in queue.passed] == [0, 2, 4]


def test_who_comes_late_overtakes_nobody_whose_sleep_was_too_long():
    queue = line(1.0, burst=5)
    queue.oversleeps = lambda: 3.0
    for _ in range(7):
        queue.come()
    queue.come(at=3.9)

    assert [number for number, _ in queue.run().passed] == list(range(8))


def test_a_turn_that_is_counted_without_a_wait_makes_the_line_longer():
    queue = line(1.0)
    for _ in range(3):
        queue.come()
    queue.loop.call_later(0.5, queue.limiter.take_slot)

    assert queue.run().times == [0.0, 2.0, 3.0]


def test_a_turn_that_is_given_back_is_the_next_ones():
    queue = line(1.0)
    queue.come()
    queue.come(at=0.2)
    queue.loop.call_later(0.1, queue.limiter.return_slot)

    assert queue.run().times == [0.0, 0.2]


# --- who cannot be in time ----------------------------------------------------------------------


def test_who_cannot_be_in_time_hears_it_at_once_and_takes_no_place():
    queue = line(1.0)
    for within in (None, None, 1.9, 2.0, 2.1, None):
        queue.come(within=within)

    assert [(number, when - 1000.0) for number, when in queue.run().refused] == [(2, 0.0), (3, 0.0)]
    assert queue.times == [0.0, 1.0, 2.0, 3.0]


def test_who_could_have_been_in_time_hears_it_as_soon_as_the_time_is_over():
    queue = line(1.0)
    for within in (None, None, 2.5, None):
        queue.come(within=within)
    queue.loop.call_later(0.5, queue.limiter.take_slot)

    assert [(number, when - 1000.0) for number, when in queue.run().refused] == [(2, 2.5)]
    assert queue.times == [0.0, 2.0, 3.0]


def test_no_time_at_all_is_enough_where_nobody_waits():
    queue = line(1.0)
    queue.come(within=0.0)

    assert queue.run().times == [0.0]


# --- any stretch of time ------------------------------------------------------------------------


def test_ten_thousand_pass_at_the_rate_and_not_faster_in_any_stretch():
    queue = line(100.0, burst=20)
    for _ in range(10_000):
        queue.come()

    queue.run()
    assert len(queue.passed) == 10_000
    assert stretch_over(queue.rate, queue.times) < 1e-6
    assert queue.times[-1] == pytest.approx((10_000 - 20) / 100.0)


def crowd(seed: int) -> Line:
    """People who come when they like, some with little patience, some who leave; and loops that are late."""
    chance = Random(seed)
    queue = line(chance.choice((0.3, 1.0, 7.0, 50.0)), burst=chance.choice((1, 2, 5, 30)))
    late = chance.choice((0.0, 0.0, 0.05, 3.0))
    queue.oversleeps = lambda: late * chance.random()
    over = chance.choice((0.0, 1.0, 30.0))
    for _ in range(60):
        queue.come(
            at=over * chance.random(),
            within=chance.choice((None, None, 40.0 * chance.random())),
            leave_after=chance.choice((None, None, 20.0 * chance.random())),
        )
    return queue


@pytest.mark.trial(short=60, ci=400, long=20_000)
def test_whoever_comes_or_leaves_no_stretch_is_too_fast_and_nobody_is_overtaken_or_forgotten(size: int):
    for seed in range(size):
        queue = crowd(seed).run()  # all have passed, left, or been refused
        assert stretch_over(queue.rate, queue.times) < 1e-6, seed
        order = [queue.came.index(number) for number, _ in queue.passed]
        assert order == sorted(order), seed
        assert not queue.limiter._waiters, seed
        for number, _ in queue.refused:
            assert number not in dict(queue.passed), seed


def test_the_measure_itself_finds_a_stretch_that_is_too_fast():
    assert stretch_over(Rate(1.0, burst=2), [0.0, 0.0, 1.0, 2.0]) == 0.0
    assert stretch_over(Rate(1.0, burst=2), [0.0, 5.0, 5.5, 5.9]) == pytest.approx(0.1)


# --- its settings -------------------------------------------------------------------------------


@each("wrong", [0, -1, 0.0, float("inf"), float("nan"), "5", None, True, timedelta(seconds=1)])
def test_a_rate_is_more_than_nothing_and_finite(wrong: Any):
    with pytest.raises(ValueError, match=r"^per_second: must be more than 0 orders a second, and finite$"):
        Rate(wrong)


@each("extreme", [{"per_second": 5e-324}, {"per_second": 1.0, "burst": 10**400}])
def test_a_rate_of_which_no_time_can_be_told_is_none(extreme: dict[str, Any]):
    with pytest.raises(ValueError, match=r"^per_second and burst: burst / per_second must be a finite"):
        Rate(**extreme)


@each("wrong", [0, -1, 1.5, True, None, "2"])
def test_a_burst_is_a_whole_number(wrong: Any):
    with pytest.raises(ValueError, match=r"^burst: must be a whole number, 1 or more$"):
        Rate(1.0, burst=wrong)
