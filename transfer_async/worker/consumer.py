"""One message through its whole life: carried out, its outcome published, then acknowledged; in this order.

Nothing here knows a broker. What a broker must be able to do is `Delivery`, and a way to publish. Whatever
fails, and wherever: a message whose outcome may not have been published is not acknowledged, so it comes
again, and is answered from the journal.

===========  ==========================================================================================
disposition  what is done
===========  ==========================================================================================
``ACK``      the outcome is published, and once the broker has confirmed that, the message acknowledged
``RETRY``    it is given back, to come again after the delay, and up to half as much more
``PARK``     a copy, with the reason, is put aside, and once that is confirmed, the message rejected
``LEAVE``    nothing is said: the broker delivers it again by itself
===========  ==========================================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import JournalFailed
from transfer_async._support.clock import Clock, Duration
from transfer_async._support.log import log
from transfer_async._support.validators import positive_seconds
from transfer_async.worker.disposition import Action, Disposition
from transfer_async.worker.handler import Handled, Handler
from transfer_async.worker.health import Health
from transfer_async.worker.heartbeats import Heartbeats

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

    async def park(self, reason: str) -> None:
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
            case Action.PARK:
                log.warning("a message is parked: %s", what.reason)
                await delivery.park(what.reason)
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
