"""How a command runs: on uvloop where that is installed, and quietly on asyncio's own loop elsewhere."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Say = Callable[[str], object]
"""Writes one line."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on a loop of its own, and give back what it returns."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops: uvloop, or None for asyncio's own."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def shown(text: str | None) -> str:
    """``text`` from elsewhere, fit for a terminal: nothing that moves its cursor or starts a line."""
    if text is None:
        return "-"
    return "".join(one if one.isprintable() else "?" for one in text)


def shown_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def shown_json(text: str) -> str:
    """JSON, fit for a terminal: it says the same, with what would move the cursor escaped."""
    # Outside its strings there is nothing to escape but the ends of lines.
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one).removeprefix('"').removesuffix('"')
        for one in text
    )
