"""The world of one story: clock, database, service, bank and workers."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tests.simulation.bank import Bank, Step
from tests.simulation.chance import GAPS, Chance, Setting
from tests.simulation.journal import Database, WorkerJournal
from tests.simulation.loop import OUTSIDE, PROCESS, Process, VirtualLoop
from tests.simulation.service import ABANDONED_AFTER, SETTLE_AFTER, Service, SimulatedTransport
from tests.simulation.witness import RECORD, Record, Witness
from transfer_async import (
    Decision,
    Doubt,
    FundsHold,
    OrderRequest,
    OrderResult,
    Rate,
    RetryPolicy,
    Timeouts,
    TransferClient,
)
from transfer_async._converters.messages import OrderCommand, OrderOutcome
from transfer_async._models.errors import TransferError
from transfer_async._models.events import Event
from transfer_async._models.responses import Order
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.clock import Clock
from transfer_async.worker.handler import Handler

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
MOMENTS = (
    *("before", "before", "RenewLease", "MarkSending", "MarkSending", "Create", "GoInDoubt", "Release"),
    *("Refute", "Resolve", "MarkUndone", "undo"),
)
"""The steps before which a process may crash or freeze; some are more likely."""
PAUSES = (40.0, 350.0, 1000.0, 1800.0, 4000.0, 9000.0)
"""The seconds of a pause between the last check and the write. The last pause is longer than every wait."""

YEARS = 3e8
ADDRESS = "https://service.example"
POLICY, TIMEOUTS = RetryPolicy(), Timeouts()


class World:
    """All objects of one story."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.chance = Chance(seed)
        self.setting = Setting(self.chance)
        self.by_messages = Chance(f"messages {seed}").once_in(0.5)
        self.clocks = Chance(f"clocks {seed}")
        self.people = Chance(f"people {seed}")
        self.patience = Chance(f"patience {seed}")
        self.lateness = Chance(f"lateness {seed}")
        self.stopped_until = 0.0
        self.pauses = Chance(f"pauses {seed}")
        self.pause = self.pauses.one_of(PAUSES) if self.pauses.once_in(0.15) else 0.0
        pace = Chance(f"pace {seed}")
        self.rate = (
            Rate(pace.one_of((0.01, 0.1, 1.0)), burst=pace.one_of((1, 2))) if pace.once_in(0.2) else None
        )
        self.four_eyes = self.people.once_in(0.3)
        self.loop = VirtualLoop()
        self.trace: list[str] | None = [] if trace else None
        self.counts: Counter[str] = Counter()
        self.calm = False
        self.witness = Witness(self)
        self.database = Database(self)
        self.database.ahead = YEARS if self.clocks.once_in(0.2) else 0.0
        self.clock_is_set_back_after = self.clocks.one_of(GAPS) * (0.5 + self.clocks.random())
        self.service = Service(self)
        self.bank = Bank(self)
        self.clock = Clock(now=self.loop.time, utc=self.utc, sleep=self.sleep, chance=self.chance.random)
        self.desk = Worker(self, "desk", mortal=False)
        self.workers = [Worker(self, f"worker {n + 1}") for n in range(self.setting.workers)]

    def utc(self) -> datetime:
        return NOON + timedelta(seconds=self.loop.time())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def trouble(self, kind: str, share: float = 1.0) -> bool:
        """Return whether a failure of this kind happens now."""
        return not self.calm and self.chance.once_in(share * getattr(self.setting, kind))

    def hooks_at_work(self) -> list[str]:
        """Return the names of the hooks of the worker that runs now."""
        process = PROCESS.get()
        return [] if process is None else [hook.name for hook in process.client._context.hooks]

    def saw(self, what: str) -> None:
        self.counts[what] += 1

    def note(self, what: str) -> None:
        if self.trace is not None:
            process = PROCESS.get()
            self.trace.append(f"{self.loop.time():12.4f}  {process.name if process else '':<11} {what}")


class SimulatedClient(TransferClient):
    """A client with a simulated transport."""

    def __init__(self, world: World, token: str, **settings: Any) -> None:
        self._world = world
        super().__init__(ADDRESS, token, **settings)

    def _transport_to(self, *_: Any, **__: Any) -> Any:
        return SimulatedTransport(self._world)


class Worker:
    """A worker with its current process."""

    def __init__(self, world: World, name: str, *, mortal: bool = True) -> None:
        self.world, self.name, self.mortal = world, name, mortal
        self.lives = 0
        self.process: Any = None
        self._start()

    def _start(self) -> None:
        self.lives += 1
        fates = self._fates() if self.mortal else {}
        if self.mortal and self.world.pause and self.lives == 1:
            fates["write"] = self._pause
        self.process = Process(f"{self.name}.{self.lives}", fates)
        self._checks = self.world.setting.checks and not self._lacks_the_check()

    @property
    def client(self) -> Any:
        """Return the process's client, created on first use because many processes need none."""
        if self.process.client is None:
            self.process.client = self._made()
        return self.process.client

    def _made(self) -> TransferClient:
        world, setting = self.world, self.world.setting
        hold = Step(world, "hold")
        return SimulatedClient(
            world,
            world.bank.token if setting.token else "secret",
            hooks=[
                *([world.bank.screening] if setting.screens else []),
                *([Step(world, "check")] if self._checks else []),
                FundsHold(hold.before, hold.undo, name="hold"),
            ],
            journal=WorkerJournal(world),
            clock=world.clock,
            resolve=None if setting.resolve == "none" else world.bank.resolve,
            settle_after=SETTLE_AFTER,
            abandoned_settle_after=ABANDONED_AFTER,
            retry=POLICY,
            timeouts=TIMEOUTS,
            rate=world.rate,
            observers=[self._saw],
            four_eyes=world.four_eyes and self.name == "desk",
        )

    def _lacks_the_check(self) -> bool:
        return self.mortal and self.world.setting.releases and self.world.chance.once_in(0.5)

    def _fates(self) -> dict[int, Any]:
        chance, setting = self.world.chance, self.world.setting
        fates: dict[int | str, Any] = {}
        for rate, fate in ((setting.freeze, self._freeze), (setting.crash, self._crash)):
            if chance.once_in(rate):
                fates[int(60 * chance.random())] = fate
            if chance.once_in(rate):
                fates[chance.one_of(MOMENTS)] = fate
        return fates

    def _crash(self, process: Process) -> None:
        self.world.note(f"{process.name} crashes")
        self.world.saw("crash")
        process.dead = True

    def _freeze(self, process: Process) -> None:
        world = self.world
        seconds = world.chance.one_of((1.0, 70.0, 200.0, 400.0, 400.0, 1200.0)) * (
            0.5 + world.chance.random()
        )
        self._stop(process, seconds)
        world.saw("freeze")

    def _pause(self, process: Process) -> None:
        """Pause once in a story between the last check and the write, while others recover."""
        world, seconds = self.world, self.world.pause
        if not seconds:
            return
        world.pause = 0.0
        self._stop(process, seconds)
        world.saw("paused before the write")
        for after in (400.0, 2000.0, ABANDONED_AFTER + 500.0, ABANDONED_AFTER + 1000.0):
            world.loop.call_later(after, world.desk.recover, context=OUTSIDE)

    def _stop(self, process: Process, seconds: float) -> None:
        self.world.note(f"{process.name} freezes for {seconds:g} s")
        process.frozen = True
        self.world.stopped_until = max(
            self.world.stopped_until, self.world.loop.time() + seconds + 2 * SETTLE_AFTER
        )
        self.world.loop.call_later(seconds, self._thaw, process, context=OUTSIDE)

    def _thaw(self, process: Process) -> None:
        self.world.note(f"{process.name} goes on")
        process.frozen = False
        process.thawed_at = self.world.loop.time()
        parked, process.parked = process.parked, []
        self.world.loop.again(parked)

    def _saw(self, event: Event) -> None:
        record = RECORD.get()
        if record is not None:
            self.world.witness.event(record, event)

    # --- what it is asked to do -----------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any], record: Record | None = None) -> "asyncio.Task[Any]":
        """Start ``work`` in the worker's process. Restart a dead worker first."""
        context = Context()
        context.run(PROCESS.set, self.process)
        context.run(RECORD.set, record)
        return self.world.loop.create_task(work, context=context)

    def alive(self) -> "Worker":
        if self.process.dead or (self.process.client is not None and self.client._closed):
            self._start()
        return self

    def deliver(self, record: Record, send_before: float | None) -> "asyncio.Task[Any]":
        self.alive()
        limit = None if send_before is None else self.world.utc() + timedelta(seconds=send_before)
        self.world.witness.records.append(record)
        return self.run(self._call(self.client, record, limit), record)

    async def _call(self, client: TransferClient, record: Record, limit: datetime | None) -> None:
        outcome, deadline = None, self._moment(record.deadline)
        try:
            arguments = {"key": record.key, "beneficiary": record.beneficiary, "held": record.held}
            arguments |= {"send_before": limit, "deadline": deadline}
            if self.world.by_messages and record.key is not None:
                outcome = await self._handle(client, record, arguments)
            elif self.world.lateness.once_in(0.15):
                await self._take_late(client, record, arguments)
            else:
                record.order = await client.create_order(record.wish, **arguments)
        except asyncio.CancelledError:
            self.world.saw("cancelled")
            raise
        except Exception as error:
            if not self.world.loop.running:  # the coroutine belongs to a dead process
                raise
            record.error = error
        record.key = record.key or getattr(record.error, "key", None) or self._key_of(record)
        self.world.witness.call_ended(record)
        if outcome is not None:
            self.world.witness.publishing(record, outcome)
            await self._publish(outcome)

    async def _take_late(self, client: TransferClient, record: Record, arguments: Any) -> None:
        """Run two orders of a batch. One result may wait while the other is stored."""
        world, wish = self.world, OrderRequest(record.wish, **arguments)
        requests = [OrderRequest(cast("Any", None)), wish]
        taken: OrderResult | None = None
        async with aclosing(client.create_orders(requests)) as results:
            async for result in results:
                if result.request is wish:
                    taken = result
                    break
                world.saw("result taken late")
                await world.sleep(100.0 * world.lateness.random())
        if taken is not None:
            record.order, record.error = taken.order, taken.error

    async def _handle(self, client: TransferClient, record: Record, arguments: Any) -> OrderOutcome | None:
        """Handle a message, which may have been delivered before."""
        handled = await Handler(client).handle(OrderCommand(order=record.wish, **arguments))
        if isinstance(handled.result, Order):
            record.order = handled.result
        else:
            record.error = handled.result
        return handled.outcome

    def _moment(self, when: float) -> datetime | None:
        return None if when == float("inf") else NOON + timedelta(seconds=when)

    async def _publish(self, outcome: OrderOutcome) -> None:
        await self.world.sleep(self.world.chance.latency())
        self.world.witness.published(outcome)

    def _key_of(self, record: Record) -> str | None:
        entries = self.world.database.entries.items()
        return next((key for key, entry in entries if entry.intent_id == record.intent_id), None)

    def recover(self) -> "asyncio.Task[Any]":
        return self.alive().run(self._recover(self.client))

    async def _recover(self, client: TransferClient) -> RecoveryReport | None:
        self.world.note("recovers")
        try:
            report = await client.recover()
        except TransferError as error:
            self.world.note(f"recovery ends with {error!r}")
            return None
        self.world.note(repr(report))
        self.world.counts["owed paid"] += report.released
        if self.world.by_messages:
            await self._tell(Handler(client))
        return report

    async def _tell(self, handler: Handler) -> None:
        with suppress(TransferError):  # the journal failed; the next run publishes the outcome
            async for outcome in handler.untold():
                self.world.saw("end of a doubt published")
                await self._publish(outcome)
                await handler.told(outcome)

    def look_into_doubts(self) -> "asyncio.Task[Any]":
        return self.alive().run(self._look_into_doubts(self.client))

    async def _look_into_doubts(self, client: TransferClient) -> None:
        """Let an operator decide doubts: resolve if an order exists, refute when none can appear any more."""
        world = self.world
        details = {"by": "operator", "reason": "looked"}
        # The journal is down, it is too early, or another person was faster.
        with suppress(TransferError, ValueError):
            for doubt in await client.in_doubt():
                seen = world.service.order_of(doubt.intent_id)
                is_stopped = not doubt.sender_reported and world.loop.time() < world.stopped_until
                # For a stopped process, the person waits longer.
                wait = ABANDONED_AFTER if is_stopped else SETTLE_AFTER
                if seen is None and world.utc() <= doubt.sent_until + timedelta(seconds=wait):
                    continue
                if world.four_eyes and not world.people.once_in(0.2):
                    await self._by_two(client, doubt, None if seen is None else seen.id)
                elif seen is not None:
                    await client.resolve(doubt.key, order_id=seen.id, **details)
                else:
                    await client.refute(doubt.key, **details)
                world.saw("operator decided")

    async def _by_two(self, client: TransferClient, doubt: Doubt, order_id: str | None) -> None:
        """Let a person propose a decision, or approve another person's proposal."""
        world, desk = self.world, client.operators
        details = {"by": world.people.one_of(("ada", "ben")), "reason": "looked"}
        wanted = Decision.REFUTE if order_id is None else Decision.RESOLVE
        proposal = doubt.proposal
        if proposal is None or (proposal.decision, proposal.order_id) != (wanted, order_id):
            await desk.propose(doubt.key, wanted, order_id=order_id, **details)
            return
        await world.sleep(world.people.one_of(GAPS) * world.people.random())
        await desk.approve(doubt.key, proposal=proposal.id, **details)
        world.saw("approved")

    def close(self, timeout: float) -> None:
        self.world.saw("close")
        self.world.note(f"{self.name} closes its client")
        self.run(self.client.close(timeout=timeout))
