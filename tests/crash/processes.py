"""Processes that are forked after all imports, and the channel to each of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import define
from typer.main import get_command

from tests.crash.setting import Place
from tests.crash.verdict import Report
from tests.mutation.in_process import plant_for_good
from transfer_async._cli import probe_run  # noqa: F401 - as LATER
from transfer_async._cli.app import app

LATER = ("cattrs", "tenacity", "uvloop", "typer._adapters")
"""What a command imports when it runs. It is imported here, so that not every forked process imports it."""

COMMANDS = get_command(app)

for name in LATER:
    with contextlib.suppress(ImportError):
        import_module(name)

LARGEST = 65_536
BROKEN = 70
"""The exit code of a process whose own code raised an error."""

LAST_WORDS = 30.0
"""Seconds in which a process must end when it is asked to stop."""

LOOK_EVERY = 0.003
"""Seconds between two checks of a process that is to be killed."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@define(eq=False)
class Child:
    """A child process.

    Args:
        pid: its process id.
        end: the parent's end of the channel.
        code: its exit code, or the negative number of the signal that ended it; None while it runs.
    """

    pid: int
    end: socket.socket
    code: int | None = None

    def tell(self, **message: Any) -> None:
        """Send a message. Do nothing if the process is dead."""
        with contextlib.suppress(OSError):  # the harness will notice the end of the process
            self.end.send(json.dumps(message).encode())

    def hear(self) -> dict[str, Any] | None:
        """Return the next message, or None if the process has ended."""
        while True:
            try:
                data = self.end.recv(LARGEST)
            # The process did not read all messages; those that it sent can still be read.
            except ConnectionResetError:
                continue
            if not data:
                self._bury()
            return json.loads(data) if data else None

    def send(self, number: int) -> None:
        """Send a signal if the process is running."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and wait until it has ended."""
        self.send(signal.SIGKILL)
        self._bury()

    def _bury(self) -> None:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.end.close()


def fork(run: Callable[[socket.socket], None]) -> Child:
    """Run a function in a child process, which ends together with this one.

    This process must have neither threads nor an event loop.
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
            # If a child inherited the channels of other children, their ends would go unnoticed.
            os.closerange(3, theirs.fileno())
            os.closerange(theirs.fileno() + 1, theirs.fileno() + 1000)
            # Otherwise, they would log every killed process at length.
            for name in ("transfer_async", "asyncpg"):
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
    """Yield one message of each child that sends one in time, or None for a child that has ended."""
    by_end = {child.end: child for child in children if child.code is None}
    for end in select.select(list(by_end), [], [], max(0.0, seconds))[0]:
        yield by_end[end], by_end[end].hear()


def await_end(child: Child, seconds: float) -> bool:
    """Return whether the process ends in time. If it does not, kill it."""
    until = time.monotonic() + seconds
    while child.code is None and time.monotonic() < until:
        for _ in listen([child], until - time.monotonic()):
            pass
    in_time = child.code is not None
    child.kill()
    return in_time


@define(kw_only=True)
class Runs:
    """Runs of one command: each is killed, until one is allowed to end by itself.

    Args:
        arguments: the arguments of the command.
        options: the options of the trial.
        report: receives the number of kills, and the errors of the trial.
        codes: the exit codes of a run that ends by itself.
        chance: draws the delay of each kill, because a kill may happen at any moment.
        until: the time of `time.monotonic` at which a run is killed in any case.
    """

    arguments: Sequence[str]
    options: Namespace
    report: Report
    codes: Collection[int]
    chance: random.Random
    until: float

    def kill(self, is_due: Callable[[], bool]) -> bool:
        """Kill a run soon after ``is_due`` is true. Return whether it was still running."""
        was_running = not self._ends_before(is_due)
        self.report.counts["kills"] += was_running
        return was_running

    def end(self) -> None:
        """Let a run end by itself."""
        if not self._ends_before(lambda: False):
            self.report.trouble("the last run did not end in time")

    def _ends_before(self, is_due: Callable[[], bool]) -> bool:
        child = fork(partial(command, arguments=self.arguments, fault=self.options.planted))
        while child.code is None and time.monotonic() < self.until and not is_due():
            list(listen([child], LOOK_EVERY))
        if child.code is None:
            time.sleep(self.chance.uniform(0, 0.02))
        child.kill()
        if child.code not in (-signal.SIGKILL, *self.codes):
            self.report.trouble(f"a run ended with {child.code}: {last_words()}")
        return child.code != -signal.SIGKILL


class ChangeCount:
    """Whether a file has changed a given number of times since this object was created."""

    def __init__(self, path: Path, changes: int = 1) -> None:
        self._path, self._left = path, changes
        self._seen = self._now()

    def __call__(self) -> bool:
        if (now := self._now()) != self._seen:
            self._seen, self._left = now, self._left - 1
        return self._left <= 0

    def _now(self) -> tuple[int, int] | None:
        """Return the time of the last change, and the size; None if the file does not exist."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size


@contextmanager
def beside(
    run: Callable[[socket.socket], None], what: str, trouble: Callable[[str], None]
) -> Iterator[Child]:
    """Run a process that is never killed. At the end of the block, it is asked to stop and must do so."""
    child = fork(run)
    try:
        yield child
    finally:
        child.tell(stop=True)
        if not await_end(child, LAST_WORDS):
            trouble(f"{what} did not end when asked to")
        elif child.code:
            trouble(f"{what} ended with {child.code}")


def command(_: socket.socket, *, arguments: Sequence[str], fault: str | None) -> None:
    """Run a command of the command line in this process."""
    plant_for_good(fault)
    log = os.open(Place.here().path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        COMMANDS(list(arguments))
    finally:
        sys.stdout.flush()


def as_options(settings: Mapping[str, object]) -> list[str]:
    """Return settings as command-line options."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def last_words() -> str:
    """Return the end of the log, or the last traceback in it."""
    return (
        Place.here().path("log").read_text(errors="replace", encoding="utf-8").split("Traceback")[-1][-2000:]
    )


class Channel:
    """The child's end of the channel."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    async def next(self) -> dict[str, Any] | None:
        """Return the next message, or None if the parent has closed the channel."""
        data = await asyncio.get_running_loop().sock_recv(self._end, LARGEST)
        return json.loads(data) if data else None

    def tell(self, **message: Any) -> None:
        """Send a message, which arrives even if this process dies immediately afterwards."""
        self._end.send(json.dumps(message).encode())
