"""A check for slower code that noise does not affect: it counts instead of measuring time.

It counts the CPU instructions of one order and of one decode (with valgrind, if installed), the function
calls of an order, and the memory blocks of an order in flight. ``guard.json`` has the expected figures for
each version of Python and aiohttp. ``python -m benchmarks guard`` compares; ``--store`` stores the new
figures.
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
"""The allowed relative difference from a stored figure."""

ORDER, DECODE = "instructions of an order", "instructions of a decode"
CALLS, BLOCKS = "calls of an order", "blocks of memory of an order in flight"
INSTRUCTIONS = (ORDER, DECODE)

_BASE, _ORDERS, _DECODES = 20, 100, 200
_TIMEOUT = 900.0  # seconds: only a hang takes as long, on a busy machine, too
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
"""Counts the same instructions as callgrind in half the time, without the call graph."""

_COUNTED = re.compile(rb"I +refs: +([\d,]+)")


# --- counting -----------------------------------------------------------------------------------


def counted(*, waste: bool = False) -> dict[str, float]:
    """Return the calls and the memory blocks, on any CPython."""
    done = _run((), "--count", *_wasteful(waste))
    found = json.loads(done.stdout)
    return {CALLS: found["calls"], BLOCKS: found["blocks"]}


def why_no_instructions() -> str | None:
    """Return why instructions cannot be counted; None if they can."""
    return None if shutil.which("valgrind") else "valgrind is not installed"


def instructions(*, waste: bool = False, decode: bool = True) -> dict[str, float]:
    """Return the instructions: the difference of two runs of different lengths."""
    runs = [(_BASE, _BASE), (_BASE + _ORDERS, _BASE)] + ([(_BASE, _BASE + _DECODES)] if decode else [])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        base, orders, *more = pool.map(lambda run: _instructions_of(*run, waste=waste), runs)
    found = {ORDER: (orders - base) / _ORDERS}
    return {**found, DECODE: (more[0] - base) / _DECODES} if more else found


def _instructions_of(orders: int, decodes: int, *, waste: bool) -> int:
    done = _run(_VALGRIND, f"--orders={orders}", f"--decodes={decodes}", *_wasteful(waste))
    found = _COUNTED.search(done.stderr)
    if found is None:
        raise RuntimeError("valgrind did not say how many instructions it had counted")
    return int(found[1].replace(b",", b""))


def _wasteful(waste: bool) -> list[str]:
    return ["--waste"] if waste else []


def _run(tool: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [*tool, sys.executable, "-m", "benchmarks.programs.guard.guarded", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # the same sets and dicts each time
    return subprocess.run(  # noqa: S603 - a module of ours
        command, cwd=machine.ROOT, env=environment, capture_output=True, timeout=_TIMEOUT, check=True
    )


# --- comparing ----------------------------------------------------------------------------------


@frozen
class Figure:
    """A figure and its stored value.

    Args:
        name: the name of the figure.
        found: the present value.
        stored: the expected value, or None.
        reason: why the two are not compared.
    """

    name: str
    found: float
    stored: float | None
    reason: str = ""

    @property
    def compared(self) -> bool:
        """Whether the figure can be compared."""
        return self.stored is not None and not self.reason

    @property
    def within(self) -> bool:
        """Whether the figure matches or cannot be compared."""
        if not self.compared or self.stored is None:
            return True
        return abs(self.found / self.stored - 1) <= MARGIN

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.name}: {self.found:,.1f}; not compared: {self.reason}"
        change = self.found / (self.stored or 1) - 1
        return f"{self.name}: {self.found:,.1f}, stored {self.stored:,.1f} ({change:+.1%})"


def key() -> str:
    """What the figures depend on most."""
    aiohttp = ".".join(metadata.version("aiohttp").split(".")[:2])
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.python_implementation()} {version}, aiohttp {aiohttp}"


def build() -> str:
    """What the instructions depend on beside: how this Python was compiled, and for what."""
    configured = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    ways = [way for way in ("--enable-optimizations", "--with-lto") if way in configured]
    return ", ".join((platform.machine(), platform.python_compiler(), *ways))


def stored() -> dict[str, Any]:
    """Return all stored figures, by `key`."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    return found


def compared(found: Mapping[str, float], kept: Mapping[str, Any]) -> list[Figure]:
    """Compare each figure with the stored one; report those of another Python or another build."""
    mine = kept.get(key())
    if mine is None:
        others = "; ".join(kept) or "nothing"
        return [
            Figure(name, value, None, f"stored is {others}, not {key()}") for name, value in found.items()
        ]
    other_build = f"counted with {mine['build']}, not {build()}" if mine["build"] != build() else ""
    return [
        Figure(
            name,
            value,
            mine["figures"].get(name),
            (other_build if name in INSTRUCTIONS else "")
            or ("" if name in mine["figures"] else "not stored"),
        )
        for name, value in found.items()
    ]


def store(found: Mapping[str, float]) -> None:
    """Store these figures as expected; keep those of other versions."""
    figures = {name: round(value, 1) for name, value in found.items()}
    kept = {**stored(), key(): {"build": build(), "figures": figures}}
    STORED.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n", encoding="utf-8")


def as_text(lines: Iterable[Figure]) -> str:
    """The figures as a table."""
    rows = [
        (
            line.name,
            f"{line.found:,.1f}",
            f"{line.stored:,.1f}" if line.stored is not None else "-",
            ("as stored" if line.within else "DIFFERS") if line.compared else f"not compared: {line.reason}",
        )
        for line in lines
    ]
    return table(("figure", "found", "stored", ""), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, then compare or store."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks guard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--store", action="store_true", help="store the present figures as expected")
    options = parser.parse_args(arguments)
    found, missing = counted(), why_no_instructions()
    if missing is None:
        found = {**instructions(), **found}
    else:
        print(f"no instructions: {missing}", file=sys.stderr)
    lines = compared(found, stored())
    print(as_text(lines))
    if options.store:
        store(found)
    elif not all(line.within for line in lines):
        print(f"A figure differs by more than {MARGIN:.0%}. If that is intended, run this with --store.")
        sys.exit(1)
