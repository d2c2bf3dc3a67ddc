"""The messages of one pull consumer of JetStream, for any number of lanes: they ask together.

The client's own ``fetch`` sends a request for each message; or, asked for several, it keeps the first waiting
for the last. Here each lane is given a message as soon as one comes, and lanes that become free at about the
same time share a request. Never is more asked for than there are lanes that wait: what is not worked on is
not fetched. What comes all the same, as its lane has ended meanwhile, is given back at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.msg import Msg

SHARE, LONGEST = 0.25, 0.05
"""How long a lane waits for others before it asks: a part of what a message takes, and seconds at most.

Orders that begin together share their commits, and those are half of the work. No message waits for this as
long as another lane has nothing to do: that one's request is at the server.
"""

REMEMBERED = 16
"""Of how many messages the time that one takes is about the mean."""

LATE = 0.5
"""Seconds that the server may take, beyond the time that it was given, to say that there was nothing."""

_EXPIRED = "408"
_NOT_YET = ""


class SharedPull:
    """Asks one consumer for as many messages as there are lanes that wait.

    Args:
        connection: of the client's.
        address: where requests for the consumer's messages go, as it is now.

    Attributes:
        lanes: how many there are; once all of them wait, there is nobody left to wait for.
    """

    def __init__(self, connection: Any, address: Callable[[], str]) -> None:
        self.connection: Any = connection
        self._address = address
        self._inbox: str = connection.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[asyncio.Future[Msg | None], str] = {}
        """Those that wait, the one that has waited longest first; and where its request is answered."""
        self.lanes: int = 0
        self._patience = self._usual = 0.0
        self._asking: asyncio.TimerHandle | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Hear what the server sends, until the connection ends."""
        await self.connection.subscribe(f"{self._inbox}.*", cb=self._came)

    async def next(self, patience: float) -> Msg | None:
        """The next message; None if none came in ``patience`` seconds, which is the same for all lanes.

        Raises:
            ConnectionError: the consumer is gone, or the server gives nothing for another reason.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Msg | None] = loop.create_future()
        self._waiting[waiter], self._patience = _NOT_YET, patience
        if len(self._waiting) >= self.lanes:
            self._ask()
        elif self._asking is None:
            self._asking = loop.call_later(min(SHARE * self._usual, LONGEST), self._ask)
        # A connection that breaks takes the request along, and nothing is heard of it.
        too_late = loop.call_later(patience + LATE, _end, waiter)
        try:
            return await waiter
        finally:
            too_late.cancel()
            self._waiting.pop(waiter, None)

    def note(self, seconds: float) -> None:
        """So long did it take until a lane was done with a message."""
        self._usual += (seconds - self._usual) / REMEMBERED

    def _ask(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        new = [waiter for waiter, reply in self._waiting.items() if reply == _NOT_YET]
        # While there is no connection requests would heap up, and all be answered when it is back.
        if not new or not self.connection.is_connected:
            return
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._waiting |= dict.fromkeys(new, reply)
        request = asyncio.create_task(self._request(len(new), reply))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _request(self, wanted: int, reply: str) -> None:
        asked = json.dumps({"batch": wanted, "expires": int(self._patience * 1e9)})
        try:
            await self.connection.publish(self._address(), asked.encode(), reply=reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
            self._end_all(reply, error)

    async def _came(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status == _EXPIRED:
            self._end_all(message.subject)
        elif status is not None:
            why = f"the consumer gives nothing (status {status})"
            self._end_all(message.subject, ConnectionError(why))
        elif not self._give(message):
            await message.nak()

    def _give(self, message: Msg) -> bool:
        """Give ``message`` to whoever has waited longest, as the server does; false if nobody waits."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(message)
                del self._waiting[waiter]
                return True
        return False

    def _end_all(self, reply: str, error: Exception | None = None) -> None:
        """End the waiting of those whose request is answered at ``reply``."""
        for waiter, asked in self._waiting.items():
            if asked == reply:
                _end(waiter, error)


def _end(waiter: asyncio.Future[Msg | None], error: Exception | None = None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class PullingLane:
    """One lane, as a worker sees a subscriber of FastStream's.

    Args:
        pull: gives what all lanes share.
    """

    def __init__(self, pull: Callable[[], Awaitable[SharedPull]]) -> None:
        self._shared = pull
        self._pull: SharedPull | None = None
        self._given_at: float | None = None

    async def start(self) -> None:
        """Have what all lanes share opened; it ends with the connection."""
        self._pull = await self._shared()
        self._pull.lanes += 1

    async def stop(self) -> None:
        """Be a lane no more."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.lanes -= 1

    async def get_one(self, *, timeout: float) -> Msg | None:  # noqa: ASYNC109 - as FastStream's are called
        """The next message; None if none came in that many seconds."""
        assert self._pull is not None  # noqa: S101 - it was started
        if self._given_at is not None:
            self._pull.note(time.monotonic() - self._given_at)
        message = await self._pull.next(timeout)
        self._given_at = None if message is None else time.monotonic()
        return message
