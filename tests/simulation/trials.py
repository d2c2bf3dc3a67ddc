"""Run many seeds in several processes. For planted faults, run seeds until one detects each."""

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from attrs import define, field

from tests.mutation.in_process import BY_NAME, planted
from tests.simulation.story import TransitionResult, tell

SHARE = 500  # the number of seeds that a process gets at a time
BOUND = 3000
"""The number of seeds within which each planted fault must be detected."""

SEEN = [fault.name for fault in BY_NAME.values() if fault.seed is not None]
"""The planted faults that a story must detect."""


@define
class Tally:
    """The results of many seeds: their number, the event counts, and the seeds with broken invariants."""

    seeds: int = 0
    counts: Counter[str] = field(factory=Counter)
    broken: list[TransitionResult] = field(factory=list)

    def add(self, verdict: TransitionResult) -> None:
        self.seeds += 1
        self.counts += verdict.counts
        if verdict.broken:
            self.broken.append(verdict)


def stories(seeds: Iterable[int]) -> Iterator[TransitionResult]:
    """Yield the result of each seed. For speed, garbage is collected only between stories."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # not unfrozen later, because that would also unfreeze objects frozen earlier
    try:
        for count, seed in enumerate(seeds, 1):
            verdict = tell(seed)
            if count % 100 == 0:
                gc.collect()
            yield verdict
    finally:
        if was_enabled:
            gc.enable()


def _tally(seeds: range) -> Tally:
    tally = Tally()
    for verdict in stories(seeds):
        tally.add(verdict)
    return tally


def trial(seeds: range, *, jobs: int) -> Iterator[Tally]:
    """Yield the tally so far until all seeds are done. With a single job, they run in this process."""
    if jobs == 1:
        yield _tally(seeds)
        return
    total = Tally()
    shares = [seeds[start : start + SHARE] for start in range(0, len(seeds), SHARE)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for tally in pool.map(_tally, shares):
            total.seeds += tally.seeds
            total.counts += tally.counts
            total.broken += tally.broken
            yield total


def caught(fault: str, seeds: Iterable[int]) -> TransitionResult | None:
    """Return the result of the first seed that detects a planted fault, or None."""
    with planted(fault):
        return next((verdict for verdict in stories(seeds) if verdict.broken), None)


def traced(seed: int, fault: str | None = None) -> TransitionResult:
    """Run one seed and record its trace."""
    with planted(fault):
        return tell(seed, trace=True)


def replay(verdict: TransitionResult) -> str:
    """Return the command that repeats a seed."""
    return f"python -m tests.simulation --seed {verdict.seed}"
