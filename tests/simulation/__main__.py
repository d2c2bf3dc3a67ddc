"""``python -m tests.simulation``: run a million stories, or show the trace of one story."""

# ruff: noqa: T201 - a program prints

import argparse
import time

from tests.simulation import trials
from tests.simulation.story import TransitionResult

SHOWN = 20  # broken seeds


def main() -> int:
    """Run the command. Return 1 if an invariant is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--planted", choices=trials.SEEN, help="with this one planted: alone, or with --seed")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.seed is not None:
        return _one(trials.traced(asked.seed, asked.planted))
    return _many(seeds, asked.jobs) if asked.planted is None else _fault(asked.planted, seeds)


def _one(verdict: TransitionResult) -> int:
    print("\n".join(verdict.trace))
    return _verdict(verdict)


def _verdict(verdict: TransitionResult) -> int:
    for found in verdict.broken:
        print(f"seed {verdict.seed}: {found}")
    if not verdict.broken:
        print(f"seed {verdict.seed}: every promise was kept")
    return int(bool(verdict.broken))


def _fault(fault: str, seeds: range) -> int:
    verdict = trials.caught(fault, seeds)
    if verdict is None:
        print(f"{fault} is not noticed")
        return 0
    print(f"{trials.replay(verdict)} --planted {fault}")
    return _verdict(verdict)


def _many(seeds: range, jobs: int) -> int:
    began = time.monotonic()
    tally = trials.Tally()
    for tally in trials.trial(seeds, jobs=jobs):
        print(f"\r{tally.seeds} seeds, {len(tally.broken)} broken", end="", flush=True)
    took = time.monotonic() - began
    print(f"\r{tally.seeds} seeds, {len(tally.broken)} broken, {took:.0f} s")
    for what, count in sorted(tally.counts.items()):
        print(f"{count:>10}  {what}")
    for verdict in tally.broken[:SHOWN]:
        print(f"{verdict.broken[0]}\n    {trials.replay(verdict)}")
    return int(bool(tally.broken))


if __name__ == "__main__":
    raise SystemExit(main())
