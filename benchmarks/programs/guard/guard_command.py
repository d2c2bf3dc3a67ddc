"""A regression check that counts instead of measuring time, so that noise does not affect it.

It counts the CPU instructions of one order and of one decode (with valgrind, if installed), the function
calls of an order, and the memory blocks of an order in flight. ``guard.json`` contains the expected figures
for each version of Python and aiohttp. ``python -m benchmarks guard`` compares the current figures with them;
``--store`` replaces them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.measuring import machine
from benchmarks.measuring.reports import table

STORED = Path(__file__).with_name("guard.json")
MARGIN = 0.10
"""The maximum relative difference from a stored figure."""

ORDER, DECODE = "instructions of an order", "instructions of a decode"
CALLS, BLOCKS = "calls of an order", "blocks of memory of an order in flight"
INSTRUCTIONS = (ORDER, DECODE)

_BASE, _ORDERS, _DECODES = 20, 100, 200
_TIMEOUT = 900.0  # seconds; even a busy machine needs less
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
"""cachegrind counts the same instructions as callgrind in half the time, but without the call graph."""

_COUNTED = re.compile(rb"I +refs: +([\d,]+)")


# --- counting -------------------------------------------------------------------------------------


def count_calls_and_memory(*, waste: bool = False) -> dict[str, float]:
    """Count the calls and the memory blocks of an order. This works on any CPython."""
    completed = _run((), "--count", *_waste_option(waste))
    measured = json.loads(completed.stdout)
    return {CALLS: measured["calls"], BLOCKS: measured["blocks"]}


def why_instructions_are_unavailable() -> str | None:
    """Return the reason why instructions cannot be counted; None if they can."""
    return None if shutil.which("valgrind") else "valgrind is not installed"


def count_instructions(*, waste: bool = False, decode: bool = True) -> dict[str, float]:
    """Count instructions, as the difference between runs of different lengths."""
    runs = [(_BASE, _BASE), (_BASE + _ORDERS, _BASE)] + ([(_BASE, _BASE + _DECODES)] if decode else [])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        base, orders, *more = pool.map(lambda run: _instructions_of(*run, waste=waste), runs)
    measured = {ORDER: (orders - base) / _ORDERS}
    return {**measured, DECODE: (more[0] - base) / _DECODES} if more else measured


def _instructions_of(orders: int, decodes: int, *, waste: bool) -> int:
    completed = _run(_VALGRIND, f"--orders={orders}", f"--decodes={decodes}", *_waste_option(waste))
    measured = _COUNTED.search(completed.stderr)
    if measured is None:
        raise RuntimeError("valgrind did not report the number of instructions")
    return int(measured[1].replace(b",", b""))


def _waste_option(waste: bool) -> list[str]:
    return ["--waste"] if waste else []


def _run(tool: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [*tool, sys.executable, "-m", "benchmarks.programs.guard.guarded", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # the same order of sets in each run
    return subprocess.run(  # noqa: S603 - our own module
        command, cwd=machine.ROOT, env=environment, capture_output=True, timeout=_TIMEOUT, check=True
    )


# --- comparing ------------------------------------------------------------------------------------


@frozen
class Figure:
    """A figure and its stored value.

    Args:
        name: the name of the figure.
        measured: the current value.
        stored: the expected value; None if there is none.
        reason: why the two cannot be compared.
    """

    name: str
    measured: float
    stored: float | None
    reason: str = ""

    @property
    def compared(self) -> bool:
        """Whether the figure can be compared."""
        return self.stored is not None and not self.reason

    @property
    def is_within_margin(self) -> bool:
        """Whether the value is within the margin, or cannot be compared."""
        if not self.compared or self.stored is None:
            return True
        return abs(self.measured / self.stored - 1) <= MARGIN

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.name}: {self.measured:,.1f}; not compared: {self.reason}"
        change = self.measured / (self.stored or 1) - 1
        return f"{self.name}: {self.measured:,.1f}, stored {self.stored:,.1f} ({change:+.1%})"


def key() -> str:
    """Return the versions that the figures depend on."""
    aiohttp = ".".join(metadata.version("aiohttp").split(".")[:2])
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.python_implementation()} {version}, aiohttp {aiohttp}"


def build() -> str:
    """Return the build of Python, which the number of instructions also depends on."""
    configured = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    flags = [flag for flag in ("--enable-optimizations", "--with-lto") if flag in configured]
    return ", ".join((platform.machine(), platform.python_compiler(), *flags))


def stored() -> dict[str, Any]:
    """Load the stored figures, by `key`."""
    measured: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    return measured


def compare_figures(measured: Mapping[str, float], stored_figures: Mapping[str, Any]) -> list[Figure]:
    """Compare each figure with the stored one, unless that belongs to other versions or another build."""
    expected = stored_figures.get(key())
    if expected is None:
        others = "; ".join(stored_figures) or "nothing"
        return [
            Figure(name, value, None, f"figures are stored for {others}, not for {key()}")
            for name, value in measured.items()
        ]
    other_build = f"stored for {expected['build']}, not for {build()}" if expected["build"] != build() else ""
    return [
        Figure(
            name,
            value,
            expected["figures"].get(name),
            (other_build if name in INSTRUCTIONS else "")
            or ("" if name in expected["figures"] else "not stored"),
        )
        for name, value in measured.items()
    ]


def store(measured: Mapping[str, float]) -> None:
    """Store the figures as the expected ones; keep those of other versions."""
    figures = {name: round(value, 1) for name, value in measured.items()}
    stored_figures = {**stored(), key(): {"build": build(), "figures": figures}}
    STORED.write_text(json.dumps(dict(sorted(stored_figures.items())), indent=2) + "\n", encoding="utf-8")


def as_text(lines: Iterable[Figure]) -> str:
    """Return the figures as a table."""
    rows = [
        (
            line.name,
            f"{line.measured:,.1f}",
            f"{line.stored:,.1f}" if line.stored is not None else "-",
            ("as stored" if line.is_within_margin else "DIFFERS")
            if line.compared
            else f"not compared: {line.reason}",
        )
        for line in lines
    ]
    return table(("figure", "measured", "stored", ""), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, then compare the figures or store them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks guard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--store", action="store_true", help="store the current figures as the expected ones")
    options = parser.parse_args(arguments)
    measured, missing = count_calls_and_memory(), why_instructions_are_unavailable()
    if missing is None:
        measured = {**count_instructions(), **measured}
    else:
        print(f"instructions are not counted: {missing}", file=sys.stderr)
    lines = compare_figures(measured, stored())
    print(as_text(lines))
    if options.store:
        store(measured)
    elif not all(line.is_within_margin for line in lines):
        print(
            f"A figure differs by more than {MARGIN:.0%}. If that is intended, run this command with --store."
        )
        sys.exit(1)
