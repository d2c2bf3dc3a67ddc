"""Run each contender in its own process.

The benchmark starts a `ContenderProcess`. The process reads one JSON command per line from standard input,
runs the method of `ContenderCommands` with that name, and prints the result as JSON."""

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

from benchmarks.contenders import CONTENDERS, Contender, ContenderSettings
from benchmarks.measuring import machine
from benchmarks.measuring.samples import Sample, drive
from benchmarks.measuring.services import WARM_UP_REQUESTS

TIMEOUT = 300.0
"""Seconds to wait for the result of a command."""


class ContenderUnavailable(Exception):
    """A package that the contender needs is not installed."""


class ContenderProcess:
    """The benchmark's side of a contender's process.

    Args:
        name: the name of the contender.
        settings: its settings.
        core: the CPU core to pin the process to; None for any.

    Raises:
        ContenderUnavailable: a package that the contender needs is not installed.
    """

    def __init__(self, name: str, settings: ContenderSettings, *, core: int | None) -> None:
        options = json.dumps({**attrs.asdict(settings), "core": core})
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "benchmarks.contenders.process", name, options],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            greeting = self._read(TIMEOUT)
        except BaseException:
            self.end()
            raise
        if why := greeting.get("left_out"):
            self.end()
            raise ContenderUnavailable(f"{name}: {why}")

    def call(self, command: str, *, timeout: float = TIMEOUT, **arguments: Any) -> Any:
        """Run a method of `ContenderCommands` in the process and return its result.

        Raises:
            RuntimeError: the process ended or took too long.
        """
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read(timeout)

    def sample(self, *, concurrency: int, seconds: float) -> Sample:
        """Create orders for ``seconds``."""
        return Sample(**self.call("sample", concurrency=concurrency, seconds=seconds))

    def _read(self, timeout: float) -> Any:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        watch = threading.Timer(timeout, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self.end()
            raise RuntimeError(f"{self.name}: the process exited, or did not respond within {timeout:.0f} s")
        return json.loads(line)

    def end(self) -> None:
        """Stop the process. Calling this again has no effect."""
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
def contender_processes(
    names: Iterable[str], settings: ContenderSettings, left_out: list[str], *, core: int | None
) -> Iterator[dict[str, ContenderProcess]]:
    """Start a process for each contender; add the unavailable ones to ``left_out``."""
    with ExitStack() as stack:
        results = {}
        for name in names:
            try:
                results[name] = stack.enter_context(ContenderProcess(name, settings, core=core))
            except ContenderUnavailable as why:
                left_out.append(str(why))
        yield results


# --- within the process ---------------------------------------------------------------------------

UNLIMITED = 1 << 62
POLL_INTERVAL = 0.02


class ContenderCommands:
    """The commands that run in a contender's process.

    Args:
        contender: the open contender.
    """

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    async def sample(self, *, concurrency: int, seconds: float) -> dict[str, Any]:
        """Create orders for ``seconds``, after a warm-up that opens all connections."""
        await drive(self._contender.create, count=2 * concurrency, concurrency=concurrency)
        return attrs.asdict(
            await drive(self._contender.create, count=UNLIMITED, concurrency=concurrency, seconds=seconds)
        )

    async def profile(self, *, concurrency: int, seconds: float) -> dict[str, Any]:
        """Create orders as `sample` does; return the CPU seconds by part of the program."""
        await drive(self._contender.create, count=2 * concurrency, concurrency=concurrency)
        with profile_cpu() as profile:
            await drive(self._contender.create, count=UNLIMITED, concurrency=concurrency, seconds=seconds)
        return profile

    async def memory_per_order(self, *, count: int) -> dict[str, Any]:
        """Return the memory per order with ``count`` orders in flight.

        The service must hold its responses until all requests have arrived."""
        await drive(self._contender.create, count=WARM_UP_REQUESTS, concurrency=8)
        before = peak = machine.rss_after_gc()
        tasks = [asyncio.ensure_future(self._contender.create(number)) for number in range(count)]
        while not any(task.done() for task in tasks):
            peak = max(peak, machine.rss())
            await asyncio.sleep(POLL_INTERVAL)
        await asyncio.gather(*tasks)
        return {"bytes": (peak - before) / count}

    async def run_long(
        self, *, concurrency: int, orders_done: list[int], seconds: float
    ) -> list[dict[str, float]]:
        """Return CPU cost and memory at each number of ``orders_done``, or fewer if the time is up."""
        results, created, end = [], 0, time.perf_counter() + seconds
        for number in orders_done:
            left = max(0.0, end - time.perf_counter())
            sample = await drive(
                self._contender.create, count=number - created, concurrency=concurrency, seconds=left
            )
            created += sample.count
            results.append({"done": created, "cpu": sample.cpu_cost, "bytes": machine.rss_after_gc()})
            if created < number:
                break
        return results


# --- the profiler ---------------------------------------------------------------------------------

# A sampling profiler that uses only the standard library and barely slows the program down.
#
# About every millisecond, it adds the CPU time since the last sample to the innermost frame that belongs to
# the package or to aiohttp. The time of C code counts for its caller: a decoder's time counts for the module
# that decodes. Waiting is not counted.

PROFILE_INTERVAL = 0.00097
"""The sampling interval in seconds. It is not a multiple of other periods, such as 1 ms."""

PROFILE_PARTS = {
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
"""The part of the program for each module; the longest matching prefix counts."""

EVENT_LOOP = "event loop"


@contextmanager
def profile_cpu() -> Iterator[dict[str, float]]:
    """Collect the CPU seconds of the main thread, by part of the program."""
    profile: dict[str, float] = {}
    before: float | None = None

    def on_signal(_number: int, frame: FrameType | None) -> None:
        nonlocal before
        part, now = _part_of(frame), time.process_time()
        if before is not None:  # the time before the first sample is unknown
            profile[part] = profile.get(part, 0.0) + now - before
        before = now

    previous_handler = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, PROFILE_INTERVAL, PROFILE_INTERVAL)
    try:
        yield profile
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


def _part_of(frame: FrameType | None) -> str:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        while module:
            if module in PROFILE_PARTS:
                return PROFILE_PARTS[module]
            module = module.rpartition(".")[0]
        frame = frame.f_back
    return EVENT_LOOP


def main() -> None:
    """Run the contender that the arguments name, until standard input is closed."""
    name, options = sys.argv[1], json.loads(sys.argv[2])
    machine.pin(options.pop("core"))
    machine.raise_file_limit()
    settings = ContenderSettings(**options)
    try:
        loop_factory = importlib.import_module("uvloop").new_event_loop if settings.uvloop else None
        runner = asyncio.Runner(loop_factory=loop_factory)
        contender = runner.run(_enter(name, settings))
    except ImportError as error:
        _send({"left_out": str(error)})
        return
    with runner:
        child = ContenderCommands(contender)
        _send({"ready": True})
        for line in sys.stdin:
            arguments = json.loads(line)
            _send(runner.run(getattr(child, arguments.pop("command"))(**arguments)))
        runner.run(contender.__aexit__(None, None, None))


async def _enter(name: str, settings: ContenderSettings) -> Contender:
    module, _, kind = CONTENDERS[name].partition(":")
    contender_class: type[Contender] = getattr(
        importlib.import_module(f"benchmarks.contenders.{module}"), kind
    )
    return await contender_class(settings).__aenter__()  # some constructors need a running loop


def _send(message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
