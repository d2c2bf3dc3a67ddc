"""Start, control and end a contender's process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import attrs

from benchmarks.contenders import Terms
from benchmarks.measuring import machine
from benchmarks.measuring.samples import Sample

PATIENCE = 300.0
"""The timeout for one reply, in seconds."""


class LeftOut(Exception):
    """A contender that is not available, and the reason."""


class Process:
    """A contender in a process of its own, on a core of its own.

    Args:
        name: the contender's name.
        terms: its settings.
        core: the core it runs on; None for any.

    Raises:
        LeftOut: a dependency is not installed.
    """

    def __init__(self, name: str, terms: Terms, *, core: int | None) -> None:
        told = json.dumps({**attrs.asdict(terms), "core": core})
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            [sys.executable, "-m", "benchmarks.contenders.child", name, told],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            hello = self._read(PATIENCE)
        except BaseException:
            self.end()
            raise
        if why := hello.get("left_out"):
            self.end()
            raise LeftOut(f"{name}: {why}")

    def ask(self, do: str, *, patience: float = PATIENCE, **question: Any) -> Any:
        """Run a method of `child.Child` in the process.

        Raises:
            RuntimeError: the process ended or took too long.
        """
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(json.dumps({"do": do, **question}) + "\n")
        self._process.stdin.flush()
        return self._read(patience)

    def turn(self, *, at_once: int, seconds: float) -> Sample:
        """Create orders in the process."""
        return Sample(**self.ask("turn", at_once=at_once, seconds=seconds))

    def _read(self, patience: float) -> Any:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        watch = threading.Timer(patience, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self.end()
            raise RuntimeError(f"{self.name}: its process ended, or took longer than {patience:.0f} s")
        return json.loads(line)

    def end(self) -> None:
        """End the process; may be called more than once."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - pipes
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


@contextmanager
def processes(
    names: Iterable[str], terms: Terms, left_out: list[str], *, core: int | None
) -> Iterator[dict[str, Process]]:
    """Start a process for each; add those that are not available to ``left_out``."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            try:
                found[name] = stack.enter_context(Process(name, terms, core=core))
            except LeftOut as why:
                left_out.append(str(why))
        yield found
