"""``python -m tests.simulation``: run a million stories, or show the trace of one story."""

# ruff: noqa: T201 - a program prints

import argparse
import time

from tests.simulation import trials

SHOWN = 20  # broken seeds


def main() -> int:
    """Run the command. Return 1 if an invariant is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--planted", choices=trials.SEEN, help="a fault to plant; needs --seed")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _show(asked.seed, asked.planted)
    if asked.planted is not None:
        parser.error("--planted needs --seed")
    return _run_all(range(asked.first, asked.first + asked.seeds), asked.jobs)


def _show(seed: int, planted: str | None) -> int:
    verdict = trials.traced(seed, planted)
    print("\n".join(verdict.trace))
    for found in verdict.broken or ["every promise was kept"]:
        print(f"seed {seed}: {found}")
    return int(bool(verdict.broken))


def _run_all(seeds: range, jobs: int) -> int:
    began = time.monotonic()
    tally = trials.Tally()
    for tally in trials.trial(seeds, jobs=jobs):
        print(f"\r{tally.seeds} seeds, {len(tally.broken)} broken", end="", flush=True)
    print(f"\r{tally.seeds} seeds, {len(tally.broken)} broken, {time.monotonic() - began:.0f} s")
    for what, count in sorted(tally.counts.items()):
        print(f"{count:>10}  {what}")
    for verdict in tally.broken[:SHOWN]:
        print(f"{verdict.broken[0]}\n    {trials.replay(verdict)}")
    return int(bool(tally.broken))


if __name__ == "__main__":
    raise SystemExit(main())
