"""Where a client is at home: the process and the event loop in which it was first used.

Its connections are watched by that loop alone. In another one they seem dead, and every call would end
as if the network were down; in a forked process they are shared with the parent, and what is said on
them is heard by either of the two.
"""

from __future__ import annotations

import asyncio
import os

_FORKED = (
    "the client was used before a fork, and its connections are the parent's: make a client in each process"
)
_OTHER_LOOP = (
    "the client belongs to another event loop, the one in which it was first used: make a client for each "
    "loop and thread (asyncio.run begins a new loop each time), or hand the call to the client's own "
    "(asyncio.run_coroutine_threadsafe)"
)


class Home:
    """The process and the loop of one client; nowhere until it is used."""

    __slots__ = ("_loop", "_process")

    def __init__(self) -> None:
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one in which it is at home."""
        return self._loop is not None and self._process != os.getpid()

    @property
    def is_gone(self) -> bool:
        """Whether its loop has ended, so that nothing goes on there any more."""
        return self._loop is not None and self._loop.is_closed()

    def elsewhere(self) -> str | None:
        """Why it cannot be used here, and what to do; None if it can. The first time, it settles here."""
        if self._loop is None:
            self._process, self._loop = os.getpid(), asyncio.get_running_loop()
            return None
        if self._process != os.getpid():  # there may be no running loop then
            return _FORKED
        return None if self._loop is asyncio.get_running_loop() else _OTHER_LOOP
