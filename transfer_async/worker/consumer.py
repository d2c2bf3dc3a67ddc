"""Process one message: carry out its command, publish the outcome, then acknowledge, in this order.

This module works with any broker that offers a `Delivery` and a way to publish. Wherever a failure
happens, a message is acknowledged only after its outcome was published. Otherwise the broker delivers
it again, and the journal supplies the outcome.

===============  =====================================================================================
disposition      action
===============  =====================================================================================
``ACK``          publish the outcome; after the broker's confirmation, acknowledge the message
``RETRY``        ask for redelivery after the delay, plus up to half of it at random
``DEAD_LETTER``  store a copy with the reason; after the broker's confirmation, reject the message
``LEAVE``        do nothing: the broker redelivers the message by itself
===============  =====================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from transfer_async._client import context_of
from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import JournalFailed, TransferError
from transfer_async._pipeline.recovery import Recovery, RecoveryReport
from transfer_async._support.clock import Clock, Duration, Periodic
from transfer_async._support.util import log, positive_seconds
from transfer_async.worker.disposition import Action, Disposition
from transfer_async.worker.handler import Handled, Handler

if TYPE_CHECKING:
    from aiohttp import web


Publish = Callable[[OrderOutcome, Mapping[str, str]], Awaitable[None]]
"""Publish an outcome with headers, and return after the broker's confirmation."""

Around = Callable[[Mapping[str, str]], AbstractContextManager[object]]
"""Return the context manager that surrounds the handling of a message with these headers, such as a span."""

Inject = Callable[[], Mapping[str, str]]
"""Return headers for the outcome, such as the trace context that ``Around`` opened."""


class Measure(Protocol):
    """Record one delivery that a worker has processed, for example as metrics."""

    def __call__(self, *, disposition: str, deliveries: int, seconds: float) -> object:
        """Record it.

        Args:
            disposition: the value of its `Action`; `FAILED` after an error, so that the broker redelivers it.
            deliveries: the number of deliveries of the message, including this one.
            seconds: the time from its delivery to the broker's confirmation.
        """


FAILED = "failed"
"""The disposition of a delivery that ended in an error."""

JITTER = 0.5
"""The largest random addition to a delay, as a share of it, so that messages that failed together spread."""


class Delivery(Protocol):
    """One delivered message, and the replies that its broker accepts."""

    @property
    def body(self) -> bytes:
        """The message's body."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""

    @property
    def deliveries(self) -> int:
        """The number of deliveries of this message, including this one."""

    async def ack(self) -> None:
        """Acknowledge the message, and return after the broker's confirmation."""

    async def retry(self, after: float) -> None:
        """Ask for redelivery in ``after`` seconds or later."""

    async def dead_letter(self, reason: str) -> None:
        """Store a copy with ``reason``; after the broker's confirmation, reject the message."""

    async def beat(self) -> None:
        """Send a heartbeat, so that the broker does not deliver the message to another worker."""


class Worker:
    """Process messages. Each call of `take` processes one; calls may run concurrently.

    Args:
        handler: carries out the commands.
        publish: publishes an outcome, see `Publish`.
        beat_every: seconds between two heartbeats of a message in progress. Choose it well below the
            time after which the broker redelivers a message.
        health: records failures and recoveries.
        around: surrounds the handling of each message, see `Around`.
        inject: returns headers for the outcome; called within ``around``.
        measure: records each delivery that was processed, see `Measure`.
        clock: time, sleeping and randomness; for tests.

    Raises:
        ValueError: ``beat_every`` is not a duration above 0.
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
        measure: Measure | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._beat_every = positive_seconds("beat_every", beat_every)
        self._handler, self._publish = handler, publish
        self.health: Health = health or Health()
        self._around: Around = around or (lambda _: contextlib.nullcontext())
        self._inject: Inject = inject or dict
        self._measure = measure
        self._clock = clock or Clock()
        self._resumes = float("-inf")

    async def take(self, delivery: Delivery) -> None:
        """Process one message. An error is logged, and the broker redelivers the message.

        Raises:
            asyncio.CancelledError: the caller was cancelled. The broker received no reply.
        """
        began, disposition = self._clock.now(), FAILED
        try:
            with self._around(delivery.headers):
                disposition = (await self._process(delivery)).value
        except Exception as error:  # noqa: BLE001 - this message is redelivered; the next one must not suffer
            # The error's text and traceback may contain personal data.
            log.error("a message failed and will be redelivered (%s)", type(error).__name__)
        self._record(delivery, disposition, seconds=self._clock.now() - began)

    def _record(self, delivery: Delivery, disposition: str, *, seconds: float) -> None:
        try:
            if self._measure is not None:
                self._measure(disposition=disposition, deliveries=delivery.deliveries, seconds=seconds)
        except Exception as error:  # noqa: BLE001 - the message is processed already
            log.warning("a processed message could not be measured (%s)", type(error).__name__)

    async def ready(self) -> None:
        """Wait until the worker should take another message.

        While no command can succeed, for example with an expired token, this waits for the delay of the
        last message. The other messages stay in the queue in the meantime.
        """
        while self.pause > 0:
            await self._clock.sleep(self.pause)

    @property
    def pause(self) -> float:
        """Seconds until `ready` returns."""
        return max(0.0, self._resumes - self._clock.now())

    async def _process(self, delivery: Delivery) -> Action:
        async with self._heartbeats(delivery):
            handled = await self._handler.handle(delivery.body, deliveries=delivery.deliveries)
            self._update_health(handled)
            if handled.disposition.action is Action.ACK:
                await self._publish_outcome(handled)
        await self._reply(delivery, handled.disposition)
        return handled.disposition.action

    @asynccontextmanager
    async def _heartbeats(self, delivery: Delivery) -> AsyncIterator[None]:
        heartbeats = Periodic(
            partial(_send_heartbeat, delivery),
            every=self._beat_every,
            first=self._beat_every,
            until=_is_cancelled,  # a broker's driver may swallow a cancellation
            failed=_heartbeat_failed,
            clock=self._clock,
        )
        task = asyncio.create_task(heartbeats.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _publish_outcome(self, handled: Handled) -> None:
        if handled.outcome is None:
            raise RuntimeError("a message without an outcome must not be acknowledged")
        try:
            await self._publish(handled.outcome, self._inject())
        except Exception as error:
            self.health.trouble("publishing", f"an outcome could not be published ({type(error).__name__})")
            raise
        self.health.well("publishing")

    async def _reply(self, delivery: Delivery, decided: Disposition) -> None:
        match decided.action:
            case Action.ACK:
                await delivery.ack()
            case Action.RETRY:
                log.info("a message will be redelivered in %.1f s: %s", decided.after, decided.reason)
                await delivery.retry(decided.after * (1 + JITTER * self._clock.chance()))
            case Action.DEAD_LETTER:
                log.warning("a message is dead-lettered: %s", decided.reason)
                await delivery.dead_letter(decided.reason)
            case Action.LEAVE:
                log.warning("a message is left to the broker's redelivery: %s", decided.reason)

    def _update_health(self, handled: Handled) -> None:
        decided = handled.disposition
        if isinstance(handled.result, JournalFailed):
            why = f"{decided.reason} ({handled.result})"
            if self.health.trouble("journal", why):
                log.warning("the journal cannot be used: %s", why)
        elif handled.key is not None and decided.action is Action.ACK:
            self.health.well("journal")
        if not decided.ready:
            self.health.trouble("service", decided.reason)
            self._resumes = self._clock.now() + decided.after
        # A result from the record proves nothing about the service.
        elif handled.asked and decided.action is Action.ACK:
            self.health.well("service")
            self._resumes = float("-inf")


async def _send_heartbeat(delivery: Delivery) -> None:
    try:
        await delivery.beat()
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        _heartbeat_failed(error)  # The broker's driver has cancelled one of its own tasks.


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _heartbeat_failed(error: BaseException) -> None:
    log.warning("a heartbeat failed (%s)", type(error).__name__)


# --- health ------------------------------------------------------------------------------------------
# Liveness and readiness, for the supervisor that starts and restarts the worker.


Check = Callable[[], Awaitable[object]]
"""Check one dependency, and raise if it does not work."""

CHECK_TIMEOUT = 2.0
"""Seconds that one check may take."""


class Health:
    """A worker's liveness and readiness: reported failures, and checks that run on request.

    Args:
        checks: run by `not_ready`; the name of each dependency and its check.
        patience: the timeout of each check, in seconds.
    """

    def __init__(self, checks: Mapping[str, Check] | None = None, *, patience: float = CHECK_TIMEOUT) -> None:
        self.checks: dict[str, Check] = dict(checks or {})
        self._timeout = patience
        self._reported: dict[str, str] = {}
        self._ended: str | None = None

    def trouble(self, what: str, why: str) -> bool:
        """Report that ``what`` fails. The worker is not ready until `well`. Return whether this is new."""
        before = self._reported.get(what)
        self._reported[what] = why
        return before != why

    def well(self, what: str) -> bool:
        """Report that ``what`` works. Return whether it had failed before."""
        return self._reported.pop(what, None) is not None

    def ended(self, why: str) -> None:
        """Report that the worker has ended, and must be restarted."""
        self._ended = why

    def not_live(self) -> list[str]:
        """Return why the worker has ended; empty while it runs."""
        return [] if self._ended is None else [self._ended]

    async def not_ready(self) -> list[str]:
        """Return why the worker cannot take a message now; empty if it can."""
        found = await asyncio.gather(*(self._run(name, check) for name, check in self.checks.items()))
        reported = [f"{what}: {why}" for what, why in self._reported.items()]
        return self.not_live() + reported + [failure for failure in found if failure is not None]

    async def _run(self, name: str, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._timeout):
                await check()
        except Exception as error:  # noqa: BLE001 - any error means that the check failed
            # The package's own errors contain no personal data; the text of others may.
            why = str(error) if isinstance(error, TransferError) else type(error).__name__
            return f"{name}: {why}"
        return None

    @asynccontextmanager
    async def served(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve ``GET /live`` and ``GET /ready``: 200, or 503 with the reasons. Yields the address.

        Raises:
            OSError: the host or port cannot be used.
        """
        from aiohttp import web  # takes 30 ms, and only workers serve

        app = web.Application()
        app.add_routes([web.get("/live", self._live), web.get("/ready", self._ready)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            url_host = f"[{host}]" if ":" in host else host
            yield f"http://{url_host}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _health_response("live", self.not_live())

    async def _ready(self, _: web.Request) -> web.Response:
        return _health_response("ready", await self.not_ready())


def _health_response(name: str, why: list[str]) -> web.Response:
    from aiohttp import web  # imported late, as in `Health.served`

    body = msgspec.json.encode({name: not why, "why": why})
    return web.Response(body=body, status=503 if why else 200, content_type="application/json")


# --- recovery -----------------------------------------------------------------------------------------


class Sweeper:
    """Run ``recover`` periodically, and publish every pending notification.

    Each worker may have one. Leases keep them from working on the same key at the same time. An outcome
    is published at least once.

    Args:
        handler: yields the pending notifications.
        publish: publishes an outcome, see `transfer_async.worker.consumer.Publish`.
        every: seconds between two sweeps; the first starts after a random share of them.
        health: records when the journal cannot be read or written, and when it can again.
        inject: returns headers for the outcomes.
        clock: time, sleeping and randomness; for tests.

    Raises:
        ValueError: ``every`` is not a duration above 0.
    """

    def __init__(
        self,
        handler: Handler,
        publish: Publish,
        *,
        every: Duration = 60.0,
        health: Health | None = None,
        inject: Inject | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._handler, self._publish = handler, publish
        self._health = health or Health()
        self._inject: Inject = inject or dict
        self._stopping = False
        self._sweeps = Periodic(
            self._sweep_and_report,
            every=positive_seconds("every", every),
            until=lambda: self._stopping,
            failed=self._failed,
            clock=clock or Clock(),
        )

    async def run(self) -> None:
        """Sweep periodically until `stop`. An error is logged, and the next sweep starts as usual."""
        await self._sweeps.run()

    async def _sweep_and_report(self) -> None:
        await self.sweep()
        self._health.well("journal")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, JournalFailed):
            self._health.trouble("journal", f"the periodic recovery failed ({error})")
            log.warning("the periodic recovery failed (%s: %s)", type(error).__name__, error)
        else:
            log.warning("the periodic recovery failed (%s)", type(error).__name__)

    async def sweep(self) -> RecoveryReport:
        """Recover once, then publish the pending notifications.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        try:
            context = context_of(self._handler.client)
            report = await Recovery(context, stop=lambda: self._stopping).run()
        except Exception:  # a key that fails must not delay the notifications of others
            await self._publish_pending()
            raise
        await self._publish_pending()
        return report

    async def _publish_pending(self) -> None:
        """Publish every pending notification; one that fails does not stop the others."""
        failed: Exception | None = None
        async for outcome in self._handler.untold():
            if self._stopping:
                break
            try:
                await self._publish(outcome, self._inject())
                await self._handler.told(outcome)
            except Exception as error:  # noqa: BLE001 - the first error is raised after all were tried
                failed = failed or error
        if failed is not None:
            raise failed

    async def stop(self, task: asyncio.Task[None], *, patience: float) -> None:
        """Let `run`, in ``task``, finish its current key, for at most ``patience`` seconds; then end it."""
        self._stopping = True
        if not self._sweeps.resting:
            await asyncio.wait([task], timeout=patience)
        task.cancel()
        await asyncio.wait([task])
