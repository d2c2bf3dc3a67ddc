"""The story of a seed: deliveries, recoveries, closings and cancellations, followed by the final checks."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from unittest.mock import patch

from attrs import frozen

from tests.simulation import invariants
from tests.simulation.chance import GAPS
from tests.simulation.loop import OUTSIDE
from tests.simulation.service import OTHER_WISH, WISH
from tests.simulation.witness import Record
from tests.simulation.world import Worker, World
from transfer_async._pipeline import call
from transfer_async.journal.model import LONGEST_LEASE

LONG = LONGEST_LEASE + 1500.0  # seconds; longer than every lease, claim and doubt, even with a wrong clock


@frozen
class TransitionResult:
    """The result of a seed: the broken invariants, the event counts and, if requested, the trace."""

    seed: int
    broken: tuple[str, ...]
    counts: Counter[str]
    trace: tuple[str, ...]


@contextmanager
def _staged() -> Iterator[None]:
    """Let ids ascend, so that a trace is reproducible, and log nothing."""
    log = logging.getLogger("transfer_async")
    numbers = count(1)
    with patch.object(call, "fresh_id", lambda: f"id-{next(numbers)}"), patch.object(log, "disabled", True):
        yield


def tell(seed: int, *, trace: bool = False) -> TransitionResult:
    """Run one story and return its result."""
    with _staged():
        return _run(World(seed, trace=trace), seed)


def _run(world: World, seed: int) -> TransitionResult:
    world.note(repr(vars(world.setting)))
    _begin(world)
    ends = world.loop.run()
    world.calm = True
    healthy = Worker(world, "healthy", mortal=False)
    for _ in range(2):
        ends = ends and _settle(world, healthy)
    _recover_once_more(world, healthy)
    if not ends:
        world.witness.check("the story has no end")
    for invariant in invariants.IN_THE_END:
        for found in invariant(world):
            world.witness.check(found)
    for found in invariants.what_nobody_could_prevent_is_detected(world):
        world.witness.detected(found)
    world.loop.bury()
    return TransitionResult(seed, tuple(world.witness.broken), world.counts, tuple(world.trace or ()))


def _begin(world: World) -> None:
    """Schedule the actions of callers and operators."""
    chance, loop, when = world.chance, world.loop, world.loop.time()
    if world.database.ahead:
        loop.call_at(when + world.clock_is_set_back_after, world.database.set_back, context=OUTSIDE)
    for _ in range(2 + int(4 * chance.random())):
        when += chance.one_of(GAPS) * (0.5 + chance.random())
        loop.call_at(when, _deliver, world, context=OUTSIDE)
        if chance.once_in(0.4):
            after = when + chance.one_of(GAPS)
            loop.call_at(after, _recover, world, context=OUTSIDE)
        if chance.once_in(0.1):
            loop.call_at(when + chance.one_of(GAPS), world.desk.look_into_doubts, context=OUTSIDE)
        if chance.once_in(0.05):
            loop.call_at(when + chance.latency(), _close, world, context=OUTSIDE)
    if world.four_eyes:
        for _ in range(6):
            looked = when * world.people.random() + 2.0 * world.people.one_of(GAPS)
            loop.call_at(max(looked, loop.time()), world.desk.look_into_doubts, context=OUTSIDE)


def _deliver(world: World) -> None:
    chance = world.chance
    record = Record(
        key=chance.one_of(world.setting.keys),
        wish=OTHER_WISH if chance.once_in(0.05) else WISH,
        beneficiary=chance.one_of(world.setting.named),
        held=f"reference {len(world.witness.records)}" if chance.once_in(0.1) else None,
    )
    world.note(f"{record.key} is delivered")
    send_before = 40.0 * chance.random() if chance.once_in(0.1) else None
    if world.patience.once_in(0.2):
        record.deadline = world.loop.time() + world.patience.one_of((0.0, 0.5, 5.0, 40.0, 200.0)) * (
            2.0 * world.patience.random()
        )
    task = chance.one_of(world.workers).deliver(record, send_before)
    if chance.once_in(0.1):
        after = chance.one_of((chance.latency(), 2.0, 30.0)) * chance.random()
        world.loop.call_later(after, task.cancel, context=OUTSIDE)
    if chance.once_in(0.2):  # deliver the same message to any worker at the same time
        again = Record(key=record.key, wish=record.wish, beneficiary=record.beneficiary)
        chance.one_of(world.workers).deliver(again, None)


def _recover(world: World) -> None:
    task = world.chance.one_of(world.workers).recover()
    if world.chance.once_in(0.1):
        world.loop.call_later(world.chance.latency(), task.cancel, context=OUTSIDE)


def _close(world: World) -> None:
    worker = world.chance.one_of(world.workers)
    if not worker.process.dead and not worker.client._closed:
        worker.close(world.chance.one_of((0.0, 1.0, 35.0)))


def _recover_once_more(world: World, healthy: Worker) -> None:
    """Run one more recovery, which publishes the ends of the doubts caused by the last deliveries."""
    world.loop.call_soon(healthy.recover, context=OUTSIDE)
    world.loop.run()


def _settle(world: World, healthy: Worker) -> bool:
    """After the last fault, let a healthy worker recover, and deliver each key once more."""
    world.note("--- calm ---")
    world.loop.pass_(LONG)
    world.loop.call_soon(healthy.recover, context=OUTSIDE)
    ends = world.loop.run()
    world.loop.pass_(LONG)
    for key in dict.fromkeys(world.setting.keys):
        if key is not None:
            record = Record(key=key, wish=WISH, beneficiary=world.setting.named[0])
            world.loop.call_soon(healthy.deliver, record, None, context=OUTSIDE)
    return world.loop.run() and ends
