"""Ctrl-C and SIGTERM, handed on to the running event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(do: Callable[[int], object]) -> Iterator[None]:
    """For as long as this lasts, SIGINT and SIGTERM make the running loop call ``do`` with their number."""
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(do, number)

    # Not loop.add_signal_handler, which Windows does not have.
    before = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
