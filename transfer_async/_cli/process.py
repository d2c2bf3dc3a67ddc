"""How a command runs and ends: its event loop, its signals and its exit codes.

The event loop is uvloop's where that is installed, and asyncio's own elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

# --- exit codes --------------------------------------------------------------------------------------

DONE = 0
"""All is as it was wanted."""

FAILED = 1
"""The command was used well, and met a no."""

USAGE = 2
"""A wrong use: an option, the environment, or an extra that is not installed."""

REFUSED, NOT_SENT, UNKNOWN = 3, 4, 5
"""Of `create`, where not every order is created: of these the highest that any order asks for."""

DIFFERENT = 3
"""Of `journal reconcile`: the journal and the export do not agree in everything."""

OTHER_SCOPE = 4
"""Of the commands of `journal`: the journal has keys of other scopes only."""

OWED = 3
"""Of `journal recover`: an undo is owed still, or a record cannot be read."""

# --- event loop --------------------------------------------------------------------------------------

_GARBAGE_OF_ORDERS = 10_000
"""Objects, made and not yet let go, after which Python looks for garbage; its own number is 700."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on a loop of its own, and give back what it returns."""
    with _little_garbage(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Look for garbage seldom.

    An order in flight has some hundred objects, and leaves no cycle of them behind: with sixteen at once
    Python would look through all of them after every few orders. Nothing is frozen: to set it free again
    would free what others froze, too.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_GARBAGE_OF_ORDERS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops: uvloop, or None for asyncio's own."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


# --- signals -----------------------------------------------------------------------------------------
# Ctrl-C and SIGTERM, handed on to the running event loop.


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
