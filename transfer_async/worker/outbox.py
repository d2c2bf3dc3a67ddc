"""What a worker does beside its messages: it works off what is left over, and tells how doubts have ended."""

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
    """Runs ``recover`` now and then, and publishes every outcome that nobody was told of yet.

    Any number of workers may each have one: what one is at, the others leave alone, and an outcome is
    told at least once.

    Args:
        handler: knows what is still to be told.
        publish: publishes an outcome, see `transfer_async.worker.consumer.Publish`.
        every: seconds between two sweeps; the first comes after a random share of them.
        health: is told when the journal cannot be read or written, and when it can again.
        inject: headers for the outcomes.
        clock: time, waiting and chance; for tests.

    Raises:
        ValueError: ``every`` is no duration above 0.
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
            self._sweep_well,
            every=positive_seconds("every", every),
            until=lambda: self._stopping,
            failed=self._failed,
            clock=clock or Clock(),
        )

    async def run(self) -> None:
        """Sweep again and again, until `stop`; a sweep that fails is logged, and the next one goes on."""
        await self._sweeps.run()

    async def _sweep_well(self) -> None:
        await self.sweep()
        self._health.well("journal")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, JournalFailed):
            self._health.trouble("journal", f"it could not be swept ({error})")
            log.warning("a sweep failed (%s: %s)", type(error).__name__, error)
        else:
            log.warning("a sweep failed (%s)", type(error).__name__)

    async def sweep(self) -> RecoveryReport:
        """Sweep once: recover, then tell.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        try:
            context = context_of(self._handler.client)
            report = await Recovery(context, stop=lambda: self._stopping).run()
        except Exception:  # a key that cannot be worked off does not keep others from being told
            await self._tell()
            raise
        await self._tell()
        return report

    async def _tell(self) -> None:
        """Tell every end that is untold; one that cannot be published does not keep the others back."""
        failed: Exception | None = None
        async for outcome in self._handler.untold():
            if self._stopping:
                break
            try:
                await self._publish(outcome, self._inject())
                await self._handler.told(outcome)
            except Exception as error:  # noqa: BLE001 - the first is raised when all others were told
                failed = failed or error
        if failed is not None:
            raise failed

    async def stop(self, task: asyncio.Task[None], *, patience: float) -> None:
        """Let `run`, in ``task``, end with the key that it is at, or at the end of ``patience``."""
        self._stopping = True
        if not self._sweeps.resting:
            await asyncio.wait([task], timeout=patience)
        task.cancel()
        await asyncio.wait([task])
