"""One message through its whole life: carried out, its outcome published, then acknowledged; in this order.

Nothing here knows a broker. What a broker must be able to do is `Delivery`, and a way to publish. Whatever
fails, and wherever: a message whose outcome may not have been published is not acknowledged, so it comes
again, and is answered from the journal.

===========  ==========================================================================================
disposition  what is done
===========  ==========================================================================================
``ACK``      the outcome is published, and once the broker has confirmed that, the message acknowledged
``RETRY``    it is given back, to come again after the delay, and up to half as much more
``DEAD_LETTER``     a copy, with the reason, is put aside, and once that is confirmed, the message rejected
``LEAVE``    nothing is said: the broker delivers it again by itself
===========  ==========================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import JournalFailed, TransferError
from transfer_async._support.clock import Clock, Duration, Periodic
from transfer_async._support.util import MutableStruct, log, positive_seconds
from transfer_async.worker.disposition import Action, Disposition
from transfer_async.worker.handler import Handled, Handler

if TYPE_CHECKING:
    from aiohttp import web


Publish = Callable[[OrderOutcome, Mapping[str, str]], Awaitable[None]]
"""Publishes an outcome, with headers; returns once the broker has confirmed that it has it."""

Around = Callable[[Mapping[str, str]], AbstractContextManager[object]]
"""What a message is handled within, given its headers: a span of a trace, say."""

Inject = Callable[[], Mapping[str, str]]
"""The headers that carry what ``Around`` opened on to whoever reads the outcome."""

JITTER = 0.5
"""How much longer than asked a message waits at most, as a share: those that failed together come apart."""


class Delivery(Protocol):
    """One message, as its broker has delivered it, and what can be said of it to the broker."""

    @property
    def body(self) -> bytes:
        """What was sent."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent along with it."""

    @property
    def deliveries(self) -> int:
        """How often it has been delivered, this time included."""

    async def ack(self) -> None:
        """It is done with; returns once the broker has confirmed that."""

    async def retry(self, after: float) -> None:
        """Have it delivered again, but not before ``after`` seconds have passed."""

    async def dead_letter(self, reason: str) -> None:
        """Put a copy aside with ``reason``, and once the broker has it, reject the message."""

    async def beat(self) -> None:
        """Work on it goes on: it is not to be delivered to anybody else."""


class Worker:
    """Takes messages, one at each call of `take`; any number at once.

    Args:
        handler: carries their commands out.
        publish: publishes an outcome, see `Publish`.
        beat_every: seconds between two heart-beats while a message is worked on; well below the time
            after which its broker takes it for lost.
        health: is told what goes wrong, and what goes well again.
        around: what each message is handled within.
        inject: headers for the outcome, asked for within ``around``.
        clock: time, waiting and chance; for tests.

    Raises:
        ValueError: ``beat_every`` is no duration above 0.
    """

    def __init__(
        self,
        handler: Handler,
        publish: Publish,
        *,
        beat_every: Duration = 10.0,
        health: Health | None = None,
        around: Around | None = None,
        inject: Inject | None = None,
        clock: Clock | None = None,
    ) -> None:
        beat_every = positive_seconds("beat_every", beat_every)
        self._handler, self._publish = handler, publish
        self.health: Health = health or Health()
        self._around: Around = around or (lambda _: contextlib.nullcontext())
        self._inject: Inject = inject or dict
        self._clock = clock or Clock()
        self._heartbeats = Heartbeats(every=beat_every, clock=self._clock)
        self._resumes = float("-inf")

    async def take(self, delivery: Delivery) -> None:
        """See one message through; whatever fails is logged, and leaves it to come again.

        Raises:
            asyncio.CancelledError: the caller was cancelled: nothing was said to the broker.
        """
        try:
            with self._around(delivery.headers):
                await self._see_through(delivery)
        except Exception as error:  # noqa: BLE001 - the message comes again, and so must the next one
            # Without its text or a traceback, which may tell of people.
            log.error("a message was left to come again (%s)", type(error).__name__)

    async def ready(self) -> None:
        """Return once it makes sense to take another message.

        While no command could fare well, as with a token that has run out, messages stay in their queue
        for the delay that the last of them was given, in place of being tried one after the other.
        """
        while self.pause > 0:
            await self._clock.sleep(self.pause)

    @property
    def pause(self) -> float:
        """Seconds until `ready` returns."""
        return max(0.0, self._resumes - self._clock.now())

    async def _see_through(self, delivery: Delivery) -> None:
        async with self._heartbeats.of(delivery):
            handled = await self._handler.handle(delivery.body, deliveries=delivery.deliveries)
            what = handled.disposition
            self._note(handled)
            if what.action is Action.ACK:
                await self._told(handled)
        await self._answer(delivery, what)

    async def _told(self, handled: Handled) -> None:
        if handled.outcome is None:
            raise RuntimeError("a message is not acknowledged without an outcome")
        try:
            await self._publish(handled.outcome, self._inject())
        except Exception as error:
            self.health.trouble("publishing", f"an outcome could not be published ({type(error).__name__})")
            raise
        self.health.well("publishing")

    async def _answer(self, delivery: Delivery, what: Disposition) -> None:
        match what.action:
            case Action.ACK:
                await delivery.ack()
            case Action.RETRY:
                log.info("a message will come again in %.1f s: %s", what.after, what.reason)
                await delivery.retry(what.after * (1 + JITTER * self._clock.chance()))
            case Action.DEAD_LETTER:
                log.warning("a message is dead-lettered: %s", what.reason)
                await delivery.dead_letter(what.reason)
            case Action.LEAVE:
                log.warning("a message is left to come again: %s", what.reason)

    def _note(self, handled: Handled) -> None:
        what = handled.disposition
        if isinstance(handled.result, JournalFailed):
            why = f"{what.reason} ({handled.result})"
            if self.health.trouble("journal", why):
                log.warning("the journal cannot be used: %s", why)
        elif handled.key is not None and what.action is Action.ACK:
            self.health.well("journal")
        if not what.ready:
            self.health.trouble("service", what.reason)
            self._resumes = self._clock.now() + what.after
        elif handled.asked and what.action is Action.ACK:  # an answer from the record says nothing of today
            self.health.well("service")
            self._resumes = float("-inf")


# --- heartbeats --------------------------------------------------------------------------------------
# Signs of life for the messages in hand, so that their broker gives none of them to anybody else.


class Beating(Protocol):
    """What can give a sign of life."""

    async def beat(self) -> None:
        """Work on it goes on: it is not to be delivered to anybody else."""


class Heartbeats:
    """One task for all messages in hand: each is beaten for every so many seconds, or sooner.

    Args:
        every: seconds between two beats.
        clock: of the waiting.
    """

    def __init__(self, *, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._in_hand: set[InHand] = set()
        self._ticking: asyncio.Task[None] | None = None

    def of(self, message: Beating) -> InHand:
        """Beat for ``message`` as long as this is open, and not after."""
        return InHand(self, message.beat)

    def begin(self, one: InHand) -> None:
        """Beat for ``one`` from the next time on."""
        self._in_hand.add(one)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._ticks().run())

    def end(self, one: InHand) -> None:
        """Beat for it no more."""
        self._in_hand.discard(one)
        if not self._in_hand and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _ticks(self) -> Periodic:
        return Periodic(
            self._beat_all,
            every=self._every,
            first=self._every,
            until=lambda: False,
            failed=_beat_failed,
            clock=self._clock,
        )

    async def _beat_all(self) -> None:
        for item in self._in_hand:
            # One that hangs keeps none of the others waiting.
            if item.under_way is None or item.under_way.done():
                item.under_way = asyncio.create_task(_beaten(item.beat))


class InHand(MutableStruct):
    """One message, and its sign of life that is on the way."""

    heartbeats: Heartbeats
    beat: Callable[[], Awaitable[None]]
    under_way: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self.heartbeats.begin(self)

    async def __aexit__(self, *exc: object) -> None:
        self.heartbeats.end(self)
        if self.under_way is not None:
            self.under_way.cancel()
            await asyncio.wait([self.under_way])


async def _beaten(beat: Callable[[], Awaitable[None]]) -> None:
    try:
        await beat()
    except Exception as error:  # noqa: BLE001 - the work goes on anyhow
        _beat_failed(error)


def _beat_failed(error: Exception) -> None:
    log.warning("a heart-beat did not arrive (%s)", type(error).__name__)


# --- health ------------------------------------------------------------------------------------------
# Whether a worker lives, and whether it could take a message now: for whoever starts and restarts it.


Check = Callable[[], Awaitable[object]]
"""Looks whether something is in order, and raises if not."""

PATIENCE = 2.0
"""Seconds that a look may take."""


class Health:
    """What troubles a worker: what it has been told, and what it sees when it looks.

    Args:
        checks: looks to be had whenever somebody asks, by what they look at.
        patience: seconds that each may take.
    """

    def __init__(self, checks: Mapping[str, Check] | None = None, *, patience: float = PATIENCE) -> None:
        self.checks: dict[str, Check] = dict(checks or {})
        self._patience = patience
        self._troubles: dict[str, str] = {}
        self._ended: str | None = None

    def trouble(self, what: str, why: str) -> bool:
        """Not ready, because of ``what``, until that is `well`; whether this is news."""
        before = self._troubles.get(what)
        self._troubles[what] = why
        return before != why

    def well(self, what: str) -> bool:
        """``what`` is in order; whether this is news."""
        return self._troubles.pop(what, None) is not None

    def ended(self, why: str) -> None:
        """It lives no more: nothing but a new start helps."""
        self._ended = why

    def not_live(self) -> list[str]:
        """Why it lives no more; empty if it does."""
        return [] if self._ended is None else [self._ended]

    async def not_ready(self) -> list[str]:
        """Why it could not take a message now; empty if it could."""
        found = await asyncio.gather(*(self._look(name, check) for name, check in self.checks.items()))
        troubles = [f"{what}: {why}" for what, why in self._troubles.items()]
        return self.not_live() + troubles + [item for item in found if item is not None]

    async def _look(self, name: str, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            # The text of one of the package's own names nobody; another's may hold anything.
            why = str(error) if isinstance(error, TransferError) else type(error).__name__
            return f"{name}: {why}"
        return None

    @asynccontextmanager
    async def served(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Answer ``GET /live`` and ``GET /ready`` with 200, or 503 and the reasons; gives the address.

        Raises:
            OSError: the address is not to be had.
        """
        from aiohttp import web  # 30 ms, and only a worker serves

        app = web.Application()
        app.add_routes([web.get("/live", self._live), web.get("/ready", self._ready)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _answer("live", self.not_live())

    async def _ready(self, _: web.Request) -> web.Response:
        return _answer("ready", await self.not_ready())


def _answer(name: str, why: list[str]) -> web.Response:
    from aiohttp import web  # see `Health.served`

    body = msgspec.json.encode({name: not why, "why": why})
    return web.Response(body=body, status=503 if why else 200, content_type="application/json")
