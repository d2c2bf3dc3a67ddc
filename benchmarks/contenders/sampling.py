"""A sampling profiler that uses only the standard library and slows the program little.

About every millisecond it assigns the CPU time since the last sample to the innermost frame of the package or
of aiohttp. The time of C code counts for its caller, so a decoder's time counts for the module that decodes.
Waiting is not counted.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
