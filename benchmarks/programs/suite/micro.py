"""The smallest operations, measured by pyperf, each case in processes of its own.

``python -m benchmarks.programs.suite.micro CASE -o FILE`` measures one case once; `measured`
interleaves them.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import machine
from benchmarks.measuring.samples import taken_in_turn

if TYPE_CHECKING:
    import argparse

LOOPS = 1_000
VALUES = 3
TIMEOUT = 60.0
"""Seconds, at most, for one turn."""


def measured(cases: Iterable[str], rounds: int, left_out: list[str]) -> dict[str, list[float]]:
    """The seconds of each case, a median for each round; who cannot be had is left out."""
    with tempfile.TemporaryDirectory(prefix="micro-") as directory:
        turns = {}
        for case in cases:
            if missing := _missing(case):
                left_out.append(f"{case}: {missing} is not installed")
            else:
                turns[case] = partial(_turn, case, Path(directory))
        return taken_in_turn(turns, rounds=rounds) if turns else {}


def _missing(case: str) -> str | None:
    """The module of the group `bench` that a case needs and that is not installed."""
    needed = ("pyperf", "pydantic") if "pydantic" in case else ("pyperf",)
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)


def _turn(case: str, directory: Path) -> float:
    import pyperf  # type: ignore[import-untyped] # in the group `bench`

    file = directory / "turn.json"
    file.unlink(missing_ok=True)
    core, _ = machine.cores()
    command = [sys.executable, "-m", "benchmarks.programs.suite.micro", case, "--quiet", f"--output={file}"]
    command += [] if core is None else [f"--affinity={core}"]
    done = subprocess.run(  # noqa: S603 - a module of ours
        command, cwd=machine.ROOT, capture_output=True, encoding="utf-8", timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    return float(pyperf.Benchmark.load(str(file)).median())


def main() -> None:
    """Measure one case; the arguments are pyperf's, after the case's name."""
    import pyperf

    from benchmarks.programs.suite.cases import CASES

    def tell_workers(command: list[str], options: argparse.Namespace) -> None:
        command.append(options.case)

    arguments: dict[str, Any] = {"processes": 1, "values": VALUES, "warmups": 1, "loops": LOOPS}
    runner = pyperf.Runner(
        **arguments, program_args=("-m", "benchmarks.programs.suite.micro"), add_cmdline_args=tell_workers
    )
    runner.argparser.add_argument("case")
    case = runner.parse_args().case
    runner.bench_func(case, CASES[case]())


if __name__ == "__main__":
    main()
