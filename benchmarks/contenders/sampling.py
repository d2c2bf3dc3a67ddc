"""Where processor time goes: a sampling profiler of the standard library alone, which slows little.

About every millisecond the processor time since the last look is told of the innermost frame that is
the package's or aiohttp's; what C code takes is its caller's. So a decoder's time is told of the module
that decodes, and waiting of nobody.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EVERY = 0.00097
"""Seconds; in step with nothing."""

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
"""Whose time it is, by the longest name that a module begins with."""

REST = "event loop"


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Add up the seconds of processor time by part; the main thread alone can be looked at."""
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
