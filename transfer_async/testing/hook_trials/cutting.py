"""Cutting a coroutine off at the await that one names: while it waits, or when it has just had its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class Cut:
    """Where to cut.

    Args:
        at: at which await, from 1.
        acted: what is awaited comes to its end first, and only its answer is lost; else it is cut as it
            waits.
    """

    at: int
    acted: bool

    def __str__(self) -> str:
        when = "once it was answered" if self.acted else "while it waited"
        return f"cancelled at await {self.at}, {when}"


class Cuttable(Generic[T]):
    """``work``, cancelled at ``cut`` as a time-out would cancel it; await it once, in a task of its own.

    Attributes:
        awaits: how often it has waited for something.
    """

    def __init__(self, work: Awaitable[T], cut: Cut) -> None:
        self._work, self._cut = work, cut
        self.awaits: int = 0

    @property
    def was_cut(self) -> bool:
        """Whether it came as far as that."""
        return self.awaits >= self._cut.at

    def __await__(self) -> Generator[Any, Any, T]:
        """Hand on what the work waits for, and whatever comes back."""
        steps = self._work.__await__()
        answer, error = None, None
        while True:
            try:
                waits_for = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # a generator's value is not typed
            self.awaits += 1
            here = self.awaits == self._cut.at
            if here and not self._cut.acted:
                _this_task().cancel()
            answer, error = None, None
            try:
                answer = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the work's own, a cancellation most of all
                error = thrown
            if here and self._cut.acted:
                error = asyncio.CancelledError()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    return task
