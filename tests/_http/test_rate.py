"""A client's rate limiter: it never exceeds the rate, serves requests in order, and loses no slot."""

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
    """Return by how many requests the worst period exceeds the rate; 0.0 if none does.

    A period from request i to request j contains j - i + 1 requests, so one pass finds the worst.
    """
    worst, least = 0.0, float("inf")
    for number, when in enumerate(sorted(times)):
        least = min(least, number - rate.per_second * when)
        worst = max(worst, number - rate.per_second * when - least + 1 - rate.burst)
    return worst


@define
class Line:
    """A rate limiter in virtual time that records when each request passed."""

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

    async def _come(self, number: int, at: float, within: float | None) -> None:
        if at:
            await asyncio.sleep(at)
        self.came.append(number)
        try:
            self.waited[number] = await self.limiter.wait(within=within)
        except TimeoutError:
            self.refused.append((number, self.loop.time()))
        else:
            self.passed.append((number, self.loop.time()))

    def come(self, *, at: float = 0.0, within: float | None = None, leave_after: float | None = None) -> int:
        number = len(self.tasks)
        task = self.loop.create_task(self._come(number, at, within))
        self.tasks.append(task)
        if leave_after is not None:
            self.loop.call_later(at + leave_after, task.cancel)
        return number

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


def test_a_burst_passes_at_once_and_the_rest_evenly_in_order_of_arrival():
    queue = line(2.0, burst=3)
    for _ in range(6):
        queue.come()

    assert queue.run().times == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]
    assert [number for number, _ in queue.passed] == [0, 1, 2, 3, 4, 5]
    assert queue.waited == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5, 4: 1.0, 5: 1.5}


def test_after_an_idle_period_the_whole_burst_is_available_and_no_more():
    queue = line(1.0, burst=2)
    for at in (0.0, 0.0, 50.0, 50.0, 50.0, 50.0):
        queue.come(at=at)

    assert queue.run().times == [0.0, 0.0, 50.0, 50.0, 51.0, 52.0]


def test_a_cancelled_waiter_gives_up_its_slot_anywhere_in_the_queue():
    queue = line(1.0)
    for leave_after in (None, 0.5, None, 0.6, None):  # one of the cancelled waiters is the first in the queue
        queue.come(leave_after=leave_after)

    assert queue.run().times == [0.0, 1.0, 2.0]
    assert [number for number, _ in queue.passed] == [0, 2, 4]


def test_a_late_arrival_does_not_overtake_a_waiter_that_overslept():
    queue = line(1.0, burst=5)
    queue.oversleeps = lambda: 3.0
    for _ in range(7):
        queue.come()
    queue.come(at=3.9)

    assert [number for number, _ in queue.run().passed] == list(range(8))


def test_a_returned_slot_goes_to_the_next_waiter():
    queue = line(1.0)
    queue.come()
    queue.come(at=0.2)
    queue.loop.call_later(0.1, queue.limiter.return_slot)

    assert queue.run().times == [0.0, 0.2]


# --- who cannot be in time ----------------------------------------------------------------------


def test_a_waiter_that_cannot_be_in_time_fails_at_once_and_takes_no_slot():
    queue = line(1.0)
    for within in (0.0, None, 1.9, 2.0, 2.1, None):  # with an empty queue, a limit of zero is enough
        queue.come(within=within)

    assert [(number, when - 1000.0) for number, when in queue.run().refused] == [(2, 0.0), (3, 0.0)]
    assert queue.times == [0.0, 1.0, 2.0, 3.0]


def test_a_free_burst_is_in_time_for_any_limit_and_the_wait_behind_it_is_exact():
    queue = line(1.0, burst=3)
    for within in (0.1, 0.1, 0.1, 0.9, 1.1, 1.9, 2.1):
        queue.come(within=within)

    assert [(number, when - 1000.0) for number, when in queue.run().refused] == [(3, 0.0), (5, 0.0)]
    assert queue.times == [0.0, 0.0, 0.0, 1.0, 2.0]


def test_a_slot_taken_without_waiting_delays_the_queue_and_a_waiter_fails_once_its_time_is_over():
    queue = line(1.0)
    for within in (None, None, 2.5, None):
        queue.come(within=within)
    queue.loop.call_later(0.5, queue.limiter.take_slot)

    assert [(number, when - 1000.0) for number, when in queue.run().refused] == [(2, 2.5)]
    assert queue.times == [0.0, 2.0, 3.0]


# --- any stretch of time ------------------------------------------------------------------------


def crowd(seed: int) -> Line:
    """Generate requests at random times, some with short timeouts, some cancelled, on loops that run late."""
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
def test_arrivals_and_cancellations_never_break_the_rate_or_the_order(size: int):
    for seed in range(size):
        queue = crowd(seed).run()  # every waiter has passed, left, or been refused
        assert stretch_over(queue.rate, queue.times) < 1e-6, seed
        order = [queue.came.index(number) for number, _ in queue.passed]
        assert order == sorted(order), seed
        assert not queue.limiter._waiters, seed
        for number, _ in queue.refused:
            assert number not in dict(queue.passed), seed


def test_the_measure_finds_a_period_that_is_too_fast():
    assert stretch_over(Rate(1.0, burst=2), [0.0, 0.0, 1.0, 2.0]) == 0.0
    assert stretch_over(Rate(1.0, burst=2), [0.0, 5.0, 5.5, 5.9]) == pytest.approx(0.1)


# --- its settings -------------------------------------------------------------------------------

NOT_FINITE = "per_second and burst: burst / per_second must be a finite number of seconds"


@each(
    ("settings", "why"),
    [
        *(
            ({"per_second": wrong}, "per_second: must be a finite number of orders per second, more than 0")
            for wrong in (0, -1, 0.0, float("inf"), float("nan"), "5", None, True, timedelta(seconds=1))
        ),
        *(
            ({"per_second": 1.0, "burst": wrong}, "burst: must be a whole number, 1 or more")
            for wrong in (0, -1, 1.5, True, None, "2")
        ),
        ({"per_second": 5e-324}, NOT_FINITE),
        ({"per_second": 1.0, "burst": 10**400}, NOT_FINITE),
    ],
)
def test_an_invalid_rate_is_refused_by_name_and_rule(settings: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=f"^{why}$"):
        Rate(**settings)
