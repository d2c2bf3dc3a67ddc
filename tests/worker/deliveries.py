"""A message, a handler and a publisher that record their steps in one log and can be made to fail."""

import asyncio

from attrs import define, field

from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import Outcome
from transfer_async.worker.handler import Action, Handled, disposition


@define
class Log:
    """Records steps in order. A step raises the error that ``before`` or ``after`` has for it."""

    steps: list = field(factory=list)
    before: dict = field(factory=dict)
    after: dict = field(factory=dict)
    gates: dict = field(factory=dict)

    async def step(self, name, *more):
        if name in self.gates:
            await self.gates[name]()
        if name in self.before:
            raise self.before[name]
        self.steps.append((name, *more) if more else name)
        if name in self.after:
            raise self.after[name]

    @property
    def names(self):
        return [step if isinstance(step, str) else step[0] for step in self.steps]


@define
class FakeDelivery:
    log: Log
    body: bytes = b"a command"
    headers: dict = field(factory=dict)
    deliveries: int = 1

    async def ack(self):
        await self.log.step("ack")

    async def retry(self, after):
        await self.log.step("retry", after)

    async def dead_letter(self, reason):
        await self.log.step("dead_letter", reason)

    async def beat(self):
        await self.log.step("beat")


@define
class FakeHandler:
    """A handler that returns the disposition of the result that the test sets."""

    log: Log
    result: object
    asked: bool = True
    outcome: object = OrderOutcome(
        key="k", intent_id="i", outcome=Outcome.CREATED, order_may_exist=True, order_id="tx-1"
    )

    async def handle(self, command, *, deliveries=1):
        await self.log.step("handle")
        decided = disposition(self.result, deliveries=deliveries)
        outcome = self.outcome if decided.action is Action.ACK else None
        return Handled(disposition=decided, outcome=outcome, key="k", result=self.result, asked=self.asked)


@define
class FakePublisher:
    log: Log
    headers: list = field(factory=list)

    async def __call__(self, outcome, headers):
        await self.log.step("publish")
        self.headers.append(headers)


class Beats:
    """A sleep function for heartbeats, whose waits end when the test says so."""

    def __init__(self):
        self.asked = []
        self._waiting = asyncio.Queue()

    async def sleep(self, seconds):
        self.asked.append(seconds)
        passed = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(passed)
        await passed

    async def pass_(self):
        """End the next wait as soon as there is one."""
        while (waiting := await self._waiting.get()).done():
            pass  # skip the heartbeats of an earlier message
        waiting.set_result(None)
