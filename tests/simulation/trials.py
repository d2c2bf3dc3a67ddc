"""Many seeds, over processes; and planted faults, each until it is noticed."""

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from attrs import define, field

from tests.mutation.in_process import BY_NAME, planted
from tests.simulation.story import TransitionResult, staged, tell

SHARE = 500  # seeds that a process is given at once
BOUND = 3000
"""Seeds within which each planted fault is noticed."""

SEEN = [fault.name for fault in BY_NAME.values() if fault.seed is not None]
"""The planted faults that a story must notice."""


@define
class Tally:
    """What became of many seeds: how many there were, what was seen, and which are broken."""

    seeds: int = 0
    counts: Counter[str] = field(factory=Counter)
    broken: list[TransitionResult] = field(factory=list)

    def add(self, verdict: TransitionResult) -> None:
        self.seeds += 1
        self.counts += verdict.counts
        if verdict.broken:
            self.broken.append(verdict)


def stories(seeds: Iterable[int]) -> Iterator[TransitionResult]:
    """Each seed's verdict; garbage is collected between stories, and looked for in what they made alone."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # for good: what was frozen before would be set free with it
    try:
        for count, seed in enumerate(seeds, 1):
            with staged():
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
    """The tally so far, time and again, until all seeds are done; a single job is done here."""
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
    """The first seed that notices a planted fault."""
    with planted(fault):
        return next((verdict for verdict in stories(seeds) if verdict.broken), None)


def traced(seed: int, fault: str | None = None) -> TransitionResult:
    """One seed with its trace."""
    with planted(fault), staged():
        return tell(seed, trace=True)


def replay(verdict: TransitionResult) -> str:
    """The command that shows a seed again, exactly."""
    return f"python -m tests.simulation --seed {verdict.seed}"
