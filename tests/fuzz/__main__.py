"""`python -m tests.fuzz --seconds 600`: the exit code is 0 if every promise was kept, 1 otherwise."""

import argparse
import hashlib
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.mutation import mutate
from tests.fuzz.seeds import inputs
from tests.fuzz.targets import LARGEST, check

ROOT = Path(__file__).parents[2]


class Run(NamedTuple):
    """The result of a run."""

    how: str
    executions: int
    seconds: float
    broken: str | None


def guided(seconds: int, found: Path) -> Run:
    """Run atheris with the seeds until the time is up or a promise is broken."""
    with tempfile.TemporaryDirectory() as corpus:
        for seed in inputs():
            (Path(corpus) / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
        began = time.monotonic()
        ended = subprocess.run(
            [
                *[sys.executable, "-m", "tests.fuzz.guided", corpus, f"-max_total_time={seconds}"],
                *[f"-max_len={LARGEST}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"],
                f"-artifact_prefix={found}/",
            ],
            cwd=ROOT,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    told = ended.stdout + ended.stderr
    executions = re.search(r"number_of_executed_units: (\d+)", told) or re.search(r"Done (\d+) runs", told)
    broken = None if ended.returncode == 0 else told[-6000:]
    return Run("atheris", int(executions[1]) if executions else 0, time.monotonic() - began, broken)


def by_chance(seconds: int, found: Path) -> Run:
    """Change the seeds at random, without coverage."""
    draw, began, executions = random.Random(), time.monotonic(), 0
    seeds = inputs()
    while time.monotonic() - began < seconds:
        data = draw.choice(seeds)
        for _ in range(draw.randint(0, 4)):
            data = mutate(data, draw, largest=LARGEST)
        executions += 1
        try:
            check(data)
        except Exception:  # noqa: BLE001 - that is what is looked for
            (found / f"crash-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
            return Run("chance", executions, time.monotonic() - began, traceback.format_exc())
    return Run("chance", executions, time.monotonic() - began, None)


def main() -> int:
    """Run the targets for the given time."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Try hostile replies.")
    options.add_argument("--seconds", type=int, default=60, help="how long (60)")
    options.add_argument("--found", type=Path, help="where to keep inputs that break a promise")
    options.add_argument("--by-chance", action="store_true", help="even where atheris is installed")
    options.add_argument("--replay", type=Path, help="try the input in this file, and nothing else")
    chosen = options.parse_args()
    if chosen.replay:
        check(chosen.replay.read_bytes())
        return 0
    found = chosen.found or Path(tempfile.mkdtemp(prefix="fuzz-"))
    found.mkdir(parents=True, exist_ok=True)
    has_atheris = importlib.util.find_spec("atheris") is not None
    run = (guided if has_atheris and not chosen.by_chance else by_chance)(chosen.seconds, found)
    if run.broken:
        tell(f"{run.broken}\nthe input is in {found}; try it again with --replay")
    rate = run.executions / max(run.seconds, 0.001)
    ended = "a promise was broken" if run.broken else "every promise was kept"
    tell(f"{run.how}: {run.executions} executions in {run.seconds:.0f} s, {rate:.0f}/s, {ended}")
    return 1 if run.broken else 0


def tell(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
