"""Process one message: carry out its command, publish the outcome, then acknowledge the message.

This module works with any broker, given a `Delivery` and a function that publishes outcomes. A message is
acknowledged only after its outcome is published. If processing fails before the acknowledgement, the broker
redelivers the message, and the worker then reads the outcome from the journal.

===============  =====================================================================================
disposition      action
===============  =====================================================================================
``ACK``          publish the outcome; after the broker's confirmation, acknowledge the message
``RETRY``        request redelivery after the delay plus a random 0 to 50 % of it
``DEAD_LETTER``  store a copy with the reason; after the broker's confirmation, reject the message
``LEAVE``        send no reply: the broker redelivers the message by itself
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
from transfer_async.worker.handler import Action, Disposition, Handled, Handler

if TYPE_CHECKING:
    from aiohttp import web


Publish = Callable[[OrderOutcome, Mapping[str, str]], Awaitable[None]]
"""Publish an outcome with headers, and return after the broker's confirmation."""

Around = Callable[[Mapping[str, str]], AbstractContextManager[object]]
"""Return the context manager that surrounds the handling of a message with these headers, such as a span."""

Inject = Callable[[], Mapping[str, str]]
"""Return headers for an outcome, such as the trace context that ``Around`` opened."""


class Measure(Protocol):
    """Record one delivery that a worker has processed, for example as metrics."""

    def __call__(self, *, disposition: str, deliveries: int, seconds: float) -> object:
        """Record one delivery.

        Args:
            disposition: the value of the message's `Action`, or `FAILED` if processing it raised an error.
            deliveries: the number of deliveries of the message, including this one.
            seconds: the time from the delivery to the broker's confirmation.
        """


FAILED = "failed"
"""The disposition of a delivery whose processing raised an error. The broker redelivers the message."""

JITTER = 0.5
"""The maximum random addition to a delay, as a share of the delay.

It prevents messages that failed at the same time from being redelivered at the same time.
"""


class Delivery(Protocol):
    """A delivered message, and the worker's possible replies to the broker."""

    @property
    def body(self) -> bytes:
        """The message's body."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""

    @property
    def deliveries(self) -> int:
        """The number of deliveries of the message, including this one."""

    async def ack(self) -> None:
        """Acknowledge the message, and return after the broker's confirmation."""

    async def retry(self, after: float) -> None:
        """Request redelivery of the message in ``after`` seconds or later."""

    async def dead_letter(self, reason: str) -> None:
        """Store a copy of the message with ``reason``, and reject the message when the copy is confirmed."""

    async def beat(self) -> None:
        """Send a heartbeat, which prevents the broker from delivering the message to another worker."""


class Worker:
    """Processes messages. Each call to `take` processes one message. Calls may run concurrently.

    Args:
        handler: the object that carries out the commands.
        publish: a function that publishes an outcome; see `Publish`.
        beat_every: the seconds between two heartbeats for a message. The interval must be much shorter than
            the time after which the broker redelivers the message.
        health: the object that records failures and recoveries.
        around: a function that returns the context manager in which to process a message; see `Around`.
        inject: a function, called within ``around``, that returns the headers to add to the published
            outcome.
        measure: a function that records each processed delivery; see `Measure`.
        clock: the source of time, sleep and randomness, for tests. The event loop's clock always determines
            the time of a message's first heartbeat.

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
            asyncio.CancelledError: the call was cancelled; no further reply is sent to the broker.
        """
        began, disposition = self._clock.now(), FAILED
        try:
            with self._around(delivery.headers):
                disposition = (await self._process(delivery)).value
        except Exception as error:  # noqa: BLE001 - the worker must continue with the next message
            # The error's text and traceback may contain personal data.
            log.error(
                "processing a message failed; the message will be redelivered (%s)", type(error).__name__
            )
        self._record(delivery, disposition, seconds=self._clock.now() - began)

    def _record(self, delivery: Delivery, disposition: str, *, seconds: float) -> None:
        try:
            if self._measure is not None:
                self._measure(disposition=disposition, deliveries=delivery.deliveries, seconds=seconds)
        except Exception as error:  # noqa: BLE001 - the message was processed: it must not fail now
            log.warning(
                "the measurements of a processed message could not be recorded (%s)", type(error).__name__
            )

    async def ready(self) -> None:
        """Wait until the worker should take another message.

        If the last message showed that no command can succeed now, for example because the token has expired,
        wait for that message's delay. In the meantime, other messages stay in the broker's queue.
        """
        while self.pause > 0:
            await self._clock.sleep(self.pause)

    @property
    def pause(self) -> float:
        """The seconds until the worker should take another message; 0 if it should take one now."""
        return max(0.0, self._resumes - self._clock.now())

    async def _process(self, delivery: Delivery) -> Action:
        heartbeats = _Heartbeats(delivery, every=self._beat_every, clock=self._clock)
        try:
            handled = await self._handler.handle(delivery.body, deliveries=delivery.deliveries)
            self._update_health(handled)
            if handled.disposition.action is Action.ACK:
                await self._publish_outcome(handled)
        finally:
            await heartbeats.stop()
        await self._reply(delivery, handled.disposition)
        return handled.disposition.action

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
                log.warning("a message is left for the broker to redeliver: %s", decided.reason)

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
        # Without a request in this call, the result does not show that the service works.
        elif handled.asked and decided.action is Action.ACK:
            self.health.well("service")
            self._resumes = float("-inf")


class _Heartbeats:
    """Sends heartbeats for one message until `stop` is called.

    A timer starts the sending task only when the first heartbeat is due, because most messages are processed
    before that time.
    """

    def __init__(self, delivery: Delivery, *, every: float, clock: Clock) -> None:
        self._delivery, self._every, self._clock = delivery, every, clock
        self._timer = asyncio.get_running_loop().call_later(every, self._start)
        self._task: asyncio.Task[None] | None = None

    def _start(self) -> None:
        heartbeats = Periodic(
            partial(_send_heartbeat, self._delivery),
            every=self._every,
            first=0.0,
            until=_is_cancelled,  # a broker's driver may swallow a cancellation
            failed=_heartbeat_failed,
            clock=self._clock,
        )
        self._task = asyncio.create_task(heartbeats.run())

    async def stop(self) -> None:
        """Stop sending heartbeats, and wait for one that is being sent."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


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
# The liveness and readiness of a worker, for the supervisor that starts and restarts it.


Check = Callable[[], Awaitable[object]]
"""Check one dependency, such as the journal, and raise an error if it does not work."""

CHECK_TIMEOUT = 2.0
"""The timeout of one check, in seconds."""


class Health:
    """The liveness and readiness of a worker, based on recorded failures and on checks that run on request.

    Args:
        checks: for each dependency's name, a function that raises an error if the dependency does not work.
        patience: the timeout of each check, in seconds.
    """

    def __init__(self, checks: Mapping[str, Check] | None = None, *, patience: float = CHECK_TIMEOUT) -> None:
        self.checks: dict[str, Check] = dict(checks or {})
        self._timeout = patience
        self._reported: dict[str, str] = {}
        self._ended: str | None = None

    def trouble(self, what: str, why: str) -> bool:
        """Record that ``what`` is failing, and why. Return false if the failure was already recorded.

        The worker is not ready until `well` is called with the same ``what``.
        """
        before = self._reported.get(what)
        self._reported[what] = why
        return before != why

    def well(self, what: str) -> bool:
        """Remove the recorded failure of ``what``. Return whether there was one."""
        return self._reported.pop(what, None) is not None

    def ended(self, why: str) -> None:
        """Record why the worker has ended and must be restarted."""
        self._ended = why

    def not_live(self) -> list[str]:
        """Return the reason why the worker has ended, in a list that is empty while the worker runs."""
        return [] if self._ended is None else [self._ended]

    async def not_ready(self) -> list[str]:
        """Run the checks. Return the reasons why the worker cannot take a message now, if any."""
        found = await asyncio.gather(*(self._run(name, check) for name, check in self.checks.items()))
        reported = [f"{what}: {why}" for what, why in self._reported.items()]
        return self.not_live() + reported + [failure for failure in found if failure is not None]

    async def _run(self, name: str, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._timeout):
                await check()
        except Exception as error:  # noqa: BLE001 - any error means that the check failed
            # Errors of this package contain no personal data. Other errors may contain some.
            why = str(error) if isinstance(error, TransferError) else type(error).__name__
            return f"{name}: {why}"
        return None

    @asynccontextmanager
    async def served(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Run an HTTP server for health checks during the block, and yield its address.

        ``GET /live`` and ``GET /ready`` return status 200, or status 503 with the reasons.

        Args:
            host: the host name or IP address on which the server listens.
            port: the port on which the server listens; 0 lets the system choose a free port.

        Raises:
            OSError: the server cannot listen on the host and port.
        """
        from aiohttp import web  # The import takes 30 ms, and only workers need it.

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
    from aiohttp import web  # imported here for the same reason as in `Health.served`

    body = msgspec.json.encode({name: not why, "why": why})
    return web.Response(body=body, status=503 if why else 200, content_type="application/json")


# --- recovery -----------------------------------------------------------------------------------------


class Sweeper:
    """Periodically runs ``recover`` and then publishes all pending notifications.

    Every worker may run its own sweeper. Leases prevent two sweepers from working on the same key at the same
    time. Every outcome is published at least once.

    Args:
        handler: the object that yields the pending notifications.
        publish: a function that publishes an outcome; see `transfer_async.worker.consumer.Publish`.
        every: the seconds between two sweeps. The first sweep starts after a random fraction of ``every``.
        health: the object that records whether the journal can be read and written.
        inject: a function that returns the headers to add to published outcomes.
        clock: the source of time, sleep and randomness, for tests.

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
        """Sweep periodically until `stop` is called. If a sweep fails, log the error and continue."""
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
        """Run ``recover`` once, then publish the pending notifications.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        try:
            context = context_of(self._handler.client)
            report = await Recovery(context, stop=lambda: self._stopping).run()
        except Exception:  # A key that fails must not delay the notifications of other keys.
            await self._publish_pending()
            raise
        await self._publish_pending()
        return report

    async def _publish_pending(self) -> None:
        """Publish every pending notification.

        If an outcome cannot be published, publish all other outcomes, then raise the first error.
        """
        failed: Exception | None = None
        async for outcome in self._handler.untold():
            if self._stopping:
                break
            try:
                await self._publish(outcome, self._inject())
                await self._handler.told(outcome)
            except Exception as error:  # noqa: BLE001 - raised after all notifications were tried
                failed = failed or error
        if failed is not None:
            raise failed

    async def stop(self, task: asyncio.Task[None], *, patience: float) -> None:
        """Stop sweeping: wait at most ``patience`` seconds for the current key, then cancel ``task``.

        Args:
            task: the task that executes `run`.
            patience: the grace period in seconds.
        """
        self._stopping = True
        if not self._sweeps.resting:
            await asyncio.wait([task], timeout=patience)
        task.cancel()
        await asyncio.wait([task])
