"""A journal that fails just before a transition, and what follows for the call, the bank and the service."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from attrs import frozen

from tests.support.bank import SpiedJournal, World, new_order, refused_order
from transfer_async import JournalFailed
from transfer_async.journal import transitions
from transfer_async.journal.model import LEASE
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, Sandbox

BEFORE_THE_REQUEST = (Claim, transitions.MarkSending)


class Trouble(Protocol):
    """A temporary fault of a journal's store."""

    async def begin(self) -> None: ...

    async def end(self) -> None: ...


@frozen
class Struck:
    """A call whose journal failed just before one of its transitions. The fault has ended."""

    world: World
    error: JournalFailed
    requests: int

    async def recover(self) -> None:
        """Run `recover` as the next worker does after the lease has ended."""
        self.world.time.pass_(LEASE)
        async with self.world.client() as client:
            await client.recover()


@asynccontextmanager
async def stormy_world(make: Callable[[World], Journal]) -> AsyncIterator[World]:
    """Yield a world with a real journal that uses the world's time."""
    async with Sandbox() as sandbox:
        world = World(sandbox)
        journal = make(world)
        world.journal = SpiedJournal(journal)
        try:
            yield world
        finally:
            await journal.close()


async def struck(world: World, trouble: Trouble, at: type) -> Struck:
    """Start the fault just before a transition of the given kind. An earlier call is not affected."""
    async with world.client() as client:
        await client.create_order(new_order(), key="an earlier one")
        world.bank.open.clear()
        already = len(world.sandbox.requests)
        if at is transitions.GoInDoubt:
            world.sandbox.faults.add(CloseAfterProcessing())
        order = refused_order() if at is transitions.Release else new_order()
        world.journal.before[at] = lambda _: trouble.begin()
        try:
            error = await _failure(client.create_order(order, key="k"))
        finally:
            world.journal.before.clear()
            await trouble.end()
    return Struck(world, error, len(world.sandbox.requests) - already)


async def _failure(call: Any) -> JournalFailed:
    try:
        await call
    except JournalFailed as error:
        return error
    raise AssertionError("the call did not fail")
