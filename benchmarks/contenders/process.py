"""A contender in its own process: what it runs there, and how it is controlled from outside."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Self

import attrs

from benchmarks.contenders import PLACES, Contender, Terms
from benchmarks.measuring import machine
from benchmarks.measuring.samples import Sample, drive
from benchmarks.measuring.services import HELD_AFTER

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
            [sys.executable, "-m", "benchmarks.contenders.process", name, told],
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
        """Run a method of `Child` in the process.

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


# --- within the process ---------------------------------------------------------------------------

WITHOUT_END = 1 << 62
LOOK_EVERY = 0.02


class Child:
    """The requests that a contender's process accepts.

    Args:
        contender: the contender, opened.
    """

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    async def turn(self, *, at_once: int, seconds: float, count: int = WITHOUT_END) -> dict[str, Any]:
        """Create orders for so many seconds, after a warm-up that opens all connections."""
        await drive(self._contender.create, count=2 * at_once, at_once=at_once)
        return attrs.asdict(
            await drive(self._contender.create, count=count, at_once=at_once, seconds=seconds)
        )

    async def profile(self, *, at_once: int, seconds: float) -> dict[str, Any]:
        """Create orders as above, and sample where the time goes."""
        await drive(self._contender.create, count=2 * at_once, at_once=at_once)
        with sampled() as seen:
            await drive(self._contender.create, count=WITHOUT_END, at_once=at_once, seconds=seconds)
        return seen

    async def crowd(self, *, count: int) -> dict[str, Any]:
        """Return the memory of so many orders in flight; the service responds only after it has all."""
        await drive(self._contender.create, count=HELD_AFTER, at_once=8)
        before = peak = machine.settled_memory()
        tasks = [asyncio.ensure_future(self._contender.create(number)) for number in range(count)]
        while not any(task.done() for task in tasks):
            peak = max(peak, machine.memory())
            await asyncio.sleep(LOOK_EVERY)
        await asyncio.gather(*tasks)
        return {"bytes": (peak - before) / count}

    async def endure(self, *, at_once: int, done: list[int], seconds: float) -> list[dict[str, float]]:
        """Return cost and memory after so many orders and after so many more; fewer if the time is up."""
        found, so_far, end = [], 0, time.perf_counter() + seconds
        for number in done:
            left = max(0.0, end - time.perf_counter())
            sample = await drive(self._contender.create, count=number - so_far, at_once=at_once, seconds=left)
            so_far += sample.count
            found.append({"done": so_far, "cpu": sample.cpu_cost, "bytes": machine.settled_memory()})
            if so_far < number:
                break
        return found


# --- the profiler ---------------------------------------------------------------------------------

# A sampling profiler that uses only the standard library and barely slows the program down.
#
# About every millisecond, it adds the CPU time since the last sample to the innermost frame that belongs to
# the package or to aiohttp. The time of C code counts for its caller: a decoder's time counts for the module
# that decodes. Waiting is not counted.

EVERY = 0.00097
"""The interval in seconds, chosen so that it coincides with no other period."""

PARTS = {
    "transfer_async._converters": "decode and encode",
    "transfer_async._http.classify": "decode and encode",
    "transfer_async._models.responses": "decode and encode",
    "transfer_async.journal": "journal",
    "transfer_async.journal.protocol": "journal",
    "transfer_async._pipeline.create_order": "journal",
    "transfer_async._http.transport": "transport guard",
    "transfer_async._http.write_guard": "transport guard",
    "transfer_async._models.events": "events",
    "transfer_async": "pipeline",
    "aiohttp": "aiohttp itself",
    "multidict": "aiohttp itself",
    "yarl": "aiohttp itself",
    "benchmarks": "the benchmark",
}
"""The part that a module belongs to, by the longest matching prefix of its name."""

REST = "event loop"


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Add up CPU seconds by part, of the main thread only."""
    seen: dict[str, float] = {}
    before: float | None = None

    def look(_number: int, frame: FrameType | None) -> None:
        nonlocal before
        part, now = _part(frame), time.process_time()
        if before is not None:  # the first look only begins: what came before may have been anything
            seen[part] = seen.get(part, 0.0) + now - before
        before = now

    usual = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        while module:
            if module in PARTS:
                return PARTS[module]
            module = module.rpartition(".")[0]
        frame = frame.f_back
    return REST


def main() -> None:
    """Run the contender of the first argument with the settings of the second, until the input ends."""
    name, told = sys.argv[1], json.loads(sys.argv[2])
    machine.pin(told.pop("core"))
    machine.descriptors()
    terms = Terms(**told)
    try:
        loops = importlib.import_module("uvloop").new_event_loop if terms.uvloop else None
        runner = asyncio.Runner(loop_factory=loops)
        contender = runner.run(_enter(name, terms))
    except ImportError as error:
        _say({"left_out": str(error)})
        return
    with runner:
        child = Child(contender)
        _say({"ready": True})
        for line in sys.stdin:
            question = json.loads(line)
            _say(runner.run(getattr(child, question.pop("do"))(**question)))
        runner.run(contender.__aexit__(None, None, None))


async def _enter(name: str, terms: Terms) -> Contender:
    module, _, kind = PLACES[name].partition(":")
    made: type[Contender] = getattr(importlib.import_module(f"benchmarks.contenders.{module}"), kind)
    return await made(terms).__aenter__()  # some want a running loop when they are made


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
