"""Processes made by forking one that has imported everything, and the channel that each has to it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

LARGEST = 65_536
BROKEN = 70
"""The exit code of a process whose own code failed."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def fork(run: Callable[[socket.socket], None]) -> tuple[int, socket.socket]:
    """Run a function in a process of its own that dies with this one; its id and the way to it.

    This process must have neither threads nor a loop.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    code = BROKEN
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            # What it inherits of others' channels would keep them from noticing each other's end.
            os.closerange(3, theirs.fileno())
            os.closerange(theirs.fileno() + 1, theirs.fileno() + 1000)
            for name in ("transfer_async", "asyncpg"):  # they tell of every death at length
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            run(theirs)
            code = 0
    except BaseException:  # noqa: BLE001 - there is nobody above
        traceback.print_exc()
    finally:
        os._exit(code)


class Channel:
    """The child's side: messages come one by one, and are sent at once."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    async def next(self) -> dict[str, Any] | None:
        """The next message, or None when there will be none."""
        data = await asyncio.get_running_loop().sock_recv(self._end, LARGEST)
        return json.loads(data) if data else None

    def tell(self, **message: Any) -> None:
        """Send a message: it arrives even if this process dies now."""
        self._end.send(json.dumps(message).encode())


def hear(end: socket.socket) -> dict[str, Any] | None:
    """The parent's side: a message that waits, or None when there will be none."""
    while True:
        try:
            data = end.recv(LARGEST)
        except ConnectionResetError:  # it left messages unread; its own are still there
            continue
        return json.loads(data) if data else None


def tell(end: socket.socket, **message: Any) -> None:
    """Send a message to a process that may be dead."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end will be noticed
        end.send(json.dumps(message).encode())
