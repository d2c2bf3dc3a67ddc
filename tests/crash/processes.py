"""Processes made by forking one that has imported everything, the channel to each, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define

from tests.crash.setting import Place
from tests.mutation.in_process import plant_for_good

LARGEST = 65_536
BROKEN = 70
"""The exit code of a process whose own code failed."""

LAST_WORDS = 30.0
"""Seconds that a process gets to come to its end when told to."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@define(eq=False)
class Child:
    """A process, as the one that made it sees it.

    Args:
        pid: its process.
        end: the way to it.
        code: how it ended: its exit code, or the signal with a minus; None while it lives.
    """

    pid: int
    end: socket.socket
    code: int | None = None

    def tell(self, **message: Any) -> None:
        """Send a message to a process that may be dead."""
        with contextlib.suppress(OSError):  # its end will be noticed
            self.end.send(json.dumps(message).encode())

    def hear(self) -> dict[str, Any] | None:
        """The next message, or None when there will be none: it has ended."""
        while True:
            try:
                data = self.end.recv(LARGEST)
            except ConnectionResetError:  # it left messages unread; its own are still there
                continue
            if not data:
                self._bury()
            return json.loads(data) if data else None

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it now, whatever it is doing."""
        self.send(signal.SIGKILL)
        self._bury()

    def _bury(self) -> None:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.end.close()


def fork(run: Callable[[socket.socket], None]) -> Child:
    """Run a function in a process of its own, that dies with this one.

    This process must have neither threads nor a loop.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(pid, ours)
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
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - there is nobody above
        traceback.print_exc()
    finally:
        os._exit(code)


def listen(children: Collection[Child], seconds: float) -> Iterator[tuple[Child, dict[str, Any] | None]]:
    """What those say who say something within that time; None: somebody has ended."""
    by_end = {child.end: child for child in children if child.code is None}
    for end in select.select(list(by_end), [], [], max(0.0, seconds))[0]:
        yield by_end[end], by_end[end].hear()


def await_end(child: Child, seconds: float) -> bool:
    """Whether it comes to its end in that time; if not, it is killed."""
    until = time.monotonic() + seconds
    while child.code is None and time.monotonic() < until:
        for _ in listen([child], until - time.monotonic()):
            pass
    in_time = child.code is not None
    child.kill()
    return in_time


@contextmanager
def beside(run: Callable[[socket.socket], None], what: str, troubles: list[str]) -> Iterator[Child]:
    """A process to which nothing ever happens; it is told to stop in the end, and must do so."""
    child = fork(run)
    try:
        yield child
    finally:
        child.tell(stop=True)
        if not await_end(child, LAST_WORDS):
            troubles.append(f"{what} did not come to its end when told to")
        elif child.code:
            troubles.append(f"{what} ended with {child.code}")


def command(_: socket.socket, *, words: Sequence[str], fault: str | None) -> None:
    """What a process does that carries out one of our commands, as anybody calls it."""
    from transfer_async._cli.app import app  # with all that a forked process finds imported

    plant_for_good(fault)
    log = os.open(Place.here().path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for said in (1, 2):
        os.dup2(log, said)
    try:
        app(list(words))
    finally:
        sys.stdout.flush()


def as_options(settings: Mapping[str, object]) -> list[str]:
    """Settings as a command takes them."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def last_words() -> str:
    """What the last command said before its end, or why it failed."""
    return (
        Place.here().path("log").read_text(errors="replace", encoding="utf-8").split("Traceback")[-1][-2000:]
    )


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
