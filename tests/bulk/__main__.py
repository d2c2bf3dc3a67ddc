"""`python -m tests.bulk --lines 100000 --kills 5`: exit code 0 if no order was lost or doubled, else 1."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bulk.trial import Trial

MANY = 20


def table(trial: Trial) -> Iterator[str]:
    """What was seen."""
    last = trial.runs[-1]
    yield f"{trial.lines:>10,} lines, {trial.concurrency} at once"
    yield f"{trial.kills:>10,} kills"
    for outcome, count in sorted(trial.outcomes.items()):
        yield f"{count:>10,} {outcome}"
    yield f"{trial.doubts_left:>10,} in doubt in the end"
    yield f"{len(trial.violations):>10,} promises broken"
    yield from (f"           {one}" for one in trial.violations[:MANY])
    for number, run in enumerate(trial.runs, 1):
        how = "killed" if run.code < 0 else f"exit code {run.code}"
        yield f"    run {number}: {how}, {run.seconds:,.1f} s, at most {run.rss / 2**20:,.0f} MiB"
    yield from (f"    {line}" for line in last.last_words.splitlines()[-6:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bulk", description=__doc__)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE[:SETTINGS]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bulk-") as directory:
        trial = Trial(
            directory=Path(directory),
            lines=options.lines,
            kills=options.kills,
            concurrency=options.concurrency,
            faults=tuple(options.fault),
            seed=options.seed,
        )
        trial.run()
    sys.stdout.write("\n".join(table(trial)) + "\n")
    return 1 if trial.violations else 0


if __name__ == "__main__":
    sys.exit(main())
