"""The event loop, signal handling and exit codes of the commands.

The commands use uvloop if it is installed, and asyncio's own event loop otherwise.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import define, field

T = TypeVar("T")

# --- exit codes --------------------------------------------------------------------------------------

DONE = 0
"""The command succeeded."""

FAILED = 1
"""The command was used correctly, but failed."""

USAGE = 2
"""Wrong usage: an option or environment variable is invalid, or an extra is not installed."""

REFUSED, NOT_SENT, UNKNOWN = 3, 4, 5
"""`create`: some orders were not created. The exit code is the highest that applies to any order."""

DIFFERENT = 3
"""`journal reconcile`: the journal and the export differ."""

ROWS_REFUSED = 3
"""The `journal` commands with `--from`: some rows were refused, and all others are decided."""

OTHER_SCOPE = 4
"""The `journal` commands: the journal contains only keys in other scopes."""

OWED = 3
"""`journal recover`: an undo is still pending, or a record is corrupt."""

# --- event loop --------------------------------------------------------------------------------------

_GARBAGE_THRESHOLD = 10_000
"""The number of new objects after which Python collects garbage; Python's own default is 700.

An order in flight consists of about a hundred objects and leaves no reference cycle. With sixteen such
orders, Python would scan all their objects after every few orders. `gc.freeze` is no alternative:
`gc.unfreeze` would also release the objects that other code froze.
"""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a new event loop, and return its result."""
    usual = gc.get_threshold()
    gc.set_threshold(_GARBAGE_THRESHOLD, *usual[1:])
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*usual)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory, or None if uvloop is not installed."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


# --- signals -----------------------------------------------------------------------------------------
_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(do: Callable[[int], object]) -> Iterator[None]:
    """During the block, call ``do`` with the signal's number for each SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(do, number)

    # loop.add_signal_handler does not exist on Windows.
    before = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- stopping ----------------------------------------------------------------------------------------
# The first signal lets orders in flight end; the second cuts them off.


@define(eq=False)
class Stopping:
    """The signals that the run has received."""

    asked: asyncio.Event = field(factory=asyncio.Event, init=False)  # set by the first signal
    cut: asyncio.Event = field(factory=asyncio.Event, init=False)  # set by the second signal
    by: signal.Signals | None = field(default=None, init=False)  # the first signal

    def ask(self, number: int) -> None:
        """Handle a signal."""
        if self.by is None:
            self.by = signal.Signals(number)
            self.asked.set()
        else:
            self.cut.set()

    @property
    def exit_code(self) -> int | None:
        """Return 128 plus the number of the first signal, as shells do, or None if no signal was received."""
        return None if self.by is None else 128 + self.by

    async def unless_asked(self, work: Awaitable[T], *, twice: bool = False) -> T | None:
        """Return the result of ``work``. If a signal arrives first, cancel ``work`` and return None.

        If ``twice`` is true, only the second signal cancels ``work``.
        """
        event = self.cut if twice else self.asked
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for item in (task, asked):
                item.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM during the block."""
        if threading.current_thread() is not threading.main_thread():  # Python handles signals only there.
            yield
            return
        with on_signals(self.ask):
            yield
