"""Who may stop a call, and when: where nothing is lost by it, or when the client closes."""

from __future__ import annotations

import asyncio
from typing import Any

from transfer_async._http.write_guard import GuardedBody
from transfer_async._support.state import State


class Cancellation(State, kw_only=True):
    """Whether the work in one task goes on when nobody waits for it any more.

    Args:
        task: that carries the call; None where the caller's own does (`recover`).
        is_stoppable: it is in a stretch of `stoppable`.
        on_the_way: the body of the exchange that is under way right now.
        sent: an exchange that handed its body over has ended.
        abandoned: nobody waits any more, or the client closes.
        cut: the client closes and will wait no longer.
    """

    task: asyncio.Task[Any] | None = None
    is_stoppable: bool = False
    on_the_way: GuardedBody | None = None
    sent: bool = False
    abandoned: bool = False
    cut: bool = False

    def stoppable(self) -> Stoppable:
        """A stretch in which nothing is lost if the call stops: a hook, a pause, somebody's answer."""
        return Stoppable(self)

    @property
    def may_have_been_sent(self) -> bool:
        """Whether any body was handed over; until then a caller that is cancelled waits for the undoing."""
        return self.sent or (self.on_the_way is not None and self.on_the_way.handed_over)

    def abandon(self) -> None:
        """Nobody waits any more: begin nothing new, and stop where nothing is lost by it."""
        self.abandoned = True
        waiting = self.on_the_way is not None and not self.on_the_way.handed_over
        if self.on_the_way is not None and waiting:
            self.on_the_way.spent = True  # for a connection: it will not be sent on the one it gets
        if self.task is not None and (self.is_stoppable or waiting):
            self.is_stoppable = False
            self.task.cancel()

    def cut_off(self) -> None:
        """The client closes: even a request on the way is given up, and goes into doubt."""
        self.cut = True
        handed_over = self.on_the_way is not None and self.on_the_way.handed_over
        self.abandon()
        if handed_over and self.task is not None:
            self.task.cancel()

    def swallow(self) -> None:
        """The cancellation that came has been understood; what remains to be done is done undisturbed.

        Raises:
            asyncio.CancelledError: there is no task of its own, and it was the caller's.
        """
        if self.task is not None:
            if self.task.cancelling():
                self.task.uncancel()
        elif (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError


class Stoppable:
    """See `Cancellation.stoppable`.

    Raises:
        asyncio.CancelledError: on entering, if the call was abandoned before.
    """

    __slots__ = ("_cancellation",)

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation

    def __enter__(self) -> None:
        if self._cancellation.abandoned:
            raise asyncio.CancelledError
        self._cancellation.is_stoppable = True

    def __exit__(self, *exc: object) -> None:
        self._cancellation.is_stoppable = False
