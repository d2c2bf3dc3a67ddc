"""A sandbox with its own thread and event loop, for sync tests and for async tests on any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Self, TypeVar

from transfer_async.sandbox import (
    FAULTS,
    AnotherOrder,
    CloseAfterProcessing,
    CloseBeforeReading,
    CompressedHugeBody,
    Fault,
    GarbageBody,
    HugeBody,
    Redirect,
    ResetAfterProcessing,
    Sandbox,
    SlowBytes,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    TruncatedHead,
    UnsolicitedReply,
    WrongTypes,
)

T = TypeVar("T")


class RunningSandbox(Sandbox):
    """A `Sandbox` that runs in its own thread: ``with RunningSandbox() as sandbox:``.

    Use a `RunningSandbox` in sync tests, or in async tests on any event loop. An async test awaits the
    methods, as in ``await sandbox.received(1)``. A sync test passes the coroutines to `wait`:
    ``sandbox.wait(sandbox.received(1))``.

    Read ``requests`` and ``orders`` only while no request is in progress, because the sandbox's thread
    changes them.

    Args:
        settings: the arguments of `Sandbox`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Future[None] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)

    def __enter__(self) -> Self:
        """Start the sandbox and wait until it listens.

        Raises:
            OSError: the address is not available.
        """
        self._thread.start()
        self._listening.result()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None  # noqa: S101 - `__enter__` set it
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._listening.set_exception(error)  # `__enter__` raises the error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self:
            self._listening.set_result(None)
            await self._ended.wait()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's event loop and return its result. Use `wait` in sync code.

        Args:
            work: the coroutine of an async method, such as ``sandbox.received(1)``.

        Raises:
            RuntimeError: the sandbox is not running.
        """
        return asyncio.run_coroutine_threadsafe(work, self._own_loop(work)).result()

    async def match_now(self) -> list[str]:
        """See `Sandbox.match_now`."""
        return await self._there(super().match_now())

    async def received(self, count: int = 1) -> None:
        """See `Sandbox.received`."""
        await self._there(super().received(count))

    async def finished(self, count: int = 1) -> None:
        """See `Sandbox.finished`."""
        await self._there(super().finished(count))

    async def stalled(self, count: int = 1) -> None:
        """See `Sandbox.stalled`."""
        await self._there(super().stalled(count))

    async def created(self, count: int = 1) -> None:
        """See `Sandbox.created`."""
        await self._there(super().created(count))

    async def matched(self, order_id: str) -> None:
        """See `Sandbox.matched`."""
        await self._there(super().matched(order_id))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._own_loop(work)
        if loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _own_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError("the sandbox is not running: use it as `with RunningSandbox() as sandbox:`")
        return self._loop


# --- each fault --------------------------------------------------------------------------------------
# The faults that the marker ``transfer_faults`` uses by default.


_TOO_MUCH = 3 << 20  # bytes, more than a client reads by default

EACH_FAULT: Mapping[str, Fault] = MappingProxyType(
    {
        "close-before-reading": CloseBeforeReading(),
        "close-after-processing": CloseAfterProcessing(),
        "reset-after-processing": ResetAfterProcessing(),
        "status-401": Status(401),
        "status-422": Status(422),
        "status-429": Status(429),
        "status-500": Status(500),
        "status-503": Status(503),
        "status-503-after-processing": StatusAfterProcessing(503),
        "redirect": Redirect(),
        "truncated-head": TruncatedHead(),
        "truncated-body": TruncatedBody(),
        "garbage-body": GarbageBody(),
        "wrong-types": WrongTypes(),
        "another-order": AnotherOrder(),
        "slow-bytes": SlowBytes(delay=0.0, size=1024),
        "huge-body": HugeBody(_TOO_MUCH),
        "compressed-huge-body": CompressedHugeBody(_TOO_MUCH),
        "unsolicited-reply": UnsolicitedReply(),
    }
)
"""The sandbox's faults by name, without those that last until the client times out.

These are the stalls and ``broken-chunk``. To use one, pass its name to the marker, as in
``transfer_faults("stall-after-processing")``, and set short timeouts on the client.
"""


def named_faults(wanted: Iterable[str | Fault]) -> dict[str, Fault]:
    """Return the faults in a marker's arguments, in order, or all of `EACH_FAULT` if there are none.

    Args:
        wanted: the marker's arguments: faults, or names from `EACH_FAULT` or the sandbox's ``FAULTS``.

    Raises:
        ValueError: a name is not the name of a fault.
    """
    found = dict(map(_with_name, wanted))
    return found or dict(EACH_FAULT)


def _with_name(wanted: str | Fault) -> tuple[str, Fault]:
    if isinstance(wanted, Fault):
        return repr(wanted), wanted
    if wanted in EACH_FAULT:
        return wanted, EACH_FAULT[wanted]
    if wanted in FAULTS and wanted not in (Status.name, StatusAfterProcessing.name):
        return wanted, FAULTS[wanted]()
    raise ValueError(f"unknown fault {wanted!r}: use one of {', '.join((*EACH_FAULT, *FAULTS))}")
