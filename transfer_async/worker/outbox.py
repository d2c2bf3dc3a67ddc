"""A worker's background task: recover abandoned work, and publish how doubts ended."""

from __future__ import annotations

import asyncio

from transfer_async._client import context_of
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.recovery import Recovery, RecoveryReport
from transfer_async._support.clock import Clock, Duration, Periodic
from transfer_async._support.util import log, positive_seconds
from transfer_async.worker.consumer import Health, Inject, Publish
from transfer_async.worker.handler import Handler


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
