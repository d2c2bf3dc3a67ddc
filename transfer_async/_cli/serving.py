"""The sandbox as a service of its own, until somebody stops it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from transfer_async._cli.running import Say
from transfer_async.sandbox import Sandbox

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_requests = logging.getLogger("transfer_async.sandbox")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def serve(sandbox: Sandbox, *, say: Say, log: Say) -> None:
    """Serve until SIGINT or SIGTERM, then close whatever is open.

    Args:
        sandbox: not yet entered.
        say: takes the lines at the start, and the one at the end.
        log: takes one line a request.

    Raises:
        OSError: the address is not to be had.
    """
    stop = asyncio.Event()
    with _stopped_by_signals(stop), _logged(log):
        async with sandbox:
            for line in announcement(sandbox):
                say(line)
            await stop.wait()
    say("sandbox stopped")


def announcement(sandbox: Sandbox) -> list[str]:
    """What somebody needs to use ``sandbox``, the exports to be pasted into a shell."""
    return [
        f"sandbox listening on {sandbox.base_url}, until Ctrl-C",
        f"token {sandbox.token}",
        f"export TRANSFER_BASE_URL={shlex.quote(sandbox.base_url)}",
        f"export TRANSFER_API_TOKEN={shlex.quote(sandbox.token)}",
    ]


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    # Not loop.add_signal_handler, which Windows does not have.
    before = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Lines(logging.Handler):
    """Hands every record on as a line."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(self.format(record))
        except Exception:  # noqa: BLE001 - as logging's own handlers: a log line never hurts the work
            self.handleError(record)


@contextmanager
def _logged(say: Say) -> Iterator[None]:
    lines, level = _Lines(say), _requests.level
    _requests.addHandler(lines)
    _requests.setLevel(logging.INFO)
    try:
        yield
    finally:
        _requests.removeHandler(lines)
        _requests.setLevel(level)
